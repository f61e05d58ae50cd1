"""Text as sequences of bytes: what is where, and that nothing of the validation is trained on."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest
import torch

from isogon.errors import ArgumentError, IsogonError
from isogon.lab import load
from isogon.lab.data._text import is_text, read_name


@pytest.fixture
def book(tmp_path):
    """A text of 2,000 numbered lines."""
    file = tmp_path / "book.txt"
    file.write_text("".join(f"line {number:04} of the book\n" for number in range(2000)))
    return file


def joined(sequences) -> bytes:
    return bytes(sequences.flatten().tolist())


def test_the_standard_library_is_on_every_machine():
    data = load("python-stdlib")
    assert data.is_text
    assert (data.num_classes, data.in_channels, data.labels_per_sample) == (256, 128, 128)
    assert data.train_x.shape == data.train_y.shape == (data.samples, 128)
    assert data.train_x.dtype == torch.uint8
    # "some 10 MB" of Python's sources, without tests
    assert 5e6 < 128 * data.samples < 30e6
    assert len(data.test_x) == 1024
    text = joined(data.train_x)
    assert b"class OrderedDict(dict):" in text or b"class OrderedDict(dict):" in joined(data.test_x)
    assert load("python-stdlib").fingerprint == data.fingerprint
    tests = Path(sysconfig.get_paths()["stdlib"]) / "test" / "test_abc.py"
    if tests.exists():
        assert tests.read_bytes()[2000:2080] not in text


def test_labels_are_the_next_bytes_and_every_byte_is_one_once(book):
    data = load(f"text:{book}?context=16")
    assert torch.equal(data.train_x[:, 1:], data.train_y[:, :-1])
    assert torch.equal(data.train_x[1:, 0], data.train_y[:-1, -1])
    assert data.labels_per_sample == 16
    # nothing is lost but less than a sequence at the end
    content = book.read_bytes()
    pieces = joined(data.train_x).count(b"of the book") + 0.1 * content.count(b"of the book")
    assert pieces == pytest.approx(2000, rel=0.15)


def test_no_line_is_trained_and_validated_on(book):
    data = load(f"text:{book}?context=16")
    train, test = (joined(part).split(b"\n")[1:-1] for part in (data.train_x, data.test_x))
    whole = [{line for line in lines if len(line) == 21} for lines in (train, test)]
    assert len(whole[0]) > 1000
    assert len(whole[1]) > 20
    assert not whole[0] & whole[1]


def test_documents_of_a_folder_stay_whole(tmp_path):
    for number in range(60):
        (tmp_path / "below").mkdir(exist_ok=True)
        (tmp_path / "below" / f"{number}.txt").write_text(f"<{number:02}>" * 20)
    (tmp_path / ".hidden").write_text("secret" * 1000)
    data = load(f"text:{tmp_path}?context=8")
    train, test = joined(data.train_x), joined(data.test_x)
    assert b"secret" not in train + test
    for number in range(60):
        mark = f"<{number:02}>".encode()
        assert (mark in train) != (mark in test)
    assert 1 <= test.count(b"\0") + 1 <= 15


def test_subsets_are_nested_and_have_fingerprints_of_their_own(book):
    name = f"text:{book}?context=16"
    small, large = load(name, subset=50), load(name, subset=100)
    assert set(small.indices.tolist()) < set(large.indices.tolist())
    assert torch.equal(load(name).train_x[large.indices], large.train_x)
    assert len({small.fingerprint, large.fingerprint, load(name).fingerprint}) == 3
    assert load(name, subset=50, seed=1).indices.tolist() != small.indices.tolist()
    assert torch.equal(small.test_x, large.test_x)


def test_another_text_or_context_has_another_fingerprint(book):
    first = load(f"text:{book}?context=16")
    assert load(f"text:{book}?context=8").fingerprint != first.fingerprint


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("text:", "name must be python-stdlib or text:PATH"),
        ("text:?context=8", "name must be python-stdlib or text:PATH"),
        ("python-stdlib?context=1", "2 to 65536 bytes"),
        ("python-stdlib?context=99999999", "2 to 65536 bytes"),
        ("python-stdlib?size=4", "context="),
        ("text:/nowhere.txt", "does not exist"),
        ("text:/dev/zero", "neither a file nor a folder"),
    ],
)
def test_bad_names_and_files_are_refused_in_one_sentence(name, match):
    with pytest.raises(IsogonError, match=match) as caught:
        load(name)
    assert "\n" not in str(caught.value)


def test_a_text_that_is_too_short_is_refused(tmp_path):
    (tmp_path / "short.txt").write_text("short")
    with pytest.raises(IsogonError, match="shorter than one sequence of 128 bytes"):
        load(f"text:{tmp_path / 'short.txt'}")
    (tmp_path / "empty").mkdir()
    with pytest.raises(IsogonError, match="shorter than one sequence"):
        load(f"text:{tmp_path / 'empty'}")


def test_names_are_told_apart():
    names = ["python-stdlib", "text:x", "python-stdlib-2", "npz:text:x"]
    assert [is_text(name) for name in names] == [True, True, False, False]
    assert read_name("python-stdlib").context == 128
    with pytest.raises(ArgumentError):
        read_name("python-stdlib\0")


@pytest.mark.parametrize("files", [{"a.txt": 3}, {"a.txt": 3, "b.txt": 3, "c.txt": 3}])
def test_few_documents_keep_their_end_for_validation(tmp_path, files):
    """Without a line to cut at, or with too few documents for one of them to be kept."""
    for name, copies in files.items():
        (tmp_path / name).write_bytes(bytes(range(65, 91)) * 100 * copies)
    data = load(f"text:{tmp_path}?context=8")
    assert len(data.train_x) > 5 * len(data.test_x) > 0
    one = load(f"text:{tmp_path / 'a.txt'}?context=8")
    assert len(one.test_x) > 0
