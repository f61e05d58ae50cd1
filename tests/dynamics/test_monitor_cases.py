"""The ways people train: groups, several optimizers, AMP, wrappers, resuming; and what the monitor must leave alone."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from isogon.dynamics import SCHEMA, Monitor, ParametersChangedError, RunFolder, read, read_epochs
from isogon.errors import ArgumentError, IsogonError
from isogon.symmetry import check
from isogon.theory.equilibrium import equilibrium_norm
from isogon.theory.motion import law

SGD = torch.optim.SGD
BASE = {"lr": 0.05, "weight_decay": 0.01, "momentum": 0.9}
MADE = {"batch_size": 32, "samples": 128}


def test_the_table_has_the_designs_schema_at_all_times(make_task):
    task = make_task()
    optimizer = SGD(task.parameters, **BASE)
    monitor = Monitor(task.model, optimizer, **MADE, inputs=task.inputs[:4])
    expected = (
        "step, epoch, layer, lr, weight_decay, norm, predicted_norm, step_angle, epoch_angle, effective_lr, "
        "effective_lr_epoch, unit_grad_sq, adjusted_grad_sq, radial, predicted_step_angle, predicted_epoch_angle, "
        "in_equilibrium"
    )
    for steps in (0, 1, 15):
        task.train(optimizer, steps)
        assert ", ".join(monitor.records.columns) == expected
        assert monitor.records.dtypes.tolist() == [pd.Series(dtype=kind).dtype for kind in SCHEMA.values()]
    assert monitor.records.step.unique().tolist() == [0, 3, 7, 10, 11, 15]
    monitor.close()
    assert len(monitor.records) == 6 * 4


def test_predictions_are_those_of_theory(make_task):
    task = make_task()
    optimizer = SGD(task.parameters, **BASE)
    with Monitor(task.model, optimizer, **MADE, inputs=task.inputs[:4], every_steps=1) as monitor:
        task.train(optimizer, 250)
    motion = law("sgd", **BASE)
    records = monitor.records
    assert np.allclose(records.predicted_step_angle, motion.angle(1))
    assert np.allclose(records.predicted_epoch_angle, motion.angle(4))
    rows = records.query("layer == 'body.3.conv.weight'")
    mean = rows.adjusted_grad_sq[rows.step > 249 - 200].mean()
    assert rows.predicted_norm.iloc[-1] == pytest.approx(equilibrium_norm("sgd", **BASE, unit_grad_sq=mean))


def test_parameter_groups_have_their_own_rates_and_predictions(make_task):
    task = make_task()
    first, *others = task.parameters
    groups = [{"params": [first], "lr": 0.1}, {"params": others, "weight_decay": 0.002}]
    optimizer = SGD(groups, **BASE)
    with Monitor(task.model, optimizer, **MADE, inputs=task.inputs[:4], every_steps=1) as monitor:
        task.train(optimizer, 2)
    rows = monitor.records.query("step == 1").set_index("layer")
    for layer, changed in (("stem.conv.weight", {"lr": 0.1}), ("body.1.conv.weight", {"weight_decay": 0.002})):
        settings = {**BASE, **changed}
        assert rows.loc[layer, "lr"] == settings["lr"]
        assert rows.loc[layer, "weight_decay"] == settings["weight_decay"]
        assert rows.loc[layer, "predicted_step_angle"] == pytest.approx(float(law("sgd", **settings).angle(1)))
    joint = rows.loc["all"]
    assert joint[["lr", "weight_decay", "predicted_step_angle", "effective_lr"]].isna().all()
    assert joint.step_angle > 0


def test_groups_that_agree_have_a_joint_prediction(make_task):
    task = make_task()
    optimizer = SGD([{"params": [p]} for p in task.parameters], **BASE)
    with Monitor(task.model, optimizer, **MADE, inputs=task.inputs[:4], every_steps=1) as monitor:
        task.train(optimizer, 1)
    assert monitor.records.predicted_step_angle.notna().all()


def test_several_optimizers_join_in_one_step(make_task):
    task, other = make_task(), make_task()
    first, second = SGD(task.parameters[:3], **BASE), SGD(task.parameters[3:], **BASE)
    alone = SGD(other.parameters, **BASE)
    whole = Monitor(other.model, alone, **MADE, inputs=task.inputs[:4], every_steps=1)
    halves = Monitor(task.model, [first, second], **MADE, inputs=task.inputs[:4], every_steps=1)
    other.train(alone, 5)
    for step in range(5):
        first.zero_grad()
        second.zero_grad()
        task.loss(step).backward()
        first.step()
        if step == 2:
            assert halves.records.step.max() == 1  # the step is only half made
        second.step()
    columns = ["step_angle", "norm", "unit_grad_sq", "epoch_angle", "predicted_step_angle"]
    for records in (whole.records, halves.records):
        assert records.step.max() == 4
    pd.testing.assert_frame_equal(
        whole.records.set_index(["step", "layer"])[columns],
        halves.records.set_index(["step", "layer"])[columns],
        rtol=1e-4,
    )
    assert whole.epochs.step.tolist() == halves.epochs.step.tolist() == [3]


def train_scaled(task, optimizer, scaler, steps, *, bad: set[int]) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        scaler.scale(task.loss(step)).backward()
        if step in bad:
            task.parameters[0].grad.view(-1)[0] = torch.inf
        scaler.step(optimizer)
        scaler.update()


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_the_scaler_skips_is_none(make_task, fused):
    """With a fused optimizer the hooks fire all the same, and the gradients still carry the loss scale."""
    task, bare = make_task(), make_task()
    optimizer = SGD(task.parameters, **BASE, fused=fused)
    plain = SGD(bare.parameters, **BASE)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=10**6)
    with (
        Monitor(task.model, optimizer, **MADE, inputs=task.inputs[:4], every_steps=1) as monitor,
        Monitor(bare.model, plain, **MADE, inputs=task.inputs[:4], every_steps=1) as reference,
    ):
        train_scaled(task, optimizer, scaler, 9, bad={3, 6, 8})
        for step in (0, 1, 2, 4, 5, 7):
            bare.train(plain, 1, start=step)
    assert monitor.epochs.step.tolist() == [3]
    # Batch norm saw the skipped batches too, which only its running statistics remember.
    pd.testing.assert_frame_equal(monitor.records, reference.records, rtol=1e-3, atol=1e-5)


def test_skipped_steps_are_only_looked_for_when_rows_are_wanted(make_task):
    """An epoch's end is put off by the steps that were skipped in it."""
    task = make_task()
    optimizer = SGD(task.parameters, **BASE, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0, growth_interval=10**6)
    with Monitor(task.model, optimizer, **MADE, every_steps=100) as monitor:
        train_scaled(task, optimizer, scaler, 12, bad={1, 2, 5})
    assert monitor.epochs.step.tolist() == [3, 7]
    assert monitor.records.step.unique().tolist() == [0, 3, 7]


