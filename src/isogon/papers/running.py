"""`reproduce`: train what the chosen experiments need, each run once, and keep, judge and show what came of it."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any

import pandas as pd

from isogon.errors import ArgumentError, check_choice, first_line
from isogon.lab import Config, Run, run_all
from isogon.lab.checkpoints import write_whole
from isogon.lab.pools import ENGINES, Engine
from isogon.lab.runs import RESULT
from isogon.lab.training import default_device
from isogon.papers.experiment import SCALES, Experiment, Label, Options, Planned
from isogon.papers.provenance import command_of, how_made
from isogon.papers.registry import chosen
from isogon.papers.results import Finding, stem_of
from isogon.report.exhibit_files import write_exhibits

if TYPE_CHECKING:
    from isogon.lab import RaySettings

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
) -> list[Finding]:
    """Work out experiments, given by id or themselves, below the folder `out`; what was found, in order.

    `out` gets the runs, `results` (rows and verdicts, as `Finding.write` keeps them) and `exhibits` (pages, Markdown,
    LaTeX, pictures); both are written while runs end, too. The same call again reads what has ended and goes on with
    the rest. Results of the same experiment at the same scale are replaced, whatever panels and columns they had.

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
    works = [
        _Work(one, options, _planned(one, options), command_of(one.id, options, engine=engine, device=device))
        for one in by_id.values()
    ]
    _make_folder(place)
    for work in works:
        work.compute(place / COMPUTED)
    configs = {planned.config.key: planned.config for work in works for planned in work.planned}
    ended = {
        key: Run.read(place / RUNS / config.name)
        for key, config in configs.items()
        if (place / RUNS / config.name / RESULT).exists()
    }
    told: set[str] = set()

    def tell_once(sentence: str) -> None:
        if sentence not in told:
            told.add(sentence)
            tell(sentence)

    def write() -> list[Finding]:
        return [_written(work.finding(ended), place, tell_once) for work in works]

    due = time.monotonic() + PARTIAL_EVERY

    def news(kind: str, config: Config, content: Any) -> None:
        nonlocal due
        folder = place / RUNS / config.name
        if kind == "ended":
            ended[config.key] = Run.read(folder)
        elif kind == "failed":
            ended[config.key] = Run(config, "failed", pd.DataFrame(), folder=folder, error=content)
        else:
            return
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
    computed: pd.DataFrame = field(default_factory=pd.DataFrame)
    kept: dict[str, pd.DataFrame] = field(default_factory=dict)

    def compute(self, folder: Path) -> None:
        """Make the rows that come from no training of the lab, or read them where an earlier call has made them."""
        if self.experiment.compute is None:
            return
        fingerprint = hashlib.sha256(repr(self.options).encode()).hexdigest()[:8]
        file = folder / f"{stem_of(self.experiment.id, self.options.scale)}-{fingerprint}.parquet"
        if not file.exists():
            _make_folder(folder)
            rows = _plain(self.experiment.compute(self.options))
            write_whole(file, lambda target: rows.to_parquet(target, compression="zstd", index=False))
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

    def finding(self, ended: Mapping[str, Run]) -> Finding:
        """What there is of it with these runs, by their configs' keys."""
        there = [planned for planned in self.planned if planned.config.key in ended]
        frames = [self._rows(ended[planned.config.key]).assign(**planned.labels) for planned in there]
        frames = [frame for frame in (self.computed, *frames) if len(frame)]
        table = _plain(pd.concat(frames, ignore_index=True)) if frames else pd.DataFrame()
        runs = list({planned.config.key: ended[planned.config.key] for planned in there}.values())
        planned = len({planned.config.key for planned in self.planned})
        return Finding(self.experiment, self.options, table, how_made(self.command, runs, planned))

    def _rows(self, run: Run) -> pd.DataFrame:
        if run.config.key not in self.kept:
            assert self.experiment.keep is not None, f"{self.experiment.id} plans runs and keeps nothing of them"
            self.kept[run.config.key] = self.experiment.keep(run)
        return self.kept[run.config.key]


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
    text = _named(label)
    return set(text) if name == "panel" and text in ascii_lowercase else {text}


def _named(label: Label) -> str:
    """A label as people write it: 3125.0 is 3125."""
    return f"{label:g}" if isinstance(label, float) else str(label)


def _plain(table: pd.DataFrame) -> pd.DataFrame:
    """A table that is the same when it comes back from a file: labels of several kinds in one column become texts."""
    mixed = [name for name in table.columns if pd.api.types.infer_dtype(table[name]).startswith("mixed")]
    return table.assign(**{name: [_named(value) for value in table[name]] for name in mixed})


def _written(finding: Finding, place: Path, tell: Callable[[str], None]) -> Finding:
    finding.write(place / RESULTS)
    write_exhibits(finding.showing, place / EXHIBITS, finding.stem, tell=tell)
    return finding


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError("out", "a folder we can make", str(folder), first_line(error)) from None
