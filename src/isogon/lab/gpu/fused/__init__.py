"""Kernels that put several operations of a training step into one, for CUDA graphs of whole steps.

Each module has one operation, written in Triton, and names the ordinary operations that it replaces; it is tested
against those. Nothing here is imported unless a lane is about to be recorded on a CUDA device.
"""

from __future__ import annotations

from isogon.lab.gpu.fused._step import FusedStep

__all__ = ["FusedStep"]
