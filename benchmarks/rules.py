"""Score every rule for changing learning rate or weight decay on sweeps that others have published.

    python benchmarks/rules.py [--steplaw FOLDER] [--json FILE]

A sweep is one column of trainings that differ in one rate alone. From the best rate of one sweep a rule names the rate
for another one, which has another batch size, other data or another model; its miss is the distance from that sweep's
own best in octaves (factors of 2), its regret what the missed rate costs. Sweeps whose best lies at their edge count
for nothing, and how many these are is printed.

Yun et al.'s printed tables come with isogon. FOLDER holds steplaw_dense.csv and steplaw_moe.csv, the 2,619 language
models of StepLaw (arXiv 2503.04715) as their authors publish them; their weight decay is 0.1 throughout, so that they
judge rules about the learning rate alone.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from isogon import Recipe

#: tokens of a sequence in StepLaw's trainings
STEPLAW_LENGTH = 2048
#: accuracy in percent that a diverged training is given: that of a guess among ten classes
GUESS = 10.0


@dataclass(frozen=True)
class Place:
    """Where a rate is used: batch size, training samples (or tokens) and parameters, in any one unit each."""

    batch: float
    data: float
    parameters: float = 1.0


@dataclass(frozen=True)
class Rule:
    """A rate proportional to batch^b · data^d · parameters^p."""

    name: str
    batch: float = 0.0
    data: float = 0.0
    parameters: float = 0.0

    def octaves(self, old: Place, new: Place) -> float:
        """By how many factors of 2 the rate is to grow from `old` to `new`.

        >>> Rule("constant F", batch=1, data=-1).octaves(Place(128, 3_000), Place(512, 6_000))
        1.0
        """
        return (
            self.batch * math.log2(new.batch / old.batch)
            + self.data * math.log2(new.data / old.data)
            + self.parameters * math.log2(new.parameters / old.parameters)
        )


#: what people do with the learning rate, weight decay kept
LR_RULES = (
    Rule("keep lr"),
    Rule("lr ∝ B (linear; constant timescale in samples)", batch=1),
    Rule("lr ∝ √B", batch=0.5),
    Rule("constant F by lr", batch=1, data=-1),
    Rule("horizon by lr (F ∝ √D)", batch=1, data=-0.5),
    Rule("StepLaw's published fit", data=0.307, parameters=-0.713),
)
#: what they do with weight decay, the learning rate kept
DECAY_RULES = (
    Rule("keep λ"),
    Rule("λ ∝ B (constant timescale in samples)", batch=1),
    Rule("λ ∝ √B", batch=0.5),
    Rule("constant F by λ", batch=1, data=-1),
    Rule("horizon by λ (F ∝ √D)", batch=1, data=-0.5),
)


@dataclass(frozen=True)
class Sweep:
    """Trainings that differ in one rate: its logarithms to base 2, ascending, and what each costs (less is better)."""

    place: Place
    rates: tuple[float, ...]
    costs: tuple[float, ...]

    @property
    def best(self) -> float | None:
        """The top of the parabola through the best rate and its neighbours; None where the best is at an edge.

        >>> round(Sweep(Place(1, 1), (0.0, 1.0, 2.0, 3.0), (4.0, 1.0, 0.0, 1.0)).best, 6)
        2.0
        """
        place = int(np.argmin(self.costs))
        if not 0 < place < len(self.rates) - 1:
            return None
        x, y = np.array(self.rates[place - 1 : place + 2]), np.array(self.costs[place - 1 : place + 2])
        curve, slope, _ = np.polyfit(x - x[1], y, 2)
        return float(x[1] if curve <= 0 else x[1] + np.clip(-slope / (2 * curve), x[0] - x[1], x[2] - x[1]))

    def regret(self, rate: float) -> float:
        """What a rate costs beyond the best one of the sweep; outside of it at least what its end costs."""
        return float(np.interp(rate, self.rates, self.costs)) - min(self.costs)


@dataclass(frozen=True)
class Score:
    """How a rule did over some changes; octaves and regrets are its misses."""

    rule: str
    octaves: tuple[float, ...]
    regrets: tuple[float, ...]

    def summary(self) -> dict[str, float]:
        """Median miss in octaves, the share within a factor 2, the factor that holds 90 %, mean and median regret."""
        misses = np.abs(self.octaves)
        return {
            "median_octaves": float(np.median(misses)),
            "within_2": float(np.mean(misses <= 1)),
            "factor_of_90": float(2 ** np.quantile(misses, 0.9)),
            "mean_octaves": float(np.mean(self.octaves)),
            "median_regret": float(np.median(self.regrets)),
            "mean_regret": float(np.mean(self.regrets)),
        }


Family = Sequence[Sweep]
Change = tuple[Sweep, Sweep]


def changes(families: Iterable[Family], *, among: Callable[[Place, Place], bool]) -> Iterator[Change]:
    """Every ordered pair of sweeps of one family that differ as `among` says and whose best is no edge."""
    for family in families:
        usable = [sweep for sweep in family if sweep.best is not None]
        for old, new in itertools.permutations(usable, 2):
            if among(old.place, new.place):
                yield old, new


def score(rule: Rule, pairs: Sequence[Change]) -> Score:
    """What `rule` makes of these changes."""
    octaves, regrets = [], []
    for old, new in pairs:
        assert old.best is not None
        assert new.best is not None
        rate = old.best + rule.octaves(old.place, new.place)
        octaves.append(rate - new.best)
        regrets.append(new.regret(rate))
    return Score(rule.name, tuple(octaves), tuple(regrets))


def fit(sweeps: Iterable[Sweep]) -> Rule:
    """The power law through the bests of these sweeps, by least squares."""
    usable = [sweep for sweep in sweeps if sweep.best is not None]
    logs = np.log2([[s.place.batch, s.place.data, s.place.parameters] for s in usable])
    solution, *_ = np.linalg.lstsq(np.column_stack([logs, np.ones(len(logs))]), [s.best for s in usable], rcond=None)
    return Rule("fitted", *(float(power) for power in solution[:3]))


def score_left_out(families: Sequence[Family], pairs: Sequence[Change]) -> Score:
    """What a fitted power law makes of the changes of each size of model that it was not fitted to."""
    octaves: list[float] = []
    regrets: list[float] = []
    sweeps = [sweep for family in families for sweep in family]
    for size in sorted({sweep.place.parameters for sweep in sweeps}):
        chosen = [pair for pair in pairs if pair[1].place.parameters == size]
        if chosen:
            of_size = score(fit(sweep for sweep in sweeps if sweep.place.parameters != size), chosen)
            octaves += of_size.octaves
            regrets += of_size.regrets
    return Score("fitted to the other sizes, lr ∝ B^b D^d N^p", tuple(octaves), tuple(regrets))


def batch_changes(old: Place, new: Place) -> bool:
    return old.batch != new.batch and (old.data, old.parameters) == (new.data, new.parameters)


def data_changes(old: Place, new: Place) -> bool:
    return old.data != new.data and (old.batch, old.parameters) == (new.batch, new.parameters)


def size_changes(old: Place, new: Place) -> bool:
    """Another model at the same batch, with data in proportion to its parameters."""
    ratio = (new.data / new.parameters) / (old.data / old.parameters)
    return old.parameters != new.parameters and old.batch == new.batch and abs(math.log(ratio)) < 0.05


KINDS = {"batch": batch_changes, "data": data_changes, "model size": size_changes}


def steplaw_sweeps(file: Path) -> list[Sweep]:
    """One sweep over the learning rate per model, horizon and batch; parameters are those active for a token."""
    trainings: dict[tuple[float, float, float], dict[float, float]] = defaultdict(dict)
    with file.open(newline="") as lines:
        for row in csv.DictReader(lines):
            place = float(row["bs"]), float(row["D"]), float(row.get("Na") or row["N"])
            trainings[place][math.log2(float(row["lr"]))] = float(row["smooth loss"])
    sweeps = []
    for (batch, data, parameters), costs in sorted(trainings.items()):
        rates = sorted(costs)
        if len(rates) >= 5:
            sweeps.append(Sweep(Place(batch, data, parameters), tuple(rates), tuple(costs[rate] for rate in rates)))
    return sweeps


def yun_tables(rate: str) -> dict[str, list[Sweep]]:
    """Yun et al.'s panels in which `rate` (lr or weight_decay) alone is swept, by the number of their table."""
    text = (files("isogon") / "papers" / "printed" / "yun_tables.csv").read_text(encoding="utf-8")
    panel = {"lr": "a", "weight_decay": "b"}[rate]
    columns: dict[tuple[str, float, float], dict[float, float]] = defaultdict(dict)
    for row in csv.DictReader(text.splitlines()):
        if row["panel"] == panel and row["table"] != "5":
            key = row["table"], float(row["batch_size"]), float(row["samples"])
            columns[key][math.log2(float(row[rate]))] = 100 - float(row["accuracy"] or GUESS)
    tables: dict[str, list[Sweep]] = defaultdict(list)
    for (table, batch, samples), costs in columns.items():
        rates = sorted(costs)
        tables[table].append(Sweep(Place(batch, samples), tuple(rates), tuple(costs[rate] for rate in rates)))
    return tables


