"""The one table schema, and the run's folder on disk: one Parquet part per epoch, merged when the run is closed."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import pandas as pd

from isogon.errors import ArgumentError, first_line
from isogon.files import read_json, remove_leftovers, write_json, write_whole

#: column → pandas type; names and order are promised to users
SCHEMA = {
    "step": "int64",
    "epoch": "int64",
    "layer": "str",
    "lr": "float64",
    "weight_decay": "float64",
    "norm": "float64",
    "predicted_norm": "float64",
    "step_angle": "float64",
    "epoch_angle": "float64",
    "effective_lr": "float64",
    "effective_lr_epoch": "float64",
    "unit_grad_sq": "float64",
    "adjusted_grad_sq": "float64",
    "radial": "float64",
    "predicted_step_angle": "float64",
    "predicted_epoch_angle": "float64",
    "in_equilibrium": "boolean",
}
_TYPES = {name: pd.api.types.pandas_dtype(kind) for name, kind in SCHEMA.items()}
_EPOCH_COLUMNS = ("epoch", "step")
RECORDS, EPOCHS, RUN = "records.parquet", "epochs.parquet", "run.json"
_PART = "records.part-{:06d}.parquet"
_PARTS = "records.part-*.parquet"


def table(rows: Mapping[str, Any] | pd.DataFrame | None = None) -> pd.DataFrame:
    """A table in the schema; an empty one without `rows`."""
    frame = pd.DataFrame({name: [] for name in SCHEMA} if rows is None else rows, columns=list(SCHEMA))
    # Casts that change nothing would take most of the time.
    casts = {name: kind for (name, kind), dtype in zip(_TYPES.items(), frame.dtypes, strict=True) if dtype != kind}
    return frame.astype(casts) if casts else frame


def join_tables(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """Tables of one run as one.

    A step may come twice, its epoch angle after its other values or a run resumed from an earlier checkpoint: then the
    last value of each column counts.
    """
    whole = pd.concat(tables, ignore_index=True) if tables else table()
    if whole.duplicated(["step", "layer"]).any():
        # An epoch's end is taken after its last step; what that step measured before it moved goes first.
        measured = whole["step_angle"].notna().to_numpy()
        whole = whole.iloc[measured.argsort(kind="stable")]
        whole = table(whole.groupby(["step", "layer"], sort=False, as_index=False).last())
    return whole.sort_values("step", kind="stable", ignore_index=True)


def read(path: str | os.PathLike[str]) -> pd.DataFrame:
    """The records of a run: of its folder, closed or not (parts and merged file alike), or of one Parquet file."""
    place = Path(path)
    if place.is_dir():
        files = [file for file in (place / RECORDS, *sorted(place.glob(_PARTS))) if file.exists()]
    else:
        files = [place] if place.is_file() else []
    if not files:
        raise ArgumentError("path", "a run's folder or a Parquet file of records", str(path), "check the path")
    return join_tables([_read_file(file) for file in files])


def read_epochs(folder: str | os.PathLike[str]) -> pd.DataFrame:
    """The table of epochs (losses, accuracies …) of a run's folder; empty where there is none."""
    file = Path(folder) / EPOCHS
    if not file.exists():
        return pd.DataFrame({"epoch": [], "step": []}, dtype="int64")
    # All bytes at once: pyarrow opens a path twice, and a run under way replaces the file in between.
    epochs = _read_parquet(BytesIO(file.read_bytes()))
    missing = [name for name in _EPOCH_COLUMNS if name not in epochs.columns]
    if missing:
        raise ArgumentError("path", "a run whose epochs can be read", str(file), f"it has no column {missing[0]}")
    return epochs


