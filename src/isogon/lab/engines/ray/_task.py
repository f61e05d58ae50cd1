"""What a Ray worker does with a job."""

from __future__ import annotations

import hashlib
import os
import pickle
import queue
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch

from isogon.lab.engines._events import Event, ObjectiveEnded, RunEnded
from isogon.lab.run import RESULT

#: the file by which a worker knows the coordinator's folder
MARK = ".folder-mark"


@dataclass(frozen=True)
class FileMade(Event):
    """A file that the job made on another node: its `path` below the job's folder, and its bytes."""

    path: str
    content: bytes


@dataclass(frozen=True)
class CoordinatorContext:
    """What a worker takes over from the process that asked for the job."""

    folder: str
    path: tuple[str, ...]
    environment: dict[str, str]

    @classmethod
    def current(cls) -> Self:
        ours = {name: value for name, value in os.environ.items() if name.startswith("ISOGON_")}
        return cls(os.getcwd(), tuple(sys.path), ours)

    def take_over(self) -> None:
        """Import and find data as the coordinator does; a node's own settings come first."""
        sys.path += [place for place in self.path if place not in sys.path]
        for name, value in self.environment.items():
            os.environ.setdefault(name, value)
        if os.path.isdir(self.folder):
            os.chdir(self.folder)


def work_and_report(packed: bytes, coordinator: CoordinatorContext) -> Iterator[Event]:
    """Do a job and yield its events as they come; an exception in it ends the stream as a death would."""
    coordinator.take_over()
    job, mark = pickle.loads(packed)
    elsewhere = None if _holds(job.out, mark) else _folder_of_this_node(mark, job.keys)
    if elsewhere is not None:
        job = job.move_to(str(elsewhere))
    # The job reports at any time and a generator only when asked, so the job has a thread of its own.
    events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
    errors: list[BaseException] = []

    def work() -> None:
        torch.set_num_threads(1)
        try:
            job.work(events.put)
        except BaseException as error:
            errors.append(error)
        finally:
            events.put(None)

    threading.Thread(target=work, daemon=True).start()
    while (event := events.get()) is not None:
        if elsewhere is not None and isinstance(event, RunEnded | ObjectiveEnded):
            yield from _files(elsewhere, event.key)
        yield event
    if errors:
        raise errors[0]
    if elsewhere is not None:
        shutil.rmtree(elsewhere)


def _holds(folder: str, mark: str) -> bool:
    try:
        return Path(folder, MARK).read_text(encoding="utf-8") == mark
    except OSError:
        return False


def _folder_of_this_node(mark: str, keys: list[str]) -> Path:
    """The same for each try of a job, which resumes there; nobody else can guess its name or look into it."""
    ours = Path(tempfile.gettempdir(), f"isogon-{mark}")
    ours.mkdir(mode=0o700, exist_ok=True)
    folder = ours / hashlib.sha256("\n".join(keys).encode()).hexdigest()[:16]
    folder.mkdir(exist_ok=True)
    return folder


def _files(folder: Path, key: str) -> Iterator[FileMade]:
    """All but locks and half-written files; results last, since where one is, the run is complete."""
    files = [file for file in folder.rglob("*") if file.is_file() and not file.name.startswith(".")]
    for file in sorted(files, key=lambda file: (file.name == RESULT, file)):
        yield FileMade(key, file.relative_to(folder).as_posix(), file.read_bytes())