class Wrapper(nn.Module):
    """As DataParallel and its kin do it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.module(x)


@pytest.mark.parametrize("wrap", ["compile", "module", "both"])
def test_names_are_free_of_wrappers(make_task, wrap):
    task = make_task()
    optimizer = SGD(task.parameters, **BASE)
    plain = model = task.model
    scale_map = check(plain, task.inputs[:4])
    model = Wrapper(model) if wrap != "compile" else model
    model = torch.compile(model, backend="eager") if wrap != "module" else model
    task.model = model
    with Monitor(model, optimizer, **MADE, scale_map=scale_map, every_steps=1) as monitor:
        for step in range(2):
            optimizer.zero_grad()
            task.loss(step).backward()
            optimizer.step()
    assert set(monitor.records.layer) - {"all"} == set(scale_map.invariant)


def test_only_rank_0_measures(tmp_path):
    """Two processes under DDP: the ranks train alike, and one of them has the records."""
    script = tmp_path / "train.py"
    script.write_text(
        """
import sys
import torch, torch.distributed as dist
from torch import nn
from isogon.dynamics import Monitor, RunFolder

def work(rank, folder):
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(
        nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    torch.manual_seed(rank)
    monitor = Monitor(model, optimizer, batch_size=16, samples=64, every_steps=1, sinks=[RunFolder(folder + str(rank))])
    for step in range(6):
        optimizer.zero_grad()
        model(torch.randn(8, 1, 6, 6)).square().mean().backward()
        optimizer.step()
    monitor.end_epoch(loss=1.0)
    assert monitor.active == (rank == 0)
    assert len(monitor.records) == (15 if rank == 0 else 0), len(monitor.records)
    assert set(monitor.records.layer) == ({"0.weight", "3.weight", "all"} if rank == 0 else set())
    monitor.load_state_dict(monitor.state_dict())
    monitor.close()
    dist.destroy_process_group()

if __name__ == "__main__":
    work(int(sys.argv[1]), sys.argv[2])
"""
    )
    port = str(20000 + np.random.default_rng().integers(20000))
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(tmp_path / "run")],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        errors = [rank.communicate(timeout=120)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], errors
    assert read(tmp_path / "run0").step.max() == 5


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6, bias=False)
        self.second = nn.Linear(6, 6, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.layer_norm(self.first(x), (6,))
        return nn.functional.layer_norm(self.second(x), (6,))


def test_a_tied_weight_is_one_layer():
    torch.manual_seed(0)
    model = Tied()
    optimizer = SGD(model.parameters(), **BASE)
    with Monitor(model, optimizer, **MADE, inputs=torch.randn(4, 6), every_steps=1) as monitor:
        (model(torch.randn(8, 6)) * torch.randn(8, 6)).sum().backward()
        optimizer.step()
    assert monitor.records.layer.tolist() == ["first.weight", "all"]
    assert monitor.records.step_angle.iloc[0] == pytest.approx(monitor.records.step_angle.iloc[1])


def test_parameters_added_later_are_an_error_that_says_so(make_task):
    task = make_task()
    optimizer = SGD(task.parameters, **BASE)
    with Monitor(task.model, optimizer, **MADE) as monitor:
        task.train(optimizer, 2)
        optimizer.add_param_group({"params": [nn.Parameter(torch.randn(3, 3))]})
        with pytest.raises(ParametersChangedError, match=r"has 10 parameters and had 9 .* make a new one"):
            task.train(optimizer, 1)
    assert monitor.records.step.unique().tolist() == [0]
    task.train(optimizer, 1)  # closed, it no longer minds


def test_parameters_of_another_model_are_refused(make_task):
    optimizer = SGD(make_task(seed=1).parameters, **BASE)
    with pytest.raises(ArgumentError, match="trainable parameters of the model"):
        Monitor(make_task().model, optimizer, **MADE)


def test_of_several_evaluations_the_first_counts(make_task):
    """L-BFGS calls its closure again and again, at other weights."""
    task = make_task()
    optimizer = torch.optim.LBFGS(task.parameters, lr=0.1, max_iter=4)
    gradients = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = task.loss(0)
        loss.backward()
        gradients.append(sum(float(p.grad.square().sum()) for p in task.parameters))
        return loss

    with (
        pytest.warns(UserWarning, match="LBFGS"),
        Monitor(task.model, optimizer, **MADE, inputs=task.inputs[:4], every_steps=1) as monitor,
    ):
        optimizer.step(closure)
    joint = monitor.records.query("layer == 'all'").iloc[0]
    assert len(gradients) > 2
    assert joint.unit_grad_sq / joint.norm**2 == pytest.approx(gradients[0], rel=1e-4)
    assert gradients[-1] != pytest.approx(gradients[0], rel=1e-3)


def test_dampening_is_a_lower_learning_rate(make_task):
    task = make_task()
    optimizer = SGD(task.parameters, **BASE, dampening=0.5)
    with Monitor(task.model, optimizer, **MADE, inputs=task.inputs[:4], every_steps=1) as monitor:
        task.train(optimizer, 2)
    expected = law("sgd", **{**BASE, "lr": 0.5 * BASE["lr"]})
    assert np.allclose(monitor.records.predicted_step_angle, expected.angle(1))


class Lion(torch.optim.Optimizer):
    """Chen et al. 2023."""

    def __init__(self, params, lr, betas=(0.9, 0.99), weight_decay=0.0) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                average = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                b1, b2 = group["betas"]
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_(group["lr"] * torch.sign(b1 * average + (1 - b1) * p.grad))
                average.lerp_(p.grad, 1 - b2)


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("nesterov", lambda p: SGD(p, lr=0.01, weight_decay=0.1, momentum=0.8, nesterov=True)),
        ("adamw", lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1, betas=(0.8, 0.95))),
        (
            "adamw",
            lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1, betas=(0.8, 0.95), decoupled_weight_decay=True),
        ),
        ("lion", lambda p: Lion(p, lr=0.01, weight_decay=0.1, betas=(0.8, 0.95))),
        ("muon", lambda p: torch.optim.Muon([q for q in p if q.dim() == 2], lr=0.01, weight_decay=0.1, momentum=0.8)),
    ],
)
def test_optimizers_known_by_name_have_predictions(kind, make):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.LayerNorm(8), nn.Linear(8, 8, bias=False), nn.LayerNorm(8))
    optimizer = make(list(model.parameters()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        monitor = Monitor(model, optimizer, batch_size=4, samples=40, inputs=torch.randn(4, 8), every_steps=1)
    (model(torch.randn(8, 8)) * torch.randn(8, 8)).sum().backward()
    optimizer.step()
    row = monitor.records.set_index("layer").loc["0.weight"]
    beta2 = {"adamw": 0.95, "lion": 0.95}.get(kind)
    motion = law(kind, lr=0.01, weight_decay=0.1, momentum=0.8, beta2=beta2)
    assert row.predicted_step_angle == pytest.approx(float(motion.angle(1)))
    assert row.predicted_epoch_angle == pytest.approx(float(motion.angle(10)))
    assert pd.isna(row.predicted_norm) == (kind == "muon")
    assert pd.isna(row.adjusted_grad_sq) == (kind != "nesterov")
    if beta2:
        expected = equilibrium_norm(kind, lr=0.01, weight_decay=0.1, momentum=0.8, parameters=64, beta2=beta2)
        assert row.predicted_norm == pytest.approx(expected)
    monitor.close()


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.RMSprop])
def test_an_optimizer_without_a_law_is_measured_and_said_once(make_task, kind):
    task = make_task()
    optimizer = kind(task.parameters, lr=1e-3, weight_decay=0.01)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Monitor(task.model, optimizer, **MADE, inputs=task.inputs[:4], every_steps=1) as monitor:
            task.train(optimizer, 5)
    messages = [w for w in caught if "No law is known" in str(w.message)]
    assert len(messages) == 1
    assert kind.__name__ in str(messages[0].message)
    assert messages[0].filename == __file__
    records = monitor.records
    assert (records.step_angle > 0).all()
    assert records.filter(like="predicted").isna().all().all()
    assert records.in_equilibrium.isna().all()


def test_without_weight_decay_nothing_is_predicted(make_task):
    task = make_task()
    optimizer = SGD(task.parameters, lr=0.1)
    with Monitor(task.model, optimizer, **MADE, inputs=task.inputs[:4], every_steps=1) as monitor:
        task.train(optimizer, 2)
    assert monitor.records.filter(like="predicted").isna().all().all()


def test_without_a_map_the_radial_leak_tells(make_task):
    """An ordinary network: the classifier is not scale-invariant, and neither predicted nor joined."""
    task = make_task(scale_invariant=False)
    optimizer = SGD(task.parameters, **BASE)
    with Monitor(task.model, optimizer, **MADE, every_steps=1) as monitor:
        task.train(optimizer, 60)
    last = monitor.records.query("step == 59").set_index("layer")
    convolutions = [name for name in last.index if "conv" in name]
    (classifier,) = [name for name in last.index if "conv" not in name and name != "all"]
    assert len(convolutions) == 3
    assert (last.loc[convolutions].radial.abs() < 1e-3).all()
    assert last.loc[convolutions].predicted_step_angle.notna().all()
    assert abs(last.loc[classifier].radial) > 0.01
    assert pd.isna(last.loc[classifier].predicted_step_angle)
    assert last.loc["all"].norm ** 2 == pytest.approx((last.loc[convolutions].norm ** 2).sum())
    leaks = monitor.records.query("layer == @classifier").radial
    assert np.sqrt((leaks**2).mean()) > 0.01


def test_a_map_of_a_partly_invariant_network_joins_the_invariant_weights(make_task):
    """Yun section 5.2: with scale-variant parts only the invariant weights count."""
    task = make_task(scale_invariant=False)
    scale_map = check(task.model, task.inputs[:4])
    assert not scale_map.is_invariant
    optimizer = SGD(task.parameters, **BASE)
    with Monitor(task.model, optimizer, **MADE, scale_map=scale_map, every_steps=1) as monitor:
        task.train(optimizer, 1)
    rows = monitor.records.set_index("layer")
    layers = rows.drop("all")
    assert set(layers.index) == set(scale_map.invariant)
    assert rows.loc["all"].norm ** 2 == pytest.approx((layers.norm**2).sum())


@pytest.mark.parametrize("steps", [8, 10], ids=["between epochs", "in an epoch"])
def test_a_resumed_run_measures_what_the_whole_one_did(make_task, steps, tmp_path):
    task, first = make_task(), make_task()
    whole = SGD(task.parameters, **BASE)
    with Monitor(task.model, whole, **MADE, inputs=task.inputs[:4], every_steps=3) as reference:
        task.train(whole, 40)

    optimizer = SGD(first.parameters, **BASE)
    monitor = Monitor(
        first.model, optimizer, **MADE, inputs=task.inputs[:4], every_steps=3, sinks=[RunFolder(tmp_path)]
    )
    first.train(optimizer, steps)
    torch.save([first.model.state_dict(), optimizer.state_dict(), monitor.state_dict()], tmp_path / "state.pt")
    assert (monitor.state_dict()["watches"][0]["epoch_start"] is None) == (steps == 8)
    monitor.close()

    second = make_task(seed=5)  # other weights, the same data
    second.inputs, second.targets = task.inputs, task.targets
    optimizer = SGD(second.parameters, **BASE)
    monitor = Monitor(
        second.model, optimizer, **MADE, inputs=task.inputs[:4], every_steps=3, sinks=[RunFolder(tmp_path)]
    )
    model_state, optimizer_state, monitor_state = torch.load(tmp_path / "state.pt", weights_only=True)
    monitor.load_state_dict(monitor_state)
    second.model.load_state_dict(model_state)
    optimizer.load_state_dict(optimizer_state)
    second.train(optimizer, 40 - steps, start=steps)
    monitor.close()
    pd.testing.assert_frame_equal(read(tmp_path), reference.records, check_exact=True)
    assert monitor.epochs.step.tolist() == reference.epochs.step.tolist()


def test_metrics_of_any_kind_of_number_fit_into_a_checkpoint(make_task, tmp_path):
    task = make_task()
    optimizer = SGD(task.parameters, **BASE)
    with Monitor(task.model, optimizer, **MADE, sinks=[RunFolder(tmp_path)]) as monitor:
        task.train(optimizer, 1)
        monitor.end_epoch(plain=1.5, numpy=np.float32(0.25), tensor=torch.tensor(0.5))
        torch.save(monitor.state_dict(), tmp_path / "state.pt")
        state = torch.load(tmp_path / "state.pt", weights_only=True)
    assert state["epochs"][0] == {"epoch": 0, "step": 0, "plain": 1.5, "numpy": 0.25, "tensor": 0.5}
    assert read_epochs(tmp_path).tensor.tolist() == [0.5]


def test_the_state_of_another_model_is_refused(make_task):
    task, other = make_task(), make_task(scale_invariant=False)
    state = Monitor(task.model, SGD(task.parameters, **BASE), **MADE).state_dict()
    monitor = Monitor(other.model, SGD(other.parameters, **BASE), **MADE)
    with pytest.raises(ArgumentError, match="same layers"):
        monitor.load_state_dict(state)


def test_closing_leaves_everything_as_it_was(make_task):
    task = make_task()
    optimizer = SGD(task.parameters, **BASE)
    step, attributes = optimizer.step, [set(vars(p)) for p in task.parameters]
    names = set(vars(optimizer))
    with Monitor(task.model, optimizer, **MADE, inputs=task.inputs[:4]) as monitor:
        task.train(optimizer, 12)
        assert optimizer.step == step
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert set(vars(optimizer)) == names
    assert [set(vars(p)) for p in task.parameters] == attributes
    assert all(not p._backward_hooks for p in task.parameters)
    rows = len(monitor.records)
    task.train(optimizer, 20)
    monitor.close()
    assert len(monitor.records) == rows


def test_training_is_not_changed_by_a_single_bit(make_task):
    task, bare = make_task(), make_task()
    optimizer, plain = (SGD(t.parameters, **BASE, nesterov=True) for t in (task, bare))
    with Monitor(task.model, optimizer, **MADE, inputs=task.inputs[:4], every_steps=1):
        for step in range(10):

            def closure(step=step):
                optimizer.zero_grad()
                loss = task.loss(step)
                loss.backward()
                return loss

            optimizer.step(closure)
        bare.train(plain, 10)
    assert all(torch.equal(a, b) for a, b in zip(task.parameters, bare.parameters, strict=True))


class Counted(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        return func(*args, **(kwargs or {}))


def test_a_step_that_is_not_measured_costs_no_tensor_operation(make_task):
    """And so cannot wait for the device either."""
    task = make_task()
    optimizer = SGD(task.parameters, **BASE)
    counts = []
    with Monitor(task.model, optimizer, batch_size=32, samples=3200, inputs=task.inputs[:4], every_steps=10) as monitor:
        task.train(optimizer, 5)
        for _ in range(2):
            optimizer.zero_grad()
            task.loss(0).backward()
            with Counted() as counted:
                optimizer.step()
            counts.append(counted.calls)
            monitor.close()
    assert counts[0] == counts[1] > 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_no_step_waits_for_the_gpu(make_task):
    task = make_task()
    task.model.cuda()
    task.inputs, task.targets = task.inputs.cuda(), task.targets.cuda()
    optimizer = SGD(task.parameters, **BASE)
    with Monitor(task.model, optimizer, batch_size=32, samples=3200, inputs=task.inputs[:4], every_steps=2) as monitor:
        for step in range(8):
            optimizer.zero_grad()
            nn.functional.cross_entropy(task.model(task.inputs[:32]), task.targets[:32]).backward()
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error" if step > 1 else "default")
            try:
                optimizer.step()
            finally:
                torch.cuda.set_sync_debug_mode("default")
    assert monitor.records.step_angle.gt(0).all()


def live_elements() -> int:
    gc.collect()
    storages = {}
    for thing in gc.get_objects():
        if type(thing) in (torch.Tensor, nn.Parameter) and thing.device.type == "cpu":
            storage = thing.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values()) // 4


def test_memory_is_two_copies_of_the_watched_weights_at_most(make_task):
    task = make_task(width=16)
    optimizer = SGD(task.parameters, **BASE)
    task.train(optimizer, 2)
    before = live_elements()
    with Monitor(task.model, optimizer, **MADE, inputs=task.inputs[:4], every_steps=1) as monitor:
        task.train(optimizer, 3)
        monitor.records  # noqa: B018
        copies = (live_elements() - before) / sum(p.numel() for p in task.parameters)
    assert 1.5 < copies < 2.1


def test_sinks_get_every_row_once_and_the_epochs(make_task):
    task = make_task()
    optimizer = SGD(task.parameters, **BASE)

    class Sink:
        def __init__(self) -> None:
            self.rows, self.epochs, self.run, self.closed = [], [], None, 0

        def __call__(self, rows) -> None:
            self.rows.append(rows)

        def open(self, run) -> None:
            self.run = run

        def end_epoch(self, row) -> None:
            self.epochs.append(row)

        def close(self) -> None:
            self.closed += 1

    sink, plain = Sink(), []
    with Monitor(
        task.model, optimizer, **MADE, inputs=task.inputs[:4], every_steps=1, sinks=[sink, plain.append]
    ) as monitor:
        task.train(optimizer, 3)
        monitor.records  # noqa: B018
        assert not sink.rows  # rows go out when an epoch ends
        task.train(optimizer, 3, start=3)
        assert len(sink.rows) == 1
        monitor.end_epoch(loss=0.5)
        task.train(optimizer, 1, start=6)
        monitor.flush()
        task.train(optimizer, 1, start=7)
    for rows in (sink.rows, plain):
        pd.testing.assert_frame_equal(pd.concat(rows, ignore_index=True), monitor.records)
    assert [row["epoch"] for row in sink.epochs] == [0, 1]
    assert sink.epochs[1] == {"epoch": 1, "step": 5, "loss": 0.5}
    assert sink.run["recipe"]["lr"] == 0.05
    assert sink.run["layers"][-1] == "all"
    assert sink.closed == 1


def test_bad_arguments_are_refused(make_task):
    task = make_task()
    optimizer = SGD(task.parameters, **BASE)
    for wrong in ({"batch_size": 0}, {"samples": -1}, {"every_steps": 0}, {"sinks": ["here"]}):
        with pytest.raises(ArgumentError, match=next(iter(wrong))):
            Monitor(task.model, optimizer, **{**MADE, **wrong})
    assert not optimizer._optimizer_step_pre_hooks
    with pytest.raises(IsogonError, match="after a step"):
        Monitor(task.model, optimizer, **MADE).end_epoch()


def test_an_epochs_end_has_the_rates_of_its_last_step() -> None:
    """A scheduler that has moved on before the loop calls end_epoch does not change what is recorded."""
    weight = torch.nn.Parameter(torch.randn(4, 3))
    optimizer = torch.optim.SGD([weight], lr=0.1, weight_decay=1e-2)
    with Monitor(torch.nn.ParameterList([weight]), optimizer, batch_size=1, samples=100, every_steps=1) as monitor:
        for rate in (0.1, 0.01):
            weight.grad = torch.randn_like(weight)
            optimizer.step()
            optimizer.param_groups[0]["lr"] = 0.01
            monitor.end_epoch()
            ended = monitor.records.query("layer == '0'").iloc[-1]
            assert ended.lr == pytest.approx(rate)
            assert ended.epoch_angle > 0


def test_looking_changes_nothing() -> None:
    """Records read, or a state saved, between an epoch's last step and its end are the records of an unwatched run."""
    tables = []
    for peek in (False, True):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(6, 5, bias=False), torch.nn.BatchNorm1d(5))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-2)
        with Monitor(model, optimizer, batch_size=8, samples=24, every_steps=1) as monitor:
            for _ in range(3):
                for _ in range(3):
                    optimizer.zero_grad()
                    model(torch.randn(8, 6)).square().sum().backward()
                    optimizer.step()
                    if peek:
                        _ = monitor.records, monitor.state_dict()
                monitor.end_epoch()
        tables.append(monitor.records)
    pd.testing.assert_frame_equal(tables[0], tables[1])
