"""Which groups of weights have no scale together: every set of powers that they can be scaled by.

The same walk and the same rules as for `check`, under an algebra that leaves the powers open (`_forms.py`).
"""

from __future__ import annotations

from isogon.symmetry.groups._powers_text import scaling_text
from isogon.symmetry.groups._scalings import Part
from isogon.symmetry.groups._symmetries import Symmetries, symmetries

__all__ = ["Part", "Symmetries", "scaling_text", "symmetries"]
