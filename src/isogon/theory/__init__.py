"""The mathematics of the four papers in floats and numpy; nothing here needs torch."""

from isogon.theory import diffusion, equilibrium, maps, motion
from isogon.theory.motion import Motion, law

__all__ = ["Motion", "diffusion", "equilibrium", "law", "maps", "motion"]
