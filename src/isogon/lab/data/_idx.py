"""MNIST and Fashion-MNIST from their idx files, plain or gzipped.

An idx file is two zero bytes, the type (8 for uint8), the number of dimensions, each dimension as a big-endian 32-bit
number, then the values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from isogon.lab.data._arrays import Arrays, DamagedDataError, MissingDataError, make_arrays
from isogon.lab.data._unpacking import unpack

FILES = tuple(f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))


@dataclass(frozen=True)
class IdxSet:
    """Where a set is looked for below the root, what its classes are called and what its arrays must hash to."""

    name: str
    folders: tuple[str, ...]
    classes: tuple[str, ...]
    checksum: str | None


MNIST = IdxSet(
    "mnist",
    ("mnist", "MNIST/raw", "."),
    tuple("0123456789"),
    "11de40ec28a7c150195b86fd3a818037e73f1e8d04ab1621d02836dbdf8a2d54",
)
FASHION_MNIST = IdxSet(
    "fashion-mnist",
    ("fashion-mnist", "FashionMNIST/raw", "."),
    ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    "b42e0f3189f494f730119201c9e1a41654a875ffd564ea07b7cf8032d5327c02",
)


def read_idx_set(wanted: IdxSet, root: Path) -> Arrays:
    """The set from the first folder that holds its four files."""
    for folder in wanted.folders:
        paths = [_plain_or_gzipped(root / folder, name) for name in FILES]
        if all(path is not None for path in paths):
            train_x, train_y, test_x, test_y = (read_idx(path) for path in paths if path is not None)
            return make_arrays(
                root / folder, (train_x[:, None], train_y), (test_x[:, None], test_y), wanted.classes, wanted.checksum
            )
    raise MissingDataError(
        f"{wanted.name} is not in {root}: put {', '.join(FILES)} (plain or .gz) into {root / wanted.folders[0]}, "
        "or set ISOGON_DATA to the folder that has them."
    )


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The array in one idx file; its length must be exactly what its header promises."""
    content = unpack(path, path.read_bytes(), "gz") if path.suffix == ".gz" else path.read_bytes()
    dimensions = content[3] if len(content) > 3 else 0
    values = 4 + 4 * dimensions
    # Labels have one dimension, images three.
    if content[:3] != b"\0\0\x08" or len(content) < values or not 1 <= dimensions <= 3:
        raise DamagedDataError(path, "it does not start as an idx file of bytes does")
    shape = tuple(int(length) for length in np.frombuffer(content[4:values], ">u4"))
    if len(content) - values != math.prod(shape):
        raise DamagedDataError(
            path, f"its header promises {math.prod(shape)} values and it has {len(content) - values}"
        )
    return np.frombuffer(content, np.uint8, offset=values).reshape(shape)


def _plain_or_gzipped(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)
