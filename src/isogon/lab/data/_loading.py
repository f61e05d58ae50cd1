"""Data sets by name, whole or in class-balanced, nested subsets."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isogon.errors import ArgumentError, check_whole
from isogon.lab.data import _cifar as cifar
from isogon.lab.data import _fashion_mini as fashion_mini
from isogon.lab.data import _idx as idx
from isogon.lab.data._arrays import Arrays
from isogon.lab.data._digits import read_digits
from isogon.lab.data._drawn import read_drawn_folders
from isogon.lab.data._folders import read_image_folder, read_tiny_imagenet, split_size
from isogon.lab.data._npz import read_npz
from isogon.lab.data._subsets import balanced_subset
from isogon.lab.data._text import CONTEXT, STDLIB, TEXT, is_text, read_name, read_stdlib, read_text_files

_WITHOUT_FILES: dict[str, Callable[[], Arrays]] = {
    "fashion-mini": fashion_mini.unpack,
    "digits": read_digits,
    "drawn-folders": read_drawn_folders,
}
_BELOW_ROOT: dict[str, Callable[[Path], Arrays]] = {
    "mnist": lambda root: idx.read_idx_set(idx.MNIST, root),
    "fashion-mnist": lambda root: idx.read_idx_set(idx.FASHION_MNIST, root),
    "cifar10": lambda root: cifar.read_cifar(cifar.CIFAR10, root),
    "cifar100": lambda root: cifar.read_cifar(cifar.CIFAR100, root),
    "tiny-imagenet": read_tiny_imagenet,
}
#: by the kind that stands before a path, "imagefolder:PATH"; the second argument is an option of the name
_BY_PATH: dict[str, Callable[[Path, int | None], Arrays]] = {
    "imagefolder": read_image_folder,
    "npz": lambda path, _: read_npz(path),
    TEXT: lambda path, context: read_text_files(path, context or CONTEXT),
}
#: what `load` knows by name
NAMES = (*_WITHOUT_FILES, STDLIB, *_BELOW_ROOT, *(f"{kind}:PATH" for kind in _BY_PATH))


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set in memory. Several loads share their tensors, so do not write to them.

    Of images `train_x` is N×C×H×W and `train_y` their classes; of text both are N×context, bytes and the next bytes.
    `indices` are the places of these samples in the full training set. `mean` and `std` are those of the full training
    set, per channel with pixels in [0, 1], for a subset too: trials on parts of the data see the same inputs.
    `fingerprint` is a SHA-256 over all images and labels of the full set and over `indices`: what a run records.
    """

    name: str
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: tuple[str, ...]
    indices: Tensor
    fingerprint: str
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def samples(self) -> int:
        """Training samples, N."""
        return len(self.train_x)

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def is_text(self) -> bool:
        return self.train_x.dim() == 2

    @property
    def in_channels(self) -> int:
        """Channels of an image; of text the context, the number of bytes that a sequence has."""
        return self.train_x.shape[1]

    @property
    def labels_per_sample(self) -> int:
        """1 for images, the context for text."""
        return self.train_y[0].numel()

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width; nothing of text."""
        return (0, 0) if self.is_text else (self.train_x.shape[2], self.train_x.shape[3])


def load(name: str, root: Path | str | None = None, subset: int | None = None, seed: int = 0) -> Dataset:
    """The data set `name`: images as uint8 tensors N×C×H×W with int64 labels, or text as uint8 tensors N×context.

    Names are `fashion-mini` (in the package), `digits` (scikit-learn's), `drawn-folders` (500 drawn pictures that go
    through the loader of `imagefolder:PATH`), `mnist`, `fashion-mnist`, `cifar10`, `cifar100`, `tiny-imagenet` (files
    as published, below `root`), `imagefolder:PATH` or `imagefolder:PATH?size=64` (PATH/train/CLASS and PATH/val/CLASS),
    and `npz:PATH` (arrays train_x, train_y, test_x, test_y). Text: `python-stdlib`, the sources of Python's standard
    library, and `text:PATH`, a file or a folder, in sequences of 128 bytes or as `?context=256` says. `root` is the
    environment variable ISOGON_DATA unless given, else `~/.cache/isogon/data`; a PATH is taken as it stands. The last
    few sets stay in memory for the process's next loads.

    `subset` training samples are class-balanced and, for one `seed`, nested: the 3,125 are among the 6,250. The test
    set stays whole.

    >>> small = load("fashion-mini", subset=500)
    >>> small.train_x.shape, small.num_classes, small.train_y.bincount().tolist()[:3]
    (torch.Size([500, 1, 28, 28]), 10, [50, 50, 50])
    """
    seed = check_whole("seed", seed, low=0, cure="give the subset's seed")
    if subset is not None:
        subset = check_whole("subset", subset, cure="count the training samples to keep")
    full = _full(name, root)
    total = len(full.train_y)
    if subset is None:
        indices, train_x, train_y = torch.arange(total), full.train_x, full.train_y
    else:
        if subset > total:
            raise ArgumentError("subset", f"at most the {total} training samples of {name}", subset, "give fewer")
        # Text has no classes that could be balanced.
        classes = full.train_y.numpy() if full.train_y.dim() == 1 else np.zeros(total, np.int64)
        indices = torch.from_numpy(balanced_subset(classes, subset, seed))
        train_x, train_y = full.train_x[indices], full.train_y[indices]
    fingerprint = hashlib.sha256(full.checksum.encode() + indices.numpy().astype("<i8").tobytes()).hexdigest()
    return Dataset(
        name=name,
        train_x=train_x,
        train_y=train_y,
        test_x=full.test_x,
        test_y=full.test_y,
        classes=full.classes,
        indices=indices,
        fingerprint=fingerprint,
        mean=full.mean,
        std=full.std,
    )


@dataclass(frozen=True, eq=False)
class _Full:
    """A whole set as read, with what is computed once."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: tuple[str, ...]
    checksum: str
    mean: tuple[float, ...]
    std: tuple[float, ...]


