"""The engine `ray`: the runs of `local` to the bit, whatever dies on the way; nothing for others to read.

The cluster is a real one on this machine: a head, and second nodes that join it with its token.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import secrets
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
import torch

from isogon.errors import ArgumentError, IsogonError, MissingExtraError
from isogon.lab import (
    EpochEnded,
    RaySettings,
    Run,
    RunEnded,
    RunFailed,
    TrainingEnded,
    TrainingEpoch,
    run_all,
    train,
)
from isogon.lab.engines._run_all import TrainingJob
from isogon.lab.engines.ray import _session as ray_session
from isogon.lab.engines.ray._pool import _Attempt, _handle_death, _pass_on, work_through_on_ray
from isogon.lab.engines.ray._session import _connect, _owner, keep_ray, remove_leftover_clusters
from isogon.lab.engines.ray._task import CoordinatorContext, FileMade, work_and_report

pytest.importorskip("ray", reason="Ray is not installed")
if not Path("/proc/self/stat").exists():
    pytest.skip("looks for processes in /proc", allow_module_level=True)

# Networks: one kills its process, one waits after two epochs (of four steps) while a file is there, one is slow then.
NETS = """
import os, signal, time
from pathlib import Path
from torch import nn
from isogon import nets

class Waiting(nn.Sequential):
    steps = 0

    def forward(self, x):
        self.steps += self.training
        while self.steps > 8 and Path(__file__).with_name("wait").exists():
            time.sleep(0.05)
        return super().forward(x)

class Napping(nn.Sequential):
    def forward(self, x):
        time.sleep(0.1 * (self.training and Path(__file__).with_name("wait").exists()))
        return super().forward(x)

def napping(num_classes, in_channels, **options):
    return Napping(nets.cnn4(num_classes, in_channels, **options))

def waiting(num_classes, in_channels, **options):
    return Waiting(nets.cnn4(num_classes, in_channels, **options))

def deadly(*shape, **options):
    os.kill(os.getpid(), signal.SIGKILL)
"""

OBJECTIVES = """
import math, os, torch

def objective(trial):
    (trial.folder / "where").write_text("ray" if "RAY_RAYLET_PID" in os.environ else "local")
    torch.manual_seed(trial.seed)
    trial.report(0, 0.5)
    noise = 0.01 * torch.rand(()).item()
    return 0.9 - 0.02 * math.log2(trial.recipe.tuning_factor / 0.1) ** 2 + noise
"""

DRIVER = """
import json, sys
from isogon.lab import Config, RaySettings, run_all

if __name__ == "__main__":
    settings = json.load(open(sys.argv[1]))
    configs = [Config.from_dict(content) for content in settings.pop("configs")]
    ray = RaySettings(**settings.pop("ray"))
    for run in run_all(configs, "ray", **settings, device="cpu", progress=False, ray=ray):
        print(run.status)
"""


# Ray's workers let everybody else go first: on a machine that is busy with other tests they would hardly begin.
NICENESS = {"RAY_worker_niceness": "0"}


class Cluster:
    """A cluster that isogon started here, with one core, and nodes that joined it; each a session of processes."""

    def __init__(self, address: str, temporary: Path) -> None:
        self.address, self.temporary = address, temporary
        self.token = os.environ["RAY_AUTH_TOKEN"]
        self.environment = {**elsewhere(), **NICENESS, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.token}
        self.nodes: list[subprocess.Popen] = []

    def add_node(self, cpus: int, *, hidden: Path | None = None) -> subprocess.Popen:
        """A node that does not see what is in the folder `hidden`."""
        import ray

        known = {one["NodeID"] for one in ray.nodes()}
        start = [sys.executable, "-m", "ray.scripts.scripts", "start", f"--address={self.address}", "--block"]
        start += [f"--num-cpus={cpus}", "--object-store-memory=100000000", "--disable-usage-stats"]
        if hidden is not None:
            start = ["unshare", "-rm", "sh", "-c", f'mount -t tmpfs none "{hidden}" && exec "$@"', "sh", *start]
        quiet = subprocess.DEVNULL
        node = subprocess.Popen(start, env=self.environment, start_new_session=True, stdout=quiet, stderr=quiet)
        self.nodes.append(node)
        wait_for(lambda: {one["NodeID"] for one in ray.nodes() if one["Alive"]} - known)
        return node


def elsewhere() -> dict[str, str]:
    """The environment of a process that knows nothing of the cluster."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}


