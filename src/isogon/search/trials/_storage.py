"""The database of a search: opening it, asking it again when it does not answer, naming it without its password.

Several coordinators may share a PostgreSQL database. What must not be done by two of them at once is done under an
advisory lock of the database, which goes with the connection of a coordinator that dies.
"""

from __future__ import annotations

import re
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from isogon.errors import IsogonError, MissingExtraError, first_line, without_secrets

try:
    import optuna
    import sqlalchemy
    from sqlalchemy import exc
except ImportError as error:  # pragma: no cover - exercised in a subprocess
    raise MissingExtraError("optuna", extra="search", purpose="to keep the trials of a search") from error

#: seconds for which a storage that does not answer is asked again
PATIENCE = 30.0
#: seconds between the heartbeats of a coordinator that shares its storage, and after how many without one it counts as
#: dead: longer than the patience above, so that a database that was away for a moment makes no coordinator look dead
HEARTBEAT, GRACE = 10, 60
#: seconds after which the database ends a transaction in which nothing happens: a coordinator that was put to sleep
#: within it would keep its rows locked, and every other coordinator waiting, until it wakes
ASLEEP = 30
_PAUSE = 0.5
#: marks isogon's advisory locks among those of others in the same database
_LOCKS = 0x1506
# A connection that was cut silently must not hang for the minutes that the system would give it.
_CONNECTION = {"connect_timeout": "10", "tcp_user_timeout": "20000"}
# What asking again does not cure.
_HOPELESS = re.compile(
    "authentication failed|does not exist|no password supplied|no pg_hba|disk is full|unable to open|readonly database"
)

MessageListener = Callable[[str], None]
Answer = TypeVar("Answer")


class StorageError(IsogonError):
    """A storage that cannot be used."""


class Storage:
    """Optuna's storage at `url`; `heartbeat` where other coordinators may use it at the same time.

    `rdb` is the storage itself, to be asked within `ask_patiently`.
    """

    def __init__(self, url: str, *, heartbeat: bool = False, tell: MessageListener | None = None) -> None:
        self._url, self._tell = with_driver(url), tell or (lambda sentence: None)
        try:
            sqlalchemy.make_url(self._url)
        except (exc.ArgumentError, ValueError):  # its message may hold a part of the password
            raise StorageError(
                "The storage is no address of a database: write it as postgresql://user:password@host/database, with "
                "special characters of the password as %40 and the like."
            ) from None
        optuna.logging.set_verbosity(optuna.logging.ERROR)  # it would log many lines when nobody answers
        self.rdb = self.ask_patiently(lambda: self._open(heartbeat))

    def ask_patiently(self, ask: Callable[[], Answer]) -> Answer:
        """What `ask` returns; asked again for a while where the database does not answer."""
        give_up = time.monotonic() + PATIENCE
        reported = False
        while True:
            try:
                return ask()
            except (exc.SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
                reason, may_pass = _diagnosis(error)
                if not may_pass:
                    raise StorageError(f"The storage {self} cannot be used: {reason}.") from error
                if time.monotonic() > give_up:
                    raise StorageError(
                        f"The storage {self} does not answer ({reason}): no finished trial is lost, and the same "
                        "command resumes once it is back."
                    ) from error
                if not reported:
                    self._tell(f"the storage {self} does not answer; asking again for {PATIENCE:.0f} s")
                    reported = True
                time.sleep(_PAUSE)

    @contextmanager
    def lock(self, what: str) -> Iterator[None]:
        """Keep other coordinators out for the same `what`; a file has one coordinator anyway."""
        with _lock(self.rdb.engine, what):
            yield

    def close(self) -> None:
        self.rdb.remove_session()
        self.rdb.engine.dispose()

    def __str__(self) -> str:
        return without_secrets(self._url)

    def _open(self, heartbeat: bool) -> optuna.storages.RDBStorage:
        settings = engine_settings(self._url)
        try:
            engine = sqlalchemy.create_engine(self._url, poolclass=sqlalchemy.NullPool, **settings)
        except ImportError:
            raise MissingExtraError("psycopg", extra="postgres", purpose=f"for the storage {self}") from None
        with warnings.catch_warnings(), _lock(engine, "tables"):
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # the heartbeat
            return optuna.storages.RDBStorage(
                as_template(self._url),
                settings,
                heartbeat_interval=HEARTBEAT if heartbeat else None,
                grace_period=GRACE if heartbeat else None,
            )


class Heart:
    """One thread that sends a heartbeat for the trials of a coordinator every `HEARTBEAT` seconds."""

    def __init__(self, storage: optuna.storages.RDBStorage) -> None:
        self._storage = storage
        self._trials: set[int] = set()
        self._stop = threading.Event()
        self._interval = HEARTBEAT
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def add(self, trial_id: int) -> None:
        self._trials.add(trial_id)

    def discard(self, trial_id: int) -> None:
        self._trials.discard(trial_id)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=self._interval)

    def _beat(self) -> None:
        while not self._stop.wait(self._interval):
            for trial_id in sorted(self._trials):
                with suppress(Exception):  # the training meets the same error, and handles it
                    self._storage.record_heartbeat(trial_id)
        self._storage.remove_session()


def with_driver(url: str) -> str:
    """The address with the driver that isogon installs.

    >>> with_driver("postgresql://me@host/db")
    'postgresql+psycopg://me@host/db'
    """
    return re.sub(r"^postgres(ql)?://", "postgresql+psycopg://", url)


def as_template(url: str) -> str:
    """The address as Optuna wants it, which fills in its version for braces."""
    return url.replace("{", "{{").replace("}", "}}")


def engine_settings(url: str) -> dict[str, Any]:
    """The options of SQLAlchemy for the address."""
    if not url.startswith("postgresql+psycopg:"):
        return {}
    given = sqlalchemy.make_url(url).query
    wanted = {key: value for key, value in _CONNECTION.items() if key not in given}
    # Before the address's own options, so that those win and ours is not lost.
    options = f"-c idle_in_transaction_session_timeout={ASLEEP}s {given.get('options', '')}".strip()
    # A restarted server leaves dead connections in the pool; each is tested before use.
    return {"pool_pre_ping": True, "connect_args": {**wanted, "options": options}}


@contextmanager
def _lock(engine: sqlalchemy.Engine, what: str) -> Iterator[None]:
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            # A coordinator holds it for a moment; one that was put to sleep there loses it after `ASLEEP`.
            connection.execute(sqlalchemy.text("SET LOCAL lock_timeout = '60s'"))
            key = zlib.crc32(what.encode()) - (1 << 31)
            connection.execute(sqlalchemy.text(f"SELECT pg_advisory_xact_lock({_LOCKS}, {key})"))
        yield


def _diagnosis(error: BaseException) -> tuple[str, bool]:
    """The reason of the error, and whether it may pass."""
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, exc.DBAPIError):
            reason = first_line(link.orig or link)
            # A connection that the database has ended, whatever the reason, can be made again.
            passing = isinstance(link, exc.OperationalError | exc.InterfaceError) or link.connection_invalidated
            return reason, passing and not _HOPELESS.search(reason)
        link = link.__cause__ or link.__context__
    return first_line(error), False
