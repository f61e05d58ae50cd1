"""Augmentation of whole batches on any device, in two halves: draw first, then a deterministic function.

`draw` makes everything random of `count` images as one CPU tensor, one row per image, so the rows of an epoch follow
from its generator's seed alone and are the same on every device. `apply` takes images and their rows, has no
randomness, no shape that depends on values and no wait for the host, and can therefore be captured in a CUDA graph.

The distributions are those of the usual per-image pipelines: pad with zeros, crop uniformly, mirror with probability
½; or crop a box of random area and shape and resize it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad

from isogon.errors import ArgumentError, check_number, check_whole

#: tries of a random box before the centre is taken
TRIES = 10


class Augmentation(Protocol):
    """What training needs of an augmentation; the ones here are frozen dataclasses."""

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Everything random of `count` images, one row per image, on the CPU."""
        ...

    def apply(self, images: Tensor, drawn: Tensor) -> Tensor:
        """The images N×C×H×W changed by their rows of `drawn`, which are on the same device; the dtype stays."""
        ...

    def at_test(self, images: Tensor) -> Tensor:
        """The images as they are tested, without randomness, in the size of the training images."""
        ...


@dataclass(frozen=True)
class NoAugmentation:
    """Images as they are."""

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        return torch.empty(count, 0, dtype=torch.int64)

    def apply(self, images: Tensor, drawn: Tensor) -> Tensor:
        return images

    def at_test(self, images: Tensor) -> Tensor:
        return images


none = NoAugmentation()


@dataclass(frozen=True)
class PadCropFlip:
    """Zeros around the image, a crop of the old size at a uniform place, mirrored in half of the cases.

    The zeros are raw pixels, as in the usual pipeline that pads before it normalises. A row is (top, left, mirror).
    """

    padding: int = 4
    flip: bool = True

    def __post_init__(self) -> None:
        check_whole("padding", self.padding, low=0, cure="give 0 for no crop, 4 for the usual")

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        corners = torch.randint(2 * self.padding + 1, (count, 2), generator=generator)
        mirror = torch.randint(1 + self.flip, (count, 1), generator=generator)
        return torch.cat([corners, mirror], 1)

    def apply(self, images: Tensor, drawn: Tensor) -> Tensor:
        count, channels, height, width = images.shape
        padded = pad(images, (self.padding,) * 4)
        top, left, mirror = torch.tensor_split(drawn, 3, dim=1)
        rows = top + torch.arange(height, device=images.device)
        columns = left + _mirror(torch.arange(width, device=images.device), mirror)
        # One gather with one index for all channels: several times faster on a CPU than indexing by rows and columns.
        places = rows[:, :, None] * padded.shape[3] + columns[:, None, :]
        places = places.view(count, 1, -1).expand(-1, channels, -1)
        return padded.flatten(2).gather(2, places).view(images.shape)

    def at_test(self, images: Tensor) -> Tensor:
        return images