def kind_of(sweeps: Family) -> str:
    """Whether the data or the batch size changes over a table of Yun et al."""
    return "data" if len({sweep.place.data for sweep in sweeps}) > 1 else "batch"


Intervals = Callable[[Sweep, Sweep], tuple[float, float]]


def transfer_of(solve: str, optimizer: str, table: str) -> Intervals:
    """The interval, as logarithms to base 2, that `Recipe.transfer` prints from the best of one sweep to another.

    Yun et al.'s tables 2 and 4 are of SGD without momentum. What is not swept has any value: it cancels.
    """
    momentum = 0.0 if table in ("2", "4") else 0.9
    epochs = 1 if optimizer == "adamw" else None

    def interval(old: Sweep, new: Sweep) -> tuple[float, float]:
        assert old.best is not None
        # So small a rate that no bound is near; only ratios count.
        other = 2.0**-old.best * 1e-4
        rates = {"lr": 2.0**old.best, "weight_decay": other} if solve == "lr" else {"lr": other}
        recipe = Recipe(
            **{"weight_decay": 2.0**old.best, **rates},
            optimizer=optimizer,
            momentum=momentum,
            batch_size=round(old.place.batch),
            samples=round(old.place.data),
            epochs=epochs,
        )
        moved = recipe.transfer(
            solve=solve,
            batch_size=round(new.place.batch),
            samples=round(new.place.data),
            regime="one epoch" if epochs else "several epochs",
        )
        assert moved.interval is not None
        low, high = moved.interval
        return math.log2(low), math.log2(high)

    return interval


