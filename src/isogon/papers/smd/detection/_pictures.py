"""A small set of drawn pictures in MS-COCO's layout: discs and boxes on noise, with the quirks of the real files."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from isogon.files import write_json
from isogon.lab import require_package
from isogon.papers.smd.detection._data import TEST, TRAIN, annotations_file

#: ids with gaps between them, as COCO's have
CATEGORIES = {2: "disc", 5: "box"}
_COLOURS = {2: (230, 90, 60), 5: (60, 110, 230)}


def write_pictures(root: Path, *, train: int, test: int, size: int, seed: int = 0) -> None:
    """Draw `train` and `test` pictures of size×size; a part that exists already stays as it is."""
    for number, (part, count) in enumerate({TRAIN: train, TEST: test}.items()):
        target = annotations_file(root, part)
        if target.exists():
            continue
        rng = np.random.default_rng([seed, number])
        (root / part).mkdir(parents=True, exist_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        images: list[dict[str, Any]] = []
        annotations: list[dict[str, Any]] = []
        for image in range(1, count + 1):
            name = f"{image:012d}.jpg"
            images.append({"id": image, "file_name": name, "width": size, "height": size})
            # The first picture has no object, the last a crowd besides its own: both occur in COCO.
            objects = 0 if image == 1 else int(rng.integers(1, 4))
            annotations += _draw_picture(root / part / name, size, objects, rng, image, first=len(annotations) + 1)
        annotations.append(_crowd(count, size, identity=len(annotations) + 1))
        categories = [{"id": identity, "name": name} for identity, name in CATEGORIES.items()]
        # Some versions of pycocotools require `info`. Written last: a part with this file is complete.
        lists = {"images": images, "annotations": annotations, "categories": categories}
        write_json(target, {"info": {"description": "discs and boxes on noise"}, **lists})


def _draw_picture(
    file: Path, size: int, objects: int, rng: np.random.Generator, image: int, first: int
) -> list[dict[str, Any]]:
    """Write one picture; returns its annotations, whose ids start at `first`."""
    pillow = require_package("PIL.Image", "pillow", "to draw pictures")
    drawing = require_package("PIL.ImageDraw", "pillow", "to draw pictures")
    canvas = pillow.fromarray(rng.integers(90, 170, (size, size, 3), dtype=np.uint8))
    annotations = []
    for identity in range(first, first + objects):
        category = int(rng.choice(list(CATEGORIES)))
        radius = float(rng.uniform(size / 10, size / 5))
        x, y = (float(rng.uniform(radius, size - radius)) for _ in range(2))
        corners = 24 if CATEGORIES[category] == "disc" else 4
        angles = [2 * math.pi * (corner + 0.5) / corners for corner in range(corners)]
        reach = radius if corners > 4 else radius * math.sqrt(2)
        polygon = [round(v, 2) for a in angles for v in (x + reach * math.cos(a), y + reach * math.sin(a))]
        drawing.Draw(canvas).polygon(polygon, fill=_COLOURS[category])
        left, top, right, bottom = min(polygon[::2]), min(polygon[1::2]), max(polygon[::2]), max(polygon[1::2])
        annotations.append(
            {
                "id": identity,
                "image_id": image,
                "category_id": category,
                "segmentation": [polygon],
                "area": round((right - left) * (bottom - top) * (math.pi / 4 if corners > 4 else 1), 2),
                "bbox": [left, top, round(right - left, 2), round(bottom - top, 2)],
                "iscrowd": 0,
            }
        )
    canvas.save(file, quality=95)
    return annotations


def _crowd(image: int, size: int, identity: int) -> dict[str, Any]:
    """A crowd in the left quarter, as run lengths down the columns."""
    wide = size // 4
    return {
        "id": identity,
        "image_id": image,
        "category_id": next(iter(CATEGORIES)),
        "segmentation": {"counts": [0, size * wide, size * (size - wide)], "size": [size, size]},
        "area": size * wide,
        "bbox": [0, 0, wide, size],
        "iscrowd": 1,
    }
