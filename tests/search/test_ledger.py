"""Trials in an Optuna storage: each planned once, claimed once, ended once."""

from __future__ import annotations

import optuna
import pytest

from isogon.errors import IsogonError, without_secrets
from isogon.search.trials._ledger import Ledger, PlannedTrial, StudyChangedError


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path / 'study.db'}"


CELLS = [PlannedTrial(0.1, 100, 1 / 16, seed) for seed in range(3)]


def test_a_trial_goes_from_planned_to_ended(url):
    ledger = Ledger(url, "one", "key")
    ledger.plan(CELLS)
    ledger.plan([*CELLS, PlannedTrial(0.2, 100, 1 / 16, 0)])
    rows = ledger.trials()
    assert [row.planned for row in rows] == [*CELLS, PlannedTrial(0.2, 100, 1 / 16, 0)]
    assert {row.status for row in rows} == {"waiting"}
    other = Ledger(url, "one", "key")  # another process's
    assert ledger.claim(rows[0])
    assert not other.claim(rows[0])
    assert other.trials()[0].status == "running"
    ledger.report(rows[0], 3, 0.5)
    ledger.report(rows[0], 4, float("nan"))
    ledger.end(rows[0], "finished", 0.9, images=500, seconds=1.5)
    ledger.claim(rows[1])
    ledger.end(rows[1], "diverged", None, images=300, seconds=1.0)
    ledger.claim(rows[2])
    ledger.end(rows[2], "failed", None, images=0, seconds=0.0, error="Traceback\nValueError: no")
    stored = other.trials()
    assert [(row.status, row.score, row.images) for row in stored] == [
        ("finished", 0.9, 500),
        ("diverged", None, 300),
        ("failed", None, 0),
        ("waiting", None, 0),
    ]
    assert stored[2].error == "Traceback\nValueError: no"
    assert [row.number for row in stored if other.is_open(row)] == [3]
    ledger.end(rows[0], "finished", 0.1, images=1, seconds=1)
    ledger.report(rows[0], 5, 0.2)
    assert not ledger.claim(rows[0])
    assert other.trials() == stored, "what has ended stays as it is"


def test_what_is_under_way_in_a_file_of_our_own_is_ours(url):
    ledger = Ledger(url, "one", "key")
    ledger.plan(CELLS[:1])
    assert ledger.claim(ledger.trials()[0])
    ledger.close()  # as a kill would
    again = Ledger(url, "one", "key")
    (row,) = again.trials()
    assert row.status == "running"
    assert again.is_open(row)
    assert again.claim(row)
    assert again.take_over() == 0


def test_a_failed_trial_is_replaced_by_its_retry(url):
    ledger = Ledger(url, "one", "key")
    ledger.plan(CELLS)
    for row, status in zip(ledger.trials(), ("failed", "diverged", "finished"), strict=True):
        ledger.claim(row)
        ledger.end(row, status, 0.5 if status == "finished" else None, images=1, seconds=1)
    for tries in (1, 2):
        assert ledger.retry() == 1
        assert [(row.planned.seed, row.status) for row in ledger.trials()] == [
            (1, "diverged"),
            (2, "finished"),
            (0, "waiting"),
        ]
        row = ledger.trials()[-1]
        assert row.number == 2 + tries
        ledger.claim(row)
        ledger.end(row, "failed", None, images=0, seconds=0, error="again")
    ledger.plan(CELLS)
    assert len(ledger.trials()) == 3


def test_a_cell_planned_twice_counts_once(url):
    """As two drivers might, whose database dies in the middle."""
    ledger = Ledger(url, "one", "key")
    ledger.plan(CELLS)
    for cell in CELLS:
        ledger._add(cell)
    assert [row.number for row in ledger.trials()] == [0, 1, 2]


def test_optuna_reads_it_as_a_study(url):
    """What the dashboard shows: the parameter, the value, the user attributes, the course of a trial."""
    ledger = Ledger(url, "one", "key")
    ledger.plan(CELLS[:1])
    row = ledger.trials()[0]
    ledger.claim(row)
    ledger.report(row, 0, 0.3)
    ledger.end(row, "finished", 0.8, images=1, seconds=1)
    study = optuna.load_study(study_name="one", storage=url)
    (trial,) = study.trials
    assert trial.params == {"tuning_factor": 0.1}
    assert trial.value == 0.8
    assert study.best_trial.number == 0
    assert {"seed": 0, "fraction": 1 / 16, "samples": 100}.items() <= trial.user_attrs.items()
    assert trial.intermediate_values == {0: 0.3}


def test_another_study_file_is_refused_until_the_old_one_is_forgotten(url):
    Ledger(url, "one", "key").plan(CELLS)
    with pytest.raises(StudyChangedError, match="--fresh"):
        Ledger(url, "one", "other")
    Ledger(url, "two", "other")
    Ledger.delete(url, "one")
    Ledger.delete(url, "never was")
    assert Ledger(url, "one", "other").trials() == []


def test_a_storage_that_is_not_there_is_named_without_its_password():
    with pytest.raises(IsogonError, match="cannot be used") as caught:
        Ledger("postgresql+nodriver://me:secret@nowhere/db", "one", "key")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://me:secret@host/db",
        "postgresql://me:se/cr@secret@host/db",
        "postgresql://host/db?user=me&password=secret&sslmode=require",
        'connection to "postgresql://:secret@/db" failed',
    ],
)
def test_passwords_are_left_out(text):
    shown = without_secrets(text)
    assert "secret" not in shown
    assert "***" in shown
    assert "/db" in shown
