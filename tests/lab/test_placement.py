"""Work shared among several GPUs: where workers go, what a lost GPU costs. Processes are real, GPUs are names."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isogon.lab import Event, EventListener, RunEnded, RunFailed
from isogon.lab.engines import _placement as placement
from isogon.lab.engines._placement import VISIBLE, DeviceLostError, Placement, lost_device
from isogon.lab.engines._run_all import TrainingJob
from isogon.lab.engines._workers import keep_workers, work_through


@given(
    places=st.lists(st.sampled_from("abc"), min_size=1, max_size=5),
    workers=st.integers(1, 9),
    steps=st.lists(st.tuples(st.sampled_from(["take", "end", "lose"]), st.integers(0, 8)), max_size=60),
)
def test_no_place_has_more_than_its_share_and_the_dead_have_none(places, workers, steps):
    placing, here = Placement(tuple(places), workers), []
    for job, (what, number) in enumerate(steps):
        if what == "take":
            try:
                place = placing.take(avoid=places[:1] if number % 2 else ())
            except DeviceLostError:
                assert not placing.alive
                continue
            if place is None:
                assert here, "with nothing to do anywhere there is room"
                continue
            here.append(place)
            alive = [name for name in places if name in placing.alive]
            assert here.count(place) <= -(-workers * alive.count(place) // len(alive))
        elif here:
            place = here.pop(number % len(here))
            placing.release(place)
            if what == "lose":
                placing.lose(place, job, "gone")
            else:
                placing.succeed(place)
        assert len(here) <= workers
        assert placing.busy.total() == len(here)


def test_workers_are_spread_evenly_and_one_gpu_named_twice_is_two():
    placing = Placement(("0", "1", "2"), 6)
    assert sorted(placing.take() for _ in range(6)) == ["0", "0", "1", "1", "2", "2"]
    assert placing.take() is None
    twice = Placement(("0", "0"), 2)
    assert [twice.take(), twice.take(), twice.take()] == ["0", "0", None]
    assert Placement((), 2).take() == "", "without GPUs to choose from, workers are where they were"


def test_a_gpu_that_loses_two_jobs_in_a_row_is_left_out_and_a_success_forgives():
    placing = Placement(("0", "1"), 2)
    placing.lose("0", "first", "gone")
    placing.lose("0", "first", "gone")
    assert placing.alive == ["0", "1"], "one job that loses every GPU is at fault itself"
    placing.succeed("0")
    placing.lose("0", "second", "gone")
    assert placing.alive == ["0", "1"]
    # A place that is given back without a job tells nothing of it.
    assert placing.take() == "0"
    placing.release("0")
    placing.lose("0", "third", "gone")
    assert placing.alive == ["1"]
    assert placing.take(avoid=["1"]) == "1", "where no other is alive"
    placing.lose("1", "third", "gone"), placing.lose("1", "fourth", "ECC error")
    with pytest.raises(
        DeviceLostError, match=r"Every GPU \(0, 1\) has lost the workers of 2 jobs in a row \(ECC error\)"
    ):
        placing.take()


def test_which_gpus_there_are(monkeypatch):
    """All that are visible for `cuda`; one that is named, or the only one, needs no choice."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv(VISIBLE, "4,6")
    assert placement.gpus("cuda") == ("4", "6")
    assert placement.gpus("cuda:1") == placement.gpus("cpu") == ()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert placement.gpus("cuda") == ()


@dataclass
class Seeing:
    """Writes down which GPUs its process may see; on a GPU of this name it is lost at once."""

    folder: str
    name: str
    dead: str = "none"

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.name,)

    def work(self, emit: EventListener) -> None:
        seen = os.environ.get(VISIBLE, "all")
        with (Path(self.folder) / self.name).open("a") as file:
            file.write(f"{seen}\n")
        if self.dead in (seen, "any"):
            raise DeviceLostError("gone")
        emit(RunEnded(self.name, "finished"))


def jobs(folder, count, **options):
    return [Seeing(str(folder), f"job{number}", **options) for number in range(count)]


def seen(folder):
    return {file.name: file.read_text().split() for file in folder.iterdir()}


def test_each_worker_sees_its_own_gpu_and_the_driver_what_it_saw(tmp_path):
    before = os.environ.get(VISIBLE)
    events: list[Event] = []
    with keep_workers():
        work_through(jobs(tmp_path, 4), workers=2, on_event=events.append, places=("7", "8"))
        assert {name for (name,) in seen(tmp_path).values()} == {"7", "8"}
        (tmp_path / "job0").unlink()
        # Kept workers stay on their GPUs, and one without a GPU of its own is another.
        work_through(jobs(tmp_path, 1), workers=1, on_event=events.append)
        assert seen(tmp_path)["job0"] == [before or "all"]
    assert os.environ.get(VISIBLE) == before
    assert len(events) == 5


def test_a_dead_gpu_costs_its_trials_a_restart_elsewhere(tmp_path):
    events: list[Event] = []
    work_through(jobs(tmp_path, 6, dead="7"), workers=2, on_event=events.append, places=("7", "8"))
    assert sorted(event.key for event in events) == [f"job{number}" for number in range(6)]
    assert all(isinstance(event, RunEnded) for event in events)
    assert sum(names.count("7") for names in seen(tmp_path).values()) <= placement.MOST_LOST, "then it is left out"


def test_where_every_gpu_is_dead_the_call_ends_with_a_sentence(tmp_path):
    events: list[Event] = []
    with pytest.raises(DeviceLostError, match=r"Every GPU \(7\) .* \(gone\)"):
        work_through(jobs(tmp_path, 6, dead="7"), workers=1, on_event=events.append, places=("7",))
    assert events == []


def test_one_job_that_loses_every_gpu_fails_alone_and_with_its_reason(tmp_path):
    """A device-side assert, for example: a label out of range."""
    events: list[Event] = []
    bad = Seeing(str(tmp_path), "bad", dead="any")
    work_through([bad, *jobs(tmp_path, 4)], workers=2, on_event=events.append, places=("7", "8"))
    (failure,) = [event for event in events if not isinstance(event, RunEnded)]
    assert failure == RunFailed("bad", "its worker ended 3 times, last with: gone")
    assert len(events) == 5
    assert set(seen(tmp_path)["bad"]) == {"7", "8"}


def test_trainings_that_lost_their_gpu_together_are_tried_one_by_one(make_config, tmp_path):
    configs = tuple(make_config(seed=seed) for seed in range(3))
    parts = TrainingJob(configs, str(tmp_path), "cuda", together=True).split()
    assert [part.configs for part in parts] == [(config,) for config in configs]
    assert not any(part.together for part in parts)


def test_a_lost_gpu_is_no_fault_of_the_run(make_config, tmp_path, monkeypatch):
    """The error that torch raises for it ends the worker; too little memory, or the run's own error, do not."""
    assert not lost_device(torch.OutOfMemoryError("CUDA out of memory"))
    assert not lost_device(RuntimeError("shapes do not fit"))
    config, events = make_config(epochs=1), []

    def lose(*_args, **_options):
        raise torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered")

    monkeypatch.setattr("isogon.lab.engines._run_all.train", lose)
    with pytest.raises(DeviceLostError, match=r"the GPU is lost .*uncorrectable ECC"):
        TrainingJob((config,), str(tmp_path), "cpu").work(events.append)
    assert events == []
