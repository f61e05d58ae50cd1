"""Where theory is silent: everything is measured, nothing predicted, and the report states that first, and why."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from isogon import Recipe, check
from isogon.cli import main
from isogon.dynamics import Monitor, RunFolder, findings
from isogon.report.run._tables import summarise

MADE = {"batch_size": 16, "samples": 64}


class Attention(nn.Module):
    """A transformer block and its head; layer norm has a shift, so that no weight is invariant."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 4)
        self.mix = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return self.head((x + self.mix(y, y, y, need_weights=False)[0]).mean(1))


class Unexportable(nn.Module):
    """Python decides by what it computes, which no export can follow."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x.flatten(1)[:, :16])
        return self.second(h if float(h.sum()) > 0 else -h)


def group_norm() -> nn.Module:
    """A bounded function before the norm, so that not even a weight and its bias scale together."""
    shape = nn.Unflatten(1, (1, 8))
    return nn.Sequential(shape, nn.Conv2d(1, 8, 3), nn.Tanh(), nn.GroupNorm(4, 8), nn.Flatten(), nn.LazyLinear(4))


MODELS = {
    "attention": (Attention, "no weight and no group of weights of this model is scale-invariant"),
    "group norm": (group_norm, "no weight and no group of weights of this model is scale-invariant"),
    "unexportable": (Unexportable, "cannot follow this model"),
}


def train(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, steps: int = 8, **options) -> Monitor:
    y = torch.arange(len(x)) % 4
    with Monitor(model, optimizer, **MADE, every_steps=1, **options) as monitor:
        for _ in range(steps):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return monitor


@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_measured_and_the_report_says_first_that_theory_is_silent(name, tmp_path, capsys):
    make, reason = MODELS[name]
    torch.manual_seed(0)
    model, x = make(), torch.randn(16, 8, 16)
    model(x)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    with pytest.warns(UserWarning, match=f"Angles are measured without a law: .*{reason}"):
        monitor = train(model, optimizer, x, inputs=x[:4], sinks=[RunFolder(tmp_path / "run")])
    records = monitor.records
    weights = [name for name, p in model.named_parameters() if p.dim() >= 2]
    assert sorted(records.layer.unique()) == sorted([*weights, "all"])
    assert (records.step_angle > 0).all()
    assert (records.norm > 0).all()
    assert records.filter(like="predicted").isna().all(axis=None)
    assert records.in_equilibrium.isna().all()
    assert reason in monitor.silence
    first = summarise(tmp_path / "run").findings[0]
    assert (first.name, first.layer) == ("no_law", None)
    assert reason in first.advice
    with pytest.raises(SystemExit):
        main(["report", str(tmp_path / "run")])
    assert capsys.readouterr().out.startswith("note: Theory is silent about this run: ")
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Theory is silent" in page
    assert "Nothing calls for a change" not in page


def test_the_reason_is_looked_for_where_nobody_gave_one(make_task):
    task = make_task(scale_invariant=False)
    reasons = {0.0: "without weight decay there is no equilibrium", 0.1: "no law is known for its optimizer"}
    for decay, reason in reasons.items():
        optimizer = torch.optim.Adagrad(task.parameters, lr=0.01, weight_decay=decay)
        with (
            pytest.warns(UserWarning, match="No law is known for Adagrad"),
            Monitor(task.model, optimizer, batch_size=32, samples=256, every_steps=1) as monitor,
        ):
            task.train(optimizer, 12)
        (finding,) = [each for each in findings(monitor.records, None) if each.name == "no_law"]
        assert reason in finding.advice


class Language(nn.Module):
    """A small language model: large matrices, none of them invariant."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.block = nn.Embedding(2000, 128), nn.TransformerEncoderLayer(128, 4, 256, 0.0, batch_first=True)
        self.head = nn.Linear(128, 2000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.block(self.embed(x)))


