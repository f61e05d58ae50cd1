"""Several drivers on one real PostgreSQL server: they share the trials, and outlive each other and the server."""

from __future__ import annotations

import itertools
import json
import os
import pwd
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("psycopg")
pytest.importorskip("optuna")

import psycopg
import sqlalchemy
from sqlalchemy import exc

from isogon.errors import IsogonError
from isogon.search import Study, run
from isogon.search._status import Progress
from isogon.search.trials import _execution as execution
from isogon.search.trials import _storage as storage
from isogon.search.trials._ledger import Ledger, PlannedTrial

OBJECTIVES = """
import math, os, time

def objective(trial):
    ended = open("calls.txt").read().split() if os.path.exists("calls.txt") else []
    if len(ended) >= 2 and os.path.exists("hold"):
        open("held", "w").close()
        while os.path.exists("hold"):
            time.sleep(0.01)
    step = trial.folder / "step"
    for now in range(int(step.read_text()) if step.exists() else 0, 4):
        time.sleep(0.03)
        (trial.folder / "partial").write_text(str(now + 1))
        os.replace(trial.folder / "partial", step)
        trial.report(now, 0.1 * now)
    with open("calls.txt", "a") as calls:
        calls.write(f"{trial.folder.name}\\n")
    noise = 0.002 * math.sin(12.9898 * trial.seed + 78.233 * math.log(trial.recipe.tuning_factor))
    return 0.9 - 0.02 * math.log2(trial.recipe.tuning_factor / 0.1) ** 2 + noise
"""

# A driver that waits until it may begin; with workers of its own or, which is seconds faster, without.
DRIVER = """
import json, sys, time
from pathlib import Path
from isogon.search import Study, run
from isogon.search.trials import _execution as execution
from isogon.search.trials import _storage as storage

def in_turn(jobs, *, on_event, claim):
    for job in jobs:
        if claim(job):
            job.work(on_event)

if __name__ == "__main__":
    out, grace, workers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    storage.HEARTBEAT, storage.GRACE, storage.ASLEEP, execution.POLL = 1, grace, grace, 0.1
    if not workers:
        execution.pool_for = lambda *_, **__: in_turn
    Path(f"{out}.ready").touch()
    while not Path("go").exists():
        time.sleep(0.01)
    run(Study.from_tables(json.loads(Path("study.txt").read_text())), out, progress=False, tell=print)
"""

CELLS = [PlannedTrial(0.1, 100, 1 / 16, seed) for seed in range(3)]


class Server:
    """A PostgreSQL server of its own, with a password, in a temporary folder."""

    def __init__(self) -> None:
        self.password = secrets.token_hex(8)
        self.home = Path(tempfile.mkdtemp(prefix="isogon-postgres-"))
        self._as_somebody: list[str] = []
        if os.getuid() == 0:  # which PostgreSQL refuses to be
            accounts = {account.pw_name: account for account in pwd.getpwall()}
            somebody = accounts.get("postgres") or accounts["nobody"]
            self._as_somebody = [shutil.which("runuser") or "runuser", "-u", somebody.pw_name, "--"]
            os.chown(self.home, somebody.pw_uid, somebody.pw_gid)
        (self.home / "password").write_text(self.password)
        options = ["-U", "me", "-A", "scram-sha-256", "--pwfile", str(self.home / "password"), "--no-sync"]
        options += ["--no-locale", "-E", "UTF8"]
        self._call(_program("initdb"), "-D", str(self.home / "data"), *options)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._names = (f"db{number}" for number in itertools.count())

    def start(self) -> None:
        options = f"-p {self.port} -k '' -c listen_addresses=127.0.0.1 -c fsync=off -c shared_buffers=16MB"
        log = str(self.home / "log")
        self._call(_program("pg_ctl"), "-D", str(self.home / "data"), "-o", options, "-l", log, "-w", "start")

    def stop(self) -> None:
        self._call(_program("pg_ctl"), "-D", str(self.home / "data"), "-m", "immediate", "-w", "stop")

    def new_database(self) -> str:
        name = next(self._names)
        with psycopg.connect(self.address("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self.address(name)

    def address(self, database: str) -> str:
        return f"postgresql://me:{self.password}@127.0.0.1:{self.port}/{database}"

    def _call(self, *command: str) -> None:
        done = subprocess.run([*self._as_somebody, *command], cwd="/", capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def _program(name: str) -> str:
    places = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: float(path.parts[4]))
    path = shutil.which(name) or (str(places[-1]) if places else None)
    if path is None:
        pytest.skip(f"no PostgreSQL server here: {name} was not found")
    return path


@pytest.fixture(scope="module")
def server():
    _program("initdb"), _program("pg_ctl")
    if os.getuid() == 0 and shutil.which("runuser") is None:
        pytest.skip("PostgreSQL does not run as root, and there is no runuser")
    made = Server()
    made.start()
    yield made
    made.stop()
    shutil.rmtree(made.home)


@pytest.fixture
def url(server):
    return server.new_database()


@pytest.fixture(autouse=True)
def _where_the_objective_is(put_module):
    put_module("objectives_on_postgres", OBJECTIVES)


@pytest.fixture
def quick(monkeypatch):
    """Signs of life every second, death after two without one, and so for transactions."""
    monkeypatch.setattr(storage, "HEARTBEAT", 1)
    monkeypatch.setattr(storage, "GRACE", 2)
    monkeypatch.setattr(storage, "ASLEEP", 2)
    monkeypatch.setattr(execution, "POLL", 0.1)


def tables(url: str, **search: object) -> dict[str, object]:
    return {
        "recipe": {"lr": 0.1, "weight_decay": "?", "batch_size": 50, "samples": 1600, "epochs": 4},
        "task": {"objective": "objectives_on_postgres:objective"},
        "search": {"seeds": 2, **search},
        "run": {"workers": 1, "storage": url, "name": "shared"},
    }


def driver(folder: Path, out: str, *, grace: int = 60, workers: int = 0) -> subprocess.Popen[str]:
    (folder / "driver.py").write_text(DRIVER)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "driver.py", out, str(grace), str(workers)]
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)


