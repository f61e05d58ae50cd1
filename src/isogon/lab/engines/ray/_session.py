"""Connecting to a Ray cluster and leaving it: nothing printed, nothing sent, nothing readable by others."""

from __future__ import annotations

import importlib
import logging
import math
import os
import platform
import secrets
import shutil
import signal
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from isogon.errors import ArgumentError, IsogonError, MissingExtraError, check_number, check_whole, first_line
from isogon.files import read_json, write_json
from isogon.lab.engines._workers import default_workers

_MODE, _TOKEN, _TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
# The folder of a cluster of our own, and the file in it that says which process it belongs to.
_PREFIX, _OWNER = "isogon-", "owner.json"
# Events are small; files that do not fit go by way of the disk.
_OBJECT_STORE_BYTES = 200_000_000


@dataclass(frozen=True)
class RaySettings:
    """Where jobs run on Ray, and what each needs.

    Args:
        address: `host:port` of a cluster, `auto` for the one of this machine, `local` for a new one; without it the
            cluster in RAY_ADDRESS or that of `ray start` on this machine, else a new one. A new one ends with us.
        cpus: cores of each job (it computes with one thread; more leave room for the user's own loaders).
        gpus: GPUs of each job, 0.25 for four on one; 1 on `cuda` and 0 on `cpu` unless given.
        retries: times that a job whose worker or node has died is tried again.
    """

    address: str | None = None
    cpus: float = 1
    gpus: float | None = None
    retries: int = 3

    def __post_init__(self) -> None:
        if self.address is not None and "://" in self.address:
            cure = "run on a node of the cluster, for example by ray job submit, and give host:port"
            raise ArgumentError("address", "host:port, auto or local", self.address, cure)
        check_number("cpus", self.cpus, low=0, low_open=True, cure="count the cores of a job")
        gpus = check_number("gpus", self.gpus or 0, low=0, cure="write 1, or 0.5 for half of one")
        if gpus > 1 and gpus % 1:
            raise ArgumentError("gpus", "a fraction of one or a whole number", gpus, "round it")
        check_whole("retries", self.retries, low=0, cure="count the tries after the first")

    def for_device(self, device: str) -> RaySettings:
        """The same, with the number of GPUs that the device suggests where none was given."""
        if self.gpus is not None:
            return self
        return replace(self, gpus=1.0 if device.startswith("cuda") else 0.0)

    def fitting(self, resources: dict[str, float]) -> int:
        """Jobs that a node with these resources takes at once."""
        asked = {"CPU": self.cpus, "GPU": self.gpus or 0.0}
        # Ten tenths are one, whatever floating point says.
        return min(math.floor(resources.get(name, 0.0) / each + 1e-9) for name, each in asked.items() if each)


class _Session:
    """The connection of this process, which Ray allows one of; the last user who leaves ends it."""

    def __init__(self) -> None:
        self.users = 0
        self.end = ExitStack()

    def connect(self, settings: RaySettings) -> Any:
        ray = _import_ray()
        if not ray.is_initialized():
            with ExitStack() as undo:
                _connect(ray, settings, undo)
                self.end = undo.pop_all()
        return ray


_session = _Session()


@contextmanager
def keep_ray() -> Iterator[Callable[[RaySettings], Any]]:
    """Gives what connects to Ray and returns its module; within it, only the first call waits for a cluster to start.

    A cluster that was started here ends with the outermost of these. One that the program had connected to before is
    used, and left connected.
    """
    _session.users += 1
    try:
        yield _session.connect
    finally:
        _session.users -= 1
        if _session.users == 0:
            _session.end.close()


def _import_ray() -> Any:
    # Ray reads this when it is imported.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise MissingExtraError("ray", extra="ray", purpose="to run on a Ray cluster") from error


