"""Wan et al.'s Mask R-CNN: the training loop, the experiments, and that they are not run without torchvision.

A small detector stands in for Mask R-CNN; what needs the real one is left out where torchvision is missing.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from isogon.papers.reproduction._experiment import Options, UnavailableError
from isogon.papers.reproduction._runner import reproduce
from isogon.papers.smd import _figures as smd
from isogon.papers.smd.detection import _experiment as smd_detection
from isogon.papers.smd.detection._data import TRAIN, CocoPart
from isogon.papers.smd.detection._measures import COCO_APS, OWN_AP
from isogon.papers.smd.detection._network import build_detector, torchvision_part
from isogon.papers.smd.detection._pictures import write_pictures
from isogon.papers.smd.detection._training import Batches, DetectorSetting, train_detector
from isogon.papers.smd.detection._weights import normalised_map
from isogon.recipe import Recipe

pytest.importorskip("PIL.Image", reason="Pillow is not installed")
BY_ID = {experiment.id: experiment for experiment in smd.EXPERIMENTS}
HERE = {"engine": "local", "device": "cpu", "progress": False}
SETTING = DetectorSetting(
    Recipe(lr=0.1, weight_decay=0.02, batch_size=3, samples=6),
    "plain",
    steps=12,
    drops=(4, 8),
    period=4,
    monitor_every=1,
    drawn=(7, 4),
    side=32,
)


class Detector(nn.Module):
    """Speaks as torchvision's detectors do, and looks for the first box and class alone."""

    def __init__(self, classes):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 6, 3, stride=2, bias=False),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.Conv2d(6, 6, 3, stride=2, bias=False),
            nn.BatchNorm2d(6),
            nn.ReLU(),
        )
        self.head = nn.Linear(6, 4 + classes)

    def forward(self, images, targets=None):
        output = self.head(torch.stack([self.body(image[None]).mean((0, 2, 3)) for image in images]))
        boxes, classes = output.split([4, output.shape[1] - 4], 1)
        if self.training:
            wanted = torch.stack([target["boxes"][0] for target in targets]) / 32
            labels = torch.stack([target["labels"][0] for target in targets])
            return {"boxes": (boxes - wanted).abs().mean(), "classes": nn.functional.cross_entropy(classes, labels)}
        return [
            {
                "boxes": 32 * box[None],
                "labels": label[None],
                "scores": torch.ones(1),
                "masks": torch.ones(1, 1, *image.shape[1:]),
            }
            for image, box, label in zip(images, boxes, classes.argmax(1), strict=True)
        ]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("coco")
    write_pictures(folder, train=7, test=4, size=32)
    return folder


# Training


def test_batches_are_epochs_of_all_pictures_and_can_begin_anywhere():
    whole = list(Batches(samples=7, batch_size=3, seed=1, start=0, steps=9))
    assert len(whole) == len(Batches(7, 3, 1, 0, 9)) == 9
    for epoch in range(4):
        places = [place for batch in whole[2 * epoch : 2 * epoch + 2] for place in batch]
        assert len(set(places)) == 6
    assert whole[:2] != whole[2:4]
    for start in range(9):
        assert list(Batches(7, 3, 1, start, 9)) == whole[start:]
    assert list(Batches(7, 3, 2, 0, 9)) != whole


def test_the_printed_schedule():
    setting = smd_detection.SETUPS["paper"]
    assert setting.steps == 360_000
    recipe = setting.recipe
    assert (recipe.lr, recipe.weight_decay, recipe.momentum, recipe.batch_size) == (0.02, 1e-4, 0.9, 16)
    steps = [0, 499, 500, 299_999, 300_000, 339_999, 340_000, 359_999]
    rates = [float(rate) for rate in setting.schedule.lr(steps)]
    assert rates == pytest.approx([2e-5, rates[1], 0.02, 0.02, 0.002, 0.002, 0.0002, 0.0002])
    assert 0.019 < rates[1] < 0.02
    assert set(setting.schedule.weight_decay(steps)) == {1e-4}
    assert setting.drawn is None
    assert setting.backbone == "resnet50"