def wait_for(condition, seconds=60.0):
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, "waited in vain"
        time.sleep(0.01)


def calls(folder: Path) -> list[str]:
    file = folder / "calls.txt"
    return file.read_text().split() if file.exists() else []


def answer(folder: Path) -> dict[str, object]:
    """The outcome, less how long it took."""
    outcome = json.loads((folder / "outcome.json").read_text())
    del outcome["seconds"]
    return outcome


def alone(tmp_path: Path) -> dict[str, object]:
    """What a single driver finds with a file of its own."""
    run(Study.from_tables(tables("sqlite")), tmp_path / "alone", progress=False)
    return answer(tmp_path / "alone")


def assert_each_cell_ended_once(folder: Path, count: int = 2 * (7 + 3)):
    rows = Progress.read(folder).trials
    assert len(rows) == len({row.planned for row in rows}) == count
    assert {row.status for row in rows} == {"finished"}
    return rows


def test_two_drivers_share_the_trials(tmp_path, url, no_workers):
    (tmp_path / "study.txt").write_text(json.dumps(tables(url)))
    other = driver(tmp_path, "there")
    wait_for(lambda: (tmp_path / "there.ready").exists())
    (tmp_path / "go").touch()
    run(Study.from_tables(tables(url)), tmp_path / "here", progress=False)
    other.communicate(timeout=120)
    assert other.returncode == 0
    rows = assert_each_cell_ended_once(tmp_path / "here")
    assert len({row.coordinator for row in rows}) == 2
    assert sorted(calls(tmp_path)) == sorted(set(calls(tmp_path))), "no objective was called twice"
    assert len(calls(tmp_path)) == len(rows)
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT count(*) FROM trials").fetchone() == (len(rows),), "nothing planned twice"
    assert answer(tmp_path / "here") == answer(tmp_path / "there") == alone(tmp_path)


def test_trials_of_a_killed_driver_are_taken_over(tmp_path, url, quick, no_workers):
    (tmp_path / "study.txt").write_text(json.dumps(tables(url, fractions=["1/16"])))
    (tmp_path / "go").touch()
    (tmp_path / "hold").touch()
    victim = driver(tmp_path, "victim", grace=2)
    wait_for((tmp_path / "held").exists)  # within its third trial, not between two
    victim.kill()
    victim.communicate()
    (tmp_path / "hold").unlink()
    messages: list[str] = []
    run(Study.from_tables(tables(url, fractions=["1/16"])), tmp_path / "heir", progress=False, tell=messages.append)
    rows = assert_each_cell_ended_once(tmp_path / "heir", 2 * 7)
    assert len({row.coordinator for row in rows}) == 2
    assert "waiting for 1 trial of other coordinators" in messages
    with psycopg.connect(url) as connection:
        states = "SELECT state, count(*) FROM trials GROUP BY state"
        assert dict(connection.execute(states).fetchall()) == {"COMPLETE": 14, "FAIL": 1}
        query = "SELECT value_json FROM trial_user_attributes WHERE key = 'taken_over'"
        assert len(connection.execute(query).fetchall()) == 1
    # Where the victim was, the same command finds everything done.
    assert run(Study.from_tables(tables(url, fractions=["1/16"])), tmp_path / "victim", progress=False).trials == rows


