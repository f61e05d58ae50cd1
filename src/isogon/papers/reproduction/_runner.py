"""`reproduce`: train what the chosen experiments need, each run once, and keep, judge and show the results."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from string import ascii_lowercase
from typing import TYPE_CHECKING

import pandas as pd

from isogon.errors import ArgumentError, check_choice, first_line
from isogon.files import write_whole
from isogon.lab import (
    ENGINES,
    Engine,
    MissingDataError,
    Run,
    TrainingEnded,
    TrainingEpoch,
    default_device,
    run_all,
)
from isogon.papers.reproduction._experiment import SCALES, Experiment, Label, Options, Planned, UnavailableError
from isogon.papers.reproduction._fingerprint import code_fingerprint
from isogon.papers.reproduction._merging import merge
from isogon.papers.reproduction._provenance import (
    Source,
    command_of,
    computation_source,
    label_text,
    provenance_of,
    source_of,
)
from isogon.papers.reproduction._registry import find_experiments
from isogon.papers.reproduction._results import Reproduction, plain_table, read_reproduction, scales_in, stem_of
from isogon.report import write_exhibits

if TYPE_CHECKING:
    from isogon.lab import RaySettings

#: rows of runs by the experiment's `keep` and the config's key: experiments with the same `keep` read a run once
RowsOfRuns = dict[tuple[Callable[[Run], pd.DataFrame], str], pd.DataFrame]

#: folders below `out`
RUNS, COMPUTED, RESULTS, EXHIBITS = "runs", "computed", "results", "exhibits"
#: seconds between two drawings of unfinished results; more if drawing takes more than a twentieth of that
PARTIAL_EVERY = 300.0


def reproduce(
    wanted: Sequence[str | Experiment],
    options: Options = Options(),
    *,
    out: str | os.PathLike[str] = "reproduction",
    engine: Engine | None = None,
    device: str | None = None,
    workers: int | None = None,
    ray: RaySettings | None = None,
    progress: bool = True,
    tell: Callable[[str], None] = lambda sentence: None,
) -> list[Reproduction]:
    """Run experiments, given by id or as objects, below the folder `out`; returns their reproductions in order.

    `out` gets the runs, `results` (rows and verdicts, by `Reproduction.write`) and `exhibits` (pages, Markdown,
    LaTeX, pictures); the last two are also written while runs end. The same call again reads the ended runs and resumes
    the rest. Earlier results of other panels, columns or seeds at the same scale stay, and are shown and judged
    together with the new ones, as long as the experiment would still make them in the same way.

    Args:
        engine, device, workers, ray, progress: as in `lab.run_all`; the engine is `lanes` on a GPU and `local` on a
            CPU unless given.
        tell: called with sentences about what is left out.
    """
    check_choice("scale", options.scale, SCALES)
    device = device or default_device()
    engine = engine or ("lanes" if device.startswith("cuda") else "local")
    check_choice("engine", engine, ENGINES)
    # Workers left from an earlier call may have been started in another folder.
    place = Path(out).absolute()
    chosen = [find_experiments([item])[0] if isinstance(item, str) else item for item in wanted]
    rows_of_runs: RowsOfRuns = {}
    works = [
        _Work(
            experiment,
            options,
            _plan(experiment, options),
            command_of(experiment.id, options, engine=engine, device=device),
            rows_of_runs,
        )
        for experiment in {experiment.id: experiment for experiment in chosen}.values()
    ]
    _make_folder(place)
    for work in works:
        work.earlier = _read_earlier(place / RESULTS, work)
        work.compute(place / COMPUTED)
    configs = {planned.config.key: planned.config for work in works for planned in work.planned}
    ended = {
        key: run
        for key, config in configs.items()
        if (run := Run.read_if_ended(place / RUNS / config.name)) is not None
    }
    reported: set[str] = set()

    def tell_once(sentence: str) -> None:
        if sentence not in reported:
            reported.add(sentence)
            tell(sentence)

    for work in works:
        for sentence in work.missing:
            tell_once(f"{work.experiment.id}: {sentence}")

    def write() -> list[Reproduction]:
        return [_write(work.reproduction(ended, tell_once), place, tell_once) for work in works]

    due = time.monotonic() + PARTIAL_EVERY

    def news(event: TrainingEpoch | TrainingEnded) -> None:
        nonlocal due
        if isinstance(event, TrainingEpoch):
            return
        ended[event.config.key] = event.run
        start = time.monotonic()
        if start >= due:
            write()
            end = time.monotonic()
            due = end + max(PARTIAL_EVERY, 20 * (end - start))

    try:
        run_all(
            list(configs.values()),
            engine,
            place / RUNS,
            workers=workers,
            device=device,
            progress=progress,
            news=news,
            ray=ray,
        )
    except KeyboardInterrupt:
        write()
        raise
    return write()


@dataclass
class _Work:
    """An experiment while it runs: its planned trainings, and the rows that exist already."""

    experiment: Experiment
    options: Options
    planned: list[Planned]
    command: str
    rows_of_runs: RowsOfRuns
    earlier: Reproduction | None = None
    computed: pd.DataFrame = field(default_factory=pd.DataFrame)
    computation: Source | None = None
    missing: list[str] = field(default_factory=list)

    def compute(self, folder: Path) -> None:
        """Make the rows that need no training, or read them if the same code has made them before.

        If something they need is missing, `missing` gets the reason.
        """
        if self.experiment.compute is None:
            return
        code = code_fingerprint(self.experiment.compute)
        options_key = hashlib.sha256(repr(self.options).encode()).hexdigest()[:8]
        file = folder / f"{stem_of(self.experiment.id, self.options.scale)}-{options_key}-{code}.parquet"
        if not file.exists():
            _make_folder(folder)
            try:
                rows = plain_table(self.experiment.compute(replace(self.options, folder=folder)))
            except (UnavailableError, MissingDataError) as error:
                self.missing.append(str(error))
                return
            write_whole(file, rows.to_parquet(compression="zstd", index=False))
        self.computed = pd.read_parquet(file)
        selection = _selection(self.options)
        every = self.experiment.plan(Options(scale=self.options.scale)) if selection else ()
        for name, labels in selection.items():
            known = [planned.labels[name] for planned in every if name in planned.labels]
            known += list(self.computed[name]) if name in self.computed else []
            _check_labels(self.experiment, self.options, name, known)
            if name in self.computed:
                mask = [bool(_places(name, label) & set(labels)) for label in self.computed[name]]
                self.computed = self.computed[mask].reset_index(drop=True)
        if len(self.computed):
            self.computation = computation_source(self.options, code, self.command, file.stat().st_mtime)

    def reproduction(self, ended: Mapping[str, Run], tell: Callable[[str], None]) -> Reproduction:
        """The result with these runs, by their configs' keys, merged with the earlier one."""
        runs = [(planned, ended.get(planned.config.key)) for planned in self.planned]
        frames = [self._rows(run).assign(**planned.labels) for planned, run in runs if run is not None]
        frames = [frame for frame in (self.computed, *frames) if len(frame)]
        table = plain_table(pd.concat(frames, ignore_index=True)) if frames else pd.DataFrame()
        trained = [source_of(planned.labels, planned.config, run, self.command) for planned, run in runs]
        sources = [*([self.computation] if self.computation else ()), *trained]
        made = provenance_of(self.command, sources, self.missing)
        new = Reproduction(self.experiment, self.options, table, made, sources)
        if self.earlier is None:
            return new
        whole = merge(new, self.earlier)
        places = {source.place for source in whole.sources}
        lost = [
            source
            for source in self.earlier.sources
            if source.is_training and source.ended_well and source.place not in places
        ]
        if lost:
            tell(f"{len(lost)} earlier trainings of {new.stem}: the experiment would now make them differently.")
        return whole

    def _rows(self, run: Run) -> pd.DataFrame:
        keep = self.experiment.keep
        assert keep is not None, f"{self.experiment.id} plans runs and keeps nothing of them"
        if (keep, run.config.key) not in self.rows_of_runs:
            self.rows_of_runs[keep, run.config.key] = keep(run)
        return self.rows_of_runs[keep, run.config.key]


