"""Which GPU the next worker works on: all that are visible, each with its share of the workers.

A worker is a process that sees its own GPU alone, by CUDA_VISIBLE_DEVICES, so that `cuda` means that one in it.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field

import torch

from isogon.errors import IsogonError, first_line

#: what tells a process which GPUs there are
VISIBLE = "CUDA_VISIBLE_DEVICES"
#: different jobs whose workers a GPU may lose in a row before it counts as dead
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
    #: place → the jobs whose workers it lost since one ended well there
    lost: defaultdict[str, set[Hashable]] = field(default_factory=lambda: defaultdict(set))
    #: why the last one was lost
    reason: str = ""

    @property
    def alive(self) -> list[str]:
        return [place for place in dict.fromkeys(self.places) if len(self.lost[place]) < MOST_LOST]

    def take(self, avoid: Collection[str] = ()) -> str | None:
        """A place with room, the one with the least to do; None where all are full.

        One of `avoid` is taken only where no other is alive.
        """
        if not self.places:
            return ""
        alive = self.alive
        if not alive:
            raise DeviceLostError(
                f"Every GPU ({', '.join(dict.fromkeys(self.places))}) has lost the workers of {MOST_LOST} jobs in a row"
                f"{f' ({self.reason})' if self.reason else ''}: look at nvidia-smi, and at what they have in common; "
                "the same command resumes."
            )
        welcome = [place for place in alive if place not in avoid] or alive
        room = {place: self._share(place, alive) - self.busy[place] for place in welcome}
        place = max(room, key=lambda place: room[place])
        if room[place] <= 0 or self.busy.total() >= self.workers:
            return None
        self.busy[place] += 1
        return place

    def _share(self, place: str, alive: Sequence[str]) -> int:
        """Workers that a place may have: as many more as it is named more often."""
        named = [name for name in self.places if name in alive]
        return -(-self.workers * named.count(place) // len(named))

    def release(self, place: str) -> None:
        """A worker there has nothing to do any more."""
        if place:
            self.busy[place] -= 1

    def succeed(self, place: str) -> None:
        """A job has ended there: what was lost before was not the GPU's fault, or it has recovered."""
        self.lost[place].clear()

    def lose(self, place: str, job: Hashable, reason: str) -> None:
        """The worker of `job` could no longer use the GPU there."""
        if place:
            self.lost[place].add(job)
            self.reason = reason


def refuse_lost_device(error: Exception) -> None:
    """Let the worker end where its GPU is gone: another one does the job, and the run is not at fault."""
    if lost_device(error):
        raise DeviceLostError(f"the GPU is lost ({first_line(error)})") from error


def lost_device(error: BaseException) -> bool:
    """Whether it is an error after which this process can no longer use its GPU; too little memory is none."""
    return isinstance(error, torch.AcceleratorError) and not isinstance(error, torch.OutOfMemoryError)