def processes(accept) -> list[int]:
    """Those for whose fields in /proc/PID/stat, from the state on, and command line `accept` is true."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            command = (folder / "cmdline").read_bytes().decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields[0] != "Z" and accept(fields, command):
            pids.append(int(folder.name))
    return pids


def of_session(leader: subprocess.Popen) -> list[int]:
    return processes(lambda fields, command: int(fields[3]) == leader.pid)


def cut_power(node: subprocess.Popen) -> None:
    """End all its processes as a power cut would."""
    for pid in of_session(node):
        os.kill(pid, signal.SIGKILL)
    node.wait()
    wait_for(lambda: not of_session(node))


def wait_for(condition, seconds=60):
    give_up = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < give_up, "waited in vain"
        time.sleep(0.05)
    return found


@pytest.fixture(scope="module")
def cluster():
    """Started by isogon in this process, where it must leave nothing behind."""
    # Ray's sockets do not work in folders with long names.
    folder = Path(tempfile.mkdtemp(prefix="ir"))
    (folder / "home").mkdir()
    started = None
    with pytest.MonkeyPatch.context() as patch:
        for name in set(os.environ) - set(elsewhere()):
            patch.delenv(name)
        patch.setenv("RAY_AUTH_MODE", "disabled")  # which does not hold for a cluster of ours
        for name, value in NICENESS.items():
            patch.setenv(name, value)
        patch.setenv("HOME", str(folder / "home"))
        before = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
        handler = signal.getsignal(signal.SIGTERM)
        try:
            with keep_ray() as connect:
                with pytest.MonkeyPatch.context() as now:
                    now.setattr(tempfile, "tempdir", str(folder))
                    now.setattr(os, "sched_getaffinity", lambda process: {0})
                    # Nodes that join it cannot come from the loopback address; see the test of a cluster that is ours.
                    now.setattr(ray_session, "_listen_on_loopback", lambda undo: None)
                    ray = connect(RaySettings(address="local"))
                started = Cluster(ray.get_runtime_context().gcs_address, folder)
                try:
                    yield started
                finally:
                    for node in started.nodes:
                        cut_power(node)
            assert not ray.is_initialized()
            assert {name: os.environ.get(name) for name in before} == before
            assert "RAY_AUTH_TOKEN" not in os.environ
            assert signal.getsignal(signal.SIGTERM) is handler
            assert [file for file in folder.rglob("*") if file.name != "home"] == []
            wait_for(lambda: not processes(lambda fields, command: str(folder) in command), seconds=10)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def nets(tmp_path, monkeypatch):
    """The name of a module of networks, new for each test since workers outlive them."""
    name = f"nets_{secrets.token_hex(4)}"
    (tmp_path / f"{name}.py").write_text(NETS)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def assert_same_as_alone(run: Run, folder: Path) -> None:
    alone = train(run.config, folder, device="cpu", progress=False)
    first, second = (torch.load(place / "weights.pt", weights_only=True) for place in (run.folder, folder))
    assert all(torch.equal(first[name], second[name]) for name in second)
    clock = ["images_per_second"]
    pd.testing.assert_frame_equal(run.epochs.drop(columns=clock), alone.epochs.drop(columns=clock), check_exact=True)
    if run.config.monitor_every:
        pd.testing.assert_frame_equal(run.records, alone.records, check_exact=True)


class Listener:
    """The events of `run_all`, and how often each run ended."""

    def __init__(self) -> None:
        self.events: list[TrainingEpoch | TrainingEnded] = []
        self.then = lambda: None

    def __call__(self, event) -> None:
        self.events.append(event)
        self.then()

    def _of(self, kind, config) -> list:
        return [event for event in self.events if isinstance(event, kind) and event.config == config]

    def epochs(self, config) -> list[int]:
        return [event.row["epoch"] for event in self._of(TrainingEpoch, config)]

    def ends(self, config) -> list[str]:
        return [event.run.status for event in self._of(TrainingEnded, config)]


def test_whatever_dies_each_run_ends_once_as_on_local(cluster, make_config, tmp_path, nets, capfd):
    """A node dies with a run on it, which resumes elsewhere; one config kills its workers, one fails, one is taken."""
    node = cluster.add_node(1)
    wait = tmp_path / "wait"
    wait.touch()
    good = [make_config(net=f"{nets}:waiting", monitor_every=0, seed=seed, epochs=4) for seed in (1, 2)]
    deadly, lacking = make_config(net=f"{nets}:deadly", monitor_every=0), make_config(data=f"npz:{tmp_path / 'no.npz'}")
    configs = [*good, deadly, lacking, make_config(seed=3)]
    listener = Listener()

    def cut() -> None:
        if wait.exists() and all(len(listener.epochs(config)) >= 2 for config in good):
            cut_power(node)
            wait.unlink()

    listener.then = cut
    runs = run_all(
        configs,
        "ray",
        tmp_path / "ray",
        device="cpu",
        progress=False,
        news=listener,
        claim=lambda config: config.seed != 3,
        ray=RaySettings(retries=1),
    )
    # Ray reports dead workers on stdout, where others may expect an answer in JSON.
    assert capfd.readouterr() == ("", "")
    assert not wait.exists(), "the node was not cut off"
    assert [run.config for run in runs] == configs[:-1]
    assert [run.status for run in runs] == ["finished", "finished", "failed", "failed"]
    assert [listener.ends(config) for config in configs] == [["finished"], ["finished"], ["failed"], ["failed"], []]
    assert runs[2].error.startswith("its worker on Ray ended 2 times, last with: The worker died unexpectedly")
    assert "no.npz does not exist" in runs[3].error
    run_all(good, "local", tmp_path / "local", workers=1, device="cpu", progress=False)
    for run in runs[:2]:
        # Each epoch once: what a node had done before it died is not done again.
        assert listener.epochs(run.config) == [0, 1, 2, 3]
        assert_same_as_alone(run, tmp_path / "local" / run.config.name)


@pytest.mark.slow
def test_a_node_without_the_folder_sends_the_files(cluster, make_config, tmp_path, nets):
    """The second node has an empty file system in place of the folder, in a mount namespace of its own."""
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        pytest.skip("this user may not make mount namespaces")
    out = tmp_path / "runs"
    out.mkdir()
    node = cluster.add_node(2, hidden=out)
    try:
        config = make_config(seed=3)
        # Two cores: only the second node has them.
        (run,) = run_all([config], "ray", out, device="cpu", progress=False, ray=RaySettings(cpus=2))
        mark = (out / ".folder-mark").read_text()
        inside = subprocess.run(
            ["nsenter", "-t", str(node.pid), "-U", "-m", "ls", "-A", str(out)], capture_output=True, text=True
        )
        assert inside.stdout == "", "the node worked in the folder that stands for the driver's"
        leftover = Path(tempfile.gettempdir(), f"isogon-{mark}")
        assert stat.S_IMODE(leftover.stat().st_mode) == 0o700
        assert list(leftover.iterdir()) == []
        leftover.rmdir()
        assert_same_as_alone(run, tmp_path / "alone")
    finally:
        cut_power(node)


def test_files_come_before_the_end_and_the_result_last(make_config, tmp_path, monkeypatch):
    """The events of a worker that does not find the driver's mark; a second try resumes where the first was."""
    node = tmp_path / "node"
    node.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(node))
    config = make_config(monitor_every=0)
    job = TrainingJob((config,), str(tmp_path / "unseen"), "cpu")
    news = list(work_and_report(pickle.dumps((job, "mark")), CoordinatorContext(os.getcwd(), (), {})))
    assert [type(event) for event in news if not isinstance(event, FileMade)] == [EpochEnded] * 3 + [RunEnded]
    files = [event.path for event in news if isinstance(event, FileMade)]
    assert files[-1] == f"{config.name}/result.json"
    assert f"{config.name}/epochs.parquet" in files
    assert not any("lock" in path for path in files)
    assert isinstance(news[-1], RunEnded)
    assert not (tmp_path / "unseen").exists()
    assert [place for place in node.rglob("*") if place.is_file()] == []


