"""The folder of a study: which process works in it, its storage, and its study file."""

from __future__ import annotations

import platform
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from isogon.errors import ArgumentError, first_line, without_secrets
from isogon.files import read_json, remove_leftovers, write_json
from isogon.lab import FolderLock
from isogon.search.study import Study
from isogon.search.trials._ledger import Ledger, StudyChangedError
from isogon.search.trials._storage import MessageListener, with_driver

STUDY, TRIALS, DATABASE = "study.json", "trials", "study.db"
# Which coordinator of a shared storage works here, and at which study.
_DRIVER = ".driver"


@contextmanager
def open_ledger(study: Study, folder: Path, tell: MessageListener) -> Iterator[Ledger]:
    """The ledger of the study in `folder`, where no other process works meanwhile."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # private, unless the user made the folder
        lock = FolderLock(folder)
    except (OSError, ValueError) as error:
        raise _not_ours(folder, error) from error
    try:
        remove_leftovers(folder)
        ledger = _make_ledger(study, folder, tell)
        try:
            # Private: the storage's address may hold a password.
            write_json(folder / STUDY, study.model_dump(mode="json"), private=True)
            yield ledger
        finally:
            ledger.close()
    finally:
        lock.release()


def forget(study: Study, folder: Path) -> None:
    """Remove what the storage and `folder` have of the study, if no process uses it."""
    if folder.exists():
        if not (folder / STUDY).exists() and any(folder.iterdir()):
            raise StudyChangedError(f"{folder} holds something other than a study: choose another folder.")
        try:
            FolderLock(folder).release()  # not while another process works here
        except OSError as error:
            raise _not_ours(folder, error) from error
    if study.run.storage != "sqlite":
        Ledger.delete(*storage_of(study, folder), coordinator=_coordinator(_identity(folder)))
    if folder.exists():
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise _not_ours(folder, error) from error


def _not_ours(folder: Path, error: Exception) -> ArgumentError:
    reason = getattr(error, "strerror", None) or first_line(error)
    return ArgumentError("out", "a folder to write in", str(folder), f"{reason}; choose another")


def storage_of(study: Study, folder: Path) -> tuple[str, str]:
    """The storage's address and the study's name there: a file of its own has one study, whatever the folder's name."""
    storage = study.run.storage
    if storage == "sqlite":
        return f"sqlite:///{folder.resolve() / DATABASE}", "search"
    if not with_driver(storage).startswith("postgresql+"):
        # Others have no lock under which several coordinators could plan.
        rule = "sqlite or the address of a PostgreSQL database"
        raise ArgumentError("study key run.storage", rule, without_secrets(storage), "correct it in the file")
    return storage, study.run.name or folder.resolve().name


def _make_ledger(study: Study, folder: Path, tell: MessageListener) -> Ledger:
    if study.run.storage == "sqlite":
        return Ledger(*storage_of(study, folder), study.key, tell=tell)
    identity = _identity(folder)
    ledger = Ledger(*storage_of(study, folder), study.key, coordinator=_coordinator(identity), tell=tell)
    if identity.setdefault("study", ledger.birth) != ledger.birth:
        ledger.close()
        # Their results must not be taken for those of the study that has its name now.
        raise StudyChangedError(
            f"{folder} holds trials of another study than the one of this name in the storage: remove the folder, "
            "choose another, or give the study its old name."
        )
    write_json(folder / _DRIVER, identity)
    return ledger


def _identity(folder: Path) -> dict[str, Any]:
    file = folder / _DRIVER
    if file.exists():
        identity = read_json(file, "the coordinator's file")
        if not isinstance(identity.get("driver"), str):
            raise ArgumentError("the coordinator's file", "one with a coordinator in it", str(file), "remove it")
        return identity
    return {"driver": uuid.uuid4().hex}


def _coordinator(identity: dict[str, Any]) -> str:
    """The coordinator's name: that of the folder, so that the next one here resumes the trials of one that was killed.

    The machine belongs to it, since folders are copied.
    """
    return f"{platform.node()}:{identity['driver'][:12]}"