def inside(_old: Sweep, new: Sweep, interval: tuple[float, float]) -> bool:
    """Whether the best of the new sweep lies in the interval."""
    assert new.best is not None
    return interval[0] <= new.best <= interval[1]


def show_coverage(title: str, pairs: Sequence[tuple[Change, Intervals]]) -> dict[str, float]:
    """Print and return how often the intervals that isogon prints hold the best, and how wide they are."""
    ends = [interval(old, new) for (old, new), interval in pairs]
    held = float(np.mean([inside(old, new, end) for ((old, new), _), end in zip(pairs, ends, strict=True)]))
    width = float(np.median([high - low for low, high in ends]))
    print(
        f"\n{title}: the interval printed holds the best in {held:.0%} of {len(pairs):,} changes; its ends are a "
        f"factor {2**width:.3g} apart."
    )
    return {"held": held, "changes": len(pairs), "median_width_octaves": width}


def show_left_out(answer: dict[str, Any], groups: Sequence[Sequence[Change]], kind: str, rule: Rule, each: str) -> None:
    """Print and keep what `held_when_left_out` finds: whether widths that were set on the data hold elsewhere."""
    share = held_when_left_out([group for group in groups if group], kind, rule)
    if share is not None:
        answer["held_when_left_out"] = share
        print(f"\nAn interval made from the others, one {each} left out at a time, holds {share:.0%}.")


