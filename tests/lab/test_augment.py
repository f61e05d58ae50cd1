"""Batched augmentation against the plain per-image pipelines."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from torch.nn.functional import interpolate

from isogon.errors import ArgumentError
from isogon.lab.run._augment import TRIES, NoAugmentation, PadCropFlip, ResizedCrop, find_augmentation, none, normalise

EVERY = [none, PadCropFlip(), PadCropFlip(2, flip=False), PadCropFlip(0), ResizedCrop(6), ResizedCrop(12, flip=False)]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def images(count=40, channels=3, height=9, width=11, dtype=torch.uint8):
    pixels = torch.randint(0, 256, (count, channels, height, width), generator=seeded(5), dtype=torch.uint8)
    return pixels.to(dtype)


def pad_crop_flip(image, padding, top, left, mirror):
    """One image, the usual way: pad, cut, mirror."""
    channels, height, width = image.shape
    canvas = torch.zeros(channels, height + 2 * padding, width + 2 * padding, dtype=image.dtype)
    canvas[:, padding : padding + height, padding : padding + width] = image
    crop = canvas[:, top : top + height, left : left + width]
    return torch.flip(crop, [2]) if mirror else crop


def random_box(height, width, scale, ratio, chance):
    """One box, the usual way: ten tries, then the centre."""
    for _ in range(10):
        area = height * width * chance.uniform(*scale)
        shape = math.exp(chance.uniform(math.log(ratio[0]), math.log(ratio[1])))
        w, h = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < w <= width and 0 < h <= height:
            return chance.randint(0, height - h), chance.randint(0, width - w), h, w
    if width / height < ratio[0]:
        w, h = width, round(width / ratio[0])
    elif width / height > ratio[1]:
        w, h = round(height * ratio[1]), height
    else:
        w, h = width, height
    return (height - h) // 2, (width - w) // 2, h, w


def chi_square(counts):
    counts = np.asarray(counts, float)
    return ((counts - counts.mean()) ** 2 / counts.mean()).sum()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("padding", [0, 1, 4])
@pytest.mark.parametrize("channels", [1, 3])
def test_pad_crop_flip_is_the_per_image_pipeline_pixel_by_pixel(dtype, padding, channels):
    batch = images(channels=channels, dtype=dtype)
    augmentation = PadCropFlip(padding)
    drawn = augmentation.draw(len(batch), seeded())
    got = augmentation.apply(batch, drawn)
    wanted = [pad_crop_flip(image, padding, *row) for image, row in zip(batch, drawn.tolist(), strict=True)]
    assert torch.equal(got, torch.stack(wanted))
    assert got.dtype == dtype


def test_offsets_are_uniform_and_independent_and_half_are_mirrored():
    drawn = PadCropFlip(4).draw(16_200, seeded(1)).numpy()
    joint = np.histogramdd(drawn, bins=(9, 9, 2), range=((0, 9), (0, 9), (0, 2)))[0]
    assert joint.sum() == 16_200
    # 161 degrees of freedom: mean 161, deviation 18.
    assert chi_square(joint) < 161 + 4 * 18


@pytest.mark.parametrize("augmentation", [PadCropFlip(flip=False), ResizedCrop(8, flip=False)])
def test_nothing_is_mirrored_unless_asked(augmentation):
    assert (augmentation.draw(100, seeded())[:, -1] == 0).all()


def test_half_of_the_resized_are_mirrored():
    assert abs(ResizedCrop(8).draw(10_000, seeded())[:, -1].mean() - 0.5) < 4 * 0.5 / 100


@pytest.mark.parametrize(("height", "width"), [(9, 11), (32, 32), (5, 30)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float64])
@pytest.mark.parametrize("size", [4, 16])
def test_a_resized_crop_is_the_interpolated_box(height, width, dtype, size):
    batch = images(60, height=height, width=width, dtype=dtype)
    augmentation = ResizedCrop(size)
    drawn = augmentation.draw(len(batch), seeded())
    boxes = augmentation.boxes(drawn, height, width).tolist()
    got = augmentation.apply(batch, drawn)
    assert got.shape == (60, 3, size, size)
    assert got.dtype == dtype
    for image, row, (top, left, h, w), result in zip(batch, drawn, boxes, got, strict=True):
        box = image[None, :, top : top + h, left : left + w].double()
        wanted = interpolate(box, (size, size), mode="bilinear", align_corners=False)[0]
        wanted = wanted.flip(2) if row[-1] else wanted
        tolerance = 0.51 if dtype == torch.uint8 else 1e-4
        assert (result.double() - wanted).abs().max() <= tolerance


@pytest.mark.parametrize(("height", "width"), [(32, 32), (24, 40), (8, 40), (60, 10)])
@pytest.mark.parametrize("scale", [(0.08, 1.0), (0.5, 1.0)])
def test_boxes_have_the_distribution_of_the_per_image_pipeline(height, width, scale):
    count = 20_000
    augmentation = ResizedCrop(8, scale=scale)
    got = augmentation.boxes(augmentation.draw(count, seeded(2)), height, width).numpy()
    chance = random.Random(3)
    wanted = np.array([random_box(height, width, scale, augmentation.ratio, chance) for _ in range(count)])
    assert (got[:, :2] >= 0).all()
    assert (got[:, 0] + got[:, 2] <= height).all()
    assert (got[:, 1] + got[:, 3] <= width).all()
    # Kolmogorov-Smirnov between two samples of this size: 1.95 √(2/n) is passed once in a thousand.
    for measure in (
        lambda box: box[:, 2] * box[:, 3],
        lambda box: np.log(box[:, 3] / box[:, 2]),
        lambda box: box[:, 0],
        lambda box: box[:, 1],
        lambda box: box[:, 0] / (height - box[:, 2] + 1) + box[:, 1] / (width - box[:, 3] + 1),
    ):
        first, second = np.sort(measure(got)), np.sort(measure(wanted))
        grid = np.unique(np.concatenate([first, second]))
        gap = np.searchsorted(first, grid, "right") - np.searchsorted(second, grid, "right")
        assert np.abs(gap).max() / count < 1.95 * math.sqrt(2 / count)


def test_the_first_try_that_fits_is_taken_and_then_the_centre():
    augmentation = ResizedCrop(4, scale=(0.25, 1.0), ratio=(0.5, 2.0))
    drawn = torch.zeros(3, 2 * TRIES + 3)
    drawn[:, :TRIES] = 1.0  # the whole area with extreme ratios never fits
    drawn[1, [3, 5]] = 0.0  # a quarter does; it is taken at the ratio of try 3
    drawn[1, TRIES + 3] = 0.5
    drawn[2, TRIES:-3] = 0.5  # a ratio of 1 fits at once
    boxes = augmentation.boxes(drawn, 20, 20)
    assert boxes.tolist() == [[0, 0, 20, 20], [0, 0, 10, 10], [0, 0, 20, 20]]
    assert augmentation.boxes(drawn[:1], 60, 20).tolist() == [[10, 0, 40, 20]]
    assert augmentation.boxes(drawn[:1], 10, 50).tolist() == [[0, 15, 10, 20]]


@pytest.mark.parametrize("augmentation", EVERY)
def test_draws_follow_from_the_seed_and_each_image_from_its_row(augmentation):
    batch = images()
    drawn = augmentation.draw(len(batch), seeded(7))
    assert torch.equal(drawn, augmentation.draw(len(batch), seeded(7)))
    assert drawn.device.type == "cpu"
    assert len(drawn) == len(batch)
    whole = augmentation.apply(batch, drawn)
    order = torch.randperm(len(batch), generator=seeded())
    assert torch.equal(augmentation.apply(batch[order], drawn[order]), whole[order])
    assert torch.equal(augmentation.apply(batch[3:4], drawn[3:4]), whole[3:4])


@pytest.mark.parametrize("augmentation", EVERY)
def test_applying_leaves_its_arguments_and_the_global_generator_alone(augmentation):
    batch, state = images(), torch.get_rng_state()
    drawn = augmentation.draw(len(batch), seeded())
    before = batch.clone(), drawn.clone()
    augmentation.apply(batch, drawn)
    assert torch.equal(batch, before[0])
    assert torch.equal(drawn, before[1])
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("augmentation", EVERY)
def test_applying_never_asks_for_values(augmentation):
    # Meta tensors have none: whatever depends on values fails on them.
    batch = images()
    drawn = augmentation.draw(len(batch), seeded())
    traced = augmentation.apply(batch.to("meta"), drawn.to("meta"))
    assert traced.shape == augmentation.apply(batch, drawn).shape
    assert traced.dtype == torch.uint8


def test_channels_last_batches_are_augmented_alike():
    batch, augmentation = images(), PadCropFlip()
    drawn = augmentation.draw(len(batch), seeded())
    apart = batch.contiguous(memory_format=torch.channels_last)
    assert torch.equal(augmentation.apply(apart, drawn), augmentation.apply(batch, drawn))


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("none", NoAugmentation()),
        ("crop-flip", PadCropFlip(4, flip=True)),
        ("crop", PadCropFlip(4, flip=False)),
        ("flip", PadCropFlip(0, flip=True)),
        ("resized-crop:224", ResizedCrop(224, (0.08, 1.0), (3 / 4, 4 / 3), flip=True)),
    ],
)
def test_names(name, meant):
    assert find_augmentation(name) == meant
    assert hash(find_augmentation(name)) == hash(meant)


@pytest.mark.parametrize("name", ["", "crops", "resized-crop", "resized-crop:", "resized-crop:a", "crop:3", None])
def test_other_names_are_refused(name):
    with pytest.raises(ArgumentError, match=r"none, crop-flip, crop, flip, resized-crop:SIZE"):
        find_augmentation(name)


@pytest.mark.parametrize(
    "make",
    [
        lambda: PadCropFlip(-1),
        lambda: PadCropFlip(1.5),
        lambda: ResizedCrop(0),
        lambda: ResizedCrop(8, scale=(0.0, 1.0)),
        lambda: ResizedCrop(8, scale=(0.5, 1.1)),
        lambda: ResizedCrop(8, scale=(0.9, 0.1)),
        lambda: ResizedCrop(8, ratio=(2.0, 1.0)),
        lambda: find_augmentation("resized-crop:0"),
    ],
)
def test_impossible_settings_are_refused(make):
    with pytest.raises(ArgumentError):
        make()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_normalise(dtype):
    batch = images()
    before = batch.clone()
    mean, std = (0.1, 0.5, 0.9), (0.2, 0.3, 0.4)
    got = normalise(batch, mean, std, dtype)
    wanted = (batch.double() / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    assert got.dtype == dtype
    tolerance = {torch.float64: 1e-6, torch.float32: 2e-6, torch.bfloat16: 2**-8 * 5}[dtype]
    assert (got.double() - wanted).abs().max() < tolerance
    assert torch.equal(batch, before)


def test_normalise_leaves_floats_that_it_is_given_alone():
    batch = images(dtype=torch.float32)
    before = batch.clone()
    normalise(batch, (0.5,) * 3, (0.5,) * 3)
    assert torch.equal(batch, before)


def test_normalise_needs_a_number_for_each_channel():
    with pytest.raises(ArgumentError, match="mean and std"):
        normalise(images(), (0.5,), (0.5,))


def test_images_are_tested_in_the_size_of_training():
    """The centre of larger ones; smaller ones resized first. Others are left alone."""
    images = torch.arange(2 * 3 * 10 * 12, dtype=torch.int64).remainder(256).to(torch.uint8).view(2, 3, 10, 12)
    assert torch.equal(ResizedCrop(6).at_test(images), images[:, :, 2:8, 3:9])
    larger = ResizedCrop(20).at_test(images)
    whole = torch.nn.functional.interpolate(images.float(), (20, 24), mode="bilinear").round().to(torch.uint8)
    assert torch.equal(larger, whole[:, :, :, 2:22])
    for name in ("none", "crop-flip"):
        assert find_augmentation(name).at_test(images) is images
