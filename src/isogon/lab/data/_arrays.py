"""Samples and labels as the readers hand them over, their checksum, and the errors for missing or bad files."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isogon.errors import IsogonError, MissingExtraError


class MissingDataError(IsogonError, FileNotFoundError):
    """A data set that is not there; the message says which file to put where."""


class DamagedDataError(IsogonError, ValueError):
    """A file that is truncated, altered or not what its name says."""

    def __init__(self, place: Path | str, problem: str) -> None:
        super().__init__(f"{place} cannot be used: {problem}.")


@dataclass(frozen=True, eq=False)
class Arrays:
    """A whole data set: uint8 images N×C×H×W, int64 labels, and the classes' names; or text, uint8 N×context both."""

    train_x: NDArray[np.uint8]
    train_y: NDArray[Any]
    test_x: NDArray[np.uint8]
    test_y: NDArray[Any]
    classes: tuple[str, ...]

    def checksum(self) -> str:
        """SHA-256 over the type, shape and values of the four arrays: the same whatever files they came from."""
        digest = hashlib.sha256()
        for array in (self.train_x, self.train_y, self.test_x, self.test_y):
            digest.update(f"{array.dtype.str}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


def make_arrays(
    place: Path | str,
    train: tuple[NDArray[Any], NDArray[Any]],
    test: tuple[NDArray[Any], NDArray[Any]],
    classes: tuple[str, ...] | None = None,
    checksum: str | None = None,
) -> Arrays:
    """A set of (images, labels) twice, N×C×H×W, checked: they fit together and, where given, the checksum agrees.

    Without `classes` their number follows from the largest label, and they are named by numbers.
    """
    for images, labels in (train, test):
        if images.dtype != np.uint8 or images.ndim != 4 or images.size == 0:
            raise DamagedDataError(
                place, f"images must be uint8 and not empty, these are {images.dtype} {images.shape}"
            )
        if not np.issubdtype(labels.dtype, np.integer) or labels.shape != images.shape[:1]:
            raise DamagedDataError(place, f"{len(images)} images need as many whole numbers as labels")
    if train[0].shape[1:] != test[0].shape[1:]:
        raise DamagedDataError(
            place, f"training images are {train[0].shape[1:]} and test images {test[0].shape[1:]} (C, H, W)"
        )
    if classes is None:
        if train[1].max() >= len(train[1]):
            raise DamagedDataError(place, f"a label is {train[1].max()}, which makes more classes than images")
        classes = tuple(str(label) for label in range(int(train[1].max()) + 1))
    labels = np.concatenate([train[1], test[1]])
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0 or highest >= len(classes):
        raise DamagedDataError(place, f"labels run from {lowest} to {highest} where {len(classes)} classes are known")
    # Contiguous and writeable, so that tensors can share the memory.
    arrays = Arrays(
        train_x=np.require(train[0], np.uint8, ("C", "W")),
        train_y=np.require(train[1], "<i8", ("C", "W")),
        test_x=np.require(test[0], np.uint8, ("C", "W")),
        test_y=np.require(test[1], "<i8", ("C", "W")),
        classes=classes,
    )
    if checksum is not None and arrays.checksum() != checksum:
        raise DamagedDataError(place, "its content is not that of the published set, fetch it again")
    return arrays


def require_package(module: str, package: str, purpose: str) -> Any:
    """The module, or a sentence that says how to install it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtraError(package, extra="data", purpose=purpose) from error
