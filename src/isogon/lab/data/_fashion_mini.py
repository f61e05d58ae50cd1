"""The embedded set: the first 800 training and 200 test images of each Fashion-MNIST class.

Fashion-MNIST is © 2017 Zalando SE, MIT licence (`fashion-mini.LICENSE` beside this file); `tools/make_fashion_mini.py`
made the file.
"""

from __future__ import annotations

from importlib.resources import files

from isogon.lab.data._arrays import Arrays, make_arrays
from isogon.lab.data._codec import decode
from isogon.lab.data._idx import FASHION_MNIST
from isogon.lab.data._npz import unpack_npz

FILE = "fashion-mini.npz.xz"
TRAIN = 8_000
CHECKSUM = "4a63a57d3e828d1a9fb0d74277baeb1d0002b09f4624d4d994369ce8da530cf3"


def unpack(checksum: str | None = CHECKSUM) -> Arrays:
    """The set, checked; takes about a second."""
    packed = files("isogon.lab.data").joinpath(FILE).read_bytes()
    arrays = unpack_npz(FILE, packed, ("labels", "levels", "frequencies", "states", "words"))
    labels = arrays["labels"]
    images = decode(arrays["levels"], arrays["frequencies"], arrays["states"], arrays["words"])[:, None]
    train, test = (images[:TRAIN], labels[:TRAIN]), (images[TRAIN:], labels[TRAIN:])
    return make_arrays(FILE, train, test, FASHION_MNIST.classes, checksum)
