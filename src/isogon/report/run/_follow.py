"""Following a run that is under way: its page is written again whenever its folder has changed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from isogon.errors import ArgumentError
from isogon.report.run._page import write_page
from isogon.report.run._tables import RunSummary, summarise

#: name, size and time of change of each file of a run's folder
_State = frozenset[tuple[str, int, int]]


def follow(
    folder: str | os.PathLike[str],
    page: str | os.PathLike[str],
    *,
    layers: Sequence[str] = (),
    every: float = 10.0,
    name: str = "page",
) -> Iterator[RunSummary]:
    """Write the page about a run each time it has something new, look every so many seconds; ends when the run is over.

    An open page loads itself again as often, and no more when the run is over. `name` is what an error calls `page`.
    """
    place, seen = Path(folder), None
    if not place.is_dir():
        raise ArgumentError("path", "the folder of a run", str(folder), "give the folder that RunFolder was given")
    while True:
        state = _read_state(place)
        over = _is_over(state)
        if state != seen and state:
            try:
                run = summarise(place, layers, under_way=not over)
            except ArgumentError:
                if _read_state(place) == state:
                    raise
                continue  # the run wrote in between
            write_page(run, page, name=name, renew=None if over else every)
            seen = state
            yield run
        if over:
            return
        time.sleep(every)


def _read_state(folder: Path) -> _State:
    """What changes when the run writes; empty before its first rows."""
    files = [*folder.glob("records*.parquet"), *folder.glob("epochs.parquet")]
    entries = []
    for file in files:
        try:
            facts = file.stat()
        except FileNotFoundError:  # merged in between
            continue
        entries.append((file.name, facts.st_size, facts.st_mtime_ns))
    return frozenset(entries) if any(name.startswith("records") for name, *_ in entries) else frozenset()


def _is_over(state: _State) -> bool:
    """Closing a run merges its parts into one file."""
    names = {name for name, *_ in state}
    return "records.parquet" in names and not any(".part-" in name for name in names)
