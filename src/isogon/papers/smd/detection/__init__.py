"""Wan et al.'s Mask R-CNN on MS-COCO: data, network, training and average precisions."""

from __future__ import annotations

from isogon.papers.smd.detection._experiment import CHOICES, NEEDED, PANELS, TABLE_2, images, layer_rows

__all__ = ["CHOICES", "NEEDED", "PANELS", "TABLE_2", "images", "layer_rows"]
