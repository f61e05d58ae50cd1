"""Every engine of the table does the same with the same configs; a new one is held to this by being there."""

from __future__ import annotations

import pytest

from isogon.lab import ENGINES, TrainingEnded, TrainingEpoch, run_all
from isogon.lab.engines import ENGINE_TABLE, EpochEnded, RunEnded, RunFailed, keep_ready
from isogon.lab.engines._run_all import TrainingJob
from isogon.lab.run import Run


@pytest.fixture(scope="module", params=ENGINES)
def engine(request):
    if request.param == "ray":
        pytest.importorskip("ray")
    with keep_ready(request.param):
        yield request.param


@pytest.fixture
def configs(make_config, tmp_path):
    good = [make_config(epochs=2, seed=seed, monitor_every=0) for seed in range(2)]
    return [*good, make_config(epochs=2, seed=2, data=f"npz:{tmp_path / 'lacking.npz'}", monitor_every=0)]


def test_the_table_has_what_the_protocol_asks_for(engine, make_config):
    entry = ENGINE_TABLE[engine]
    configs = [make_config(seed=seed) for seed in range(5)]
    for shared in (False, True):
        units = entry.units(configs, workers=2, device="cpu", shared=shared)
        assert sorted(config.seed for unit in units for config in unit) == [0, 1, 2, 3, 4], "each once"
        assert entry.together or all(len(unit) == 1 for unit in units)


def test_epochs_ends_and_failures_are_reported_once_and_the_next_call_reads_them(engine, configs, tmp_path):
    events = []
    options = {"out": tmp_path / "runs", "device": "cpu", "workers": 2, "progress": False}
    runs = run_all(configs, engine, **options, news=events.append)
    assert [run.status for run in runs] == ["finished", "finished", "failed"]
    assert "lacking.npz" in runs[2].error
    for config, run in zip(configs, runs, strict=True):
        of_it = [event for event in events if event.config == config]
        epochs = [event.row["epoch"] for event in of_it if isinstance(event, TrainingEpoch)]
        ends = [event.run.status for event in of_it if isinstance(event, TrainingEnded)]
        assert (epochs, ends) == ([0, 1] if run.status == "finished" else [], [run.status])
        assert isinstance(of_it[-1], TrainingEnded), "the end comes last"
    before = len(events)
    again = run_all(configs[:2], engine, **options, news=events.append)
    assert [run.accuracy for run in again] == [run.accuracy for run in runs[:2]]
    assert len(events) == before, "nothing was trained again"


def test_what_is_not_claimed_is_left_to_others(engine, configs, tmp_path):
    options = {"out": tmp_path / "runs", "device": "cpu", "workers": 1, "progress": False}
    runs = run_all(configs[:2], engine, **options, claim=lambda config: config.seed == 1)
    assert [run.config.seed for run in runs] == [1]
    assert Run.read_if_ended(tmp_path / "runs" / configs[0].name) is None


def test_a_job_reports_events_whichever_way_it_trains(configs, tmp_path):
    """Together or one by one, within one process: the same events but for their order."""
    reported = {}
    for together in (False, True):
        events = []
        job = TrainingJob(tuple(configs[:2]), str(tmp_path / str(together)), "cpu", together=together)
        job.work(events.append)
        reported[together] = sorted((event.key, type(event).__name__) for event in events)
        assert {type(event) for event in events} == {EpochEnded, RunEnded}
    assert reported[False] == reported[True]
    events = []
    TrainingJob((configs[2],), str(tmp_path), "cpu").work(events.append)
    assert [type(event) for event in events] == [RunFailed]
