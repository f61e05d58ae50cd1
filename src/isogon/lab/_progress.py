"""Progress for people: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from isogon.errors import last_line

if TYPE_CHECKING:
    from isogon.lab.engines import News, TrainingEnded
    from isogon.lab.run import Config

#: runs that a terminal shows at once, each in a line
MOST_SHOWN = 7
# Epochs may take minutes; the time left is estimated from those of the last hour.
_MEMORY = 3600.0
_FINGERPRINT = re.compile("[0-9a-f]{8}")


def make_bar(console: Console) -> Progress:
    """A bar with a count, the time gone and the time left, and a text about the last thing done."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[text]}", markup=False),
        console=console,
        speed_estimate_period=_MEMORY,
    )


@contextmanager
def bar_of_epochs(config: Config, done: int, *, shown: bool) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """A function to call after each epoch; it moves a bar on a terminal and does nothing elsewhere."""
    console = Console(stderr=True)
    if not shown or not console.is_terminal:
        yield lambda row: None
        return
    with make_bar(console) as bars:
        task = bars.add_task(config.name, total=config.epochs, completed=done, text="")

        def advance(row: Mapping[str, Any]) -> None:
            bars.update(task, advance=1, text=summarise_row(row))

        yield advance


def summarise_row(row: Mapping[str, Any]) -> str:
    """A row of the table of epochs in short.

    >>> summarise_row({"train_loss": 0.51, "test_accuracy": 0.8123})
    'loss 0.510, test 81.2 %'
    """
    tested = _per_cent(row["test_accuracy"])
    return f"loss {row['train_loss']:.3f}" + (f", test {tested}" if tested else "")


@contextmanager
def bar_of_runs(waiting: Sequence[Config], *, done: int, shown: bool) -> Iterator[News]:
    """A function to call with the events of `run_all`: see `Board`."""
    from isogon.lab.engines import TrainingEpoch  # which imports this module

    last: dict[Config, Mapping[str, Any]] = {}
    with board_of({config.name: config.epochs for config in waiting}, done=done, shown=shown) as board:

        def show(event: TrainingEpoch | TrainingEnded) -> None:
            config = event.config
            if isinstance(event, TrainingEpoch):
                last[config] = event.row
                board.epoch(config.name, event.row["epoch"] + 1, _per_cent(event.row["test_accuracy"]))
            elif event.run.status == "finished" and config in last:
                accuracy = last[config]["test_accuracy"]
                board.end(config.name, summarise_row(last[config]), best=(accuracy, _per_cent(accuracy)))
            else:
                board.end(config.name, event.run.error or event.run.status)

        yield show


def _per_cent(accuracy: float) -> str:
    """Nothing for an epoch that was not tested."""
    return "" if math.isnan(accuracy) else f"{100 * accuracy:.1f} %"


@contextmanager
def board_of(epochs: Mapping[str, int], *, done: int, shown: bool) -> Iterator[Board]:
    """A board for runs with these names and numbers of epochs; `done` others, of an earlier call, are counted too."""
    console = Console(stderr=True)
    if not shown or not epochs:
        yield Board(epochs, done, None, None)
    elif not console.is_terminal:
        yield Board(epochs, done, console, None)
    else:
        with make_bar(console) as bars:
            yield Board(epochs, done, console, bars)


class Board:
    """What people see of many runs: a line when one ends; on a terminal also how far all are, and each that runs.

    The first bar counts epochs, since runs differ in length, and names the best accuracy of those that finished.
    """

    def __init__(self, epochs: Mapping[str, int], done: int, console: Console | None, bars: Progress | None) -> None:
        self._epochs, self._done, self._console, self._bars = dict(epochs), done, console, bars
        self._labels = _short_names(list(epochs))
        self._passed = dict.fromkeys(epochs, 0)
        self._ended: set[str] = set()
        self._best: tuple[float, str] | None = None
        self._lines: dict[str, TaskID] = {}
        if bars is not None:
            self._total = bars.add_task(self._count, total=sum(epochs.values()), text="")

    def epoch(self, name: str, passed: int, accuracy: str) -> None:
        """A run has had `passed` epochs."""
        self._passed[name] = passed
        if self._bars is None:
            return
        if name not in self._lines:
            self._lines[name] = self._bars.add_task(self._labels[name], total=self._epochs[name], text="")
        self._bars.update(self._lines[name], completed=passed, text=accuracy)
        self._draw()

    def end(self, name: str, message: str, *, best: tuple[float, str] | None = None) -> None:
        """A run has ended; the last line of `message`, which may be a traceback, is shown.

        `best` is the accuracy of one that finished, as a number and as text.
        """
        self._ended.add(name)
        if best is not None and (self._best is None or best[0] > self._best[0]):
            self._best = best[0], f"best {best[1]} ({self._labels[name]})"
        if self._console is not None:
            line = f"{self._count}, {name}: {last_line(message)}"
            self._console.print(line, highlight=False, soft_wrap=True, markup=False)
        if self._bars is not None:
            if name in self._lines:
                self._bars.remove_task(self._lines.pop(name))
            self._draw()

    @property
    def _count(self) -> str:
        return f"{self._done + len(self._ended)} of {self._done + len(self._epochs)} runs"

    def _draw(self) -> None:
        assert self._bars is not None
        # A run that ended early has no epochs left to wait for.
        passed = sum(self._epochs[name] if name in self._ended else count for name, count in self._passed.items())
        best = "" if self._best is None else self._best[1]
        self._bars.update(self._total, description=self._count, completed=passed, text=best)
        for place, line in enumerate(self._lines.values()):
            self._bars.update(line, visible=place < MOST_SHOWN)


def _short_names(names: Sequence[str]) -> dict[str, str]:
    """Names without the parts that all share at their beginning, and without the fingerprint at their end.

    >>> list(_short_names(["cnn4-n500-wd5e-05-s0-0a1b2c3d", "cnn4-n500-wd5e-06-s0-4e5f6a7b"]).values())
    ['wd5e-05-s0', 'wd5e-06-s0']
    """
    # Not at the minus sign of an exponent.
    parts = {name: re.split(r"(?<!\de)-", name) for name in names}
    columns = zip(*parts.values(), strict=False) if len(names) > 1 else iter(())
    shared = len(list(takewhile(lambda column: len(set(column)) == 1, columns)))
    short = {
        name: "-".join(pieces[shared : -1 if _FINGERPRINT.fullmatch(pieces[-1]) else None])
        for name, pieces in parts.items()
    }
    return short if len(set(short.values())) == len(names) else {name: name for name in names}
