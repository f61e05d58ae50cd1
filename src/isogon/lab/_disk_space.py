"""A full disk is no failure of a run: the work stops with one sentence, and resumes once there is room."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from isogon.errors import IsogonError

# With less than this nothing can be written, whatever the error says: torch's writer, for example, gives no reason.
_LEAST_BYTES = 1 << 16
_SQLITE = "database or disk is full"


class DiskFullError(IsogonError):
    """No space is left at `place`."""

    def __init__(self, place: str | os.PathLike[str]) -> None:
        super().__init__(f"No space left on {os.fspath(place)}: free some, and the same command resumes.")


def full_disk(error: BaseException, place: str | os.PathLike[str]) -> str | None:
    """Where there is no space left, if that is what `error`, met by work in the folder `place`, comes from."""
    for link in _chain(error):
        if isinstance(link, OSError) and link.errno in (errno.ENOSPC, errno.EDQUOT):
            named = link.filename if isinstance(link.filename, str) else None
            return os.path.dirname(named) or "." if named else os.fspath(place)
        if _SQLITE in str(link):
            return os.fspath(place)
    return os.fspath(place) if _free_bytes(Path(place)) < _LEAST_BYTES else None


@contextmanager
def naming_a_full_disk(place: str | os.PathLike[str]) -> Iterator[None]:
    """Turn any error that a full disk causes within into a `DiskFullError`."""
    try:
        yield
    except DiskFullError:
        raise
    except Exception as error:
        full = full_disk(error, place)
        if full is None:
            raise
        raise DiskFullError(full) from error


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _free_bytes(place: Path) -> float:
    """Of the disk on which `place` is, or would be."""
    for folder in (place, *place.absolute().parents):
        try:
            return shutil.disk_usage(folder).free
        except OSError:
            continue
    return float("inf")