def _plan(experiment: Experiment, options: Options) -> list[Planned]:
    """The trainings of these options; panels and columns that the experiment does not have are refused."""
    selection = _selection(options)
    if selection and experiment.compute is None:
        every = experiment.plan(Options(scale=options.scale))
        for name in selection:
            known = [planned.labels[name] for planned in every if name in planned.labels]
            _check_labels(experiment, options, name, known)
    return [planned for planned in experiment.plan(options) if _is_selected(planned, selection)]


def _is_selected(planned: Planned, selection: Mapping[str, Sequence[str]]) -> bool:
    """A training without such a label belongs to all panels, or to all columns."""
    labels = {name: _places(name, planned.labels[name]) for name in selection if name in planned.labels}
    return all(places & set(selection[name]) for name, places in labels.items())


def _selection(options: Options) -> dict[str, tuple[str, ...]]:
    """The selected labels by the name of their column, if not all are selected."""
    labels_by_name = {"panel": options.panels, "column": options.columns}
    return {name: labels for name, labels in labels_by_name.items() if labels is not None}


def _check_labels(experiment: Experiment, options: Options, name: str, labels: Sequence[Label]) -> None:
    """Refuse panels or columns that are not among those with these labels."""
    known = list(dict.fromkeys(place for label in labels for place in sorted(_places(name, label))))
    for label in _selection(options)[name]:
        if label not in known:
            rule = f"among those of {experiment.id} at scale {options.scale}"
            cure = f"it has {', '.join(known)}" if known else f"it has no {name}s to choose from"
            raise ArgumentError(f"{name}s", rule, label, cure)


def _places(name: str, label: Label) -> set[str]:
    """What a label stands for: the panel `abc` for the panels a, b and c, which are drawn from the same runs."""
    text = label_text(label)
    return set(text) if name == "panel" and text in ascii_lowercase else {text}


def _read_earlier(folder: Path, work: _Work) -> Reproduction | None:
    """The folder's result of the experiment at this scale; refuse one that cannot be added to, so it is not lost."""
    if work.options.scale not in scales_in(folder, work.experiment.id):
        return None
    earlier = read_reproduction(folder, work.experiment, work.options.scale)
    if len(earlier.table) and not earlier.sources and earlier.options != work.options:
        rule = "a folder whose results of other panels, columns or seeds say where they come from"
        raise ArgumentError("out", rule, str(folder / earlier.stem), "move those away")
    return earlier


def _write(reproduction: Reproduction, place: Path, tell: Callable[[str], None]) -> Reproduction:
    reproduction.write(place / RESULTS)
    write_exhibits(reproduction.showing, place / EXHIBITS, reproduction.stem, tell=tell)
    return reproduction


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError("out", "a folder we can make", str(folder), first_line(error)) from None
