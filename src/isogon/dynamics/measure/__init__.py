"""From hooks to numbers: what is summed at a measured step, by parameter, then joined to layers and over processes."""

from __future__ import annotations

from isogon.dynamics.measure._layers import ALL, Watched, check_model, choose, trained_parameters
from isogon.dynamics.measure._merge import Chunk, WatchPart, merge_parts
from isogon.dynamics.measure._optimizer_state import Settings, describe_difference, group_settings, optimizer_kind
from isogon.dynamics.measure._shards import is_sharded, refuse_flat_shards, shard_groups
from isogon.dynamics.measure._sums import chunk_places
from isogon.dynamics.measure._watch import ParametersChangedError, Watch

__all__ = [
    "ALL",
    "Chunk",
    "ParametersChangedError",
    "WatchPart",
    "Settings",
    "Watch",
    "Watched",
    "check_model",
    "choose",
    "chunk_places",
    "describe_difference",
    "group_settings",
    "is_sharded",
    "merge_parts",
    "optimizer_kind",
    "refuse_flat_shards",
    "shard_groups",
    "trained_parameters",
]
