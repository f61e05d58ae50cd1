"""Text as bytes: Python's standard library, which is on every machine, or files of your own, cut into sequences.

Documents are split into training and validation first, so that no sequence of one is part of the other; of few
documents the last tenth of the text is for validation. The training documents, joined by a byte 0, are cut into
sequences of `context` bytes, each with the bytes one place later as its labels; every byte but the first is a label
once.
"""

from __future__ import annotations

import hashlib
import re
import sysconfig
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from isogon.errors import ArgumentError
from isogon.lab.data._arrays import Arrays, DamagedDataError, MissingDataError

STDLIB, TEXT = "python-stdlib", "text"
#: a byte is a class
VOCABULARY = 256
#: bytes that a sequence has unless its length is given by ?context=
CONTEXT = 128
#: sequences that are validated on, taken evenly from the validation documents
_VALIDATED = 1024
#: of so many documents one is for validation
_SPLIT = 10
#: a text of one file is cut, at ends of lines, into so many documents
_PIECES = 100
_MOST_BYTES, _PIECE = 2**30, 2**20
_MOST_CONTEXT = 65_536
_LEFT_OUT = {"test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages", "__pycache__"}


@dataclass(frozen=True)
class TextName:
    """What a data set's name says: `python-stdlib`, `text:PATH`, each with `?context=64` where it is not 128."""

    path: str | None
    context: int


def is_text(name: str) -> bool:
    """Whether the data set of this name is text.

    >>> is_text("python-stdlib?context=64"), is_text("text:notes.txt"), is_text("cifar10")
    (True, True, False)
    """
    return name.partition("?")[0] == STDLIB or name.startswith(f"{TEXT}:")


def read_name(name: str) -> TextName:
    """
    >>> read_name("text:notes.txt?context=64")
    TextName(path='notes.txt', context=64)
    """
    kind, mark, option = name.partition("?context=")
    wanted = f"{STDLIB} or {TEXT}:PATH, or either with ?context= and 2 to {_MOST_CONTEXT} bytes"
    right = not mark or (re.fullmatch("[0-9]{1,5}", option) and 2 <= int(option) <= _MOST_CONTEXT)
    path = None if kind == STDLIB else kind.removeprefix(f"{TEXT}:")
    if not right or path == "" or "?" in kind or "\0" in name:
        raise ArgumentError("name", wanted, name, f"for example {STDLIB}?context=256")
    return TextName(path, int(option) if mark else CONTEXT)


def read_stdlib(context: int) -> Arrays:
    """The sources of the running Python's standard library, without tests, IDLE and what was installed beside it."""
    root = Path(sysconfig.get_paths()["stdlib"])
    sources = [file for file in root.rglob("*.py") if not _LEFT_OUT & set(file.relative_to(root).parts[:-1])]
    if not sources:
        raise MissingDataError(f"{STDLIB} needs the sources of Python's standard library, and {root} has none.")
    return _cut(STDLIB, _read_files(root, sources), context)


def read_text_files(path: Path, context: int) -> Arrays:
    """One file, or all files of a folder."""
    if not path.exists():
        raise MissingDataError(f"{path} does not exist: text:PATH names a file of text, or a folder of such files.")
    if path.is_file():
        (_, content), *_ = _read_files(path.parent, [path])
        return _cut(path, _pieces(content), context)
    if not path.is_dir():
        raise DamagedDataError(path, "it is neither a file nor a folder")
    files = [file for file in path.rglob("*") if file.is_file() and not file.name.startswith(".")]
    return _cut(path, _read_files(path, files), context)


def _read_files(root: Path, files: list[Path]) -> list[tuple[str, bytes]]:
    """Names below `root` and contents, sorted by name."""
    documents, total = [], 0
    for name, file in sorted((file.relative_to(root).as_posix(), file) for file in files):
        try:
            content = bytearray()
            # Piece by piece: some files of the system have more to read than their size tells.
            with file.open("rb") as stream:
                while piece := stream.read(_PIECE):
                    content += piece
                    total += len(piece)
                    if total > _MOST_BYTES:
                        raise DamagedDataError(root, f"a text may have {_MOST_BYTES:,} bytes in all")
            documents.append((name, bytes(content)))
        except OSError as error:
            raise DamagedDataError(file, error.strerror or "it cannot be read") from None
    return documents


def _pieces(content: bytes) -> list[tuple[str, bytes]]:
    """A single text as documents: about equal parts that end with a line."""
    starts = {0}
    for number in range(1, _PIECES):
        place = content.find(b"\n", number * len(content) // _PIECES)
        if place >= 0:
            starts.add(place + 1)
    bounds = [*sorted(starts), len(content)]
    pieces = [content[start:end] for start, end in pairwise(bounds)]
    return [(f"{number:02}", piece) for number, piece in enumerate(pieces) if piece]


def _cut(place: Path | str, documents: list[tuple[str, bytes]], context: int) -> Arrays:
    """Sequences and their labels; which documents are for validation follows from their names."""
    parts: dict[bool, list[bytes]] = {True: [], False: []}
    for name, content in documents:
        digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()
        parts[digest[0] % _SPLIT == 0].append(content)
    train, test = (_sequences(b"\0".join(parts[held_out]), context) for held_out in (False, True))
    if len(train) == 0 or len(test) == 0:  # too few documents for one to be kept: the end of the text is
        whole = b"\0".join(content for _, content in documents)
        kept = len(whole) - len(whole) // _SPLIT
        train, test = _sequences(whole[:kept], context), _sequences(whole[kept:], context)
    for what, sequences in (("training", train), ("validation", test)):
        if len(sequences) == 0:
            raise DamagedDataError(
                place, f"its {what} documents are shorter than one sequence of {context} bytes: give a longer text"
            )
    if len(test) > _VALIDATED:
        test = test[np.linspace(0, len(test) - 1, _VALIDATED).astype(np.int64)]
    return Arrays(
        train_x=np.ascontiguousarray(train[:, :-1]),
        train_y=np.ascontiguousarray(train[:, 1:]),
        test_x=np.ascontiguousarray(test[:, :-1]),
        test_y=np.ascontiguousarray(test[:, 1:]),
        classes=tuple(map(str, range(VOCABULARY))),
    )


def _sequences(text: bytes, context: int) -> NDArray[np.uint8]:
    """Consecutive stretches of `context` + 1 bytes that share one byte with the next."""
    values = np.frombuffer(text, np.uint8)
    if len(values) <= context:
        return np.empty((0, context + 1), np.uint8)
    sequences: NDArray[np.uint8] = np.lib.stride_tricks.sliding_window_view(values, context + 1)[::context]
    return sequences
