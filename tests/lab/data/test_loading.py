"""`load` by name: the embedded set, subsets, fingerprints, statistics and refusals."""

from __future__ import annotations

import dataclasses
import itertools
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isogon.errors import ArgumentError, MissingExtraError
from isogon.lab.data import DamagedDataError, MissingDataError, load
from isogon.lab.data import _fashion_mini as fashion_mini
from isogon.lab.data._digits import read_digits
from isogon.lab.data._subsets import balanced_subset


@pytest.fixture(scope="module")
def mini():
    return load("fashion-mini")


def test_the_embedded_set_is_balanced(mini):
    assert mini.train_x.shape == (8000, 1, 28, 28)
    assert mini.test_x.shape == (2000, 1, 28, 28)
    assert mini.train_x.dtype == torch.uint8
    assert mini.train_y.dtype == torch.int64
    assert mini.train_x.is_contiguous()
    assert mini.train_y.bincount().tolist() == [800] * 10
    assert mini.test_y.bincount().tolist() == [200] * 10
    assert (mini.samples, mini.num_classes, mini.in_channels, mini.image_size) == (8000, 10, 1, (28, 28))
    assert mini.indices.tolist() == list(range(8000))


def test_the_embedded_set_is_the_first_part_of_the_full_set_pixel_by_pixel(mini, full_fashion, make_fashion_mini):
    for images, labels, full_images, full_labels, each in (
        (mini.train_x, mini.train_y, full_fashion.train_x, full_fashion.train_y, 800),
        (mini.test_x, mini.test_y, full_fashion.test_x, full_fashion.test_y, 200),
    ):
        places = make_fashion_mini.first_of_each(full_labels, each)
        assert np.array_equal(images.numpy(), full_images[places])
        assert np.array_equal(labels.numpy(), full_labels[places])


def test_an_altered_embedded_set_is_refused(monkeypatch):
    decode = fashion_mini.decode

    def altered(*arguments):
        images = decode(*arguments)
        images[5000, 3, 3] ^= 1
        return images

    monkeypatch.setattr(fashion_mini, "decode", altered)
    with pytest.raises(DamagedDataError, match="not that of the published set"):
        fashion_mini.unpack()


def test_the_embedded_file_is_small_and_carries_its_licence(root):
    folder = root / "src" / "isogon" / "lab" / "data"
    assert (folder / "fashion-mini.npz.xz").stat().st_size < 3_300_000
    licence = (folder / "fashion-mini.LICENSE").read_text()
    assert "The MIT License" in licence
    assert "Copyright (c) 2017 Zalando SE" in licence


def test_later_loads_share_the_tensors(mini):
    again = load("fashion-mini", "anywhere")
    assert again.train_x.data_ptr() == mini.train_x.data_ptr()
    assert load("fashion-mini", subset=10).test_x.data_ptr() == mini.test_x.data_ptr()


def test_statistics_are_those_of_the_full_training_set(mini):
    pixels = mini.train_x.numpy() / 255
    assert mini.mean == pytest.approx([pixels.mean()], abs=1e-10)
    assert mini.std == pytest.approx([pixels.std()], abs=1e-10)
    small = load("fashion-mini", subset=100)
    assert (small.mean, small.std) == (mini.mean, mini.std)


def test_a_blank_channel_has_deviation_one(tmp_path):
    blank = np.zeros((4, 2, 2), np.uint8)
    np.savez(tmp_path / "blank.npz", train_x=blank, train_y=np.arange(4), test_x=blank, test_y=np.arange(4))
    assert load(f"npz:{tmp_path / 'blank.npz'}").std == (1.0,)


def test_a_subset_holds_the_samples_that_its_indices_name(mini):
    part = load("fashion-mini", subset=625, seed=3)
    assert part.samples == 625
    assert torch.equal(part.train_x, mini.train_x[part.indices])
    assert torch.equal(part.train_y, mini.train_y[part.indices])
    counts = part.train_y.bincount(minlength=10)
    assert counts.max() - counts.min() == 1


def test_subsets_of_one_seed_are_nested_and_seeds_differ():
    chosen = [set(load("fashion-mini", subset=count, seed=1).indices.tolist()) for count in (500, 1000, 3125, 6250)]
    for smaller, larger in itertools.pairwise(chosen):
        assert smaller < larger
    assert set(load("fashion-mini", subset=500, seed=2).indices.tolist()) != chosen[0]


