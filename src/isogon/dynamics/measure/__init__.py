"""From hooks to numbers: what is summed at a measured step, by parameter, then joined to layers and over processes."""

from __future__ import annotations

from isogon.dynamics.measure._layers import Watched, check_model, choose, trained_parameters
from isogon.dynamics.measure._merge import Chunk, Part, merge_parts
from isogon.dynamics.measure._optimizer_state import Settings
from isogon.dynamics.measure._sums import chunk_places
from isogon.dynamics.measure._watch import ParametersChangedError, Watch

__all__ = [
    "Chunk",
    "ParametersChangedError",
    "Part",
    "Settings",
    "Watch",
    "Watched",
    "check_model",
    "choose",
    "chunk_places",
    "merge_parts",
    "trained_parameters",
]
