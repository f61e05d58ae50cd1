"""Mask R-CNN with batch norm everywhere but in the region proposals, from torchvision's parts."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Literal

from torch import nn

from isogon.errors import first_line
from isogon.papers.reproduction import UnavailableError

#: `resnet50` is torchvision's detector as published; the others are for small pictures
Backbone = Literal["resnet50", "resnet18", "plain"]


def torchvision_part(name: str) -> Any:
    """The module `torchvision.NAME`; if it does not import, raise the reason why the experiment was not run."""
    try:
        return import_module(f"torchvision.{name}")
    # A build for another torch fails with RuntimeError, a damaged one with OSError.
    except (ImportError, RuntimeError, OSError) as error:
        raise UnavailableError(
            f"Mask R-CNN needs torchvision, which does not import here ({first_line(error)}): pip install torchvision."
        ) from error


def build_detector(backbone: Backbone, classes: int, *, size: int) -> nn.Module:
    """A detector of `classes` (the background is one), with first weights from torch's generator.

    One process sees a whole batch, so plain batch norm has the statistics that the paper's synchronised one has.
    `size` is the side of the pictures for the small backbones; `resnet50` takes them as published, the shorter side at
    800 pixels, the longer at 1333 at most.
    """
    detection = torchvision_part("models.detection")
    if backbone == "resnet50":
        detector: nn.Module = detection.maskrcnn_resnet50_fpn_v2(
            weights=None, weights_backbone=None, num_classes=classes
        )
        return detector
    return _small(backbone, classes, size)


def _small(backbone: Backbone, classes: int, size: int) -> nn.Module:
    """The same detector with fewer and narrower layers; objects are a fifth to two fifths of a picture wide."""
    faster, masked = (torchvision_part(f"models.detection.{name}") for name in ("faster_rcnn", "mask_rcnn"))
    anchors = torchvision_part("models.detection.anchor_utils")
    if backbone == "resnet18":
        utils = torchvision_part("models.detection.backbone_utils")
        body: nn.Module = utils.resnet_fpn_backbone(
            backbone_name="resnet18", weights=None, norm_layer=nn.BatchNorm2d, trainable_layers=5
        )
        levels, channels, width = 5, 256, 128
    else:
        body, levels, channels, width = _plain(32), 1, 32, 32
        body.out_channels = 32  # type: ignore[assignment]
    sides = [max(4, size // 4)] if levels == 1 else [size // 16, size // 8, size // 4, size // 2, size]
    pool = torchvision_part("ops").MultiScaleRoIAlign
    maps = [str(level) for level in range(max(1, levels - 1))]
    norm = nn.BatchNorm2d
    detector: nn.Module = masked.MaskRCNN(
        body,
        min_size=size,
        max_size=size,
        rpn_anchor_generator=anchors.AnchorGenerator(
            sizes=tuple((side,) for side in sides), aspect_ratios=((0.5, 1.0, 2.0),) * levels
        ),
        rpn_pre_nms_top_n_train=200,
        rpn_post_nms_top_n_train=100,
        rpn_pre_nms_top_n_test=200,
        rpn_post_nms_top_n_test=100,
        rpn_batch_size_per_image=64,
        box_roi_pool=pool(featmap_names=maps, output_size=7, sampling_ratio=2),
        box_head=faster.FastRCNNConvFCHead((channels, 7, 7), [width], [width], norm_layer=norm),
        box_predictor=faster.FastRCNNPredictor(width, classes),
        box_batch_size_per_image=32,
        mask_roi_pool=pool(featmap_names=maps, output_size=14, sampling_ratio=2),
        mask_head=masked.MaskRCNNHeads(channels, [width], 1, norm_layer=norm),
        mask_predictor=masked.MaskRCNNPredictor(width, width, classes),
    )
    return detector


def _plain(width: int) -> nn.Sequential:
    """Three convolutions that halve the side, each with its norm."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, width // 2), (width // 2, width), (width, width)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)