@pytest.mark.parametrize("setting", smd_detection.SETUPS.values(), ids=smd_detection.SETUPS)
def test_points_of_the_curves_do_not_straddle_a_drop(setting):
    assert all(step % setting.period == 0 for step in (*setting.drops, setting.steps))
    assert setting.warm_up < setting.period
    assert setting.period % setting.monitor_every == 0
    longer = replace(setting, steps=setting.steps + setting.period)
    assert setting.key == replace(setting, seeds=9, loaders=3).key != longer.key


@pytest.fixture
def data(root):
    return CocoPart(root, TRAIN, only_objects=True)


def trained(data, setting=SETTING, *, rescaled=False, folder=None):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Detector(data.classes)
    return model, train_detector(model, data, setting, rescaled=rescaled, seed=0, folder=folder)


def test_rescaling_divides_norms_at_the_drops_and_is_the_standard_run_before(data):
    records = {rescaled: trained(data, rescaled=rescaled)[1].records for rescaled in (False, True)}
    layers = {"body.0.weight", "body.3.weight"}
    for rows in records.values():
        assert set(rows["layer"]) == {*layers, "all"}
        assert sorted(set(rows["step"])) == list(range(12))
        assert rows.groupby("epoch")["lr"].first().tolist() == pytest.approx([0.1, 0.01, 0.001])
        assert (rows["radial"].abs() < 0.01).all(), "the loss does not depend on the norm"
    for layer in layers:
        standard, rescaled = (records[key][records[key]["layer"] == layer].set_index("step") for key in (False, True))
        pd.testing.assert_series_equal(standard["norm"][:4], rescaled["norm"][:4])
        ratio = (rescaled["norm"] / standard["norm"]).iloc[[4, 8]]
        np.testing.assert_allclose(ratio, [10**-0.25, 10**-0.5], rtol=0.02)
        # As the gradient grows by the fourth root too, the first step after the drop turns further by √10 at 1/10 η.
        assert rescaled["step_angle"][4] / standard["step_angle"][4] == pytest.approx(math.sqrt(10), rel=0.05)


def test_a_training_that_was_stopped_goes_on_from_its_last_period(data, tmp_path):
    whole = trained(data, folder=tmp_path / "whole")[1]
    half = replace(SETTING, steps=6)  # of which the first period, four steps, is kept
    trained(data, half, folder=tmp_path / "run")
    first = pd.read_parquet(tmp_path / "run" / "records.parquet")
    _, resumed = trained(data, folder=tmp_path / "run")
    assert resumed.status == "finished"
    keys = ["step", "layer"]
    norms = [motion.records.set_index(keys)["norm"] for motion in (whole, resumed)]
    assert norms[0].index.equals(norms[1].index)
    np.testing.assert_allclose(*norms, rtol=0.2)
    early = first[first["step"] < 4].set_index(keys)["norm"]
    np.testing.assert_allclose(resumed.records.set_index(keys)["norm"][early.index], early)


def test_a_loss_that_is_not_finite_ends_the_training(data):
    class Broken(Detector):
        calls = 0

        def forward(self, images, targets=None):
            losses = super().forward(images, targets)
            self.calls += 1
            return {name: loss * (math.inf if self.calls > 3 else 1) for name, loss in losses.items()}

    motion = train_detector(Broken(3), data, SETTING, rescaled=False, seed=0)
    assert motion.status == "diverged"
    assert motion.records["step"].max() < 4


# The experiments


@pytest.fixture
def stand_in(monkeypatch):
    """The small detector instead of Mask R-CNN; returns the settings' names that it was trained for."""
    built = []
    monkeypatch.setattr(smd_detection, "torchvision_part", lambda name: None)
    monkeypatch.setattr(
        smd_detection, "build_detector", lambda backbone, classes, *, size: built.append(size) or Detector(classes)
    )
    monkeypatch.setitem(smd_detection.SETUPS, "tiny", SETTING)
    return built


