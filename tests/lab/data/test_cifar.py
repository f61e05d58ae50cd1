"""CIFAR in its four published forms, and pickles that want more than arrays."""

from __future__ import annotations

import dataclasses
import io
import os
import pickle
import struct
import subprocess
import sys
import tarfile

import numpy as np
import pytest

from isogon.lab.data import DamagedDataError, MissingDataError, load
from isogon.lab.data._cifar import CIFAR10, CIFAR100, read_cifar

TINY10 = dataclasses.replace(CIFAR10, per_file=(20, 10), checksum=None)
TINY100 = dataclasses.replace(CIFAR100, per_file=(200, 100), checksum=None, md5={})
FORMS = ("python", "python_archive", "binary", "binary_archive")


def python2_string(text: bytes) -> bytes:
    return b"T" + struct.pack("<i", len(text)) + text


def python2_pickle(images, **labels):
    """A dictionary of an array and lists of small numbers, opcode for opcode as Python 2 with numpy pickled it."""
    count, pixels = images.shape
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85U\x01btR"
        b"(K\x01J" + struct.pack("<i", count) + b"J" + struct.pack("<i", pixels) + b"\x86"
        b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89" + python2_string(images.tobytes()) + b"tb"
    )
    items = python2_string(b"data") + array
    for name, values in labels.items():
        items += python2_string(name.encode()) + b"](" + b"".join(b"K" + bytes([v]) for v in values) + b"e"
    return b"\x80\x02}(" + items + python2_string(b"batch_label") + python2_string(b"batch 1 of 5") + b"u."


def files_of(wanted, arrays, python):
    """Names and contents of the set's files."""
    train, test = wanted.per_file
    cuts = [(start * train, (start + 1) * train) for start in range(len(wanted.train))]
    parts = [(arrays.train_x[a:b], arrays.train_y[a:b]) for a, b in cuts] + [(arrays.test_x, arrays.test_y)]
    assert len(parts[-1][0]) == test
    files = {}
    for name, (images, labels) in zip((*wanted.train, wanted.test), parts, strict=True):
        flat = images.reshape(len(images), -1)
        coarse = labels % 20
        if python:
            more = {"coarse_labels": coarse} if wanted.label_bytes == 2 else {}
            files[name] = python2_pickle(flat, **more, **{wanted.label: labels})
        else:
            heads = [coarse, labels] if wanted.label_bytes == 2 else [labels]
            files[f"{name}.bin"] = np.column_stack([*heads, flat]).astype(np.uint8).tobytes()
    return files


def write_form(root, wanted, form, files):
    root.mkdir(parents=True, exist_ok=True)
    folder = wanted.python if form.startswith("python") else wanted.binary
    if not form.endswith("archive"):
        (root / folder).mkdir()
        for name, content in files.items():
            (root / folder / name).write_bytes(content)
        return root / folder
    path = root / getattr(wanted, form)
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        for name, content in {"readme.html": b"hello", **files}.items():
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return path


@pytest.fixture(scope="module", params=[TINY10, TINY100], ids=["cifar10", "cifar100"])
def wanted(request):
    return request.param


@pytest.fixture(scope="module")
def arrays(wanted, made_up):
    return made_up(wanted.per_file[0] * len(wanted.train), wanted.per_file[1], len(wanted.classes))


@pytest.mark.parametrize("below", [".", "own"])
@pytest.mark.parametrize("form", FORMS)
def test_every_published_form_gives_the_same_arrays(tmp_path, wanted, arrays, same_arrays, form, below):
    root = tmp_path if below == "." else tmp_path / wanted.name
    write_form(root, wanted, form, files_of(wanted, arrays, form.startswith("python")))
    read = read_cifar(wanted, tmp_path)
    assert same_arrays(read, arrays)
    assert read.train_x.flags.c_contiguous
    assert read.classes == wanted.classes


def test_pickles_written_by_this_python_are_read_too(tmp_path, made_up, same_arrays):
    arrays = made_up(100, 10)
    files = {}
    for name, content in files_of(TINY10, arrays, python=True).items():
        files[name] = pickle.dumps(pickle.loads(content, encoding="latin1"), protocol=4)
    write_form(tmp_path, TINY10, "python", files)
    assert same_arrays(read_cifar(TINY10, tmp_path), arrays)


