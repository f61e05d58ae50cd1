"""`reproduce`: train what the chosen experiments need, each run once, and keep, judge and show what came of it."""

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
from isogon.papers.reproduction._merging import merged
from isogon.papers.reproduction._provenance import Source, command_of, computed_here, how_made, label_text, source_of
from isogon.papers.reproduction._registry import chosen
from isogon.papers.reproduction._results import Reproduction, plain_table, read_reproduction, scales_in, stem_of
from isogon.report import write_exhibits

if TYPE_CHECKING:
    from isogon.lab import RaySettings

#: what is kept of runs, by the experiment's `keep` and the config's key: experiments that keep the same read it once
Kept = dict[tuple[Callable[[Run], pd.DataFrame], str], pd.DataFrame]

#: folders below `out`
RUNS, COMPUTED, RESULTS, EXHIBITS = "runs", "computed", "results", "exhibits"
#: seconds between two drawings of what is still filling; more where drawing takes more than a twentieth of that
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
    """Work out experiments, given by id or themselves, below the folder `out`; what was found, in order.

    `out` gets the runs, `results` (rows and verdicts, by `Reproduction.write`) and `exhibits` (pages, Markdown,
    LaTeX, pictures); both are written while runs end, too. The same call again reads what has ended and goes on with
    the rest. Results of other panels, columns or seeds of an experiment at the same scale stay, and are shown and
    judged together with the new ones, as long as the experiment would still make them so.

    Args:
        engine, device, workers, ray, progress: as in `lab.run_all`; the engine is `lanes` on a GPU and `local` on a
            CPU unless given.
        tell: called with sentences about what had to be left out.
    """
    check_choice("scale", options.scale, SCALES)
    device = device or default_device()
    engine = engine or ("lanes" if device.startswith("cuda") else "local")
    check_choice("engine", engine, ENGINES)
    # Workers that were kept from an earlier call may have been started in another folder.
    place = Path(out).absolute()
    by_id = {one.id: one for one in (chosen([one])[0] if isinstance(one, str) else one for one in wanted)}
    kept: Kept = {}
    works = [
        _Work(one, options, _planned(one, options), command_of(one.id, options, engine=engine, device=device), kept)
        for one in by_id.values()
    ]
    _make_folder(place)
    for work in works:
        work.earlier = _earlier(place / RESULTS, work)
        work.compute(place / COMPUTED)
    configs = {planned.config.key: planned.config for work in works for planned in work.planned}
    ended = {
        key: run
        for key, config in configs.items()
        if (run := Run.read_if_ended(place / RUNS / config.name)) is not None
    }
    told: set[str] = set()

    def tell_once(sentence: str) -> None:
        if sentence not in told:
            told.add(sentence)
            tell(sentence)

    for work in works:
        for sentence in work.missing:
            tell_once(f"{work.experiment.id}: {sentence}")

    def write() -> list[Reproduction]:
        return [_written(work.reproduction(ended, tell_once), place, tell_once) for work in works]

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
    """An experiment under way: what is planned of it, and the rows that are there already."""

    experiment: Experiment
    options: Options
    planned: list[Planned]
    command: str
    kept: Kept
    earlier: Reproduction | None = None
    computed: pd.DataFrame = field(default_factory=pd.DataFrame)
    computation: Source | None = None
    missing: list[str] = field(default_factory=list)

    def compute(self, folder: Path) -> None:
        """Make the rows that come from no training of the lab, or read them where the same code has made them before.

        Where what they need is missing, why is kept instead.
        """
        if self.experiment.compute is None:
            return
        code = code_fingerprint(self.experiment.compute)
        asked_for = hashlib.sha256(repr(self.options).encode()).hexdigest()[:8]
        file = folder / f"{stem_of(self.experiment.id, self.options.scale)}-{asked_for}-{code}.parquet"
        if not file.exists():
            _make_folder(folder)
            try:
                rows = plain_table(self.experiment.compute(replace(self.options, folder=folder)))
            except (UnavailableError, MissingDataError) as error:
                self.missing.append(str(error))
                return
            write_whole(file, rows.to_parquet(compression="zstd", index=False))
        self.computed = pd.read_parquet(file)
        asked = _asked_for(self.options)
        every = self.experiment.plan(Options(scale=self.options.scale)) if asked else ()
        for name, labels in asked.items():
            known = [one.labels[name] for one in every if name in one.labels]
            known += list(self.computed[name]) if name in self.computed else []
            _check_labels(self.experiment, self.options, name, known)
            if name in self.computed:
                wanted = [bool(_places(name, label) & set(labels)) for label in self.computed[name]]
                self.computed = self.computed[wanted].reset_index(drop=True)
        if len(self.computed):
            self.computation = computed_here(self.options, code, self.command, file.stat().st_mtime)

    def reproduction(self, ended: Mapping[str, Run], tell: Callable[[str], None]) -> Reproduction:
        """What there is of it with these runs, by their configs' keys, and with what was found earlier."""
        runs = [(planned, ended.get(planned.config.key)) for planned in self.planned]
        frames = [self._rows(run).assign(**planned.labels) for planned, run in runs if run is not None]
        frames = [frame for frame in (self.computed, *frames) if len(frame)]
        table = plain_table(pd.concat(frames, ignore_index=True)) if frames else pd.DataFrame()
        trained = [source_of(planned.labels, planned.config, run, self.command) for planned, run in runs]
        sources = [*([self.computation] if self.computation else ()), *trained]
        made = how_made(self.command, sources, self.missing)
        new = Reproduction(self.experiment, self.options, table, made, sources)
        if self.earlier is None:
            return new
        whole = merged(new, self.earlier)
        there = {one.place for one in whole.sources}
        lost = [one for one in self.earlier.sources if one.is_training and one.ended_well and one.place not in there]
        if lost:
            tell(f"{len(lost)} earlier trainings of {new.stem}, which the experiment would make otherwise now.")
        return whole

    def _rows(self, run: Run) -> pd.DataFrame:
        keep = self.experiment.keep
        assert keep is not None, f"{self.experiment.id} plans runs and keeps nothing of them"
        if (keep, run.config.key) not in self.kept:
            self.kept[keep, run.config.key] = keep(run)
        return self.kept[keep, run.config.key]


