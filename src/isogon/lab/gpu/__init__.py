"""Several trainings side by side on one GPU: recorded steps, lanes, fused kernels."""

from __future__ import annotations

from isogon.lab.gpu._lanes import AT_ONCE, lanes

__all__ = ["AT_ONCE", "lanes"]
