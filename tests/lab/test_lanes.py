"""Many trainings at once: each lane ends as it would have ended alone."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch

from isogon.errors import ArgumentError
from isogon.lab import EpochEnded, RunEnded, RunFailed, lanes, train
from isogon.lab.engines._run_all import TrainingJob
from isogon.lab.gpu import _lanes as lane_group
from isogon.lab.gpu._graphed import why_no_graph
from isogon.lab.gpu._lanes import why_one_by_one
from isogon.lab.run._training import Training

CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"))
# A GPU takes images of any size; on a CPU only small ones are stacked.
DATA = {"cpu": "digits", "cuda": "fashion-mini"}
CLOCKS = ["images_per_second"]


def mixed(make_config, **changes):
    """Lanes that differ in everything a lane may differ in: rates, seeds, subset, batch, length, schedule."""
    return [
        make_config(**{"lr": 0.1, "seed": 0, "epochs": 5, **changes}),
        make_config(**{"lr": 0.2, "weight_decay": 1e-2, "seed": 1, "epochs": 3, **changes}),
        make_config(**{"lr": 0.05, "momentum": 0.5, "seed": 2, "samples": 150, "epochs": 4, **changes}),
        make_config(**{"lr": 0.1, "batch_size": 40, "last_batch": "keep", "samples": 150, "epochs": 3, **changes}),
        make_config(**{"lr": 0.1, "seed": 3, "schedule": "cosine", "optimizer": "nesterov", "epochs": 3, **changes}),
    ]


def assert_alike(run, alone, rtol, atol=1e-9):
    ignored = [column for column in CLOCKS if column in run.epochs]
    pd.testing.assert_frame_equal(run.epochs.drop(columns=ignored), alone.epochs.drop(columns=ignored), rtol=rtol)
    pd.testing.assert_frame_equal(run.records, alone.records, rtol=rtol, atol=atol)


def test_on_a_cpu_lanes_end_as_alone(make_config):
    """Float64, up to 50 steps; two lanes at once, so that configs are refilled, and one has other batches."""
    configs = mixed(make_config, precision="float64", batch_size=20)
    configs[3] = make_config(precision="float64", batch_size=40, samples=150, last_batch="keep")
    assert why_one_by_one(Training(configs[0]), torch.device("cpu")) is None
    assert max(config.steps for config in configs) == 50
    for run, config in zip(lanes(configs, device="cpu", at_once=3), configs, strict=True):
        assert run.config == config
        assert_alike(run, train(config, device="cpu"), rtol=1e-9)


@pytest.mark.usefixtures("exact_products")
@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_the_first_steps_in_float32_are_those_of_a_run_alone(make_config, device):
    """Ten steps or so: later, rounding errors have grown through the network's kinks."""
    configs = mixed(make_config, epochs=2, data=DATA[device])
    for run, config in zip(lanes(configs, device=device, at_once=2), configs, strict=True):
        alone = train(config, device=device)
        assert_alike(run, alone, rtol=5e-3, atol=1e-4)


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_in_float32_accuracies_have_the_same_distribution(make_config, device):
    """After many steps single runs differ, as runs of other seeds do; their mean and spread must not."""
    configs = [make_config(seed=seed, epochs=4, samples=400, monitor_every=0, data=DATA[device]) for seed in range(10)]
    together = np.array([run.accuracy for run in lanes(configs, device=device)])
    alone = np.array([train(config, device=device).accuracy for config in configs])
    # The seeds are the same, so the differences are rounding's alone.
    assert abs(together.mean() - alone.mean()) < 3 * np.sqrt((together.var(ddof=1) + alone.var(ddof=1)) / 10)
    assert 0.4 < together.std(ddof=1) / alone.std(ddof=1) < 2.5


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_a_lane_that_diverges_ends_alone(make_config, device):
    good, bad = (make_config(lr=lr, data=DATA[device]) for lr in (0.1, 1e38))
    runs = lanes([good, bad], device=device)
    assert [run.status for run in runs] == ["finished", "diverged"]
    assert math.isnan(runs[1].accuracy)
    assert runs[0].accuracy == pytest.approx(train(good, device=device).accuracy, abs=0.02)


