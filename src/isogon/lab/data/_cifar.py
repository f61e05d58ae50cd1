"""CIFAR-10 and CIFAR-100 as published: the python and the binary version, packed or unpacked.

A binary record is the label (CIFAR-100: coarse, then fine) and 3,072 pixels, channel by channel. The python version
pickles the same pixels in a dictionary; a pickle can name any function, so only what rebuilds a numpy array is allowed.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import pickle
import tarfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isogon.errors import first_line
from isogon.lab.data._arrays import Arrays, DamagedDataError, MissingDataError, make_arrays
from isogon.lab.data._unpacking import check_unpacked_size

SIZE = 32
PIXELS = 3 * SIZE * SIZE
_Part = tuple[NDArray[np.uint8], NDArray[np.int64]]


@dataclass(frozen=True)
class CifarSet:
    """The published files of one set; `per_file` counts the images in each of the training and of the test files."""

    name: str
    python: str
    python_archive: str
    binary: str
    binary_archive: str
    train: tuple[str, ...]
    test: str
    per_file: tuple[int, int]
    label: str
    label_bytes: int
    classes: tuple[str, ...]
    checksum: str | None = None
    md5: Mapping[str, str] = field(default_factory=dict)


CIFAR10 = CifarSet(
    name="cifar10",
    python="cifar-10-batches-py",
    python_archive="cifar-10-python.tar.gz",
    binary="cifar-10-batches-bin",
    binary_archive="cifar-10-binary.tar.gz",
    train=tuple(f"data_batch_{number}" for number in range(1, 6)),
    test="test_batch",
    per_file=(10_000, 10_000),
    label="labels",
    label_bytes=1,
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    checksum="e6216b9018fcebdb2fc8d67681111ecdcbcb1599320d6cfc1c4f6ff4b91839a8",
)

# fmt: off
_FINE_CLASSES = (
    "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle", "bowl", "boy",
    "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle", "chair", "chimpanzee", "clock",
    "cloud", "cockroach", "couch", "crab", "crocodile", "cup", "dinosaur", "dolphin", "elephant", "flatfish",
    "forest", "fox", "girl", "hamster", "house", "kangaroo", "keyboard", "lamp", "lawn_mower", "leopard", "lion",
    "lizard", "lobster", "man", "maple_tree", "motorcycle", "mountain", "mouse", "mushroom", "oak_tree", "orange",
    "orchid", "otter", "palm_tree", "pear", "pickup_truck", "pine_tree", "plain", "plate", "poppy", "porcupine",
    "possum", "rabbit", "raccoon", "ray", "road", "rocket", "rose", "sea", "seal", "shark", "shrew", "skunk",
    "skyscraper", "snail", "snake", "spider", "squirrel", "streetcar", "sunflower", "sweet_pepper", "table", "tank",
    "telephone", "television", "tiger", "tractor", "train", "trout", "tulip", "turtle", "wardrobe", "whale",
    "willow_tree", "wolf", "woman", "worm",
)
# fmt: on

CIFAR100 = CifarSet(
    name="cifar100",
    python="cifar-100-python",
    python_archive="cifar-100-python.tar.gz",
    binary="cifar-100-binary",
    binary_archive="cifar-100-binary.tar.gz",
    train=("train",),
    test="test",
    per_file=(50_000, 10_000),
    label="fine_labels",
    label_bytes=2,
    classes=_FINE_CLASSES,
    md5={
        "cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85",
        "cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8",
        "train": "16019d7e3df5f24257cddd939b257f8d",
        "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    },
)


def read_cifar(wanted: CifarSet, root: Path) -> Arrays:
    """The set from the first of its four forms found in `root` or in a folder of the set's name there."""
    python = (*wanted.train, wanted.test)
    binary = tuple(f"{name}.bin" for name in python)
    for folder in (root, root / wanted.name):
        for place, files, is_python in (
            (folder / wanted.python, python, True),
            (folder / wanted.python_archive, python, True),
            (folder / wanted.binary, binary, False),
            (folder / wanted.binary_archive, binary, False),
        ):
            if place.exists():
                contents = (
                    _read_archive(place, files, wanted) if place.is_file() else _read_loose_files(place, files, wanted)
                )
                return _join(wanted, place, contents, is_python)
    raise MissingDataError(
        f"{wanted.name} is not in {root}: put {wanted.python_archive} or {wanted.binary_archive} there as published "
        "(https://www.cs.toronto.edu/~kriz/cifar.html), or set ISOGON_DATA to the folder that has it."
    )


