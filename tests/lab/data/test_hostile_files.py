"""Files made to hurt: one sentence each, in bounded memory, and nothing waits for ever."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import struct
import tarfile
import zipfile

import numpy as np
import pytest

from isogon.errors import IsogonError
from isogon.lab import load
from isogon.lab.data import DamagedDataError
from isogon.lab.data._idx import read_idx

pillow = pytest.importorskip("PIL.Image")
BOMB = 200 * 2**20


def refusal(name, *args):
    with pytest.raises(IsogonError) as refused:
        load(name, *args)
    sentence = str(refused.value)
    assert "\n" not in sentence
    return sentence


@pytest.mark.parametrize("dimensions", [0, 4, 200])
def test_an_idx_file_of_odd_dimensions(tmp_path, dimensions):
    (tmp_path / "file").write_bytes(bytes([0, 0, 8, dimensions]) + struct.pack(">I", 1) * dimensions + b"1")
    with pytest.raises(DamagedDataError, match="does not start as an idx file"):
        read_idx(tmp_path / "file")


def test_a_gz_bomb(tmp_path):
    (tmp_path / "file.gz").write_bytes(gzip.compress(bytes(BOMB)))
    with pytest.raises(DamagedDataError, match="unpacks to more than 100 times its size"):
        read_idx(tmp_path / "file.gz")


def npz(**arrays) -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()


def test_npz_and_xz_bombs(tmp_path):
    zeros = np.zeros((BOMB // 784, 28, 28), np.uint8)
    packed = npz(train_x=zeros, train_y=np.zeros(3, int), test_x=zeros[:2], test_y=np.zeros(2, int))
    (tmp_path / "bomb.npz").write_bytes(packed)
    assert "more than 100 times its size" in refusal(f"npz:{tmp_path / 'bomb.npz'}")
    (tmp_path / "bomb.npz.xz").write_bytes(lzma.compress(bytes(BOMB)))
    assert "more than 100 times its size" in refusal(f"npz:{tmp_path / 'bomb.npz.xz'}")


def test_npz_with_a_header_of_terabytes_unknown_compression_or_a_password(tmp_path):
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (1000000, 8000, 8000), }"
    huge = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header) + 1) + header + b"\n" + b"1234"
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name in ("train_x", "train_y", "test_x", "test_y"):
            archive.writestr(f"{name}.npy", huge)
    whole = stream.getvalue()
    (tmp_path / "a.npz").write_bytes(whole)
    assert "does not unpack" in refusal(f"npz:{tmp_path / 'a.npz'}")
    for offset, value in ((8, 99), (6, 1)):  # the method of compression, and the flag of encryption
        damaged = bytearray(whole)
        place = damaged.find(b"PK\x01\x02")
        while place >= 0:
            damaged[place + offset + 2] = value
            place = damaged.find(b"PK\x01\x02", place + 1)
        (tmp_path / "b.npz").write_bytes(bytes(damaged))
        assert "does not unpack" in refusal(f"npz:{tmp_path / 'b.npz'}")


def folder_of_images(root, count=2):
    for part in ("train", "val"):
        for name in "ab":
            place = root / part / name
            place.mkdir(parents=True)
            for number in range(count):
                pillow.new("RGB", (8, 8), (number, 0, 0)).save(place / f"{number}.png")
    return root


def test_an_image_bomb_a_pipe_and_a_size_beyond_all_memory(tmp_path):
    root = folder_of_images(tmp_path / "images")
    assert load(f"imagefolder:{root}").samples == 4
    os.mkfifo(root / "train" / "a" / "pipe.png")
    assert load(f"imagefolder:{root}?size=16").samples == 4, "a pipe is no image, and is not waited for"
    pillow.new("RGB", (60_000, 1)).save(root / "train" / "a" / "long.png")
    assert "does not decode (resized it would have" in refusal(f"imagefolder:{root}?size=2048")
    (root / "train" / "a" / "long.png").unlink()
    for size in ("100000", "0", "-1", "1e3", "9" * 5000, "²"):
        assert "must be imagefolder:PATH" in refusal(f"imagefolder:{root}?size={size}")
    pillow.new("1", (20_000, 20_000)).save(root / "train" / "a" / "bomb.png")
    assert "does not decode" in refusal(f"imagefolder:{root}?size=32")


def test_a_damaged_xz_tar_and_one_with_a_huge_member(tmp_path):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:xz") as tar:
        member = tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin")
        member.size = 10_000
        tar.addfile(member, io.BytesIO(os.urandom(10_000)))
    packed = bytearray(stream.getvalue())
    packed[len(packed) // 2] ^= 0xFF
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(bytes(packed))
    assert "does not unpack" in refusal("cifar10", tmp_path)
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        member = tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin")
        member.size = BOMB
        tar.addfile(member, io.BytesIO(bytes(BOMB)))
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(stream.getvalue())
    assert "more than 100 times its size" in refusal("cifar10", tmp_path)


@pytest.mark.parametrize("name", ["npz:a\0b", "imagefolder:a\0b", "a\nb", "", 7, None, "../../x"])
def test_names_that_are_none(name):
    assert "must be one of" in refusal(name)