def _connect(ray: Any, settings: RaySettings, undo: ExitStack) -> None:
    """Connect; what was changed for that is undone by `undo`."""
    address = _existing_address(settings.address)
    if address is None and not _has_tokens():
        cure = "run pip install -U ray, or give the address of a cluster"
        raise IsogonError(f"A cluster of this version of Ray ({ray.__version__}) is open to everybody: {cure}.")
    _silence(ray, undo)
    undo.callback(_reread_environment)
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        # A token of this cluster's own, in memory alone: Ray would leave one in a file that everybody can read.
        _set_environment({_MODE: "token", _TOKEN: secrets.token_hex(32)}, undo)
        _listen_on_loopback(undo)
        # Ray lets everybody write in the folder it is given, so it gets one in a folder that is ours.
        remove_leftover_clusters()
        private = tempfile.mkdtemp(prefix=_PREFIX)
        undo.callback(shutil.rmtree, private, ignore_errors=True)
        write_json(Path(private, _OWNER), _owner(os.getpid()), private=True)
        options |= {
            "address": "local",
            "num_cpus": default_workers("cpu"),
            "include_dashboard": False,
            "object_store_memory": _OBJECT_STORE_BYTES,
            "_temp_dir": os.path.join(private, "ray"),
        }
    else:
        options["address"] = address
        if _MODE not in os.environ and (os.environ.get(_TOKEN) or _token_file().exists()):
            _set_environment({_MODE: "token"}, undo)
        _close_to_others(_token_file())
    _reread_environment()
    if threading.current_thread() is threading.main_thread():  # Ray sets a handler of its own
        undo.callback(signal.signal, signal.SIGTERM, signal.getsignal(signal.SIGTERM))
    undo.callback(ray.shutdown)
    try:
        ray.init(**options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        if address is None:
            sentence = f"A Ray cluster could not be started ({first_line(error)}): use the engine local."
            raise IsogonError(sentence) from error
        refused = "AuthToken" in f"{error} {error.__cause__}"  # Ray puts the reason into the text, below a traceback
        reason = "it refuses our token" if refused else first_line(error)
        cure = "see that it runs, and that its token is in RAY_AUTH_TOKEN or in ~/.ray/auth_token"
        raise IsogonError(f"No Ray cluster lets us in at {address} ({reason}): {cure}.") from error
    # A cluster of our own does not grow; one that is there already might.
    if address is None and not settings.fitting(ray.cluster_resources()):
        asked = f"{settings.cpus:g} CPUs and {settings.gpus or 0:g} GPUs"
        cure = "ask for less, or give the address of a cluster"
        raise ArgumentError("cpus and gpus of a job on Ray", "no more than this machine has", asked, cure)


def _listen_on_loopback(undo: ExitStack) -> None:
    """A cluster of our own is for this machine alone: no port of it answers on any other address.

    Ray does so where it takes a machine for one that is never part of a larger cluster, and replaces 127.0.0.1 by
    another address elsewhere. The variable is for the processes that it starts, the constant for this one.
    """
    _set_environment({"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}, undo)
    constants: Any = importlib.import_module("ray._private.ray_constants")
    undo.callback(setattr, constants, "ENABLE_RAY_CLUSTER", getattr(constants, "ENABLE_RAY_CLUSTER", True))
    constants.ENABLE_RAY_CLUSTER = False


def remove_leftover_clusters() -> None:
    """Remove the folders of clusters whose coordinator was killed, and end what still runs there.

    Ray's agents live on for a minute.
    """
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError, IsogonError, KeyError, TypeError, ValueError):
            if folder.is_symlink() or (hasattr(os, "getuid") and folder.stat().st_uid != os.getuid()):
                continue
            owner = read_json(folder / _OWNER, _OWNER)
            now = _owner(int(owner["pid"]))
            # Only of this machine: elsewhere, or in another container, processes have the same numbers.
            if now["where"] is not None and owner["where"] == now["where"] and owner["started"] != now["started"]:
                _end_processes_of(folder)
                shutil.rmtree(folder, ignore_errors=True)


def _owner(pid: int) -> dict[str, Any]:
    """A process: its number, where that counts, and when it was started; None where there is none or it is unknown."""
    try:
        where = f"{platform.node()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        where = None
    try:
        started = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
    except (OSError, IndexError):
        started = None
    return {"pid": pid, "where": where, "started": started}


def _end_processes_of(folder: Path) -> None:
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (process / "cmdline").read_bytes().decode(errors="replace")
            # Ray's own, not a program that only reads there.
            if f"{folder}{os.sep}" in command and "/ray/" in command.replace(str(folder), ""):
                os.kill(int(process.name), signal.SIGKILL)


def _existing_address(address: str | None) -> str | None:
    """The address of a cluster that is there already, or None when one is to be started."""
    if address is not None:
        return None if address == "local" else address
    # As ray.init does for itself; but there, options of a new cluster cannot be given before it is known to be new.
    services = importlib.import_module("ray._private.services")
    running: str | None = services.canonicalize_bootstrap_address(None)
    return running


def _silence(ray: Any, undo: ExitStack) -> None:
    """Ray prints deaths of workers to stdout, whatever log_to_driver is; we report them as events of the job."""
    worker = ray._private.worker
    undo.callback(setattr, worker, "_worker_logs_enabled", getattr(worker, "_worker_logs_enabled", True))
    worker._worker_logs_enabled = False


def _token_file() -> Path:
    return Path(os.environ.get(_TOKEN_PATH) or Path.home() / ".ray" / "auth_token")


def _close_to_others(file: Path) -> None:
    """Restrict a token file to its owner: the token gives access to the cluster, and Ray makes it readable for all."""
    if hasattr(os, "getuid") and file.exists():
        status = file.stat()
        if status.st_uid == os.getuid() and stat.S_IMODE(status.st_mode) & 0o077:
            file.chmod(0o600)


def _set_environment(values: dict[str, str], undo: ExitStack) -> None:
    for name, value in values.items():
        before = os.environ.get(name)
        if before is None:
            undo.callback(os.environ.pop, name, None)
        else:
            undo.callback(os.environ.__setitem__, name, before)
        os.environ[name] = value


def _has_tokens() -> bool:
    return hasattr(sys.modules["ray._raylet"], "AuthenticationTokenLoader")


def _reread_environment() -> None:
    """Ray keeps the mode and the token that it read first; versions without tokens have nothing to forget."""
    raylet = sys.modules["ray._raylet"]
    if _has_tokens():
        raylet.Config.initialize("")
        raylet.AuthenticationTokenLoader.instance().reset_cache()