def test_a_driver_that_was_asleep_loses_its_trials_and_nothing_else(tmp_path, url, quick, no_workers):
    (tmp_path / "study.txt").write_text(json.dumps(tables(url, fractions=["1/16"])))
    (tmp_path / "go").touch()
    sleeper = driver(tmp_path, "sleeper", grace=2, workers=1)
    wait_for(lambda: len(calls(tmp_path)) >= 2)
    sleeper.send_signal(signal.SIGSTOP)
    try:
        run(Study.from_tables(tables(url, fractions=["1/16"])), tmp_path / "awake", progress=False)
    finally:
        sleeper.send_signal(signal.SIGCONT)
    sleeper.communicate(timeout=60)
    assert sleeper.returncode == 0
    rows = assert_each_cell_ended_once(tmp_path / "awake", 2 * 7)
    assert len({row.coordinator for row in rows}) == 2
    assert answer(tmp_path / "sleeper") == answer(tmp_path / "awake")


def test_a_driver_that_sleeps_within_a_transaction_does_not_keep_its_rows(url, quick):
    asleep, awake = (Ledger(url, "one", "key", coordinator=name) for name in ("asleep", "awake"))
    asleep.plan(CELLS[:1])
    assert asleep.claim(asleep.trials()[0])
    asleep._heart.stop()
    closed: list[int] = []
    with asleep._rdb.engine.connect() as connection:
        connection.execute(sqlalchemy.text("SELECT * FROM trials FOR UPDATE"))
        time.sleep(2.2)  # a trial counts as left behind

        other = threading.Thread(target=lambda: closed.append(awake.take_over()), daemon=True)
        other.start()
        other.join(timeout=30)
        assert closed == [1]
        # What the sleeper had started is gone, which asking again mends.
        with pytest.raises(exc.DBAPIError, match="idle-in-transaction") as caught:
            connection.execute(sqlalchemy.text("SELECT 1"))
    assert storage._diagnosis(caught.value)[1]
    assert asleep.trials() == awake.trials() == []


def test_options_of_the_address_stand_beside_ours(url):
    opened = storage.Storage(f"{url}?options=-c%20statement_timeout%3D77s&connect_timeout=9")
    with opened.rdb.engine.connect() as connection:
        for name, value in (("statement_timeout", "77s"), ("idle_in_transaction_session_timeout", "30s")):
            assert connection.execute(sqlalchemy.text(f"SHOW {name}")).scalar() == value
    opened.close()


def test_a_server_that_goes_away_costs_nothing(tmp_path, server, url, no_workers, monkeypatch):
    """Back within the patience it is waited for; away for longer it ends the call with a sentence, which can resume."""
    study = Study.from_tables(tables(url, fractions=["1/16"]))
    messages: list[str] = []

    def first_for_a_moment_then_for_long() -> None:
        wait_for(lambda: len(calls(tmp_path)) >= 2)
        server.stop()
        wait_for(lambda: any("does not answer" in message for message in messages))
        server.start()
        monkeypatch.setattr(storage, "PATIENCE", 0.5)  # of whatever is asked from now on
        before = len(calls(tmp_path))
        wait_for(lambda: len(calls(tmp_path)) >= before + 2)
        server.stop()

    away = threading.Thread(target=first_for_a_moment_then_for_long)
    away.start()
    try:
        for _ in ("in the middle", "at the start"):
            with pytest.raises(storage.StorageError, match=r"does not answer .* same command resumes") as caught:
                run(study, tmp_path / "out", progress=False, tell=messages.append)
            away.join()
            assert server.password not in str(caught.value)
    finally:
        away.join()
        server.start()
    before = len(calls(tmp_path))
    outcome = run(study, tmp_path / "out", progress=False, tell=messages.append)
    # Without waiting until its trials look abandoned: they are of this folder.
    assert not any("of other coordinators" in message for message in messages)
    assert not any(server.password in message for message in messages)
    assert 4 <= before < len(calls(tmp_path)) == 2 * 7
    assert_each_cell_ended_once(tmp_path / "out", 2 * 7)
    assert outcome.lost["failed"] == 0