def _planned(experiment: Experiment, options: Options) -> list[Planned]:
    """The trainings that are asked for; panels and columns that the experiment does not have are refused."""
    asked = _asked_for(options)
    if asked and experiment.compute is None:
        every = experiment.plan(Options(scale=options.scale))
        for name in asked:
            _check_labels(experiment, options, name, [one.labels[name] for one in every if name in one.labels])
    return [planned for planned in experiment.plan(options) if _is_wanted(planned, asked)]


def _is_wanted(planned: Planned, asked: Mapping[str, Sequence[str]]) -> bool:
    """A training without such a label belongs to all panels, or to all columns."""
    labels = {name: _places(name, planned.labels[name]) for name in asked if name in planned.labels}
    return all(places & set(asked[name]) for name, places in labels.items())


def _asked_for(options: Options) -> dict[str, tuple[str, ...]]:
    """Labels by the name of their column, where not all are wanted."""
    asked = {"panel": options.panels, "column": options.columns}
    return {name: labels for name, labels in asked.items() if labels is not None}


def _check_labels(experiment: Experiment, options: Options, name: str, labels: Sequence[Label]) -> None:
    """Refuse panels or columns that are not among those with these labels."""
    known = list(dict.fromkeys(place for label in labels for place in sorted(_places(name, label))))
    for asked in _asked_for(options)[name]:
        if asked not in known:
            rule = f"among those of {experiment.id} at scale {options.scale}"
            cure = f"it has {', '.join(known)}" if known else f"it has no {name}s to choose from"
            raise ArgumentError(f"{name}s", rule, asked, cure)


def _places(name: str, label: Label) -> set[str]:
    """What a label stands for: the panel `abc` for the panels a, b and c, which are drawn from the same runs."""
    text = label_text(label)
    return set(text) if name == "panel" and text in ascii_lowercase else {text}


def _earlier(folder: Path, work: _Work) -> Reproduction | None:
    """What the folder has of the experiment at this scale; what cannot be added to is refused, lest it be lost."""
    if work.options.scale not in scales_in(folder, work.experiment.id):
        return None
    found = read_reproduction(folder, work.experiment, work.options.scale)
    if len(found.table) and not found.sources and found.options != work.options:
        rule = "a folder without results of other panels, columns or seeds that do not tell where they come from"
        raise ArgumentError("out", rule, str(folder / found.stem), "move those away")
    return found


def _written(reproduction: Reproduction, place: Path, tell: Callable[[str], None]) -> Reproduction:
    reproduction.write(place / RESULTS)
    write_exhibits(reproduction.showing, place / EXHIBITS, reproduction.stem, tell=tell)
    return reproduction


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError("out", "a folder we can make", str(folder), first_line(error)) from None
