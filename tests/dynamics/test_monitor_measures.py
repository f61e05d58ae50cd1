"""The monitor's columns against the pure measures, for every way an optimizer can be called."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from isogon.dynamics import Monitor, measures

SGD, ADAMW = torch.optim.SGD, torch.optim.AdamW
BASE = {"lr": 0.05, "weight_decay": 0.01}
VARIANTS = {
    "plain": (SGD, BASE),
    "momentum": (SGD, {**BASE, "momentum": 0.9}),
    "foreach": (SGD, {**BASE, "momentum": 0.9, "foreach": True}),
    "fused": (SGD, {**BASE, "momentum": 0.9, "fused": True}),
    "nesterov": (SGD, {**BASE, "momentum": 0.9, "nesterov": True}),
    "nesterov foreach": (SGD, {**BASE, "momentum": 0.9, "nesterov": True, "foreach": True}),
    # without weight decay this one overwrites the gradients
    "nesterov overwriting": (SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True, "foreach": True}),
    "dampening": (SGD, {**BASE, "momentum": 0.9, "dampening": 0.3}),
    "maximize": (SGD, {**BASE, "momentum": 0.9, "maximize": True}),
    "tensor lr": (SGD, {"lr": torch.tensor(0.05), "weight_decay": 0.01, "momentum": 0.9}),
    "adamw": (ADAMW, BASE),
    "adamw fused": (ADAMW, {**BASE, "fused": True}),
}


class Oracle:
    """Steps an optimizer and keeps clones of everything that the measures need."""

    def __init__(self, task, optimizer, *, closure: bool) -> None:
        self.task, self.optimizer, self.closure = task, optimizer, closure
        self.seen: list[dict[str, dict[str, torch.Tensor]]] = []
        self.named = {n: p for n, p in task.model.named_parameters() if p.requires_grad}

    def step(self, number: int) -> None:
        before = {n: p.detach().clone() for n, p in self.named.items()}
        buffers = {
            n: self.optimizer.state[p]["momentum_buffer"].clone()
            if "momentum_buffer" in self.optimizer.state.get(p, {})
            else torch.zeros_like(p)
            for n, p in self.named.items()
        }
        gradients = {}

        def evaluate() -> torch.Tensor:
            self.optimizer.zero_grad()
            loss = self.task.loss(number)
            loss.backward()
            gradients.update({n: p.grad.detach().clone() for n, p in self.named.items()})
            return loss

        if self.closure:
            self.optimizer.step(evaluate)
        else:
            evaluate()
            self.optimizer.step()
        after = {n: p.detach().clone() for n, p in self.named.items()}
        self.seen.append({"before": before, "after": after, "gradient": gradients, "buffer": buffers})

    def expected(self, number: int, names: list[str], settings) -> dict[str, float]:
        w, b, g, v = ([self.seen[number][key][n] for n in names] for key in ("before", "after", "gradient", "buffer"))
        lr = float(settings["lr"])
        sign = -1 if settings.get("maximize") else 1
        momentum = settings.get("momentum", 0.0)
        return {
            "norm": measures.norm(w),
            "step_angle": measures.angle(w, b),
            "effective_lr": measures.effective_lr(w, lr=lr),
            "effective_lr_epoch": measures.effective_lr_epoch(w, lr=lr, batch_size=32, samples=128),
            "unit_grad_sq": measures.unit_grad_sq(w, g),
            "radial": sign * measures.radial(w, g),
            "adjusted_grad_sq": math.nan
            if "betas" in settings
            else measures.adjusted_grad_sq(w, g, v, momentum=sign * momentum / (1 - settings["dampening"])),
            "lr": lr,
            "weight_decay": settings["weight_decay"],
        }


@pytest.mark.parametrize("closure", [False, True], ids=["", "closure"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_column_is_the_measure_of_its_name(make_task, variant, closure):
    kind, options = VARIANTS[variant]
    task = make_task()
    optimizer = kind(task.parameters, **options)
    oracle = Oracle(task, optimizer, closure=closure)
    with Monitor(task.model, optimizer, batch_size=32, samples=128, inputs=task.inputs[:4], every_steps=1) as monitor:
        for step in range(6):
            oracle.step(step)
    records = monitor.records.set_index(["step", "layer"])
    layers = monitor.records.layer.unique().tolist()
    assert layers == ["stem.conv.weight", "body.1.conv.weight", "body.3.conv.weight", "all"]
    for step in range(6):
        for layer in layers:
            names = list(oracle.named) if layer == "all" else [layer]
            expected = oracle.expected(step, names, optimizer.param_groups[0])
            for column, value in expected.items():
                value = records.loc[(step, layer), column]
                # The leak of a scale-invariant weight is rounding noise.
                close = pytest.approx(value, rel=1e-4, abs=1e-5 if column == "radial" else 0, nan_ok=True)
                assert value == close, (step, layer, column)


def test_epoch_angles_span_an_epoch_of_n_over_b_steps(make_task):
    """Epochs of 2.5 steps end with steps 2, 4, 7, 9: none is gained or lost."""
    task = make_task()
    optimizer = SGD(task.parameters, momentum=0.9, **BASE)
    oracle = Oracle(task, optimizer, closure=False)
    with Monitor(task.model, optimizer, batch_size=32, samples=80, inputs=task.inputs[:4], every_steps=7) as monitor:
        for step in range(11):
            oracle.step(step)
    ended = monitor.records.dropna(subset="epoch_angle")
    assert ended.step.unique().tolist() == [2, 4, 7, 9]
    assert ended.epoch.unique().tolist() == [0, 1, 2, 3]
    assert monitor.epochs.step.tolist() == [2, 4, 7, 9]
    start = oracle.seen[0]["before"]
    for step in (2, 4, 7, 9):
        now = oracle.seen[step]["after"]
        for layer, names in (("all", list(oracle.named)), ("body.1.conv.weight", ["body.1.conv.weight"])):
            angle = measures.angle([start[n] for n in names], [now[n] for n in names])
            row = ended[(ended.step == step) & (ended.layer == layer)].iloc[0]
            assert row.epoch_angle == pytest.approx(angle, rel=1e-4)
            assert row.step_angle > 0  # an epoch's last step is always measured
        start = now


def test_epochs_ended_by_hand(make_task):
    """The first ends after N/B = 3 steps by itself and is then ended by hand; from there on the loop alone decides."""
    task = make_task()
    optimizer = SGD(task.parameters, momentum=0.9, **BASE)
    oracle = Oracle(task, optimizer, closure=False)
    monitor = Monitor(task.model, optimizer, batch_size=32, samples=96, inputs=task.inputs[:4], every_steps=4)
    step = 0
    for epoch, steps in enumerate((3, 6, 2)):
        for _ in range(steps):
            oracle.step(step)
            step += 1
        if epoch == 1:
            monitor.records  # noqa: B018  (reading in between changes nothing)
        monitor.end_epoch(loss=1.0 / (epoch + 1), images_per_second=100.0)
    ends, starts = [2, 8, 10], [0, 3, 9]
    ended = monitor.records.query("layer == 'all'").dropna(subset="epoch_angle")
    assert ended.step.tolist() == ends
    for first, last, row in zip(starts, ends, ended.itertuples(), strict=True):
        w, b = (list(side.values()) for side in (oracle.seen[first]["before"], oracle.seen[last]["after"]))
        assert row.epoch_angle == pytest.approx(measures.angle(w, b), rel=1e-4)
    # Step 8 was measured too: its row has both. Step 10 was not.
    assert ended.step_angle.notna().tolist() == [True, True, False]
    assert monitor.epochs.loss.tolist() == [1.0, 0.5, pytest.approx(1 / 3)]
    assert monitor.records.query("layer == 'all'").epoch.tolist() == [0, 0, 1, 1, 2]
    assert monitor.epochs.step.tolist() == ends
    monitor.close()


def test_metrics_given_after_an_epoch_that_ended_by_itself_belong_to_it(make_task):
    task = make_task()
    optimizer = SGD(task.parameters, **BASE)
    with Monitor(task.model, optimizer, batch_size=32, samples=96) as monitor:
        for epoch in range(3):
            task.train(optimizer, 3, start=3 * epoch)
            monitor.end_epoch(accuracy=epoch / 10)
    assert monitor.epochs[["epoch", "step", "accuracy"]].values.tolist() == [[0, 2, 0.0], [1, 5, 0.1], [2, 8, 0.2]]


def test_a_gradient_that_is_missing_leaves_its_columns_empty(make_task):
    task = make_task()
    frozen = dict(task.model.named_parameters())["body.1.conv.weight"]
    optimizer = SGD(task.parameters, momentum=0.9, **BASE)
    with Monitor(task.model, optimizer, batch_size=32, samples=128, inputs=task.inputs[:4], every_steps=1) as monitor:
        for step in range(4):
            optimizer.zero_grad(set_to_none=True)
            task.loss(step).backward()
            frozen.grad = None
            optimizer.step()
    rows = monitor.records.set_index("layer")
    alone = rows.loc["body.1.conv.weight"]
    assert alone[["unit_grad_sq", "adjusted_grad_sq", "radial"]].isna().all().all()
    assert (alone.step_angle == 0).all()
    assert rows.loc["all", ["unit_grad_sq", "adjusted_grad_sq", "radial", "step_angle"]].notna().all().all()


def test_accumulated_gradients_make_one_step(make_task):
    task = make_task()
    optimizer = SGD(task.parameters, **BASE)
    with Monitor(task.model, optimizer, batch_size=64, samples=128, every_steps=1) as monitor:
        for step in range(4):
            optimizer.zero_grad()
            for half in range(2):
                (task.loss(2 * step + half) / 2).backward()
            optimizer.step()
    assert monitor.records.step.unique().tolist() == [0, 1, 2, 3]
    assert monitor.epochs.step.tolist() == [1, 3]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_of_weights(make_task, dtype):
    task = make_task(norm="layer")
    task.model.to(dtype)
    task.inputs = task.inputs.to(dtype)
    optimizer = SGD(task.parameters, lr=1.0, momentum=0.9, weight_decay=0.01)
    oracle = Oracle(task, optimizer, closure=False)
    with Monitor(task.model, optimizer, batch_size=32, samples=64, every_steps=1) as monitor:
        for step in range(4):
            oracle.step(step)
    rows = monitor.records.set_index(["step", "layer"])
    for step in range(4):
        w, b = (oracle.seen[step][key]["body.1.conv.weight"] for key in ("before", "after"))
        value = rows.loc[(step, "body.1.conv.weight"), "step_angle"]
        assert value == pytest.approx(measures.angle(w, b), rel=1e-9 if dtype == torch.float64 else 1e-3)
        assert np.isfinite(value)