@pytest.mark.parametrize("seed", range(3))
def test_a_language_model_without_a_map_is_not_taken_for_one_with_a_law(seed, tmp_path):
    """As under the Trainer's callback: in many dimensions every gradient is nearly at right angles to its weight."""
    torch.manual_seed(seed)
    model, x = Language(), torch.randint(0, 2000, (8, 16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    with Monitor(model, optimizer, **MADE, every_steps=2, sinks=[RunFolder(tmp_path / "run")]):
        for _ in range(40):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten()).backward()
            optimizer.step()
    all_findings = summarise(tmp_path / "run").findings
    assert [finding.name for finding in all_findings] == ["no_law"]
    assert "no weight passes for scale-invariant" in all_findings[0].advice


def test_without_a_map_the_first_measured_steps_decide_which_weights_have_a_law(tmp_path):
    """A head's gradient passes at one step by chance once in forty; at four of them, once in a million."""
    for seed in range(8):
        torch.manual_seed(seed)
        body = [nn.Conv2d(3, 32, 3, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 128, 3, bias=False)]
        model = nn.Sequential(*body, nn.BatchNorm2d(128), nn.ReLU(), nn.Flatten(), nn.Linear(512, 100))
        x, y = torch.randn(32, 3, 6, 6), torch.randint(0, 100, (32,))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
        folder = RunFolder(tmp_path / f"run{seed}")
        with Monitor(model, optimizer, batch_size=32, samples=320, every_steps=1, sinks=[folder]) as monitor:
            for _ in range(10):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
        law = monitor.records.pivot(index="step", columns="layer", values="predicted_step_angle")
        assert law.iloc[:3].isna().all(axis=None)
        assert law.iloc[3:].notna().all().to_dict() == {
            "0.weight": True,
            "3.weight": True,
            "7.weight": False,
            "all": True,
        }
        (guess,) = [finding for finding in summarise(folder.folder).findings if finding.name == "guessed_laws"]
        assert guess.numbers == {"layers": 2}


def test_findings_without_a_recipe_are_on_the_page(make_task, tmp_path):
    task = make_task()
    optimizer = torch.optim.Adagrad(task.parameters, lr=0.01)
    with (
        pytest.warns(UserWarning, match="No law is known for Adagrad"),
        Monitor(task.model, optimizer, batch_size=32, samples=256, sinks=[RunFolder(tmp_path / "run")]),
    ):
        task.train(optimizer, 12)
    with pytest.raises(SystemExit):
        main(["report", str(tmp_path / "run")])
    assert "Theory is silent about this run" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_a_bias_before_batch_norm_is_rounding_noise_and_no_problem(kind, precision):
    """Its gradient points anywhere; that is no leak of a weight to which the law would apply."""
    torch.manual_seed(0)
    model = nn.Sequential()
    for place, channels in enumerate((1, 24, 24)):
        model.add_module(f"conv{place}", nn.Conv2d(channels, 24, 3, padding=1))
        model.add_module(f"norm{place}", nn.BatchNorm2d(24))
        model.add_module(f"relu{place}", nn.ReLU())
    model.add_module("head", nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10)))
    x, y = torch.randn(256, 1, 8, 8), torch.randint(0, 10, (256,))
    optimizer = kind(model.parameters(), lr=0.02, weight_decay=5e-3)
    scale_map = check(model, x[:8])
    assert "conv0.bias" in scale_map.invariant
    with Monitor(model, optimizer, batch_size=64, samples=256, scale_map=scale_map, every_steps=1) as monitor:
        for step in range(40):
            chosen = torch.randint(0, 256, (64,), generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == torch.bfloat16):
                loss = nn.functional.cross_entropy(model(x[chosen]).float(), y[chosen])
            loss.backward()
            optimizer.step()
    last = monitor.records.query("step == 39").set_index("layer")
    biases = [name for name in last.index if name.endswith("bias")]
    assert len(biases) == 3
    assert last.loc[biases].predicted_step_angle.isna().all()
    assert last.drop(index=biases).predicted_step_angle.notna().all()
    all_findings = findings(monitor.records, Recipe.from_optimizer(optimizer, batch_size=64, samples=256))
    assert "problem" not in {finding.severity for finding in all_findings if finding.layer in biases}
    assert {finding.layer for finding in all_findings if finding.name == "without_effect"} == set(biases)
    assert all("can be left out" in finding.advice for finding in all_findings if finding.name == "without_effect")


def test_what_is_decided_without_a_map_stays_and_a_weight_that_leaks_later_is_reported():
    """Neither laws nor the norm of all jump during a run."""
    torch.manual_seed(0)
    features, head = nn.Linear(512, 64, bias=False), nn.Linear(64, 4, bias=False)
    model = nn.Sequential(features, nn.BatchNorm1d(64, affine=False), nn.ReLU(), head)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    seen: list[int] = []

    def tangent(gradient: torch.Tensor) -> torch.Tensor:
        """At the steps that decide the head's gradient is made tangent by hand, so that it passes for invariant."""
        seen.append(0)
        w = head.weight.detach()
        return gradient - (gradient * w).sum() / w.square().sum() * w if len(seen) <= 4 else gradient

    head.weight.register_hook(tangent)
    monitor = train(model, optimizer, torch.randn(64, 512), steps=20)
    norm = monitor.records.pivot(index="step", columns="layer", values="norm").iloc[3:]
    np.testing.assert_allclose(norm["all"], np.hypot(norm["0.weight"], norm["3.weight"]), rtol=1e-6)
    law = monitor.records.pivot(index="step", columns="layer", values="predicted_step_angle")
    assert law.iloc[3:].notna().all(axis=None)
    leaks = {finding.layer for finding in findings(monitor.records, None) if finding.name == "radial_leak"}
    assert leaks == {"3.weight", "all"}
