"""Trainings that somebody else may have: asked for one by one, at the last moment, and left alone where refused."""

from __future__ import annotations

import pytest

from isogon.lab import TrainingEnded, run_all
from isogon.lab.engines._workers import keep_workers


@pytest.fixture(scope="module", autouse=True)
def _one_worker_for_all_tests():
    """To start one takes seconds."""
    with keep_workers():
        yield


def test_a_training_is_claimed_when_its_worker_is_free(make_config, tmp_path):
    """And not before, so that others can have those that wait."""
    configs = [make_config(seed=seed) for seed in range(3)]
    events = []

    def claim(config):
        events.append(("claim", config.seed))
        return config.seed != 1

    def news(event):
        if isinstance(event, TrainingEnded):
            events.append(("ended", event.config.seed))

    settings = {"out": tmp_path, "workers": 1, "device": "cpu", "progress": False}
    runs = run_all(configs, **settings, claim=claim, news=news)
    assert events == [("claim", 0), ("ended", 0), ("claim", 1), ("claim", 2), ("ended", 2)]
    assert [run.config.seed for run in runs] == [0, 2]
    assert not (tmp_path / configs[1].name).exists()

    # What has ended here is claimed too, since it may have ended elsewhere meanwhile.
    events.clear()
    runs = run_all(configs, **settings, claim=lambda config: claim(config) and config.seed != 0, news=news)
    assert sorted(events) == [("claim", 0), ("claim", 1), ("claim", 2)]
    assert [run.config.seed for run in runs] == [2]


def test_all_of_them_may_be_somebody_elses(make_config, tmp_path):
    configs = [make_config(seed=seed) for seed in range(3)]
    for engine in ("local", "lanes"):
        assert run_all(configs, engine, tmp_path, workers=2, device="cpu", progress=False, claim=lambda _: False) == []
    assert not list(tmp_path.iterdir())


def test_lanes_train_together_what_they_could_have(make_config, tmp_path):
    configs = [make_config(precision="float64", seed=seed) for seed in range(4)]
    runs = run_all(
        configs, "lanes", tmp_path, workers=1, device="cpu", progress=False, claim=lambda config: config.seed % 2 == 0
    )
    assert [(run.config.seed, run.status) for run in runs] == [(0, "finished"), (2, "finished")]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(config.name for config in configs[::2])