def largest_good_batches(sweeps: Sequence[Sweep], slack: float = 0.01) -> list[tuple[float, float]]:
    """(tokens of the run, largest batch in tokens whose best loss lies within `slack` nats of the best batch's).

    Over batches of one model and horizon, of which there must be six.
    """
    best: dict[tuple[float, float], dict[float, float]] = defaultdict(dict)
    for sweep in sweeps:
        best[sweep.place.parameters, sweep.place.data][sweep.place.batch] = min(sweep.costs)
    points = []
    for (_, tokens), costs in sorted(best.items()):
        if len(costs) >= 6:
            limit = min(costs.values()) + slack
            points.append((tokens, STEPLAW_LENGTH * max(batch for batch, cost in costs.items() if cost <= limit)))
    return points


def fit_critical_batch(sweeps: Sequence[Sweep]) -> Callable[[float], float]:
    """The power law through `largest_good_batches`, by least squares of the logarithms."""
    tokens, batches = np.log(largest_good_batches(sweeps)).T
    power, constant = np.polyfit(tokens, batches, 1)
    return lambda count: float(math.exp(constant) * count**power)


def by_size(sweeps: Sequence[Sweep]) -> list[Family]:
    """One family per model."""
    sizes = sorted({sweep.place.parameters for sweep in sweeps})
    return [[sweep for sweep in sweeps if sweep.place.parameters == size] for size in sizes]


def rules_that_differ(rules: Sequence[Rule], kind: str) -> list[Rule]:
    """The rules under this kind of change, of those that say the same only the first."""
    example = Place(1, 1), {"batch": Place(2, 1), "data": Place(1, 2), "model size": Place(1, 2, 2)}[kind]
    answers: dict[float, Rule] = {}
    for rule in rules:
        answers.setdefault(round(rule.octaves(*example), 6), rule)
    return list(answers.values())


def report(title: str, scores: Sequence[Score], unit: str) -> dict[str, Any]:
    """Print a table of scores, best first, and return what it shows."""
    print(f"\n**{title}**, {len(scores[0].octaves):,} changes\n")
    print(f"| rule | median miss (octaves) | within ×2 | 90 % within | mean regret ({unit}) |\n|---|---|---|---|---|")
    shown = {each.rule: each.summary() for each in scores}
    for name, numbers in sorted(shown.items(), key=lambda item: item[1]["median_octaves"]):
        print(
            f"| {name} | {numbers['median_octaves']:.2f} | {numbers['within_2']:.0%} | ×{numbers['factor_of_90']:.3g} "
            f"| {numbers['mean_regret']:.3f} |"
        )
    return {"changes": len(scores[0].octaves), "rules": shown}


def judge_yun() -> dict[str, Any]:
    """Both rates of Yun et al.'s tables: SGD, several epochs."""
    answers: dict[str, Any] = {}
    for rate, name, rules in (("weight_decay", "weight decay", DECAY_RULES), ("lr", "learning rate", LR_RULES)):
        tables = yun_tables(rate)
        for kind, momentum in (("data", True), ("batch", True), ("batch", False)):
            chosen = {
                number: sweeps
                for number, sweeps in tables.items()
                if kind_of(sweeps) == kind and (kind == "data" or momentum == (number != "4"))
            }
            pairs = list(changes(chosen.values(), among=KINDS[kind]))
            which = "" if kind == "data" else ", SGD with momentum" if momentum else ", SGD without momentum"
            plural = "s" if len(chosen) > 1 else ""
            numbers = ", ".join(sorted(chosen, key=int))
            title = f"Yun et al., {name} when the {kind} changes{which} (table{plural} {numbers})"
            answers[title] = report(title, [score(rule, pairs) for rule in rules_that_differ(rules, kind)], "points")
            constant = Rule("constant F", batch=1, data=-1)
            answers[title]["drift"] = drift(pairs, kind, constant)
            print(f"\nFrom constant F the best moves as {kind}^{answers[title]['drift']:.2f}.")
            show_left_out(
                answers[title],
                [list(changes([sweeps], among=KINDS[kind])) for sweeps in chosen.values()],
                kind,
                constant,
                "table",
            )
            with_intervals = [
                (pair, transfer_of(rate, "sgd", number))
                for number, sweeps in chosen.items()
                for pair in changes([sweeps], among=KINDS[kind])
            ]
            answers[title]["interval"] = show_coverage(title, with_intervals)
    return answers