def test_both_experiments_read_the_same_trainings(stand_in, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pycocotools.coco", None)
    options = Options(panels=("d", "e", "f"))
    figure, table = reproduce([BY_ID["smd/fig3"]], options, out=tmp_path, **HERE) + reproduce(
        [BY_ID["smd/table2"]], Options(), out=tmp_path, **HERE
    )
    assert stand_in == [32, 32], "one training a row"
    rows = figure.table
    assert set(rows["panel"]) == {"def"}
    assert set(rows["row"]) == {smd.STANDARD, smd.RESCALED}
    assert rows.groupby("stage")["epoch"].unique().map(list).tolist() == [[0], [1], [2]]
    assert "Mask R-CNN, rescaled, stage 2" in figure.judgement.numbers
    assert [exhibit.title.split(":")[0] for exhibit in figure.exhibits] == ["Mask R-CNN"] * 3
    assert table.table[["row", "seed", "status"]].values.tolist() == [
        [smd.STANDARD, 0, "finished"],
        [smd.RESCALED, 0, "finished"],
    ]
    assert table.judgement.verdict == "undecided", "one run each says nothing"
    (shown,) = table.exhibits
    assert shown.columns == [*COCO_APS, OWN_AP]
    assert shown.printed[smd.RESCALED, "mask AP75"] == 36.71
    assert set(shown.ours) == {(row, OWN_AP) for row in (smd.STANDARD, smd.RESCALED)}


def test_without_torchvision_it_is_not_run_and_says_why(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torchvision", None)
    messages = []
    (table,) = reproduce([BY_ID["smd/table2"]], out=tmp_path, tell=messages.append, **HERE)
    assert table.judgement.verdict == "not run"
    assert table.judgement.sentence.startswith("Mask R-CNN needs torchvision, which does not import here")
    assert messages == [f"smd/table2: {table.judgement.sentence}"]
    (figure,) = reproduce([BY_ID["smd/fig3"]], Options(panels=("d",)), out=tmp_path, **HERE)
    assert figure.judgement == table.judgement
    assert smd_detection.layer_rows(Options(panels=("a", "c"))).empty, "nobody asked for it"
    assert not list(tmp_path.glob("computed/pictures*"))


def test_without_coco_the_paper_scale_is_not_run(stand_in, tmp_path, monkeypatch):
    monkeypatch.setenv("ISOGON_DATA", str(tmp_path / "data"))
    (table,) = reproduce([BY_ID["smd/table2"]], Options("paper"), out=tmp_path, **HERE)
    assert table.judgement.verdict == "not run"
    assert str(tmp_path / "data" / "coco" / "annotations") in table.judgement.sentence


def test_a_torchvision_that_is_broken_is_named(monkeypatch):
    def broken(name):
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr("isogon.papers.smd.detection._network.import_module", broken)
    with pytest.raises(UnavailableError, match=r"does not import here \(operator torchvision::nms does not exist\)"):
        torchvision_part("ops")


def test_figure_3_is_judged_in_each_network():
    def table(panel, standard, rescaled):
        rng = np.random.default_rng(0)
        return [
            {
                "panel": panel,
                "row": row,
                "seed": 0,
                "layer": f"conv{layer}",
                "epoch": stage,
                "stage": stage,
                "step_angle": 0.01 * ratio * (1 + 0.01 * rng.standard_normal()),
                "predicted_step_angle": 0.01,
                "rescaled_norm": 5.0,
                "adjusted_grad_sq": 2.0,
                "status": "finished",
            }
            for row, ratios in ((smd.STANDARD, standard), (smd.RESCALED, rescaled))
            for stage, ratio in enumerate(ratios)
            for layer in range(4)
        ]

    good, bad = ((1, 0.9, 0.3), (1, 1, 1)), ((1, 1, 1), (1, 1, 1))
    for first, second, verdict in ((good, good, "holds"), (good, bad, "fails"), (bad, good, "fails")):
        rows = pd.DataFrame([*table("abc", *first), *table("def", *second)])
        assert BY_ID["smd/fig3"].judge(rows).verdict == verdict
        assert len(BY_ID["smd/fig3"].show(rows)) == 6


def test_runs_that_diverged_are_no_evidence_on_precision():
    experiment = BY_ID["smd/table2"]
    rows = [
        {"row": row, "seed": seed, "status": "finished", OWN_AP: 40.0}
        for row in (smd.STANDARD, smd.RESCALED)
        for seed in range(2)
    ]
    assert experiment.judge(pd.DataFrame(rows)).verdict == "holds"
    rows[2:] = [{"row": smd.RESCALED, "seed": seed, "status": "diverged"} for seed in range(2)]
    assert experiment.judge(pd.DataFrame(rows)).verdict == "undecided"
    assert experiment.show(pd.DataFrame(rows))[0].ours[smd.RESCALED, OWN_AP].survived == 0
    for row in rows:
        row.pop(OWN_AP, None)
    assert experiment.judge(pd.DataFrame(rows)).verdict == "undecided"


# With torchvision


@pytest.mark.parametrize(("backbone", "layers"), [("plain", 5), ("resnet18", 22)])
def test_weights_of_mask_rcnn_that_count_as_invariant_are(root, backbone, layers):
    pytest.importorskip("torchvision", reason="torchvision is not installed")
    data = CocoPart(root, TRAIN, only_objects=True)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build_detector(backbone, data.classes, size=64).train()
        batch = [list(part) for part in zip(*(data[place] for place in range(4)), strict=True)]
        scale_map = normalised_map(model, lambda copied: copied(*batch))
        assert len(scale_map.invariant) == layers
        losses = model(*batch)
    assert set(losses) == {"loss_classifier", "loss_box_reg", "loss_mask", "loss_objectness", "loss_rpn_box_reg"}
    torch.stack(list(losses.values())).sum().backward()
    weights = dict(model.named_parameters())
    leaks = {
        name: float((weight * weight.grad).sum() / (weight.norm() * weight.grad.norm()))
        for name, weight in weights.items()
        if weight.dim() > 1
    }
    largest = max(abs(leaks[name]) for name in scale_map.invariant)
    assert largest < 1e-2
    assert max(abs(leak) for name, leak in leaks.items() if name not in scale_map.invariant) > largest


def test_mask_rcnn_as_printed_has_norms_but_in_the_proposals():
    pytest.importorskip("torchvision", reason="torchvision is not installed")
    model = build_detector("resnet50", 81, size=0)
    norms = [name for name, module in model.named_modules() if isinstance(module, nn.BatchNorm2d)]
    # 53 of ResNet-50, 8 of the pyramid, 4 of the boxes' head and 4 of the masks'.
    assert len(norms) == 53 + 8 + 4 + 4
    assert not any(name.startswith("rpn") for name in norms)
    assert all(weight.requires_grad for weight in model.parameters())
    assert model.roi_heads.box_predictor.cls_score.out_features == 81


@pytest.mark.slow
def test_mask_rcnn_at_scale_tiny(tmp_path):
    pytest.importorskip("torchvision", reason="torchvision is not installed")
    options = Options(panels=("d", "e", "f"))
    (figure,) = reproduce([BY_ID["smd/fig3"]], options, out=tmp_path, **HERE)
    (table,) = reproduce([BY_ID["smd/table2"]], out=tmp_path, **HERE)
    assert set(figure.table["status"]) == {"finished"}
    assert figure.table["layer"].nunique() == 5
    angles = figure.table[figure.table["stage"] == 2].groupby("row")["step_angle"].mean()
    assert angles[smd.RESCALED] > 3 * angles[smd.STANDARD], "rescaled weights turn faster in the last stage"
    assert len(table.table) == 2
    assert table.table[OWN_AP if OWN_AP in table.table else "box AP50"].between(0, 100).all()