def _join(wanted: CifarSet, place: Path, contents: list[bytes], is_python: bool) -> Arrays:
    parts: list[_Part] = []
    counts = [wanted.per_file[0]] * len(wanted.train) + [wanted.per_file[1]]
    for content, count in zip(contents, counts, strict=True):
        part = _from_pickle(wanted, place, content) if is_python else _from_records(wanted, place, content)
        if part[0].shape != (count, PIXELS) or part[1].shape != (count,):
            raise DamagedDataError(
                place,
                f"a file has {part[1].size} labels and a table of {part[0].shape[0]}×{part[0].shape[1]} pixels "
                f"where {count} and {count}×{PIXELS} belong",
            )
        parts.append(part)
    images = [part[0].reshape(-1, 3, SIZE, SIZE) for part in parts]
    labels = [part[1] for part in parts]
    train = np.concatenate(images[:-1]), np.concatenate(labels[:-1])
    arrays = make_arrays(place, train, (images[-1], labels[-1]), wanted.classes, wanted.checksum)
    for part_labels in (arrays.train_y, arrays.test_y):
        if np.ptp(np.bincount(part_labels, minlength=len(wanted.classes))) > 0:
            raise DamagedDataError(place, "its classes are not of equal size, as those of the published set are")
    return arrays


def _from_records(wanted: CifarSet, place: Path, content: bytes) -> _Part:
    length = wanted.label_bytes + PIXELS
    if len(content) % length:
        raise DamagedDataError(place, f"a file's {len(content)} bytes are no whole number of records of {length}")
    records = np.frombuffer(content, np.uint8).reshape(-1, length)
    return records[:, wanted.label_bytes :], records[:, wanted.label_bytes - 1].astype(np.int64)


def _from_pickle(wanted: CifarSet, place: Path, content: bytes) -> _Part:
    try:
        batch = _ArraysOnly(io.BytesIO(content), encoding="bytes").load()
        # Python 2 wrote these files, so that the keys come as bytes.
        named = {key.decode() if isinstance(key, bytes) else key: value for key, value in batch.items()}
        images, labels = named["data"], np.array(named[wanted.label])
    except Exception as error:  # a bad pickle can raise anything
        raise DamagedDataError(place, f"a file does not unpickle to images and labels ({error})") from error
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.ndim != 2:
        raise DamagedDataError(place, "a file's data are no table of bytes")
    return images, labels


# numpy moved its rebuilding function between versions; an array shows which it is here.
_REBUILD = np.zeros(0).__reduce__()[0]
_HARMLESS = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _REBUILD,
    ("numpy._core.multiarray", "_reconstruct"): _REBUILD,
}


class _ArraysOnly(pickle.Unpickler):
    """Unpickles numbers, strings, lists, dictionaries and numpy arrays; any other name is refused unseen."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _HARMLESS[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no array needs") from None

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to something outside the file")


def _read_loose_files(folder: Path, files: tuple[str, ...], wanted: CifarSet) -> list[bytes]:
    contents = []
    for name in files:
        if not (folder / name).is_file():
            raise MissingDataError(f"{wanted.name} lacks {folder / name}: unpack the published archive again.")
        contents.append((folder / name).read_bytes())
        _check_md5(folder / name, contents[-1], wanted)
    return contents


def _read_archive(archive: Path, files: tuple[str, ...], wanted: CifarSet) -> list[bytes]:
    packed = archive.read_bytes()
    _check_md5(archive, packed, wanted)
    contents: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:*") as tar:
            total = 0
            for member in tar:
                total += member.size
                check_unpacked_size(archive, total, len(packed))
                name = Path(member.name).name
                if name in files and member.isfile():
                    content = tar.extractfile(member)
                    contents[name] = content.read() if content else b""
    except (tarfile.TarError, EOFError, OSError, ValueError, zlib.error, lzma.LZMAError) as error:
        if isinstance(error, DamagedDataError):
            raise
        raise DamagedDataError(archive, f"it does not unpack ({first_line(error)})") from error
    lacking = [name for name in files if name not in contents]
    if lacking:
        raise DamagedDataError(archive, f"it lacks {', '.join(lacking)}")
    return [contents[name] for name in files]


def _check_md5(path: Path, content: bytes, wanted: CifarSet) -> None:
    published = wanted.md5.get(path.name)
    if published and hashlib.md5(content, usedforsecurity=False).hexdigest() != published:
        raise DamagedDataError(path, f"its md5 is not the published {published}, fetch it again")
