"""A batch of training images from the raw ones: chosen, padded, cropped, mirrored, normalised, cast, in one kernel.

It replaces `PadCropFlip.apply` (or none at all), `normalise`, and the copy to channels-last layout,
of the samples that the epoch's order has at the step's place. The labels come along.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from isogon.lab.run import Augmentation, NoAugmentation, PadCropFlip


@triton.jit
def _batch(
    images,
    labels,
    order,
    drawn,
    place,
    scale,
    shift,
    out,
    out_labels,
    batch,
    height,
    width,
    CHANNELS: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    PADDING: tl.constexpr,
    CHANGED: tl.constexpr,
    PIXELS: tl.constexpr,
):
    """A stretch of the pixels of one image, all channels; channels beyond the image's are zeros."""
    image = tl.program_id(0)
    row = tl.load(place) * batch + image
    sample = tl.load(order + row)
    pixel = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS)
    y, x = pixel // width, pixel % width
    if CHANGED:
        mirror = tl.load(drawn + 3 * row + 2)
        y = y + tl.load(drawn + 3 * row) - PADDING
        x = tl.where(mirror == 1, width - 1 - x, x) + tl.load(drawn + 3 * row + 1) - PADDING
    inside = (y >= 0) & (y < height) & (x >= 0) & (x < width) & (pixel < height * width)
    channel = tl.arange(0, COLUMNS)
    real = channel < CHANNELS
    source = (sample * CHANNELS + channel[None, :]) * height * width + (y * width + x)[:, None]
    value = tl.load(images + source, mask=inside[:, None] & real[None, :], other=0).to(tl.float32)
    by = tl.load(scale + channel, mask=real, other=0.0)
    off = tl.load(shift + channel, mask=real, other=0.0)
    value = value * by[None, :] - off[None, :]
    target = (image * height * width + pixel)[:, None] * WIDTH + channel[None, :]
    tl.store(
        out + target,
        value.to(out.dtype.element_ty),
        mask=(pixel < height * width)[:, None] & (channel < WIDTH)[None, :],
    )
    if tl.program_id(1) == 0:
        tl.store(out_labels + image, tl.load(labels + sample))


class BatchMaker:
    """Makes batches of `batch` images N×`width`×H×W in channels-last layout, `width` ≥ the images' channels."""

    def __init__(
        self,
        images: torch.Tensor,
        labels: torch.Tensor,
        augmentation: Augmentation,
        mean: Sequence[float],
        std: Sequence[float],
        *,
        batch: int,
        dtype: torch.dtype,
        width: int,
    ) -> None:
        self._images, self._labels, self._batch, self._dtype, self._width = images, labels, batch, dtype, width
        self._padding = augmentation.padding if isinstance(augmentation, PadCropFlip) else None
        of_channels = list(zip(mean, std, strict=True))
        self._scale = torch.tensor([1 / (255 * spread) for _, spread in of_channels], device=images.device)
        self._shift = torch.tensor([centre / spread for centre, spread in of_channels], device=images.device)

    def __call__(
        self, order: torch.Tensor, drawn: torch.Tensor, place: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Images and labels of the batch that is number `place` of the epoch."""
        _, channels, height, width = self._images.shape
        out = torch.empty(
            (self._batch, self._width, height, width),
            dtype=self._dtype,
            device=self._images.device,
            memory_format=torch.channels_last,
        )
        labels = torch.empty(self._batch, dtype=self._labels.dtype, device=self._images.device)
        pixels = min(1024, triton.next_power_of_2(height * width))
        _batch[(self._batch, -(-height * width // pixels))](
            self._images,
            self._labels,
            order,
            drawn,
            place,
            self._scale,
            self._shift,
            out,
            labels,
            self._batch,
            height,
            width,
            CHANNELS=channels,
            WIDTH=self._width,
            COLUMNS=triton.next_power_of_2(self._width),
            PADDING=self._padding or 0,
            CHANGED=self._padding is not None,
            PIXELS=pixels,
        )
        return out, labels


def can_make(images: torch.Tensor, augmentation: Augmentation) -> bool:
    """Whether the kernel knows the augmentation, and the images are whole numbers in the usual layout."""
    known = isinstance(augmentation, PadCropFlip | NoAugmentation)
    return known and images.dim() == 4 and images.dtype == torch.uint8 and images.is_contiguous()
