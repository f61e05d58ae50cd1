"""Checkpoints that carry no code, and the lock of a folder in which a process trains."""

from __future__ import annotations

import io
import os
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from isogon.errors import ArgumentError, IsogonError, first_line
from isogon.files import write_whole

try:
    import fcntl
except ImportError:  # Windows: there the user keeps two processes out of one folder
    fcntl = None  # type: ignore[assignment]


#: seconds to wait for another process to leave a folder: a worker whose driver was killed takes a moment to notice
LOCK_PATIENCE = 10.0


def save_checkpoint(target: Path, state: Mapping[str, Any]) -> None:
    """Save `state`: tensors, numbers, strings, and lists and dictionaries of them."""
    # Through memory: on a full disk torch's own writer reports "unexpected pos".
    stream = io.BytesIO()
    torch.save(dict(state), stream)
    write_whole(target, stream.getbuffer())


def load_checkpoint(source: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """The state that `save_checkpoint` saved; nothing in the file is executed."""
    reason = "it holds something else"
    try:
        _check_sums(source)
        state = torch.load(source, map_location=device, weights_only=True)
    except Exception as error:  # torch raises errors of any type
        state = None
        reason = first_line(error)
    if not isinstance(state, dict):
        raise ArgumentError(
            "checkpoint", "a file that lab.train wrote", str(source), f"{reason}; remove it to start again"
        )
    return state


def _check_sums(source: Path) -> None:
    """Refuse a file whose bytes are not those that were written; torch reads past the checksums that it writes."""
    if not source.is_file():
        raise ValueError("it is not an ordinary file")
    with zipfile.ZipFile(source) as parts:
        damaged = parts.testzip()
    if damaged is not None:
        raise ValueError(f"its part {damaged} is damaged")


class FolderLock:
    """While it is held, no other process trains in `folder`; the system releases it when the process ends."""

    def __init__(self, folder: Path) -> None:
        # Not through a link that somebody has put there.
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        self._file = os.fdopen(os.open(folder / ".lock", flags, 0o666), "r+")
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
