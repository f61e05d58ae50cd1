"""Pictures with outlined objects in MS-COCO's layout, as torchvision's detectors take them.

`ROOT/annotations/instances_PART.json` has the lists `images`, `annotations` and `categories`; the pictures are in
`ROOT/PART`. A box is x, y, width, height; an outline is a list of polygons x1, y1, x2, y2 … Needs Pillow.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from isogon.lab import DamagedDataError, MissingDataError, require_package

TRAIN, TEST = "train2017", "val2017"
#: pixels that a box must be wider and higher than: thinner ones cannot be matched with anything
THINNEST = 1.0
#: what torchvision calls a target: boxes (x1, y1, x2, y2), labels from 1 on, masks, image_id
Target = dict[str, Tensor]


@dataclass(frozen=True)
class Instance:
    """An object of a picture: the corners of its box, its label from 1 on, and the polygons of its outline."""

    corners: tuple[float, float, float, float]
    label: int
    polygons: Sequence[Sequence[float]]


@dataclass(frozen=True)
class Picture:
    id: int
    file: Path
    width: int
    height: int
    instances: tuple[Instance, ...]


class CocoPart(Dataset[tuple[Tensor, Target]]):
    """The pictures of a part; `flips` turns a random half of them over, left to right.

    Labels count the categories in the order of their ids, of which COCO leaves some out; 0 is the background. Crowds
    are left out, as is usual for training, and with `only_objects` so are pictures that have nothing else.
    """

    def __init__(self, root: Path, part: str, *, flips: bool = False, only_objects: bool = False) -> None:
        self.annotations = annotations_file(root, part)
        self.flips = flips
        content = _content(self.annotations)
        try:
            self.category_ids = tuple(sorted(category["id"] for category in content["categories"]))
            pictures = _pictures(content, root / part, self.category_ids)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise DamagedDataError(self.annotations, f"it is not in COCO's layout ({error!r})") from error
        self.pictures = [picture for picture in pictures if picture.instances] if only_objects else pictures
        if not self.pictures:
            raise DamagedDataError(self.annotations, "it has no pictures to use")

    @property
    def classes(self) -> int:
        """With the background, as detectors count them."""
        return len(self.category_ids) + 1

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, place: int) -> tuple[Tensor, Target]:
        """The picture, 3×H×W in [0, 1], and what is in it."""
        picture = self.pictures[place]
        image = torch.from_numpy(_pixels(picture)).permute(2, 0, 1).float() / 255
        boxes = torch.tensor([instance.corners for instance in picture.instances], dtype=torch.float32).reshape(-1, 4)
        masks = torch.zeros(len(picture.instances), picture.height, picture.width, dtype=torch.uint8)
        for mask, instance in zip(masks, picture.instances, strict=True):
            mask.copy_(torch.from_numpy(_mask(picture, instance)))
        if self.flips and bool(torch.rand(()) < 0.5):
            image, masks = image.flip(2), masks.flip(2)
            boxes = torch.stack([picture.width - boxes[:, 2], boxes[:, 1], picture.width - boxes[:, 0], boxes[:, 3]], 1)
        labels = torch.tensor([instance.label for instance in picture.instances], dtype=torch.int64)
        return image, {"boxes": boxes, "labels": labels, "masks": masks, "image_id": torch.tensor(picture.id)}


def annotations_file(root: Path, part: str) -> Path:
    return root / "annotations" / f"instances_{part}.json"


def _content(file: Path) -> Any:
    if not file.is_file():
        raise MissingDataError(
            f"MS-COCO lacks {file}: unpack annotations_trainval2017.zip, {TRAIN}.zip and {TEST}.zip there, or set "
            "ISOGON_DATA to the folder that has coco with them."
        )
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DamagedDataError(file, f"it is no JSON ({error})") from error


def _pictures(content: Any, folder: Path, category_ids: Sequence[int]) -> list[Picture]:
    label_of = {category: label for label, category in enumerate(category_ids, start=1)}
    sizes = {image["id"]: (image["width"], image["height"]) for image in content["images"]}
    instances: dict[int, list[Instance]] = {identity: [] for identity in sizes}
    for annotation in content["annotations"]:
        width, height = sizes[annotation["image_id"]]
        x, y, across, down = annotation["bbox"]
        corners = (max(0.0, x), max(0.0, y), min(float(width), x + across), min(float(height), y + down))
        thin = corners[2] - corners[0] <= THINNEST or corners[3] - corners[1] <= THINNEST
        if annotation.get("iscrowd") or thin:
            continue
        if not isinstance(annotation["segmentation"], list):
            raise ValueError(f"annotation {annotation['id']} is no crowd and has no polygons")
        instance = Instance(corners, label_of[annotation["category_id"]], annotation["segmentation"])
        instances[annotation["image_id"]].append(instance)
    return [
        Picture(image["id"], folder / image["file_name"], *sizes[image["id"]], tuple(instances[image["id"]]))
        for image in content["images"]
    ]


def _pixels(picture: Picture) -> NDArray[np.uint8]:
    pillow = require_package("PIL.Image", "pillow", "to read image files")
    try:
        with pillow.open(picture.file) as image:
            pixels = np.array(image.convert("RGB"))
    except FileNotFoundError:
        raise MissingDataError(f"MS-COCO lacks {picture.file}: unpack its pictures again.") from None
    except (OSError, SyntaxError, ValueError) as error:  # whatever Pillow raises for broken files
        raise DamagedDataError(picture.file, f"it does not decode ({error})") from error
    if pixels.shape[:2] != (picture.height, picture.width):
        raise DamagedDataError(picture.file, "its size is not what the annotations say")
    return pixels


def _mask(picture: Picture, instance: Instance) -> NDArray[np.uint8]:
    """1 inside the outline, H×W."""
    pillow = require_package("PIL.Image", "pillow", "to draw outlines")
    drawing = require_package("PIL.ImageDraw", "pillow", "to draw outlines")
    canvas = pillow.new("L", (picture.width, picture.height))
    for polygon in instance.polygons:
        drawing.Draw(canvas).polygon(list(polygon), fill=1, outline=1)
    return np.array(canvas)
