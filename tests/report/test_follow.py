"""`isogon report --follow`: the page keeps up with a run that is being recorded."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from torch import nn

from isogon.cli import main
from isogon.dynamics import Monitor, RunFolder
from isogon.errors import ArgumentError
from isogon.report.run import follow

RENEWS = '<meta http-equiv="refresh"'


class Run:
    """A small run that is recorded epoch by epoch."""

    def __init__(self, folder) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 3))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
        about = {"batch_size": 8, "samples": 32, "every_steps": 1, "inputs": torch.randn(8, 1, 6, 6)}
        self.monitor = Monitor(self.net, self.optimizer, **about, sinks=[RunFolder(folder)])

    def train_epoch(self) -> None:
        for _ in range(4):
            self.optimizer.zero_grad()
            self.net(torch.randn(8, 1, 6, 6)).square().mean().backward()
            self.optimizer.step()


def test_the_page_is_written_again_whenever_the_run_has_something_new(tmp_path):
    run, page = Run(tmp_path / "run"), tmp_path / "page.html"
    run.train_epoch()
    following = follow(tmp_path / "run", page, every=0.01)
    assert next(following).last_step == 3
    first = page.read_text(encoding="utf-8")
    assert f'{RENEWS} content="0.01">' in first
    run.train_epoch()
    run.train_epoch()
    assert next(following).last_step == 11
    assert page.read_text(encoding="utf-8") != first
    run.monitor.close()
    assert next(following).last_step == 11
    assert RENEWS not in page.read_text(encoding="utf-8")
    assert list(following) == []


def test_following_may_begin_before_the_first_epoch_and_ends_with_the_run(tmp_path, capsys):
    run = Run(tmp_path / "run")

    def train() -> None:
        for _ in range(3):
            time.sleep(0.2)
            run.train_epoch()
        run.monitor.close()

    training = threading.Thread(target=train)
    training.start()
    try:
        with pytest.raises(SystemExit) as stop:
            main(["report", str(tmp_path / "run"), "--follow", "--every", "0.05"])
    finally:
        training.join()
    out = capsys.readouterr().out
    assert stop.value.code == 0
    assert out.startswith("Following")
    assert out.rstrip().endswith("report.html is complete.")
    assert "epoch" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


def test_a_run_that_writes_while_it_is_read_is_read_again(tmp_path, monkeypatch):
    """Closing a run merges its parts: they may vanish between looking and reading."""
    import isogon.report.run._follow as module

    run = Run(tmp_path / "run")
    run.train_epoch()
    summarise, calls = module.summarise, []

    def summarise_later(*arguments, **options):
        if not calls:
            calls.append("closed in between")
            run.monitor.close()
            raise ArgumentError("path", "a Parquet file", "x", "it is gone")
        return summarise(*arguments, **options)

    monkeypatch.setattr(module, "summarise", summarise_later)
    assert [summary.last_step for summary in follow(tmp_path / "run", tmp_path / "page.html", every=0.01)] == [3]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [(["nowhere", "--follow"], "must be the folder of a run"), (["run", "--follow", "--every", "0"], "--every")],
)
def test_bad_calls_end_with_2_and_one_sentence(tmp_path, capsys, arguments, sentence):
    Run(tmp_path / "run").monitor.close()
    with pytest.raises(SystemExit) as stop:
        main(["report", str(tmp_path / arguments[0]), *arguments[1:]])
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert sentence in err
    assert len(err.strip().splitlines()) == 1