@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=60),
    seed=st.integers(0, 2**70),
    data=st.data(),
)
def test_subsets_are_nested_and_as_balanced_as_the_classes_allow(labels, seed, data):
    labels = np.array(labels)
    count = data.draw(st.integers(1, len(labels)))
    fewer = data.draw(st.integers(1, count))
    places = balanced_subset(labels, count, seed)
    assert len(places) == count
    assert (np.diff(places) > 0).all()
    assert set(balanced_subset(labels, fewer, seed)) <= set(places)
    have, chosen = np.bincount(labels, minlength=5), np.bincount(labels[places], minlength=5)
    assert ((chosen >= chosen.max() - 1) | (chosen == have)).all()


def test_a_subset_of_all_is_the_set_itself(mini):
    assert load("fashion-mini", subset=8000, seed=9).fingerprint == mini.fingerprint


def test_every_sample_is_as_likely_as_the_others():
    labels = np.arange(40) % 4
    hits = np.zeros(40)
    for seed in range(2000):
        hits[balanced_subset(labels, 10, seed)] += 1
    expected = hits.sum() / 40
    # χ² with 39 degrees of freedom has mean 39 and deviation 9; the draws of a seed are not independent, but nearly.
    assert ((hits - expected) ** 2 / expected).sum() < 39 + 4 * 9


def test_the_choice_never_changes():
    # Runs that recorded their subset must find it again with any numpy on any machine.
    assert balanced_subset(np.arange(24) % 3, 7, seed=0).tolist() == [1, 2, 3, 11, 13, 20, 21]


def test_the_fingerprint_tells_contents_apart(tmp_path, made_up):
    arrays = made_up(30, 20, classes=3, shape=(1, 4, 4))

    def fingerprint(name, **changes):
        changed = dataclasses.replace(arrays, **changes)
        path = tmp_path / f"{name}.npz"
        np.savez(
            path,
            train_x=changed.train_x[:, 0],
            train_y=changed.train_y,
            test_x=changed.test_x[:, 0],
            test_y=changed.test_y,
        )
        return load(f"npz:{path}").fingerprint

    base = fingerprint("base")
    assert fingerprint("copy") == base
    others = {base}
    for field in ("train_x", "train_y", "test_x", "test_y"):
        changed = getattr(arrays, field).copy()
        changed[3] = (changed[3] + 1) % 3
        others.add(fingerprint(field, **{field: changed}))
    others |= {load(f"npz:{tmp_path / 'base.npz'}", subset=9, seed=seed).fingerprint for seed in (0, 1)}
    others.add(load(f"npz:{tmp_path / 'base.npz'}", subset=8).fingerprint)
    assert len(others) == 8


@pytest.mark.parametrize("subset", [0, -5, 8001, 2.5, "all", True])
def test_an_impossible_subset_is_refused(subset):
    with pytest.raises(ArgumentError, match=r"^subset must be"):
        load("fashion-mini", subset=subset)


@pytest.mark.parametrize("seed", [-1, 0.5, None])
def test_an_impossible_seed_is_refused(seed):
    with pytest.raises(ArgumentError, match=r"^seed must be"):
        load("fashion-mini", subset=10, seed=seed)


@pytest.mark.parametrize("name", ["fashion", "", "npz", "npz:", "imagefolder:", "CIFAR10", "zip:x", None, 3])
def test_an_unknown_name_is_answered_with_the_known_ones(name):
    with pytest.raises(
        ArgumentError, match=r"fashion-mini, digits, drawn-folders, python-stdlib, mnist, .*npz:PATH, text:PATH"
    ):
        load(name)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10", "cifar100", "tiny-imagenet"])
def test_missing_files_are_looked_for_where_the_variable_says(tmp_path, monkeypatch, name):
    monkeypatch.setenv("ISOGON_DATA", str(tmp_path / "there"))
    with pytest.raises(MissingDataError, match=str(tmp_path / "there")):
        load(name)
    with pytest.raises(MissingDataError, match=str(tmp_path / "here")):
        load(name, tmp_path / "here")
    monkeypatch.delenv("ISOGON_DATA")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with pytest.raises(MissingDataError, match=str(tmp_path / "home" / ".cache" / "isogon" / "data")):
        load(name)


def test_digits():
    datasets = pytest.importorskip("sklearn.datasets", reason="scikit-learn is not installed")
    loaded = load("digits")
    assert loaded.train_x.shape == (1438, 1, 8, 8)
    assert loaded.test_x.shape == (359, 1, 8, 8)
    images = datasets.load_digits().images
    assert torch.allclose(loaded.test_x[0, 0] / 255.0, torch.from_numpy(images[4] / 16).float(), atol=0.5 / 255)
    assert loaded.train_y.bincount().min() > 120
    assert loaded.train_x.max() == 255


def test_without_scikit_learn_the_cure_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingExtraError, match=r"isogon\[data\]"):
        read_digits()
