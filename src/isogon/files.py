"""Files that appear whole or not at all, and text files that are read with a limit.

Every file that isogon writes goes through `write_whole`; every text, JSON or TOML file that it reads goes through
`read_text`, `read_json` or `read_toml`, which turn whatever is wrong with the file into one sentence.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import stat
import time
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from isogon.errors import ArgumentError, IsogonError, first_line

#: bytes of the largest settings file that is read; a recipe has a few hundred
MOST_BYTES = 16 * 2**20
# No single file takes this many seconds to write, so what is older was left by a process that was killed.
_ABANDONED_SECONDS = 600.0
# Ours, and those of isogon 0.1, which had the target's name in front.
_LEFTOVER = re.compile(r"\.(isogon-\d+-[0-9a-f]+|.+\.\d+(-[0-9a-f]+)?)\.partial")


class WriteError(IsogonError, OSError):
    """A file that could not be written; its cause is the system's own error."""

    def __init__(self, target: Path, error: OSError) -> None:
        self.reason = error.strerror or type(error).__name__
        self._made_from = target, error
        super().__init__(f"{target} could not be written ({self.reason}): make room there, or choose another place.")

    def __reduce__(self) -> Any:
        return type(self), self._made_from


def write_whole(target: str | os.PathLike[str], content: str | bytes | memoryview, *, private: bool = False) -> Path:
    """Write `content` beside `target`, sync it to the disk, and put it in place in one move; returns the path.

    A reader sees the old file or the new one, never a part. With `private` nobody else may read it at any time. The
    temporary file is new and ours: a link or a file that others put in its place is never written to.

    >>> import tempfile
    >>> write_whole(Path(tempfile.mkdtemp()) / "note.txt", "whole").read_text()
    'whole'
    """
    place = Path(target)
    # Half of a surrogate pair, from a file name that is not UTF-8, is written as its escape.
    data = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    # Without the target's name, which may be as long as names can be.
    temporary = place.parent / f".isogon-{os.getpid()}-{secrets.token_hex(4)}.partial"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    try:
        mode = _read_permissions(place)
        descriptor = os.open(temporary, flags, 0o600 if private else 0o666)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                if mode is not None and not private and hasattr(os, "fchmod"):
                    os.fchmod(stream.fileno(), mode)  # a file that its owner closed stays closed
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(place)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        _sync_folder(place.parent)
    except OSError as error:
        raise WriteError(place, error) from error
    except ValueError as error:  # a NUL in the name
        raise WriteError(place, OSError(0, first_line(error))) from error
    return place


def write_json(target: str | os.PathLike[str], content: Mapping[str, Any], *, private: bool = False) -> Path:
    """Write `content` as JSON that people can read."""
    return write_whole(target, json.dumps(content, indent=2, ensure_ascii=False) + "\n", private=private)


def remove_leftovers(folder: Path, *, of_anybody: bool = True) -> None:
    """Remove what processes that were killed while writing left in `folder`.

    `of_anybody` is for a folder in which no other process works; without it only what is old goes.
    """
    for file in folder.glob(".*.partial"):
        with suppress(OSError):
            if not _LEFTOVER.fullmatch(file.name):
                continue
            if of_anybody or time.time() - file.lstat().st_mtime > _ABANDONED_SECONDS:
                file.unlink()


def read_json(file: str | os.PathLike[str], name: str) -> dict[str, Any]:
    """The object in a JSON file; a refusal calls the file `name`."""
    try:
        content = json.loads(read_text(file, name))
    except (ValueError, RecursionError) as error:
        raise _content_error(name, "a JSON file", file, error) from None
    if not isinstance(content, dict):
        raise ArgumentError(name, "a JSON file that holds an object", str(file), f"it holds a {type(content).__name__}")
    return content


def read_toml(file: str | os.PathLike[str], name: str) -> dict[str, Any]:
    """The tables of a TOML file; a refusal calls the file `name`."""
    try:
        return tomllib.loads(read_text(file, name))
    except (ValueError, RecursionError) as error:
        raise _content_error(name, "a TOML file", file, error) from None


def read_text(file: str | os.PathLike[str], name: str) -> str:
    """A text of at most 16 MiB; a refusal calls the file `name`."""
    try:
        if stat.S_ISFIFO(os.stat(file).st_mode):  # nobody may ever write into it
            raise ArgumentError(name, "a file, not a pipe", str(file), "save what comes out of it as a file")
        with open(file, "rb") as stream:
            data = stream.read(MOST_BYTES + 1)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ArgumentError(name, "a file we can read", str(file), f"{reason}; check the path") from None
    except ArgumentError:
        raise
    except ValueError as error:  # a NUL in the name
        raise ArgumentError(name, "a file we can read", str(file), first_line(error)) from None
    if len(data) > MOST_BYTES:
        raise ArgumentError(name, f"at most {MOST_BYTES // 2**20} MiB", str(file), "give the file itself")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise ArgumentError(name, "a text in UTF-8", str(file), "save it as UTF-8") from None


def _content_error(name: str, rule: str, file: str | os.PathLike[str], error: Exception) -> ArgumentError:
    if isinstance(error, ArgumentError):
        return error
    reason = "it is nested too deep" if isinstance(error, RecursionError) else first_line(error)
    return ArgumentError(name, rule, str(file), reason)


def _read_permissions(target: Path) -> int | None:
    """The permissions of a file that is to be replaced; a device or a pipe must not be."""
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode):
        raise OSError(0, "it is a folder" if target.is_dir() else "it is not an ordinary file")
    return stat.S_IMODE(mode)


def _sync_folder(folder: Path) -> None:
    """Sync the move itself too, where the system can open folders."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