@dataclass
class CountingJob:
    """Says how many threads it has, then fails."""

    out: str
    keys: tuple[str, ...] = ("it",)

    def move_to(self, out: str) -> CountingJob:
        return CountingJob(out)

    def work(self, emit) -> None:
        emit(EpochEnded("it", {"threads": torch.get_num_threads()}))
        raise ValueError("no luck")


def test_a_job_has_one_thread_and_its_exception_ends_the_stream(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        news = work_and_report(
            pickle.dumps((CountingJob(str(tmp_path)), "mark")), CoordinatorContext(os.getcwd(), (), {})
        )
        assert next(news) == EpochEnded("it", {"threads": 1})
        with pytest.raises(ValueError, match="no luck"):
            next(news)
    finally:
        torch.set_num_threads(before)


def test_what_another_driver_has_is_left_to_it(cluster, make_config, tmp_path):
    job, events = TrainingJob((make_config(epochs=1),), str(tmp_path), "cpu"), []
    work_through_on_ray([job], on_event=events.append, claim=lambda job: False, settings=RaySettings())
    assert events == []


def test_after_the_last_word_nothing_is_tried_again_or_reported_twice(tmp_path):
    attempt, events, waiting = _Attempt(CountingJob(str(tmp_path), ("one", "two")), tries=1), [], deque()

    hear = events.append
    _pass_on(attempt, RunEnded("one", "finished"), hear)
    _pass_on(attempt, EpochEnded("two", {}), hear)
    _handle_death(attempt, OSError("gone"), RaySettings(retries=1), waiting, hear)
    assert list(waiting) == [attempt]
    _pass_on(attempt, RunEnded("one", "finished"), hear)  # by the second try, which finds it ended
    assert events == [RunEnded("one", "finished"), EpochEnded("two", {})]
    attempt.tries = 2
    _handle_death(attempt, OSError("gone"), RaySettings(retries=1), waiting, hear)
    assert events[2:] == [RunFailed("two", "its worker on Ray ended 2 times, last with: gone")]
    waiting.clear()
    done = _Attempt(CountingJob(str(tmp_path)), tries=1)
    _pass_on(done, RunEnded("it", "finished"), hear)
    _handle_death(done, OSError("gone"), RaySettings(), waiting, hear)
    assert not waiting


@pytest.mark.slow
def test_a_killed_driver_leaves_its_runs_to_the_next(cluster, make_config, tmp_path, nets):
    """And its token, which was open to all as Ray writes it, is closed."""
    wait = tmp_path / "wait"
    wait.touch()
    configs = [make_config(net=f"{nets}:waiting", monitor_every=0, seed=seed, epochs=5) for seed in (1, 2)]
    (tmp_path / "token").write_text(cluster.token)
    (tmp_path / "token").chmod(0o644)
    environment = {**elsewhere(), "RAY_AUTH_TOKEN_PATH": str(tmp_path / "token")}
    folder = tmp_path / "runs" / configs[0].name
    command = driven(tmp_path, configs, ray={"address": cluster.address})
    driver = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
    try:
        wait_for(lambda: (folder / "checkpoint.pt").exists() and epochs_in(folder) >= 2)
    finally:
        driver.kill()
        driver.communicate()
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600
    # At once: the worker of the dead driver has to let go of the folder.
    wait.unlink()
    listener = Listener()
    runs = run_all(configs, "ray", tmp_path / "runs", device="cpu", progress=False, news=listener)
    assert [run.status for run in runs] == ["finished"] * 2
    assert listener.epochs(configs[0])[0] >= 2
    for run in runs:
        assert listener.ends(run.config) == ["finished"]
        assert_same_as_alone(run, tmp_path / "alone" / run.config.name)


def driven(tmp_path, configs, **settings):
    """A command line that runs `configs` below `tmp_path / "runs"`."""
    (tmp_path / "driver.py").write_text(DRIVER)
    content = {"configs": [config.to_dict() for config in configs], "out": str(tmp_path / "runs"), **settings}
    (tmp_path / "settings.json").write_text(json.dumps(content))
    return [sys.executable, str(tmp_path / "driver.py"), str(tmp_path / "settings.json")]


def epochs_in(folder):
    return len(pd.read_parquet(io.BytesIO((folder / "epochs.parquet").read_bytes())))


def test_an_objective_gives_the_outcome_of_local(cluster, tmp_path, monkeypatch):
    search = pytest.importorskip("isogon.search", reason="the search's packages are not installed")
    name = f"objectives_{secrets.token_hex(4)}"
    (tmp_path / f"{name}.py").write_text(OBJECTIVES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    tables = {
        "recipe": {"lr": 0.1, "weight_decay": "?", "batch_size": 50, "samples": 1600, "epochs": 5},
        "task": {"objective": f"{name}:objective"},
        "search": {"seeds": 2, "fractions": ["1/16"], "grid": [0.05, 0.1, 0.2]},
        "run": {"workers": 1, "ray": {"address": cluster.address, "cpus": 1, "retries": 0}},
    }
    study = search.Study.from_tables(tables)
    outcomes = [search.run(study, tmp_path / engine, engine=engine, progress=False) for engine in ("local", "ray")]
    assert outcomes[0].tuning_factor == outcomes[1].tuning_factor
    assert outcomes[0].interval == outcomes[1].interval
    for engine in ("local", "ray"):
        assert [file.read_text() for file in (tmp_path / engine / "trials").glob("*/*/where")] == [engine] * 6
    assert stat.S_IMODE((tmp_path / "ray" / "study.json").stat().st_mode) == 0o600


CLIENT = """
import sys, ray
try:
    ray.init(address=sys.argv[1], log_to_driver=False)
except Exception as error:
    print("refused:", error.__cause__)
else:
    print("let in")
"""


def asked_to_be_let_in(address: str, **token: str) -> str:
    """What becomes of somebody who knows the address."""
    environment = {**elsewhere(), "RAY_NUM_REDIS_GET_RETRIES": "1", **token}
    command = [sys.executable, "-c", CLIENT, address]
    return subprocess.run(command, env=environment, capture_output=True, text=True).stdout


def test_a_cluster_of_ours_is_closed_to_others(cluster):
    stranger = asked_to_be_let_in(cluster.address)
    assert stranger.startswith("refused")
    assert "InvalidAuthToken" in stranger
    guess = asked_to_be_let_in(cluster.address, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="0" * 64)
    assert guess.startswith("refused")
    friend = asked_to_be_let_in(cluster.address, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=cluster.token)
    assert friend.startswith("let in\n")  # behind it Ray may report nodes that other tests have ended

    # Whatever Ray lets everybody read is in a folder that is closed to them, and the token is nowhere.
    (private,) = [place for place in cluster.temporary.iterdir() if place.name != "home"]
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    files = [file for file in cluster.temporary.rglob("*") if file.is_file()]
    assert files
    assert all(file.is_relative_to(private) for file in files)
    assert not any(cluster.token.encode() in file.read_bytes() for file in files)


LISTENING = """
import json, os, sys
import psutil
from isogon.lab import RaySettings
from isogon.lab.engines.ray._session import keep_ray

with keep_ray() as connect:
    ray = connect(RaySettings(address="local"))
    assert ray.get(ray.remote(lambda: 1).remote()) == 1
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    ports = [port for process in processes for port in process.net_connections(kind="tcp")]
    ports = [port for port in ports if port.status == psutil.CONN_LISTEN]
    address = ray.get_runtime_context().gcs_address
    print(json.dumps({"address": address, "listening": sorted({port.laddr.ip for port in ports})}), flush=True)
    sys.stdin.readline()
"""


def test_a_cluster_that_isogon_starts_listens_on_loopback_alone_and_wants_its_token():
    pytest.importorskip("psutil")
    temporary = Path(tempfile.mkdtemp(prefix="ir"))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    environment = {**elsewhere(), **NICENESS, "TMPDIR": str(temporary)}
    driver = subprocess.Popen([sys.executable, "-c", LISTENING], env=environment, start_new_session=True, **pipes)
    try:
        answer = json.loads(driver.stdout.readline())
        assert answer["listening"]
        assert {address.removeprefix("::ffff:") for address in answer["listening"]} <= {"127.0.0.1", "::1"}
        assert answer["address"].startswith("127.0.0.1:")
        # A client on this machine reaches it, and is refused for want of the token.
        stranger = asked_to_be_let_in(answer["address"], RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0")
        assert stranger.startswith("refused")
        assert "InvalidAuthToken" in stranger
        driver.communicate("done\n", timeout=60)
        assert [place for place in temporary.iterdir() if place.name.startswith("isogon-")] == []
    finally:
        cut_power(driver)
        shutil.rmtree(temporary, ignore_errors=True)


def test_the_death_of_the_drivers_node_costs_no_try(make_config, tmp_path, nets):
    """The raylet of a cluster of our own is killed: a sentence, trials that stay open, and the same command resumes."""
    (tmp_path / "wait").touch()
    configs = [make_config(net=f"{nets}:waiting", monitor_every=0, seed=seed) for seed in range(2)]
    temporary = Path(tempfile.mkdtemp(prefix="ir"))
    command = driven(tmp_path, configs, ray={"address": "local", "retries": 0})
    environment = {**elsewhere(), **NICENESS, "TMPDIR": str(temporary)}
    with (tmp_path / "out").open("w") as out, (tmp_path / "err").open("w") as err:
        driver = subprocess.Popen(command, env=environment, start_new_session=True, stdout=out, stderr=err)
    try:
        wait_for(lambda: any((tmp_path / "runs" / config.name / "checkpoint.pt").exists() for config in configs))
        (raylet,) = processes(lambda fields, command: int(fields[3]) == driver.pid and "raylet/raylet" in command)
        os.kill(raylet, signal.SIGKILL)
        assert driver.wait(timeout=120) == 1
        errors = (tmp_path / "err").read_text()
        assert "ClusterLostError: The Ray cluster is lost (the node that this program runs on has died)" in errors
        assert "the same command resumes" in errors
        assert (tmp_path / "out").read_text() == "", "no run has ended, none has failed"
        assert not list((tmp_path / "runs").glob("*/error.txt"))
        (tmp_path / "wait").unlink()
        again = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert again.stdout.split() == ["finished"] * 2, again.stderr
        assert [place for place in temporary.iterdir() if place.name.startswith("isogon-")] == []
    finally:
        cut_power(driver)
        shutil.rmtree(temporary, ignore_errors=True)
    for config in configs:
        assert_same_as_alone(Run.read(tmp_path / "runs" / config.name), tmp_path / "alone" / config.name)


def test_what_a_killed_driver_left_is_removed_by_the_next_start(tmp_path, monkeypatch):
    """Its folder, and agents that still run there; not those of a driver that lives, nor anything else."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ended = subprocess.Popen([sys.executable, "-c", "pass"])
    ended.wait()
    dead, alive, other, afar = (tmp_path / f"isogon-{name}" for name in ("dead", "alive", "other", "afar"))
    ours = _owner(os.getpid())
    elsewhere_running = {"pid": 1, "where": "another machine", "started": "1"}
    owners = {dead: {**ours, "pid": ended.pid, "started": "1"}, alive: ours, afar: elsewhere_running}
    for folder in (dead, alive, other, afar):
        (folder / "ray").mkdir(parents=True)
    (other / "owner.json").write_text('{"pid": null}')
    for folder, owner in owners.items():
        (folder / "owner.json").write_text(json.dumps(owner))
    sleep, agent = "import time; time.sleep(600)", "lib/ray/agent.py"
    agents = {
        (folder, kind): subprocess.Popen([sys.executable, "-c", sleep, kind, f"--temp-dir={folder}/logs"])
        for folder, kind in ((dead, agent), (alive, agent), (dead, "tail"))
    }
    try:
        remove_leftover_clusters()
        assert agents[dead, agent].wait(timeout=30) == -signal.SIGKILL
        assert agents[alive, agent].poll() is None
        assert agents[dead, "tail"].poll() is None, "a program that only looks there"
        assert sorted(place.name for place in tmp_path.iterdir()) == ["isogon-afar", "isogon-alive", "isogon-other"]
    finally:
        for process in agents.values():
            process.kill()


@pytest.mark.slow
def test_a_wrong_token_is_named_in_a_sentence(cluster, make_config, tmp_path):
    environment = {**elsewhere(), "RAY_NUM_REDIS_GET_RETRIES": "1", "RAY_AUTH_TOKEN": "0" * 64}
    command = driven(tmp_path, [make_config()], ray={"address": cluster.address})
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    last = ended.stderr.strip().splitlines()[-1]
    assert f"IsogonError: No Ray cluster lets us in at {cluster.address}" in last
    assert "(it refuses our token)" in last
    assert "0" * 64 not in ended.stderr


@pytest.mark.slow
def test_more_than_a_cluster_of_our_own_has_is_refused(make_config, tmp_path):
    command = driven(tmp_path, [make_config()], ray={"address": "local", "cpus": 1000})
    ended = subprocess.run(command, env=elsewhere(), capture_output=True, text=True)
    rule = "cpus and gpus of a job on Ray must be no more than this machine has, got '1000 CPUs and 0 GPUs'"
    assert rule in ended.stderr.strip().splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_nodes_and_drivers_killed_at_random(cluster, make_config, tmp_path, nets, seed):
    """Six times something dies, at any moment; in the end there is what `train` gives."""
    chance = random.Random(seed)
    configs = [make_config(net=f"{nets}:napping", monitor_every=0, seed=one, epochs=8) for one in range(6)]
    (tmp_path / "wait").touch()
    command = driven(tmp_path, configs, ray={"address": cluster.address, "retries": 20})
    node, driver = cluster.add_node(1), None
    for _ in range(6):
        driver = driver or subprocess.Popen(command, env=cluster.environment, stdout=subprocess.PIPE, text=True)
        time.sleep(chance.uniform(2, 15))
        if chance.random() < 0.5:
            cut_power(node)
            node = cluster.add_node(1)
        else:
            driver.kill()
            driver.communicate()
            driver = None
    (tmp_path / "wait").unlink()
    driver = driver or subprocess.Popen(command, env=cluster.environment, stdout=subprocess.PIPE, text=True)
    assert driver.communicate()[0].split() == ["finished"] * 6
    cut_power(node)
    for config in configs:
        run = Run.read(tmp_path / "runs" / config.name)
        assert list(run.epochs["epoch"]) == list(range(8))
        assert_same_as_alone(run, tmp_path / "alone" / config.name)


@pytest.mark.slow
def test_a_cluster_of_our_own_dies_with_its_driver(make_config, tmp_path, nets):
    (tmp_path / "wait").touch()
    config = make_config(net=f"{nets}:waiting", monitor_every=0)
    temporary = tempfile.mkdtemp(prefix="ir")
    command = driven(tmp_path, [config], ray={"address": "local"})
    driver = subprocess.Popen(command, env={**elsewhere(), "TMPDIR": temporary}, start_new_session=True)
    try:
        wait_for(lambda: (tmp_path / "runs" / config.name / "checkpoint.pt").exists())
        (worker,) = processes(lambda fields, command: int(fields[3]) == driver.pid and "work_and_report" in command)
        driver.kill()
        driver.wait()
        wait_for(lambda: worker not in of_session(driver), seconds=10)
        # Ray's agents first try for a minute to report the death.
        wait_for(lambda: not of_session(driver), seconds=150)
    finally:
        cut_power(driver)
        shutil.rmtree(temporary, ignore_errors=True)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"address": "ray://head:10001"}, "address must be host:port, auto or local"),
        ({"cpus": 0}, "cpus must be a finite number above 0"),
        ({"gpus": 1.5}, "gpus must be a fraction of one or a whole number"),
        ({"retries": -1}, "retries must be a whole number from 0"),
    ],
)
def test_bad_settings(settings, complaint):
    with pytest.raises(ArgumentError, match=complaint):
        RaySettings(**settings)


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ({"gpus": 1.5}, "study table run.ray is not right: gpus must be a fraction of one or a whole number, got 1.5"),
        ({"adress": "auto"}, "study key run.ray.adress is none that isogon knows: did you mean address"),
        ({"retries": -1}, "study key run.ray.retries must be greater than or equal to 0"),
    ],
)
def test_slips_in_a_study_are_named(table, complaint):
    search = pytest.importorskip("isogon.search", reason="the search's packages are not installed")
    recipe = {"lr": 0.1, "weight_decay": "?", "batch_size": 50, "samples": 1600, "epochs": 5}
    with pytest.raises(IsogonError, match=complaint):
        search.Study.from_tables(
            {"recipe": recipe, "task": {"data": "fashion-mini"}, "run": {"engine": "ray", "ray": table}}
        )


def test_gpus_follow_the_device_unless_given():
    assert RaySettings().for_device("cuda").gpus == 1
    assert RaySettings().for_device("cpu").gpus == 0
    assert RaySettings(gpus=0.25).for_device("cuda").gpus == 0.25
    assert RaySettings(cpus=0.5, gpus=0.1).fitting({"CPU": 8.0, "GPU": 1.0}) == 10
    assert RaySettings(cpus=2, gpus=0.0).fitting({"CPU": 7.0}) == 3
    assert RaySettings(gpus=1).fitting({"CPU": 7.0}) == 0


def test_a_ray_without_tokens_is_not_started(monkeypatch):
    import ray

    monkeypatch.delattr(ray._raylet, "AuthenticationTokenLoader")
    with ExitStack() as undo, pytest.raises(IsogonError, match="is open to everybody: run pip install -U ray"):
        _connect(ray, RaySettings(address="local"), undo)


def test_without_ray_the_extra_is_named(make_config, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'isogon\[ray\]'"):
        run_all([make_config()], "ray", tmp_path)