@pytest.mark.usefixtures("exact_products")
@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_lanes_that_were_stopped_go_on(make_config, tmp_path, device, monkeypatch):
    monkeypatch.setitem(lane_group._CHECKPOINT_SECONDS, "cuda", 0.0)
    configs = mixed(make_config, data=DATA[device])
    whole = lanes(configs, tmp_path / "whole", device=device, at_once=2)
    seen = []

    def stop(config, row):
        seen.append(config)
        if len(seen) == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lanes(configs, tmp_path / "parts", device=device, at_once=2, report=stop)
    epochs: list[int] = []

    def count(config, row):
        epochs.append(row["epoch"])

    again = lanes(configs, tmp_path / "parts", device=device, at_once=2, report=count)
    assert len(epochs) == sum(config.epochs for config in configs) - 6
    for run, other in zip(again, whole, strict=True):
        # A GPU does not repeat itself to the bit, and rounding grows: to 1 % of a gradient's square in these steps.
        assert_alike(run, other, **({"rtol": 1e-6} if device == "cpu" else {"rtol": 0.05, "atol": 1e-3}))
    assert lanes(configs, tmp_path / "parts", report=lambda *_: pytest.fail("trained again"))[0].status == "finished"


def test_what_cannot_be_stacked_is_trained_in_turn(make_config):
    """Large images, chance in the network, parts of batches."""
    reasons = {
        "convolutions over 28×28 pixels": make_config(data="fashion-mini"),
        "bfloat16": make_config(precision="bfloat16"),
        "micro batches": make_config(micro_batch=25),
    }
    for reason, config in reasons.items():
        assert reason in why_one_by_one(Training(config), torch.device("cpu"))
    configs = [make_config(data="fashion-mini", epochs=1, seed=seed) for seed in range(2)]
    with pytest.warns(UserWarning, match="Lanes train one by one: convolutions over 28×28 pixels are faster so"):
        runs = lanes(configs, device="cpu")
    for run, config in zip(runs, configs, strict=True):
        assert_alike(run, train(config, device="cpu"), rtol=1e-12)


def test_why_a_step_is_not_recorded(make_config):
    """The reason that a GPU's lanes give, tried here with trainings on a CPU of which only the device is changed."""
    reasons = {
        "micro batches": make_config(micro_batch=25),
        "not in float32": make_config(precision="float64"),
    }
    for reason, config in reasons.items():
        training = Training(config)
        assert why_no_graph(training) == "it runs on a cpu device"
        training.device = torch.device("cuda")
        assert reason in why_no_graph(training)
    for config in (make_config(), make_config(optimizer="adamw", lr=1e-3, clip=1.0, average=0.9)):
        training = Training(config)
        training.device = torch.device("cuda")
        assert why_no_graph(training) is None


@pytest.mark.parametrize("device", [CUDA])
def test_lanes_that_gain_nothing_say_so(make_config, device):
    configs = [make_config(micro_batch=25, epochs=1, seed=seed) for seed in range(2)]
    with pytest.warns(UserWarning, match="Lanes train step by step and gain nothing: .*over micro batches"):
        lanes(configs, device=device)


def test_lanes_of_which_one_fails_train_one_by_one_and_report_why(make_config, tmp_path):
    """In a worker of the engine: the one with impossible data fails, the others end."""
    configs = tuple(make_config(epochs=1, seed=seed) for seed in range(2))
    impossible = make_config(epochs=1, seed=2, samples=5000, batch_size=2500)
    events = []
    with pytest.warns(UserWarning, match="Lanes train one by one, since one of them failed .*training samples"):
        TrainingJob((*configs, impossible), str(tmp_path), "cpu", together=True).work(events.append)
    ends = {event.key: type(event) for event in events if not isinstance(event, EpochEnded)}
    assert ends == {configs[0].key: RunEnded, configs[1].key: RunEnded, impossible.key: RunFailed}


def test_only_lanes_of_one_network_and_all_different(make_config):
    with pytest.raises(ArgumentError, match="net_options must be the same in all lanes"):
        lanes([make_config(), make_config(seed=1, options={"width": 8})])
    with pytest.raises(ArgumentError, match="configs must be all different"):
        lanes([make_config(), make_config()])
    with pytest.raises(ArgumentError, match="at_once must be"):
        lanes([make_config()], at_once=0)
    assert lanes([]) == []
