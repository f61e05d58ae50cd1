"""Wan et al.'s Mask R-CNN, its parts: files in COCO's layout, average precision, which weights are invariant."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from isogon import check
from isogon.lab.data import DamagedDataError, MissingDataError
from isogon.optim import RescaleOnDecay, split_groups
from isogon.papers.smd.detection._data import TEST, TRAIN, CocoPart, annotations_file
from isogon.papers.smd.detection._measures import COCO_APS, OWN_AP, average_precisions, own_box_ap50
from isogon.papers.smd.detection._pictures import CATEGORIES, write_pictures
from isogon.papers.smd.detection._weights import normalised_map

pytest.importorskip("PIL.Image", reason="Pillow is not installed")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("coco")
    write_pictures(folder, train=7, test=4, size=32)
    return folder


def changed(root, tmp_path, change):
    """The annotations of the test part after `change`, with the same pictures."""
    content = json.loads(annotations_file(root, TEST).read_text())
    change(content)
    target = annotations_file(tmp_path, TEST)
    target.parent.mkdir()
    target.write_text(json.dumps(content))
    (tmp_path / TEST).symlink_to(root / TEST)
    return tmp_path


# Files


def test_what_is_drawn_is_read_back(root):
    content = json.loads(annotations_file(root, TRAIN).read_text())
    part = CocoPart(root, TRAIN)
    assert len(part) == len(content["images"]) == 7
    assert part.category_ids == tuple(CATEGORIES)
    assert part.classes == 3
    single = [annotation for annotation in content["annotations"] if not annotation["iscrowd"]]
    assert len(content["annotations"]) == len(single) + 1
    assert sum(len(part[place][1]["labels"]) for place in range(7)) == len(single), "a crowd is no object"
    assert {int(label) for place in range(7) for label in part[place][1]["labels"]} == {1, 2}, "ids 2 and 5 count up"


def test_masks_fill_their_boxes_and_empty_pictures_have_none(root):
    part = CocoPart(root, TRAIN)
    for place, picture in enumerate(part.pictures):
        image, target = part[place]
        assert image.shape == (3, 32, 32)
        assert 0 <= image.min() < image.max() <= 1
        assert target["masks"].shape == (len(picture.instances), 32, 32)
        assert int(target["image_id"]) == picture.id
        for (left, top, right, bottom), mask in zip(target["boxes"].tolist(), target["masks"], strict=True):
            rows, columns = (mask.any(dim).nonzero().flatten() for dim in (1, 0))
            extent = [int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1]
            np.testing.assert_allclose(extent, [left, top, right, bottom], atol=1.5)
    assert part[0][1]["boxes"].shape == (0, 4)
    assert len(CocoPart(root, TRAIN, only_objects=True)) == 6


def test_a_flip_moves_boxes_and_masks_with_the_picture(root):
    plain, flipping = CocoPart(root, TRAIN, only_objects=True), CocoPart(root, TRAIN, only_objects=True, flips=True)
    image, target = plain[0]
    seen = set()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for _ in range(20):
            flipped, moved = flipping[0]
            turned = not torch.equal(flipped, image)
            seen.add(turned)
            assert torch.equal(flipped.flip(2) if turned else flipped, image)
            assert torch.equal(moved["masks"].flip(2) if turned else moved["masks"], target["masks"])
            left, right = (32 - moved["boxes"][:, 2], 32 - moved["boxes"][:, 0]) if turned else moved["boxes"][:, ::2].T
            torch.testing.assert_close(torch.stack([left, right], 1), target["boxes"][:, ::2])
    assert seen == {True, False}


def test_boxes_are_cut_to_the_picture_and_thin_ones_left_out(root, tmp_path):
    def change(content):
        first, second = [annotation for annotation in content["annotations"] if not annotation["iscrowd"]][:2]
        content["annotations"] = [first, second]
        first["bbox"], second["bbox"] = [-3, -3, 50, 50], [5, 5, 0.5, 20]

    part = CocoPart(changed(root, tmp_path, change), TEST, only_objects=True)
    assert len(part) == 1
    assert part[0][1]["boxes"].tolist() == [[0, 0, 32, 32]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content.pop("categories"), "not in COCO's layout.*categories"),
        (lambda content: content["annotations"][0].update(category_id=99), "not in COCO's layout.*99"),
        (lambda content: content["annotations"][0].update(segmentation={"counts": []}), "no crowd and has no polygons"),
        (lambda content: content["images"].clear() or content["annotations"].clear(), "no pictures"),
    ],
)
def test_annotations_that_cannot_be_used_are_named(root, tmp_path, change, message):
    with pytest.raises(DamagedDataError, match=f"instances_val2017.json cannot be used: .*{message}"):
        CocoPart(changed(root, tmp_path, change), TEST)


def test_files_that_are_missing_or_wrong_are_named(root, tmp_path):
    with pytest.raises(MissingDataError, match=r"lacks .*instances_val2017\.json.*ISOGON_DATA"):
        CocoPart(tmp_path, TEST)
    renamed = CocoPart(changed(root, tmp_path, lambda content: content["images"][1].update(file_name="gone.jpg")), TEST)
    with pytest.raises(MissingDataError, match=r"gone\.jpg"):
        renamed[1]
    wide = replace(renamed.pictures[2], width=33)
    renamed.pictures[2] = wide
    with pytest.raises(DamagedDataError, match="its size is not what the annotations say"):
        renamed[2]
    annotations_file(tmp_path, TEST).write_text("{")
    with pytest.raises(DamagedDataError, match="it is no JSON"):
        CocoPart(tmp_path, TEST)


# Average precision


def boxes_of(*corners, labels=None, scores=None):
    boxes = {"boxes": torch.tensor(np.array(corners), dtype=torch.float32).reshape(-1, 4)}
    boxes["labels"] = torch.tensor(labels or [1] * len(corners), dtype=torch.int64)
    return boxes | ({} if scores is None else {"scores": torch.tensor(scores, dtype=torch.float32)})


def test_average_precision_of_cases_that_are_known():
    truth = boxes_of((0, 0, 10, 10), (20, 20, 30, 30))
    right, near, far = (0, 0, 10, 10), (20, 20, 30, 25.1), (20, 20, 30, 24.9)

    def ap(*corners, scores):
        return own_box_ap50([(boxes_of(*corners, scores=scores), truth)])

    assert ap(right, near, scores=[0.9, 0.8]) == pytest.approx(100)
    # Half of the objects at precision 1: 51 of the 101 recalls.
    assert ap(right, far, scores=[0.9, 0.8]) == pytest.approx(100 * 51 / 101)
    assert ap(right, right, near, scores=[0.9, 0.8, 0.7]) == pytest.approx(100 * (51 + 50 * 2 / 3) / 101), "once each"
    assert ap(far, right, near, scores=[0.9, 0.8, 0.7]) == pytest.approx(100 * 2 / 3)
    assert ap(scores=[]) == 0
    assert math.isnan(own_box_ap50([(boxes_of(right, scores=[0.5]), boxes_of())]))


def test_average_precision_is_a_mean_over_classes_of_what_the_order_of_scores_says():
    rng = np.random.default_rng(0)
    pictures = []
    for _ in range(6):
        corners = rng.uniform(0, 20, (5, 2))
        truth = np.hstack([corners, corners + rng.uniform(5, 10, (5, 2))])
        detected = truth + rng.normal(0, 1.5, truth.shape)
        labels = [1, 1, 1, 2, 2]
        pictures.append(
            (boxes_of(*detected, labels=labels, scores=rng.uniform(0, 1, 5)), boxes_of(*truth, labels=labels))
        )
    value = own_box_ap50(pictures)
    assert 5 < value < 95
    squared = [({**detected, "scores": detected["scores"] ** 2}, truth) for detected, truth in pictures]
    assert own_box_ap50(squared) == pytest.approx(value)
    assert own_box_ap50(pictures[::-1]) == pytest.approx(value)

    def only(label):
        keep = [
            tuple({name: values[part["labels"] == label] for name, values in part.items()} for part in picture)
            for picture in pictures
        ]
        return own_box_ap50(keep)

    assert value == pytest.approx((only(1) + only(2)) / 2)


class Oracle(nn.Module):
    """Finds all that is there, in the order of the pictures."""

    def __init__(self, data):
        super().__init__()
        self.targets = iter([data[place][1] for place in range(len(data))])

    def forward(self, images):
        target = next(self.targets)
        masks = target["masks"][:, None].float()
        return [{**target, "masks": masks, "scores": torch.linspace(1, 0.5, len(target["labels"]))}]


def test_without_pycocotools_there_is_one_measure_under_its_own_name(root, monkeypatch):
    monkeypatch.setitem(sys.modules, "pycocotools.coco", None)
    data = CocoPart(root, TEST)
    assert average_precisions(Oracle(data), data) == {OWN_AP: pytest.approx(100)}
    assert OWN_AP not in COCO_APS


def test_pycocotools_measures_the_six_of_the_table(root):
    pytest.importorskip("pycocotools.coco", reason="pycocotools is not installed")
    data = CocoPart(root, TEST)
    precisions = average_precisions(Oracle(data), data)
    assert tuple(precisions) == COCO_APS
    assert [precisions[name] for name in COCO_APS[:3]] == pytest.approx([100] * 3)
    # Pillow and pycocotools draw outlines alike but for single pixels, which matter for objects of a few.
    assert precisions["mask AP50"] > 90


def test_drawn_annotations_have_all_that_pycocotools_reads(root):
    for part in (TRAIN, TEST):
        content = json.loads(annotations_file(root, part).read_text())
        # Its versions 2.0.9 and 2.0.10 copy `info` without asking whether it is there.
        assert content.keys() == {"info", "images", "annotations", "categories"}
        needed = {"id", "image_id", "category_id", "segmentation", "area", "bbox", "iscrowd"}
        assert all(annotation.keys() == needed for annotation in content["annotations"])


# Weights


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.plain = nn.Conv2d(3, 4, 3, padding=1)
        self.normed = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.both = nn.Conv2d(4, 4, 1)
        self.second = nn.BatchNorm2d(4)
        self.linear = nn.Linear(4, 5)
        self.third = nn.BatchNorm1d(5)
        self.head = nn.Linear(5, 2)

    def forward(self, x):
        x = torch.relu(self.norm(self.normed(torch.relu(self.plain(x)))))
        x = torch.relu(self.second(self.both(x)) + self.both(x))
        return self.head(torch.relu(self.third(self.linear(x.mean((2, 3))))))


def test_weights_whose_outputs_all_go_into_norms_are_invariant_as_the_checker_says():
    model, x = Branches(), torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    watched = normalised_map(model, lambda copied: copied(x))
    assert set(watched.invariant) == {"normed.weight", "linear.weight", "linear.bias"}
    proven = check(model, x)
    assert set(watched.alone) == set(proven.alone)
    assert set(proven.invariant) == set(watched.invariant)
    assert not watched.is_invariant
    assert "norm takes its output" in watched.explain("normed.weight")
    for name in watched.invariant:
        assert watched.statistics_degrees([name]) == proven.statistics_degrees([name])
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())
    assert int(model.norm.num_batches_tracked) == 0, "a copy is watched"


def test_rescaling_by_the_map_changes_no_output_in_either_mode():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, x = Branches().double(), torch.randn(6, 3, 8, 8, dtype=torch.float64)
    for norm in (model.norm, model.second, model.third):
        norm.eps = 1e-12
    model(x)
    scale_map = normalised_map(model, lambda copied: copied(x))
    optimizer = torch.optim.SGD(split_groups(model, scale_map), lr=1.0, momentum=0.9)
    RescaleOnDecay(optimizer, model=model, scale_map=scale_map)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    trained = model(x).detach()
    outputs = model.eval()(x).detach()
    for rate in (1e-300, 1e-301):  # steps that move nothing, across a drop by 10
        for group in optimizer.param_groups:
            group["lr"] = rate
        model.eval()(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.testing.assert_close(model.normed.weight, before["normed.weight"] * 10**-0.25)
    torch.testing.assert_close(model.both.weight, before["both.weight"])
    torch.testing.assert_close(model(x), outputs)
    torch.testing.assert_close(model.train()(x), trained)
