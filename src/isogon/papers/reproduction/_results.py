"""`Reproduction`: the rows of an experiment, the verdict on them, and how they were made.

It is saved in three files: the rows in Parquet, the facts for people in JSON, and in CSV one line per training or
computation behind it, with the command that made it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from isogon.errors import ArgumentError, first_line
from isogon.files import write_json, write_whole
from isogon.papers.reproduction._experiment import SCALES, Experiment, Judgement, Options, Scale
from isogon.papers.reproduction._provenance import Source, label_text
from isogon.report import Exhibit, Showing


@dataclass(frozen=True, eq=False)
class Reproduction:
    """The result of an experiment.

    `made` says how it was made, as the JSON file has it (see `provenance_of`); `sources` say the same one by one.
    """

    experiment: Experiment
    options: Options
    table: pd.DataFrame
    made: Mapping[str, Any]
    sources: Sequence[Source] = ()

    @property
    def stem(self) -> str:
        """The stem of its files' names."""
        return stem_of(self.experiment.id, self.options.scale)

    @property
    def waiting(self) -> int:
        """Runs that have not ended."""
        runs = self.made["runs"]
        return int(runs["planned"] - sum(count for status, count in runs.items() if status != "planned"))

    @property
    def missing(self) -> Sequence[str]:
        """Sentences about what could not be computed here."""
        sentences: Sequence[str] = self.made.get("missing", ())
        return sentences

    @cached_property
    def judgement(self) -> Judgement:
        """The verdict; undecided before all runs have ended."""
        if self.waiting:
            planned = self.made["runs"]["planned"]
            return Judgement("undecided", f"Only {planned - self.waiting} of {planned} runs have ended.")
        if self.table.empty:
            reasons = [*self.missing, self.experiment.unavailable or "There are no rows to judge."]
            return Judgement("not run", reasons[0])
        return self.experiment.judge(self.table)

    @cached_property
    def exhibits(self) -> Sequence[Exhibit]:
        if self.table.empty:
            return ()
        try:
            return self.experiment.show(self.table)
        except Exception:
            if self.waiting:  # a figure may need runs that have not ended
                return ()
            raise

    def to_dict(self) -> dict[str, Any]:
        """The content of the JSON file."""
        judgement = self.judgement
        numbers = {name: float(value) if math.isfinite(value) else None for name, value in judgement.numbers.items()}
        return {
            "id": self.experiment.id,
            "title": self.experiment.title,
            "claim": self.experiment.claim,
            "verdict": judgement.verdict,
            "sentence": judgement.sentence,
            "numbers": numbers,
            "scale": self.options.scale,
            "panels": self.options.panels,
            "columns": self.options.columns,
            "seed_count": self.options.seeds,
            **self.made,
            "choices": list(self.experiment.choices),
            "unavailable": self.experiment.unavailable,
        }

    def write(self, folder: str | os.PathLike[str]) -> Path:
        """Write the files; returns that of the rows."""
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        rows = place / f"{self.stem}.parquet"
        write_whole(rows, self.table.to_parquet(compression="zstd", index=False))
        columns = [field.name for field in fields(Source)]
        sources = pd.DataFrame([asdict(source) for source in self.sources], columns=columns)
        write_whole(place / f"{self.stem}.csv", sources.to_csv(index=False))
        write_json(place / f"{self.stem}.json", self.to_dict())
        return rows

    @property
    def showing(self) -> Showing:
        judgement, experiment = self.judgement, self.experiment
        unavailable = [] if experiment.unavailable is None else [f"At paper scale: {experiment.unavailable}"]
        return Showing(
            id=experiment.id,
            title=experiment.title,
            claim=experiment.claim,
            verdict=judgement.verdict,
            sentence=judgement.sentence,
            exhibits=self.exhibits,
            numbers=judgement.numbers,
            notes=[*experiment.choices, *unavailable, *(f"Left out: {sentence}" for sentence in self.missing)],
            made={"scale": self.options.scale, **provenance_texts(self.made)},
        )


def provenance_texts(made: Mapping[str, Any]) -> dict[str, str]:
    """How a result was made, for people."""
    runs = dict(made["runs"])
    planned = runs.pop("planned")
    ended = ", ".join(f"{count} {status}" for status, count in runs.items() if count)
    texts = {
        "command": made["command"],
        "runs": f"{planned} ({ended})" if ended else f"{planned}",
        "seeds": ", ".join(map(str, made["seeds"])),
        "training": f"{made['images']:,} images in {made['seconds']:,.0f} s" if made["images"] else "",
        "hardware": ", ".join(made["hardware"]),
        "versions": ", ".join(made["versions"]),
        "date": made["date"],
    }
    errors = {f"{name} failed": error for name, error in made["errors"].items()}
    return {name: value for name, value in (texts | errors).items() if value}


def stem_of(identity: str, scale: Scale) -> str:
    return f"{identity.replace('/', '-')}.{scale}"


def scales_in(folder: str | os.PathLike[str], identity: str) -> list[Scale]:
    """The scales at which the folder has results of an experiment."""
    return [scale for scale in SCALES if (Path(folder) / f"{stem_of(identity, scale)}.json").exists()]


def read_reproduction(folder: str | os.PathLike[str], experiment: Experiment, scale: Scale) -> Reproduction:
    """What `Reproduction.write` saved in the folder; the verdict is made again from the rows."""
    place = Path(folder) / stem_of(experiment.id, scale)
    try:
        content = json.loads(Path(f"{place}.json").read_text(encoding="utf-8"))
        table = pd.read_parquet(f"{place}.parquet")
        sources = _read_sources(Path(f"{place}.csv"))
        panels, columns = (None if content[name] is None else tuple(content[name]) for name in ("panels", "columns"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        cure = f"{first_line(error)}; remove its files to make it again"
        raise ArgumentError("results", "a result that can be read", str(place), cure) from None
    names = ("command", "date", "hardware", "versions", "seeds", "runs", "images", "seconds", "errors", "missing")
    return Reproduction(
        experiment,
        Options(scale=scale, panels=panels, columns=columns, seeds=content["seed_count"]),
        table,
        {name: content[name] for name in names if name in content},
        sources,
    )


def _read_sources(file: Path) -> tuple[Source, ...]:
    if not file.exists():
        return ()
    texts = pd.read_csv(file, dtype=str, keep_default_na=False)
    rows = texts.astype({"seed": int, "images": int, "seconds": float}).to_dict("records")
    return tuple(Source(**{str(name): value for name, value in row.items()}) for row in rows)


def plain_table(table: pd.DataFrame) -> pd.DataFrame:
    """A table that a file gives back unchanged: labels of several kinds in one column become texts."""
    mixed = [name for name in table.columns if pd.api.types.infer_dtype(table[name]).startswith("mixed")]
    return table.assign(**{name: [label_text(value) for value in table[name]] for name in mixed})
