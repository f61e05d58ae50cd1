"""Unpacking with a limit: a small file that would fill the memory is refused."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from isogon.errors import first_line
from isogon.lab.data._arrays import DamagedDataError

# Pictures pack to a tenth at best; small contents pass whatever their ratio, and nothing that fills the memory does.
_MOST_RATIO, _SMALL = 100, 64 * 2**20
_PIECE = 2**20
_OPENERS: dict[str, Callable[..., Any]] = {"gz": gzip.open, "xz": lzma.open}


def unpack(place: Path | str, content: bytes, kind: str) -> bytes:
    """Unpack `content`, packed by `kind` (gz or xz); `place` is where it comes from."""
    plain = bytearray()
    try:
        with _OPENERS[kind](io.BytesIO(content)) as stream:
            while piece := stream.read(_PIECE):
                plain += piece
                check_unpacked_size(place, len(plain), len(content))
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        raise DamagedDataError(place, f"it does not unpack ({first_line(error)})") from error
    return bytes(plain)


def check_unpacked_size(place: Path | str, plain: int, packed: int) -> None:
    """Refuse what unpacks to far more than any picture does, or to more than the memory holds."""
    if plain > max(_SMALL, _MOST_RATIO * packed):
        raise DamagedDataError(place, f"it unpacks to more than {_MOST_RATIO} times its size, as no pictures do")
    check_memory(place, 2 * plain)


def check_memory(place: Path | str, needed: int) -> None:
    """Refuse arrays that this machine's memory cannot hold, before they are made."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # a system without these numbers
        return
    if needed > memory:
        sizes = f"its images need {needed / 1e9:,.0f} GB and this machine has {memory / 1e9:,.0f}"
        raise DamagedDataError(place, f"{sizes}; choose a smaller size or fewer images")
