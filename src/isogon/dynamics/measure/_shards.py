"""Weights of which each process holds a part: DTensor, as FSDP2 and tensor parallelism make them.

Every process sums over its own part, and one all-reduce of the sums, a few numbers per tensor, gives those of the whole
weight. It is made where all processes are at the same place, inside the optimizer's step, and nobody waits for it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from isogon.errors import ArgumentError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def refuse_flat_shards(model: nn.Module, optimizers: Sequence[Any]) -> None:
    """Refuse what keeps the weights of several layers in one flat array, in which no layer can be found."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is not None and any(isinstance(module, fsdp.FullyShardedDataParallel) for module in model.modules()):
        raise ArgumentError(
            "model",
            "sharded by fully_shard (FSDP2), if at all",
            "a FullyShardedDataParallel, whose flat parameters join several layers",
            "call torch.distributed.fsdp.fully_shard(model) instead",
        )
    # accelerate wraps its optimizers, in a module of that name or round one of them.
    wrapped = [getattr(optimizer, "optimizer", None) for optimizer in optimizers]
    makers = {name for part in (model, *optimizers, *wrapped) for name in type(part).__module__.split(".")}
    if "deepspeed" in makers or any(hasattr(p, "ds_id") for p in model.parameters()):
        raise ArgumentError(
            "optimizer",
            "one whose parameters are the layers' own",
            "DeepSpeed's, whose ZeRO keeps them in flat partitions",
            "shard with fully_shard (FSDP2), or measure a run without ZeRO",
        )


def is_sharded(parameter: torch.Tensor) -> bool:
    """Whether other processes hold parts of it."""
    return bool(shard_groups(parameter))


def shard_groups(parameter: torch.Tensor) -> tuple[ProcessGroup, ...]:
    """The process groups over which parts of `parameter` are spread; none for one that each process has whole."""
    mesh, placements = getattr(parameter, "device_mesh", None), getattr(parameter, "placements", ())
    if mesh is None:
        return ()
    return tuple(mesh.get_group(dim) for dim, placement in enumerate(placements) if placement.is_shard())


@torch.no_grad()
def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """What this process holds of it: in the same memory, so that it changes with it."""
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()


def add_up(table: torch.Tensor, groups: Sequence[ProcessGroup]) -> torch.Tensor:
    """The sums over all parts, in place, on every process."""
    for group in groups:
        torch.distributed.all_reduce(table, group=group)
    return table
