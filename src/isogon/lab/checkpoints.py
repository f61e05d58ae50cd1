"""Files that appear whole or not at all, and checkpoints that carry no code."""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from isogon.errors import ArgumentError, IsogonError, first_line

try:
    import fcntl
except ImportError:  # Windows: two processes in one folder are the user's affair there
    fcntl = None  # type: ignore[assignment]


#: seconds to wait for another process to leave a folder: a worker whose driver was killed takes a moment to notice
LOCK_PATIENCE = 10.0


def write_whole(target: Path, write: Callable[[Path], Any]) -> None:
    """Write beside `target`, see it on the disk, and put it in place in one move."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        write(temporary)
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(target)
    except OSError as error:
        raise IsogonError(f"{target} could not be written ({error.strerror}): make room and start again.") from error
    finally:
        temporary.unlink(missing_ok=True)


def remove_partial(folder: Path) -> None:
    """Remove what processes that were killed while writing left behind."""
    for file in folder.glob(".*.partial"):
        file.unlink(missing_ok=True)


def write_json(target: Path, content: Mapping[str, Any]) -> None:
    text = json.dumps(content, indent=2, ensure_ascii=False)
    write_whole(target, lambda file: file.write_text(text + "\n", encoding="utf-8"))


def save_checkpoint(target: Path, state: Mapping[str, Any]) -> None:
    """Keep `state`: tensors, numbers, strings, and lists and dictionaries of them."""
    # By way of memory: torch's own writer does not say that the disk is full, but "unexpected pos".
    stream = io.BytesIO()
    torch.save(dict(state), stream)
    write_whole(target, lambda file: file.write_bytes(stream.getbuffer()))


def load_checkpoint(source: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """What `save_checkpoint` kept; nothing in the file is executed."""
    reason = "it holds something else"
    try:
        state = torch.load(source, map_location=device, weights_only=True)
    except Exception as error:  # torch raises whatever the damage leads to
        state = None
        reason = first_line(error)
    if not isinstance(state, dict):
        cure = f"delete it, and the run begins anew ({reason})"
        raise ArgumentError("checkpoint", "a file that lab.train wrote", str(source), cure)
    return state


class FolderLock:
    """While it is held, no other process trains in `folder`; the system lets it go when the process ends, however."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / ".lock").open("w")
        give_up = time.monotonic() + LOCK_PATIENCE
        while fcntl is not None:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > give_up:
                    raise IsogonError(f"Another process trains in {folder}: wait for it, or choose another.") from None
                time.sleep(0.1)
            except OSError:  # a file system without locks
                return

    def release(self) -> None:
        self._file.close()
