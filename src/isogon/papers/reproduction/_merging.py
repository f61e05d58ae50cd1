"""`merge`: a result of some panels, columns or seeds added to the earlier result of the others."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import pandas as pd

from isogon.papers.reproduction._experiment import Options
from isogon.papers.reproduction._fingerprint import code_fingerprint
from isogon.papers.reproduction._provenance import Source, place_of, provenance_of
from isogon.papers.reproduction._results import Reproduction, plain_table

#: the columns that distinguish the rows of different calls of `compute`
_LABELS = ("panel", "column", "seed")


def merge(new: Reproduction, old: Reproduction) -> Reproduction:
    """The rows of `new`, and those of `old` that `new` has nothing for; both are of one experiment and scale.

    Old rows stay if the experiment would make them again in the same way: by the same training, or by the same code.
    This includes rows of a training that is running again or failed this time: nothing is lost before it is replaced.
    """
    every = new.experiment.plan(Options(new.options.scale, seeds=1 + max(_seeds(new) | _seeds(old), default=0)))
    names = sorted({name for planned in every for name in planned.labels})
    keys = {place_of(planned.labels): planned.config.name for planned in every}
    fresh = {source.place: source for source in new.sources if source.is_training}
    valid = {
        source.place: source
        for source in old.sources
        if source.is_training and source.ended_well and keys.get(source.place) == source.key
    }
    stay = {place for place in valid if place not in fresh or not fresh[place].ended_well}
    sources = [
        replace(valid[place], error=fresh[place].error if place in fresh else "") if place in stay else fresh[place]
        for place in dict.fromkeys([*keys, *fresh])
        if place in stay or place in fresh
    ]
    old_rows, old_computed = _by_place(old.table, names, {source.place for source in old.sources})
    new_rows, new_computed = _by_place(new.table, names, set(fresh))
    frames = [old_rows.get(source.place) if source.place in stay else new_rows.get(source.place) for source in sources]
    computations = [source for source in new.sources if not source.is_training]
    others = _valid_computations(new, old, computations)
    old_computed = _rows_without(old_computed, new_computed) if others else old_computed.iloc[:0]
    computed = [*(others if len(old_computed) else ()), *computations]
    table = _join([old_computed, new_computed, *(frame for frame in frames if frame is not None)])
    missing = () if len(old_computed) or len(new_computed) else new.made["missing"]
    options = _join_options(old.options, new.options)
    made = provenance_of(new.made["command"], [*computed, *sources], missing)
    return Reproduction(new.experiment, options, table, made, (*computed, *sources))


def _seeds(reproduction: Reproduction) -> set[int]:
    return {source.seed for source in reproduction.sources}


def _valid_computations(new: Reproduction, old: Reproduction, repeated: Collection[Source]) -> list[Source]:
    """The calls of `compute` behind `old` whose code is still the same, without those that `new` has repeated."""
    compute = new.experiment.compute
    if compute is None:
        return []
    code, again = code_fingerprint(compute), {source.place for source in repeated}
    return [
        source for source in old.sources if not source.is_training and source.key == code and source.place not in again
    ]


def _by_place(
    table: pd.DataFrame, names: Sequence[str], places: Collection[str]
) -> tuple[dict[str, pd.DataFrame], pd.DataFrame]:
    """The rows of each training, by its place, and those of none."""
    columns = [name for name in names if name in table]
    if not columns or table.empty:
        return {}, table
    texts = pd.Series("", index=table.index)
    for labels, rows in table.groupby(columns, dropna=False, sort=False):
        texts[rows.index] = place_of(dict(zip(columns, labels, strict=True)))
    trained = texts.isin(places)
    return {str(place): rows for place, rows in table[trained].groupby(texts[trained])}, table[~trained]


def _rows_without(rows: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """The rows whose panel, column and seed do not occur in `others`."""
    columns = [name for name in _LABELS if name in rows and name in others]
    if not columns:
        return rows.iloc[:0] if len(others) else rows

    def places(table: pd.DataFrame) -> list[str]:
        return [place_of(dict(zip(columns, row, strict=True))) for row in table[columns].itertuples(index=False)]

    excluded = set(places(others))
    return rows[[place not in excluded for place in places(rows)]]


def _join(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    filled = [frame for frame in frames if len(frame)]
    return plain_table(pd.concat(filled, ignore_index=True)) if filled else pd.DataFrame()


def _join_options(old: Options, new: Options) -> Options:
    """What either asked for; None stands for all."""
    old_seeds, new_seeds = old.seeds_from_0, new.seeds_from_0
    seeds = None if old_seeds is None or new_seeds is None else max(old_seeds, new_seeds)
    return Options(new.scale, _union(old.panels, new.panels), _union(old.columns, new.columns), seeds)


def _union(old: tuple[str, ...] | None, new: tuple[str, ...] | None) -> tuple[str, ...] | None:
    return None if old is None or new is None else tuple(dict.fromkeys((*old, *new)))