def _full(name: str, root: Path | str | None = None) -> _Full:
    """The whole set; the same object for the same files as long as they are among the last few."""
    check_name(name)
    if is_text(name):
        text = read_name(name)
        place = Path() if text.path is None else Path(text.path).expanduser().resolve()
        return _read(STDLIB if text.path is None else TEXT, place, text.context)
    kind, colon, rest = name.partition(":")
    if colon:
        path, size = split_size(rest) if kind == "imagefolder" else (rest, None)
        return _read(kind, Path(path).expanduser().resolve(), size)
    return _read(name, Path() if name in _WITHOUT_FILES else data_root(root), None)


def check_name(name: str) -> None:
    """Refuse a name that `load` does not know; whether its files are there is another matter."""
    if isinstance(name, str) and is_text(name):
        read_name(name)
        return
    kind, _, rest = name.partition(":") if isinstance(name, str) else ("", "", "")
    if kind == "imagefolder" and rest:
        split_size(rest)
    known = name in (*_WITHOUT_FILES, *_BELOW_ROOT) if isinstance(name, str) else False
    if (not known and not (rest and kind in _BY_PATH)) or "\0" in name:
        raise ArgumentError("name", "one of " + ", ".join(NAMES), name, "write fashion-mini, for example")


def data_root(root: Path | str | None = None) -> Path:
    """The folder that data sets are looked for in: `root`, else what ISOGON_DATA names, else `~/.cache/isogon/data`."""
    return Path(root or os.environ.get("ISOGON_DATA") or "~/.cache/isogon/data").expanduser().resolve()


@lru_cache(maxsize=4)
def _read(kind: str, place: Path, option: int | None) -> _Full:
    """`option` is the size of images or the context of text, where a name gives it."""
    if kind == STDLIB:
        arrays = read_stdlib(option or CONTEXT)
    elif kind in _BY_PATH:
        arrays = _BY_PATH[kind](place, option)
    elif kind in _WITHOUT_FILES:
        arrays = _WITHOUT_FILES[kind]()
    else:
        arrays = _BELOW_ROOT[kind](place)
    mean, std = _statistics(arrays.train_x) if arrays.train_x.ndim == 4 else ((), ())
    return _Full(
        train_x=torch.from_numpy(arrays.train_x),
        train_y=torch.from_numpy(arrays.train_y),
        test_x=torch.from_numpy(arrays.test_x),
        test_y=torch.from_numpy(arrays.test_y),
        classes=arrays.classes,
        checksum=arrays.checksum(),
        mean=mean,
        std=std,
    )


def _statistics(images: NDArray[np.uint8]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, from its histogram: exact, and small in memory.

    A channel of one grey alone has deviation 1, so that dividing by it is harmless.
    """
    values = np.arange(256) / 255
    means, deviations = [], []
    for channel in range(images.shape[1]):
        counts = np.zeros(256, np.int64)
        for start in range(0, len(images), 1000):
            counts += np.bincount(images[start : start + 1000, channel].ravel(), minlength=256)
        share = counts / counts.sum()
        mean = float(share @ values)
        means.append(mean)
        deviations.append(float(np.sqrt(share @ (values - mean) ** 2)) or 1.0)
    return tuple(means), tuple(deviations)