@dataclass(frozen=True)
class ResizedCrop:
    """A random box resized to size × size, mirrored in half of the cases: the ImageNet protocols' crop.

    The box has `scale` of the image's area (uniform) and a ratio of width to height within `ratio` (uniform in its
    logarithm), at a uniform place; of ten tries the first that fits counts, else the largest centred box with an
    allowed ratio. Resizing is bilinear without antialiasing, as `interpolate(mode="bilinear")` of the box. A row is ten
    areas, ten log ratios, top, left (all as parts of their ranges) and the mirror, so that it fits any image size.
    """

    size: int
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: bool = True

    def __post_init__(self) -> None:
        check_whole("size", self.size, cure="give the side of the resized image in pixels")
        for name, pair, high in (("scale", self.scale, 1.0), ("ratio", self.ratio, math.inf)):
            for value in pair:
                check_number(name, value, low=0, low_open=True, high=high, cure="give (lowest, highest)")
            if pair[0] > pair[1]:
                raise ArgumentError(name, "(lowest, highest)", pair, "swap the two")

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        places = torch.rand(count, 2 * TRIES + 2, generator=generator)
        mirror = torch.randint(1 + self.flip, (count, 1), generator=generator)
        return torch.cat([places, mirror], 1)

    def boxes(self, drawn: Tensor, height: int, width: int) -> Tensor:
        """The boxes (top, left, height, width) that random numbers mean for images of this size, as whole numbers."""
        # In float64, so that devices practically never round to different boxes.
        shares = drawn.double()
        areas, ratios = shares[:, :TRIES], shares[:, TRIES : 2 * TRIES]
        top, left = shares[:, -3:-2], shares[:, -2:-1]
        area = height * width * (self.scale[0] + (self.scale[1] - self.scale[0]) * areas)
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        ratio = torch.exp(low + (high - low) * ratios)
        tall, wide = torch.sqrt(area / ratio).round(), torch.sqrt(area * ratio).round()
        fits = (tall >= 1) & (tall <= height) & (wide >= 1) & (wide <= width)
        first, any_fits = fits.to(torch.uint8).argmax(1, keepdim=True), fits.any(1, keepdim=True)
        centre_tall, centre_wide = self._centre_box(height, width)
        # masked_fill takes its number as it is, where torch.where would copy it from the host.
        tall = tall.gather(1, first).masked_fill(~any_fits, centre_tall)
        wide = wide.gather(1, first).masked_fill(~any_fits, centre_wide)
        top = (top * (height - tall + 1)).masked_fill(~any_fits, (height - centre_tall) // 2)
        left = (left * (width - wide + 1)).masked_fill(~any_fits, (width - centre_wide) // 2)
        return torch.cat([top, left, tall, wide], 1).long()

    def apply(self, images: Tensor, drawn: Tensor) -> Tensor:
        top, left, height, width = torch.tensor_split(self.boxes(drawn, images.shape[2], images.shape[3]), 4, dim=1)
        steps = torch.arange(self.size, device=images.device)
        rows = steps.expand(len(images), -1)
        columns = _mirror(steps, drawn[:, -1:])
        values = images if images.is_floating_point() else images.float()
        values = self._interpolate(values, rows, top, height, dim=2)
        values = self._interpolate(values, columns, left, width, dim=3)
        return values if images.is_floating_point() else values.round().to(images.dtype)

    def at_test(self, images: Tensor) -> Tensor:
        """The centre of size × size, of images that are smaller on a side resized until they are not."""
        short = min(images.shape[2:])
        if short < self.size:
            scale = self.size / short
            sides = [max(self.size, round(side * scale)) for side in images.shape[2:]]
            values = interpolate(images.float(), sides, mode="bilinear", antialias=False)
            images = values if images.is_floating_point() else values.round().to(images.dtype)
        top, left = ((side - self.size) // 2 for side in images.shape[2:])
        return images[:, :, top : top + self.size, left : left + self.size]

    def _interpolate(self, values: Tensor, steps: Tensor, start: Tensor, length: Tensor, dim: int) -> Tensor:
        """Linear interpolation along one axis at the centres of `size` equal parts of each image's interval."""
        place = ((steps + 0.5) * (length / self.size) - 0.5).clamp(min=0)
        below = place.floor()
        shape = [len(steps), 1, 1, 1]
        shape[dim] = self.size
        weight = (place - below).to(values.dtype).view(shape)
        sides = list(values.shape)
        sides[dim] = self.size
        lower = start + below.long()
        upper = start + torch.minimum(below.long() + 1, length - 1)
        low, high = (values.gather(dim, index.view(shape).expand(sides)) for index in (lower, upper))
        return torch.lerp(low, high, weight)

    def _centre_box(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the largest box with an allowed ratio."""
        if width / height < self.ratio[0]:
            return round(width / self.ratio[0]), width
        if width / height > self.ratio[1]:
            return height, round(height * self.ratio[1])
        return height, width


_NAMED: dict[str, Augmentation] = {
    "none": none,
    "crop-flip": PadCropFlip(),
    "crop": PadCropFlip(flip=False),
    "flip": PadCropFlip(padding=0),
}


def find_augmentation(name: str) -> Augmentation:
    """The augmentation called `none`, `crop-flip`, `crop`, `flip` or, for 224 pixels, `resized-crop:224`.

    >>> find_augmentation("crop-flip")
    PadCropFlip(padding=4, flip=True)
    """
    if isinstance(name, str):
        kind, _, size = name.partition(":")
        if kind == "resized-crop" and size.isdecimal():
            return ResizedCrop(int(size))
        if name in _NAMED:
            return _NAMED[name]
    raise ArgumentError("augmentation", "one of " + ", ".join([*_NAMED, "resized-crop:SIZE"]), name, "for example none")


def normalise(
    images: Tensor, mean: Sequence[float], std: Sequence[float], dtype: torch.dtype = torch.float32
) -> Tensor:
    """(images / 255 − mean) / std by channel; computed in float32 at least, then given `dtype`.

    The numbers enter as Python floats, not as a tensor: a copy from the host would break the capture of a CUDA graph.
    """
    channels = images.shape[1]
    if not len(mean) == len(std) == channels:
        raise ArgumentError(
            "mean and std", f"of the images' {channels} channels", (mean, std), "give one number for each"
        )
    values = images.to(torch.promote_types(dtype, torch.float32), copy=True)
    for channel, (centre, spread) in enumerate(zip(mean, std, strict=True)):
        values[:, channel].mul_(1 / (255 * spread)).sub_(centre / spread)
    return values.to(dtype)


def _mirror(steps: Tensor, mirror: Tensor) -> Tensor:
    """0 … n−1 for each image, backwards where `mirror` is 1."""
    return torch.where(mirror == 1, len(steps) - 1 - steps, steps)
