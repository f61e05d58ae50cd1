"""Average precisions of a detector: COCO's by pycocotools, or one of our own if that does not import."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from isogon.papers.smd.detection._data import CocoPart

#: the columns of table 2, in points
COCO_APS = ("box AP", "box AP50", "box AP75", "mask AP", "mask AP50", "mask AP75")
#: differs from COCO's: no limit on detections, and a detection in a crowd counts as wrong
OWN_AP = "box AP50 (own measure)"
#: COCO reads the precision at these recalls
_RECALLS = np.linspace(0, 1, 101)
Objects = dict[str, Tensor]


def average_precisions(model: nn.Module, data: CocoPart, device: torch.device | str = "cpu") -> dict[str, float]:
    """The six of table 2 if pycocotools imports, else only `OWN_AP`; in points."""
    try:
        coco, cocoeval, mask = (import_module(f"pycocotools.{name}") for name in ("coco", "cocoeval", "mask"))
    except (ImportError, RuntimeError, OSError):
        return {OWN_AP: own_box_ap50((detected, truth) for _, detected, truth in _detections(model, data, device))}
    return _by_pycocotools(model, data, device, coco, cocoeval, mask)


def _detections(model: nn.Module, data: CocoPart, device: torch.device | str) -> Iterable[tuple[int, Objects, Objects]]:
    """Place, detected objects and true objects of each picture."""
    model.eval()
    for place in range(len(data)):
        image, target = data[place]
        with torch.no_grad():
            (detected,) = model([image.to(device)])
        yield place, {name: value.cpu() for name, value in detected.items()}, target


def own_box_ap50(pictures: Iterable[tuple[Mapping[str, Tensor], Mapping[str, Tensor]]]) -> float:
    """The mean over classes of the area under precision against recall, a box being found at an IoU of 0.5; in points.

    Detections are matched in the order of their scores, each with the best object of its class that is free. Precision
    is the best at that recall or a higher one, read at 101 recalls.
    """
    scores: dict[int, list[float]] = {}
    right: dict[int, list[bool]] = {}
    counts: dict[int, int] = {}
    for detected, truth in pictures:
        for label in {*truth["labels"].tolist(), *detected["labels"].tolist()}:
            objects = truth["boxes"][truth["labels"] == label].double().numpy()
            of_class = detected["labels"] == label
            order = detected["scores"][of_class].argsort(descending=True)
            boxes = detected["boxes"][of_class][order].double().numpy()
            counts[label] = counts.get(label, 0) + len(objects)
            scores.setdefault(label, []).extend(detected["scores"][of_class][order].tolist())
            right.setdefault(label, []).extend(_matches(boxes, objects))
    values = [_area(scores[label], right[label], count) for label, count in counts.items() if count]
    return 100 * float(np.mean(values)) if values else float("nan")


def _matches(boxes: NDArray[np.float64], objects: NDArray[np.float64]) -> list[bool]:
    """Whether each box, best first, has an object to itself."""
    free = np.ones(len(objects), bool)
    matched = []
    for box in boxes:
        overlaps = np.where(free, _overlaps(box, objects), 0.0)
        best = int(overlaps.argmax()) if len(objects) else 0
        matched.append(bool(len(objects)) and bool(overlaps[best] >= 0.5))
        if matched[-1]:
            free[best] = False
    return matched


def _overlaps(box: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    """Intersection over union of `box` with each of the others."""
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    shared: NDArray[np.float64] = np.clip(high - low, 0, None).prod(axis=1)
    whole: NDArray[np.float64] = (box[2:] - box[:2]).prod() + (others[:, 2:] - others[:, :2]).prod(axis=1) - shared
    return shared / whole


def _area(scores: list[float], right: list[bool], count: int) -> float:
    order = np.argsort(-np.array(scores), kind="stable")
    hits = np.array(right, bool)[order].cumsum()
    recall, precision = hits / count, hits / np.arange(1, len(hits) + 1)
    best = np.maximum.accumulate(precision[::-1])[::-1]
    reached = np.searchsorted(recall, _RECALLS - 1e-12)
    return float(np.append(best, 0.0)[reached].mean())


def _by_pycocotools(
    model: nn.Module, data: CocoPart, device: torch.device | str, coco: Any, cocoeval: Any, mask: Any
) -> dict[str, float]:
    detections = []
    for place, ours, _ in _detections(model, data, device):
        for box, label, score, soft in zip(ours["boxes"], ours["labels"], ours["scores"], ours["masks"], strict=True):
            left, top, right, bottom = box.tolist()
            encoded = mask.encode(np.asfortranarray((soft[0] >= 0.5).numpy().astype(np.uint8)))
            detections.append(
                {
                    "image_id": data.pictures[place].id,
                    "category_id": data.category_ids[int(label) - 1],
                    "bbox": [left, top, right - left, bottom - top],
                    "score": float(score),
                    "segmentation": {**encoded, "counts": encoded["counts"].decode()},
                }
            )
    if not detections:  # pycocotools does not take an empty list
        return dict.fromkeys(COCO_APS, 0.0)
    values: list[float] = []
    with contextlib.redirect_stdout(io.StringIO()):  # it prints every step
        truth = coco.COCO(str(data.annotations))
        ours = truth.loadRes(detections)
        for kind in ("bbox", "segm"):
            measure = cocoeval.COCOeval(truth, ours, kind)
            measure.evaluate()
            measure.accumulate()
            measure.summarize()
            values += [100 * float(value) for value in measure.stats[:3]]
    return dict(zip(COCO_APS, values, strict=True))