def ups_and_misses(pairs: Sequence[Change], kind: str, rule: Rule) -> tuple[np.ndarray, np.ndarray]:
    """Octaves of each change, and by how many octaves the best lies above the rule."""
    ups = np.log2([getattr(new.place, kind) / getattr(old.place, kind) for old, new in pairs])
    return ups, -np.array(score(rule, pairs).octaves)


def drift(pairs: Sequence[Change], kind: str, rule: Rule) -> float:
    """By how many octaves per octave of change the best moves away from the rule, by least squares."""
    ups, misses = ups_and_misses(pairs, kind, rule)
    return float(ups @ misses / (ups @ ups))


def held_when_left_out(groups: Sequence[Sequence[Change]], kind: str, rule: Rule) -> float | None:
    """How often an interval made of the other groups' changes (their drift, 90 % of their misses) holds a group's."""
    if len(groups) < 2:
        return None
    inside_it: list[bool] = []
    for left in groups:
        others = [pair for group in groups if group is not left for pair in group]
        slope = drift(others, kind, rule)
        ups, misses = ups_and_misses(others, kind, rule)
        half = np.quantile(np.abs(misses - slope * ups), 0.9)
        ups, misses = ups_and_misses(left, kind, rule)
        low, high = np.minimum(-0.5, slope * ups - half), np.maximum(0.5, slope * ups + half)
        inside_it += list((low <= misses) & (misses <= high))
    return float(np.mean(inside_it))


def judge_steplaw(file: Path, title: str) -> dict[str, Any]:
    """The learning rate of language models in one epoch of AdamW."""
    answers: dict[str, Any] = {}
    sweeps = steplaw_sweeps(file)
    edges = sum(sweep.best is None for sweep in sweeps)
    fitted = fit(sweeps)
    print(
        f"\n{title}: {len(sweeps)} sweeps of {sum(len(sweep.rates) for sweep in sweeps):,} trainings, {edges} with "
        f"their best at an edge; all bests together: "
        f"lr ∝ B^{fitted.batch:.2f} D^{fitted.data:.2f} N^{fitted.parameters:.2f}"
    )
    kinds = {"batch": by_size(sweeps), "data": by_size(sweeps), "model size": [sweeps]}
    for kind, families in kinds.items():
        pairs = list(changes(families, among=KINDS[kind]))
        if not pairs:
            continue
        scores = [score(rule, pairs) for rule in rules_that_differ(LR_RULES, kind)]
        scores.append(score_left_out(families, pairs) if kind == "model size" else score_left_out([sweeps], pairs))
        part = f"{title}, learning rate when the {kind} changes"
        answers[part] = report(part, scores, "nats")
        if kind in ("batch", "data"):
            interval = transfer_of("lr", "adamw", "")
            answers[part]["interval"] = show_coverage(part, [(pair, interval) for pair in pairs])
            used = Rule("horizon by lr (F ∝ √D)", batch=1, data=-0.5)
            by_model = [list(changes([family], among=KINDS[kind])) for family in families]
            show_left_out(answers[part], by_model, kind, used, "model")
    points = largest_good_batches(sweeps)
    if len(points) >= 6:
        law = fit_critical_batch(sweeps)
        power = math.log10(law(1e10) / law(1e9))
        print(f"\nLargest batch within 0.01 nats of the best one's loss, {len(points)} models and horizons: "
              f"{law(1):.3g} D^{power:.3g} tokens, {law(1e10):.2g} at 10 G and {law(1e11):.2g} at 100 G.")  # fmt: skip
        answers[f"{title}, largest good batch"] = {"at 1e10": law(1e10), "power": power, "points": points}
    return answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steplaw", type=Path, help="folder of steplaw_dense.csv and steplaw_moe.csv")
    parser.add_argument("--json", type=Path, help="write every number to this file")
    options = parser.parse_args()
    print(f"numpy {np.__version__}, {time.strftime('%Y-%m-%d')}")
    answers = judge_yun()
    if options.steplaw is not None:
        answers |= judge_steplaw(options.steplaw / "steplaw_dense.csv", "StepLaw, dense")
        answers |= judge_steplaw(options.steplaw / "steplaw_moe.csv", "StepLaw, mixture of experts")
    if options.json:
        options.json.write_text(json.dumps(answers, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