@pytest.mark.parametrize("lost", ["the question", "the answer"])
def test_a_claim_during_which_the_storage_goes_away_is_still_ours(url, quick, monkeypatch, lost):
    """At whichever of its questions: nobody else may have the trial, and it need not look abandoned first."""
    monkeypatch.setattr(storage, "_PAUSE", 0.0)
    ours, other = (Ledger(url, "one", "key", coordinator=name) for name in ("ours", "other"))
    asked: list[str] = []

    def goes_away_at(place: int) -> None:
        asked.clear()
        for name in ("get_trial", "record_heartbeat", "set_trial_user_attr", "set_trial_state_values"):

            def ask(*args, name=name, **kwargs):
                asked.append(name)
                if len(asked) != place + 1:
                    return getattr(type(ours._rdb), name)(ours._rdb, *args, **kwargs)
                if lost == "the answer":
                    getattr(type(ours._rdb), name)(ours._rdb, *args, **kwargs)
                raise exc.OperationalError("", None, psycopg.OperationalError("server closed the connection"))

            monkeypatch.setattr(ours._rdb, name, ask)

    places = 0
    while True:
        cell = PlannedTrial(0.1, 100, 1 / 16, seed=places)
        ours.plan([cell])
        goes_away_at(places)
        row = ours.trials()[-1]
        assert ours.claim(row), asked
        (row,) = (row for row in other.trials() if row.planned == cell)
        assert (row.status, row.coordinator) == ("running", "ours"), asked
        assert ours.is_open(row)
        assert not other.claim(row)
        if len(asked) <= places:  # there was no such question any more
            break
        places += 1
    assert places >= 3
    ours.close(), other.close()


def test_two_ledgers_never_disagree(url, quick):
    """Plan, claim, retry, take over: each happens once, however many drivers ask at the same moment."""
    ledgers = [Ledger(url, "one", "key", coordinator=name) for name in ("a", "b")]
    first, second = ledgers
    at_once(lambda ledger: ledger.plan(CELLS), ledgers)
    rows = first.trials()
    assert [row.planned for row in rows] == CELLS
    assert [row.number for row in rows] == [0, 1, 2]
    for row in rows:
        assert sorted(at_once(lambda ledger, row=row: ledger.claim(row), ledgers)) == [False, True]
    running = second.trials()
    assert sum(first.is_open(row) for row in running) + sum(second.is_open(row) for row in running) == 3
    owner = {row.number: next(ledger for ledger in ledgers if ledger.is_open(row)) for row in running}

    owner[0].end(rows[0], "finished", 0.5, images=1, seconds=1)
    owner[1].end(rows[1], "failed", None, images=0, seconds=0, error="no luck")
    assert sorted(at_once(lambda ledger: ledger.retry(), ledgers)) == [0, 1]
    assert [(row.planned.seed, row.status) for row in first.trials()] == [
        (0, "finished"),
        (2, "running"),
        (1, "waiting"),
    ]

    # The one who has trial 2 shows no more life; both others, as it were, find it abandoned.
    for ledger in ledgers:
        ledger._heart.stop()
    assert first.take_over() == 0
    time.sleep(2.2)
    assert sum(at_once(lambda ledger: ledger.take_over(), ledgers)) >= 1
    assert [row.planned.seed for row in first.trials()] == [0, 1]
    at_once(lambda ledger: ledger.plan(CELLS), ledgers)
    assert [(row.planned.seed, row.status) for row in first.trials()] == [
        (0, "finished"),
        (1, "waiting"),
        (2, "waiting"),
    ]
    again = first.trials()[-1]
    assert again.number == 4
    # Its first driver comes back with a result: it is ignored.
    owner[2].report(rows[2], 1, 0.7)
    owner[2].end(rows[2], "finished", 0.9, images=1, seconds=1)
    assert first.trials()[-1] == again
    assert not owner[2].claim(running[2])
    for ledger in ledgers:
        ledger.close()


