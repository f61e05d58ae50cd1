"""Which GPU the next worker works on: all that are visible, each with its share of the workers.

A worker is a process that sees its own GPU alone, by CUDA_VISIBLE_DEVICES, so that `cuda` means that one in it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from isogon.errors import IsogonError

#: what tells a process which GPUs there are
VISIBLE = "CUDA_VISIBLE_DEVICES"
#: workers that a GPU may lose in a row before it counts as dead
MOST_LOST = 2


class DeviceLostError(IsogonError):
    """A GPU no longer computes for this process; another process, or another GPU, may go on."""


def gpus(device: str) -> tuple[str, ...]:
    """The GPUs among which work for `device` is shared, as a process is told of them; none where there is one at most.

    `cuda` means all of them, `cuda:1` that one alone.
    """
    if device != "cuda" or torch.cuda.device_count() < 2:
        return ()
    return visible_names(torch.cuda.device_count(), os.environ.get(VISIBLE))


def visible_names(count: int, visible: str | None) -> tuple[str, ...]:
    """The names of `count` GPUs, where the environment may have left some out.

    >>> visible_names(2, None), visible_names(2, "3, 5"), visible_names(1, "GPU-8f2c")
    (('0', '1'), ('3', '5'), ('GPU-8f2c',))
    """
    names = [name.strip() for name in (visible or "").split(",") if name.strip()]
    return tuple((names or [str(number) for number in range(count)])[:count])


@dataclass
class Placement:
    """Where workers are and where the next one goes; `places` may name a GPU twice, and then are two.

    >>> placement = Placement(("0", "1"), workers=3)
    >>> [placement.take() for _ in range(4)]
    ['0', '1', '0', None]
    >>> placement.release("1")
    >>> placement.take()
    '1'
    """

    places: Sequence[str]
    workers: int
    busy: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)

    @property
    def alive(self) -> list[str]:
        return [place for place in dict.fromkeys(self.places) if self.lost[place] < MOST_LOST]

    def take(self) -> str | None:
        """A place with room, the one with the least to do; None where all are full."""
        if not self.places:
            return ""
        if not self.alive:
            raise DeviceLostError(
                f"Every GPU ({', '.join(dict.fromkeys(self.places))}) has lost its workers {MOST_LOST} times in a row: "
                "look at nvidia-smi; the same command resumes."
            )
        room = {place: self._share(place) - self.busy[place] for place in self.alive}
        free = [place for place, left in room.items() if left > 0]
        if not free or self.busy.total() >= self.workers:
            return None
        place = max(free, key=lambda place: room[place])
        self.busy[place] += 1
        return place

    def _share(self, place: str) -> int:
        """Workers that a place may have: as many more as it is named more often."""
        named = [name for name in self.places if name in self.alive]
        return -(-self.workers * named.count(place) // len(named))

    def release(self, place: str, *, lost: bool = False) -> None:
        """A worker there has ended its job, or has `lost` its GPU."""
        if place:
            self.busy[place] -= 1
            self.lost[place] = self.lost[place] + 1 if lost else 0


def lost_device(error: BaseException) -> bool:
    """Whether it is an error after which this process can no longer use its GPU; too little memory is none."""
    return isinstance(error, torch.AcceleratorError) and not isinstance(error, torch.OutOfMemoryError)
