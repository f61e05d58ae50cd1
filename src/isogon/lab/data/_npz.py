"""A data set in one numpy archive: arrays train_x, train_y, test_x, test_y; .npz, or .npz.xz for less room."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isogon.errors import first_line
from isogon.lab.data._arrays import Arrays, DamagedDataError, MissingDataError, make_arrays
from isogon.lab.data._unpacking import check_unpacked_size, unpack

NAMES = ("train_x", "train_y", "test_x", "test_y")
#: an N×H×W×C array has few channels; more means that they were put first
MOST_CHANNELS = 4


def read_npz(path: Path) -> Arrays:
    """Images as uint8 N×H×W×C or N×H×W, labels as whole numbers from 0."""
    if not path.is_file():
        raise MissingDataError(f"{path} does not exist: put a numpy archive of {', '.join(NAMES)} there.")
    arrays = unpack_npz(path, path.read_bytes(), NAMES)
    train_x, test_x = (_channels_first(path, arrays[name]) for name in ("train_x", "test_x"))
    return make_arrays(path, (train_x, arrays["train_y"]), (test_x, arrays["test_y"]))


def unpack_npz(place: Path | str, content: bytes, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    """The named arrays of an archive, whether or not it is in xz; nothing is unpickled."""
    plain = unpack(place, content, "xz") if content[:6] == b"\xfd7zXZ\0" else content
    try:
        with zipfile.ZipFile(io.BytesIO(plain)) as members:
            check_unpacked_size(place, sum(member.file_size for member in members.infolist()), len(plain))
        with np.load(io.BytesIO(plain), allow_pickle=False) as archive:
            return {name: archive[name] for name in names}
    except KeyError as error:
        raise DamagedDataError(place, f"it lacks the array {str(error.args[0]).split()[0]}") from error
    except DamagedDataError:
        raise
    except Exception as error:  # headers that promise terabytes, unknown or encrypted members: each has its own error
        raise DamagedDataError(place, f"it does not unpack ({first_line(error)})") from error


def _channels_first(path: Path, images: NDArray[Any]) -> NDArray[Any]:
    if images.ndim == 3:
        return images[:, None]
    if images.ndim != 4 or images.shape[3] > MOST_CHANNELS:
        raise DamagedDataError(path, f"images must be N×H×W×C or N×H×W with C at most 4, these are {images.shape}")
    return images.transpose(0, 3, 1, 2)
