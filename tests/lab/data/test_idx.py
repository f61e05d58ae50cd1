"""MNIST and Fashion-MNIST from idx files."""

from __future__ import annotations

import dataclasses
import gzip
import struct

import numpy as np
import pytest

from isogon.lab.data import DamagedDataError, MissingDataError, load
from isogon.lab.data._arrays import Arrays
from isogon.lab.data._idx import FILES, MNIST, read_idx, read_idx_set

TINY = dataclasses.replace(MNIST, checksum=None)


def idx_bytes(array):
    return struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_set(folder, arrays, zipped=()):
    folder.mkdir(parents=True, exist_ok=True)
    parts = (arrays.train_x[:, 0], arrays.train_y, arrays.test_x[:, 0], arrays.test_y)
    for name, array in zip(FILES, parts, strict=True):
        content = idx_bytes(array.astype(np.uint8))
        if name in zipped:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content, 1))
        else:
            (folder / name).write_bytes(content)


@pytest.fixture(scope="module")
def small(made_up):
    return made_up(30, 20, shape=(1, 5, 7))


@pytest.mark.parametrize("zipped", [(), FILES, FILES[1:3]])
@pytest.mark.parametrize("folder", ["mnist", "MNIST/raw", "."])
def test_plain_and_gzipped_files_are_read_where_others_put_them(tmp_path, small, same_arrays, zipped, folder):
    write_set(tmp_path / folder, small, zipped)
    assert same_arrays(read_idx_set(TINY, tmp_path), small)


def test_the_published_set_loads_and_an_altered_one_is_refused(tmp_path, full_fashion, same_arrays):
    write_set(tmp_path / "good" / "fashion-mnist", full_fashion, zipped=FILES[1::2])
    loaded = load("fashion-mnist", tmp_path / "good")
    assert np.array_equal(loaded.train_x.numpy(), full_fashion.train_x)
    assert loaded.samples == 60_000
    assert loaded.classes[9] == "Ankle boot"
    assert loaded.mean == pytest.approx((0.2860,), abs=1e-4)
    assert loaded.std == pytest.approx((0.3530,), abs=1e-4)

    altered = full_fashion.test_x.copy()
    altered[1234, 0, 14, 14] ^= 1
    write_set(tmp_path / "bad" / "fashion-mnist", dataclasses.replace(full_fashion, test_x=altered))
    with pytest.raises(DamagedDataError, match="not that of the published set"):
        load("fashion-mnist", tmp_path / "bad")
    with pytest.raises(DamagedDataError, match="not that of the published set"):
        # right files of the other set, which bear the same names
        load("mnist", tmp_path / "good" / "fashion-mnist")


def test_mnist_as_published(tmp_path, shared_data):
    # The checksum in the code is that of the published idx files; the arrays at hand were made from them.
    archive = load(f"npz:{shared_data / 'mnist.npz.xz'}")
    assert archive.samples == 60_000
    assert archive.image_size == (28, 28)
    parts = [tensor.numpy() for tensor in (archive.train_x, archive.train_y, archive.test_x, archive.test_y)]
    write_set(tmp_path, Arrays(*parts, classes=archive.classes))
    assert load("mnist", tmp_path).fingerprint == archive.fingerprint


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda content: content[:-1], "promises 6 values and it has 5"),
        (lambda content: content + b"\0", "promises 6 values and it has 7"),
        (lambda content: content[:10], "does not start as an idx file"),
        (lambda content: b"", "does not start as an idx file"),
        (lambda content: b"\0\0\x0d" + content[3:], "does not start as an idx file"),
        (lambda content: b"<html>not found</html>", "does not start as an idx file"),
    ],
)
def test_a_file_that_is_not_whole_is_refused(tmp_path, spoil, complaint):
    content = idx_bytes(np.arange(6, dtype=np.uint8).reshape(2, 3))
    path = tmp_path / "some-idx2-ubyte"
    path.write_bytes(content)
    assert read_idx(path).tolist() == [[0, 1, 2], [3, 4, 5]]
    path.write_bytes(spoil(content))
    with pytest.raises(DamagedDataError, match=complaint):
        read_idx(path)


@pytest.mark.parametrize("spoil", [lambda packed: packed[:-9], lambda packed: packed[:12], lambda packed: b"no"])
def test_a_damaged_gzip_is_refused(tmp_path, spoil):
    path = tmp_path / "some.gz"
    path.write_bytes(spoil(gzip.compress(idx_bytes(np.arange(200, dtype=np.uint8)))))
    with pytest.raises(DamagedDataError, match=r"some\.gz cannot be used: it does not unpack"):
        read_idx(path)


def test_more_labels_than_images_are_refused(tmp_path, small):
    write_set(tmp_path, dataclasses.replace(small, train_y=np.append(small.train_y, 0)))
    with pytest.raises(DamagedDataError, match="30 images need as many whole numbers"):
        read_idx_set(TINY, tmp_path)


def test_a_label_out_of_range_is_refused(tmp_path, small):
    write_set(tmp_path, dataclasses.replace(small, test_y=np.full_like(small.test_y, 10)))
    with pytest.raises(DamagedDataError, match="to 10 where 10 classes"):
        read_idx_set(TINY, tmp_path)


def test_missing_files_are_named_with_their_place(tmp_path):
    with pytest.raises(MissingDataError, match="train-images-idx3-ubyte") as caught:
        read_idx_set(TINY, tmp_path)
    assert str(tmp_path / "mnist") in str(caught.value)