def at_once(act, ledgers):
    """What `act` returns for each of them, asked from threads that start together."""
    together, results = threading.Barrier(len(ledgers)), {}

    def call(place, ledger):
        together.wait()
        results[place] = act(ledger)

    threads = [threading.Thread(target=call, args=pair) for pair in enumerate(ledgers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[place] for place in range(len(ledgers))]


def test_signs_of_life_keep_a_trial(url, quick, monkeypatch):
    monkeypatch.setattr(storage, "GRACE", 5)  # a busy machine may be late with a sign or two
    keeper, other = (Ledger(url, "one", "key", coordinator=name) for name in ("a", "b"))
    keeper.plan(CELLS[:1])
    assert keeper.claim(keeper.trials()[0])
    for _ in range(12):
        time.sleep(0.5)
        assert other.take_over() == 0
    keeper.close()
    wait_for(lambda: other.take_over() == 1, seconds=10)
    other.close()


def test_a_fresh_start_is_refused_while_another_driver_trains(tmp_path, url, quick, no_workers):
    study = Study.from_tables(tables(url, fractions=["1/16"], grid=[0.05, 0.1, 0.2], seeds=1))
    other = Ledger(url, "shared", study.key, coordinator="other")
    other.plan(CELLS[:1])
    other.claim(other.trials()[0])
    with pytest.raises(IsogonError, match="Another coordinator is at the study shared"):
        run(study, tmp_path / "out", fresh=True)
    other.close()
    time.sleep(2.2)
    run(study, tmp_path / "out", fresh=True, progress=False)
    assert_each_cell_ended_once(tmp_path / "out", 3)
    # A folder with trials of the study that was forgotten must not feed the one that took its name.
    Ledger.delete(url, "shared")
    with pytest.raises(IsogonError, match="another study than the one of this name in the storage: remove"):
        run(study, tmp_path / "out", progress=False)


def test_bad_addresses_are_refused_at_once_and_without_the_password(server, url):
    messages: list[str] = []
    wrong = url.replace(server.password, "WRONG-secret")
    absent = server.address("nowhere")
    broken = f"postgresql://me:{server.password}@host:port:7/db"
    for address, message in (
        (wrong, "authentication failed"),
        (absent, "does not exist"),
        (broken, "no address of a database"),
    ):
        with pytest.raises(storage.StorageError, match=message) as caught:
            Ledger(address, "one", "key", tell=messages.append)
        assert server.password not in str(caught.value)
        assert "WRONG-secret" not in str(caught.value)
    assert not messages, "none was asked again"
    with pytest.raises(IsogonError, match="sqlite or the address of a PostgreSQL database, got 'mysql://me:"):
        run(Study.from_tables(tables("mysql://me:secret@host/db")), "out")


def test_the_dashboard_shows_the_study(url):
    pytest.importorskip("optuna_dashboard")
    ledger = Ledger(url, "one", "key", coordinator="a")
    ledger.plan(CELLS)
    row = ledger.trials()[0]
    ledger.claim(row)
    ledger.end(row, "finished", 0.75, images=1, seconds=1)
    ledger.close()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = "import sys, optuna_dashboard._cli as cli; sys.exit(cli.main())"
    command = [sys.executable, "-c", program, storage.with_driver(url), "--port", str(port)]
    dashboard = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def fetched(path: str) -> dict[str, object]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as reply:
            return json.load(reply)

    def is_up() -> bool:
        assert dashboard.poll() is None, "the dashboard has ended"
        try:
            return bool(fetched("/api/studies"))
        except OSError:
            return False

    try:
        wait_for(is_up)
        (study,) = fetched("/api/studies")["study_summaries"]
        assert study["study_name"] == "one"
        trials = fetched(f"/api/studies/{study['study_id']}")["trials"]
        assert [trial["state"] for trial in trials] == ["Complete", "Waiting", "Waiting"]
        assert trials[0]["values"] == [0.75]
    finally:
        dashboard.kill()
        dashboard.wait()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_drivers_killed_and_put_to_sleep_at_random(tmp_path, server, url, no_workers, seed):
    """Three drivers, each again and again killed, stopped and started, and the server too; then all is as alone."""
    draw = random.Random(seed)
    (tmp_path / "study.txt").write_text(json.dumps(tables(url)))
    (tmp_path / "go").touch()
    names = ["one", "two", "three"]
    drivers = {name: driver(tmp_path, name, grace=3, workers=1) for name in names}
    for _ in range(12):
        time.sleep(draw.uniform(0.5, 3))
        name = draw.choice(names)
        deed = draw.choice(["kill", "sleep", "server"])
        if deed == "server":
            server.stop()
            time.sleep(draw.uniform(0, 3))
            server.start()
        elif deed == "sleep" and drivers[name].poll() is None:
            drivers[name].send_signal(signal.SIGSTOP)
            time.sleep(draw.uniform(0, 6))
            drivers[name].send_signal(signal.SIGCONT)
        else:
            drivers[name].kill()
            drivers[name].communicate()
            drivers[name] = driver(tmp_path, name, grace=3, workers=1)
    for name in names:
        drivers[name].communicate(timeout=300)
        assert drivers[name].returncode == 0
        assert_each_cell_ended_once(tmp_path / name)
    assert answer(tmp_path / "one") == answer(tmp_path / "two") == answer(tmp_path / "three") == alone(tmp_path)