class Evil:
    """Unpickles by calling any function it names."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    "evil",
    [
        lambda mark: Evil(os.system, f"touch {mark}"),
        lambda mark: Evil(eval, f"open({str(mark)!r}, 'w')"),
        lambda mark: Evil(getattr, "text", "format"),
        lambda mark: Evil(np.fromfile, str(mark)),
        lambda mark: Evil(subprocess.getoutput, f"touch {mark}"),
    ],
)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_calls_anything_is_refused_unrun(tmp_path, made_up, evil, protocol):
    mark = tmp_path / "mark"
    files = files_of(TINY10, made_up(100, 10), python=True)
    files["data_batch_3"] = pickle.dumps({"data": evil(mark), "labels": []}, protocol=protocol)
    write_form(tmp_path, TINY10, "python", files)
    with pytest.raises(DamagedDataError, match=r"it asks for \S+, which no array needs"):
        read_cifar(TINY10, tmp_path)
    assert not mark.exists()


@pytest.mark.parametrize(
    "content", [b"", b"\x80\x02}q", b"\x80\x04P1\n.", pickle.dumps([1]), pickle.dumps({"data": 3})]
)
def test_a_pickle_of_something_else_is_refused(tmp_path, made_up, content):
    files = files_of(TINY10, made_up(100, 10), python=True)
    files["test_batch"] = content
    write_form(tmp_path, TINY10, "python", files)
    with pytest.raises(DamagedDataError, match="does not unpickle"):
        read_cifar(TINY10, tmp_path)


@pytest.mark.parametrize("form", FORMS)
def test_a_truncated_set_is_refused(tmp_path, wanted, arrays, form):
    place = write_form(tmp_path, wanted, form, files_of(wanted, arrays, form.startswith("python")))
    victim = place if place.is_file() else sorted(place.iterdir())[-1]
    victim.write_bytes(victim.read_bytes()[:-5000])
    with pytest.raises(DamagedDataError, match=str(place)):
        read_cifar(wanted, tmp_path)


@pytest.mark.parametrize("form", FORMS)
def test_whole_records_missing_are_noticed(tmp_path, made_up, form):
    arrays = made_up(100, 10)
    fewer = dataclasses.replace(TINY10, per_file=(10, 10))
    short = dataclasses.replace(arrays, train_x=arrays.train_x[:50], train_y=arrays.train_y[:50])
    write_form(tmp_path, TINY10, form, files_of(fewer, short, form.startswith("python")))
    with pytest.raises(DamagedDataError, match="10 labels and a table of 10×3072 pixels where 20 and 20×3072 belong"):
        read_cifar(TINY10, tmp_path)


@pytest.mark.parametrize(("labels", "shape"), [(20, (20, 3000)), (19, (20, 3072)), (20, (19, 3072))])
def test_tables_of_another_shape_are_refused(tmp_path, made_up, labels, shape):
    files = files_of(TINY10, made_up(100, 10), python=True)
    files["data_batch_2"] = python2_pickle(np.zeros(shape, np.uint8), labels=[1] * labels)
    write_form(tmp_path, TINY10, "python", files)
    with pytest.raises(DamagedDataError, match=f"{labels} labels and a table of {shape[0]}×{shape[1]} pixels"):
        read_cifar(TINY10, tmp_path)


@pytest.mark.parametrize("form", FORMS)
def test_one_altered_pixel_is_refused_by_the_checksum(tmp_path, wanted, arrays, form):
    checked = dataclasses.replace(wanted, checksum=arrays.checksum())
    python = form.startswith("python")
    write_form(tmp_path / "good", checked, form, files_of(checked, arrays, python))
    read_cifar(checked, tmp_path / "good")
    pixels = arrays.train_x.copy()
    pixels[7, 1, 20, 30] ^= 4
    altered = dataclasses.replace(arrays, train_x=pixels)
    write_form(tmp_path / "bad", checked, form, files_of(checked, altered, python))
    with pytest.raises(DamagedDataError, match="not that of the published set"):
        read_cifar(checked, tmp_path / "bad")


@pytest.mark.parametrize("form", ["python", "python_archive", "binary_archive"])
def test_cifar100_files_must_have_the_published_md5(tmp_path, made_up, form):
    files = files_of(TINY100, made_up(200, 100, 100), form.startswith("python"))
    write_form(tmp_path, CIFAR100, form, files)
    with pytest.raises(DamagedDataError, match=r"md5 is not the published [0-9a-f]{32}"):
        load("cifar100", tmp_path)


def test_classes_of_unequal_size_are_refused(tmp_path, made_up):
    arrays = made_up(100, 10)
    labels = arrays.train_y.copy()
    labels[0] = (labels[0] + 1) % 10
    files = files_of(TINY10, dataclasses.replace(arrays, train_y=labels), python=False)
    write_form(tmp_path, TINY10, "binary", files)
    with pytest.raises(DamagedDataError, match="not of equal size"):
        read_cifar(TINY10, tmp_path)


def test_what_is_missing_is_named(tmp_path, made_up):
    with pytest.raises(MissingDataError, match=r"cifar-10-python\.tar\.gz or cifar-10-binary\.tar\.gz") as caught:
        read_cifar(TINY10, tmp_path)
    assert str(tmp_path) in str(caught.value)
    place = write_form(tmp_path, TINY10, "binary", files_of(TINY10, made_up(100, 10), python=False))
    (place / "data_batch_4.bin").unlink()
    with pytest.raises(MissingDataError, match=str(place / "data_batch_4.bin")):
        read_cifar(TINY10, tmp_path)


def test_an_archive_without_a_batch_is_refused(tmp_path, made_up):
    files = files_of(TINY10, made_up(100, 10), python=False)
    del files["data_batch_2.bin"]
    write_form(tmp_path, TINY10, "binary_archive", files)
    with pytest.raises(DamagedDataError, match=r"lacks data_batch_2\.bin"):
        read_cifar(TINY10, tmp_path)


def test_the_published_classes():
    assert len(set(CIFAR100.classes)) == 100
    assert list(CIFAR100.classes) == sorted(CIFAR100.classes)


@pytest.mark.slow
def test_the_published_cifar10_passes_its_checksum(tmp_path, shared_data):
    # The codec forks, hence a process of its own.
    script = (
        "import sys, numpy as np; sys.path.insert(0, sys.argv[1]); import imcodec\n"
        "for part in 'ab':\n"
        "    arrays = imcodec.decode_file(f'{sys.argv[1]}/cifar10_{part}.imc', nproc=1)\n"
        "    flat = arrays['x'].transpose(0, 3, 1, 2).reshape(len(arrays['x']), -1)\n"
        "    np.column_stack([arrays['y'], flat]).astype(np.uint8).tofile(f'{sys.argv[2]}/{part}')\n"
    )
    subprocess.run([sys.executable, "-c", script, str(shared_data), str(tmp_path)], check=True)
    records = (tmp_path / "a").read_bytes() + (tmp_path / "b").read_bytes()
    names = ["test_batch.bin", *(f"data_batch_{number}.bin" for number in range(1, 6))]
    size = 10_000 * 3073
    files = {name: records[place * size : (place + 1) * size] for place, name in enumerate(names)}
    write_form(tmp_path / "good", CIFAR10, "binary", files)
    loaded = load("cifar10", tmp_path / "good")
    assert loaded.mean == pytest.approx((0.4914, 0.4822, 0.4465), abs=1e-4)
    assert loaded.std == pytest.approx((0.2470, 0.2435, 0.2616), abs=1e-4)
    files["data_batch_1.bin"] = files["data_batch_1.bin"][:-1] + bytes([files["data_batch_1.bin"][-1] ^ 1])
    write_form(tmp_path / "bad", CIFAR10, "binary", files)
    with pytest.raises(DamagedDataError, match="not that of the published set"):
        load("cifar10", tmp_path / "bad")