def read_run(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """What the run's folder has about the run: `name`, `recipe` (fields of a `Recipe`, or None), `layers`."""
    file = Path(folder) / RUN
    return read_json(file, "run.json") if file.exists() else {}


class RunFolder:
    """A sink that keeps a run on disk; every file appears whole or not at all.

    Rows arrive when the monitor flushes, usually at the end of each epoch, and become one part each, so that a killed
    process loses an epoch at most. `close` merges the parts into `records.parquet`. A folder with a run is continued by
    a monitor that resumes from a checkpoint; before one that starts at step 0 its files are put into `earlier-1` …
    Files that cannot be read are renamed to NAME.damaged, with a warning, and are listed in `damaged`.
    """

    def __init__(self, folder: str | os.PathLike[str], *, name: str | None = None) -> None:
        self.folder = Path(folder)
        self.name = name or self.folder.name
        self.folder.mkdir(parents=True, exist_ok=True)
        self._run_before: dict[str, Any] | None = None
        remove_leftovers(self.folder, of_anybody=False)
        self.damaged = self._set_damaged_aside()
        past = read_epochs(self.folder).to_dict("records")
        self._epochs: dict[int, dict[Any, Any]] = {int(row["epoch"]): row for row in past}
        self._changed = False
        #: whether the folder has a run that another monitor recorded
        self._used = any(file.exists() for file in self._files())

    def open(self, run: Mapping[str, Any]) -> None:
        """Write what is known about the run when it starts."""
        try:
            self._run_before = read_run(self.folder) or None
        except ArgumentError:  # damaged, and about to be written again
            self._run_before = None
        write_json(self.folder / RUN, {"name": self.name, **run})

    def __call__(self, rows: pd.DataFrame) -> None:
        """Keep `rows` as the next part."""
        if self._used and rows["step"].min() == 0:
            self._set_aside()
        self._used = False
        numbers = [int(file.stem.rsplit("-", 1)[1]) for file in self.folder.glob(_PARTS)]
        _write(self.folder / _PART.format(max(numbers, default=-1) + 1), rows)

    def clear(self) -> None:
        """Forget what the folder has of a run that is about to be made again."""
        for file in (*self._files(), *self.damaged):
            file.unlink(missing_ok=True)
        self._epochs, self._used, self.damaged = {}, False, []

    def end_epoch(self, row: Mapping[str, Any]) -> None:
        """Take the losses, accuracies … of an epoch; the same epoch again replaces them. `flush` writes them."""
        self._epochs[int(row["epoch"])] = dict(row)
        self._changed = True

    def flush(self) -> None:
        """Write the table of epochs where it has changed."""
        if self._changed:
            rows = [self._epochs[epoch] for epoch in sorted(self._epochs)]
            _write(self.folder / EPOCHS, pd.DataFrame(rows))
            self._changed = False

    def _files(self) -> list[Path]:
        return [self.folder / RECORDS, self.folder / EPOCHS, *sorted(self.folder.glob(_PARTS))]

    @property
    def epochs_kept(self) -> int:
        """Epochs of which the folder has a row."""
        return len(self._epochs)

    def _set_damaged_aside(self) -> list[Path]:
        # Those of a process that died before it could make them again are still damage.
        damaged = sorted(self.folder.glob("*.parquet.damaged"))
        for file in self._files():
            with suppress(FileNotFoundError):  # another rank was faster
                reason = _find_damage(file)
                if reason is None:
                    continue
                damaged.append(file.replace(file.with_name(f"{file.name}.damaged")))
                warnings.warn(
                    f"{file} cannot be read ({reason}) and is now {damaged[-1].name}: what it held is missing from "
                    "this run's records.",
                    stacklevel=3,
                )
        return damaged

    def _set_aside(self) -> None:
        """Two runs in one folder would be read as one."""
        count = 1
        while (place := self.folder / f"earlier-{count}").exists():
            count += 1
        place.mkdir()
        for file in self._files():
            if file.exists():
                file.replace(place / file.name)
        if self._run_before is not None:
            write_json(place / RUN, self._run_before)
        self._epochs = {}
        warnings.warn(
            f"{self.folder} holds another run, and this one starts at step 0: what it holds is now in {place}. "
            "To resume a run, load the monitor's state_dict.",
            stacklevel=2,
        )

    def close(self) -> None:
        """Merge the parts. Killed in between, the folder holds both, which `read` takes for one."""
        self.flush()
        parts = sorted(self.folder.glob(_PARTS))
        if parts:
            _write(self.folder / RECORDS, read(self.folder))
        for part in parts:
            part.unlink()


def _find_damage(file: Path) -> str | None:
    """Why a Parquet file of a run's folder is none; None where it is one. Errors of the disk are raised."""
    content = file.read_bytes()
    try:
        columns = _read_parquet(BytesIO(content)).columns
    except MemoryError:
        raise
    except Exception as error:  # pyarrow raises errors of many types
        return first_line(error)
    needed = _EPOCH_COLUMNS if file.name == EPOCHS else tuple(SCHEMA)
    missing = [name for name in needed if name not in columns]
    return f"it has no column {missing[0]}" if missing else None


def _read_file(file: Path) -> pd.DataFrame:
    try:
        frame = _read_parquet(file)
    except Exception as error:  # pyarrow raises errors of many types
        raise ArgumentError("path", "a Parquet file", str(file), f"{error}".splitlines()[0]) from None
    missing = [name for name in SCHEMA if name not in frame.columns]
    if missing:
        raise ArgumentError("path", "a Parquet file of records", str(file), f"it has no column {missing[0]}")
    return table({name: frame[name] for name in SCHEMA})


def _read_parquet(source: Path | BytesIO) -> pd.DataFrame:
    """A table whose bytes are those that were written, where it was written with checksums."""
    return pd.read_parquet(source, page_checksum_verification=True)


def _write(target: Path, rows: pd.DataFrame) -> None:
    write_whole(target, rows.to_parquet(index=False, write_page_checksum=True))
