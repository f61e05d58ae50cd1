"""How good searches are: each is replayed hundreds of times on tables of real trainings.

    python benchmarks/search_quality.py [--works cnn4-sgd gpt-adamw] [--searchers random tpe] [--replays 200]
        [--out benchmarks/results]

`gp` takes minutes on each table where the others take seconds, and is replayed where it is named; results of other
searchers and tables that are in `--out` already stay there.

All search the same box, the table's whole grid in (log learning rate, log tuning factor); nobody's box is wider, which
is kind to the searches that people usually run over learning rate and weight decay, and kinder to those that begin in
its middle, since the grid has grown round its best cell. Each chooses by what it has seen
and is judged by the table: regret is by how much less the answer is worth on all of the data than the best cell, in
points of accuracy or in nats. The cells on all of the data have few seeds, so that their luck is part of the yardstick:
searches on all of the data see the same luck, those on parts of it do not, and look worse by some tenths of the spread
than they are. What it costs is counted in runs on all of the data to the last epoch.

| searcher | what it is |
|---|---|
| `random`, `tpe`, `gp`, `cma-es` | Optuna's samplers with their defaults, every run on all of the data |
| `tpe + hyperband` | TPE with Optuna's HyperbandPruner |
| `halving epochs` | 27 random pairs, the best third of which goes on after a tenth and a third of the epochs |
| `halving data` | 32 random pairs on 1/16 of the data, the better half on twice as much, …, two on all of it |
| `grid` | five by five, on all of the data |
| `lines, N seeds` | a sketch of a better search: a line over F, one over lr, one over F again, on 1/8 of the data |
| `isogon, F at one lr` | `isogon search` as it is; users bring a learning rate within ×4 of the grid's first centre |

To add one, write a function like those below and put it into `SEARCHERS`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optuna
from make_table import TABLES
from numpy.typing import NDArray
from replay import Landscape, Replayed

from isogon.errors import ArgumentError, IsogonError
from isogon.search import Study, fit_curve, transfer_trend
from isogon.search._run import _fit_curves
from isogon.search.fit import default_grid, extension, round_factor
from isogon.search.trials import PlannedTrial, StoredTrial

_TRIALS = 30
#: the part of the data on which `lines` searches
_LINES = 1 / 8
_COSTS = (2.5, 5, 7, 10, 15, 21, 30)
#: replays that a process does at a time
_PART = 25
#: this one takes minutes where the others take seconds, so it is replayed when it is named, and its results are kept
_SLOW = "gp"


class Step(NamedTuple):
    """What a searcher would answer once it has spent so many full runs."""

    cost: float
    lr: float
    tuning_factor: float


class Seen(NamedTuple):
    score: float
    lr: float
    tuning_factor: float


def _best(seen: Sequence[Seen]) -> Seen:
    """The first if all diverged."""
    return max(seen, key=lambda one: -math.inf if math.isnan(one.score) else one.score)


def by_optuna(make: Callable[[int], optuna.samplers.BaseSampler], *, prune: bool = False) -> Searcher:
    """Ask for `_TRIALS` runs; the answer is the best that was seen to its end."""

    def search(task: Replayed, seed: int) -> list[Step]:
        epochs = task.landscape.epochs
        pruner = optuna.pruners.HyperbandPruner(max_resource=epochs[-1]) if prune else optuna.pruners.NopPruner()
        study = optuna.create_study(direction="maximize", sampler=make(seed), pruner=pruner)
        steps: list[Step] = []
        spent = 0.0
        shown = 0

        def report(trial: optuna.Trial, epoch: int, score: float) -> None:
            nonlocal shown
            shown = epoch
            if prune:
                trial.report(score, epoch)
                if trial.should_prune() and epoch < epochs[-1]:
                    raise optuna.TrialPruned

        objective = task.optuna(report)
        while spent < _TRIALS:
            shown = epochs[-1]
            study.optimize(objective, n_trials=1, catch=())
            spent += shown / epochs[-1]
            ended = [trial for trial in study.get_trials(deepcopy=False) if trial.state.name == "COMPLETE"]
            if ended:
                best = max(ended, key=lambda trial: trial.value)
                steps.append(Step(spent, best.params["lr"], best.params["tuning_factor"]))
        return steps

    return search


def halving_epochs(task: Replayed, seed: int) -> list[Step]:
    """As losses of schedules that end later are compared, so are these."""
    epochs = task.landscape.epochs
    points = _random_points(task.landscape, 27, seed)
    runs = [task.run(lr, factor, seed=number) for number, (lr, factor) in enumerate(points)]
    alive, spent, before = list(range(len(points))), 0.0, 0.0
    for share in (0.1, 0.3, 1.0):
        place = min(range(len(epochs)), key=lambda k: abs(epochs[k] / epochs[-1] - share))
        spent += len(alive) * (epochs[place] / epochs[-1] - before)
        before = epochs[place] / epochs[-1]
        seen = [runs[k].history[place][1] if runs[k].history else -math.inf for k in alive]
        order = np.argsort(seen)[::-1]
        alive = [alive[k] for k in order[: max(1, len(alive) // 3)]]
    return [Step(spent, *points[alive[0]])]


def halving_data(task: Replayed, seed: int) -> list[Step]:
    points, spent = _random_points(task.landscape, 32, seed), 0.0
    for number, (fraction, kept) in enumerate(((1 / 16, 16), (1 / 8, 8), (1 / 4, 2), (1.0, 1))):
        spent += fraction * len(points)
        seen = [task.run(*point, fraction, seed=number).score for point in points]
        order = np.argsort(np.nan_to_num(seen, nan=-np.inf))[::-1]
        points = [points[k] for k in order[:kept]]
    return [Step(spent, *points[0])]


def grid(task: Replayed, seed: int) -> list[Step]:
    box = task.landscape.box
    cells = list(product(*(np.geomspace(*ends, 5) for ends in box)))
    best = _best([Seen(task.run(lr, factor).score, lr, factor) for lr, factor in cells])
    return [Step(len(cells), best.lr, best.tuning_factor)]


def lines(seeds: int) -> Searcher:
    """From where the user of `isogon, F at one lr` starts: the top of each line, fitted, is where the next one goes."""

    def search(task: Replayed, seed: int) -> list[Step]:
        point, spent = {"lr": _brought_lr(task.landscape, seed), "tuning_factor": default_grid()[3]}, 0.0
        seen: list[Seen] = []
        steps = []
        for name, size in (("tuning_factor", 7), ("lr", 7), ("tuning_factor", 5)):
            trained: list[tuple[float, int, float]] = []
            more: Sequence[float] = default_grid(round_factor(point[name]), size)
            for _ in range(3):  # the line and what its edges call for
                for value in more:
                    place = {**point, name: value}
                    scores = [task.run(**place, fraction=_LINES, seed=number).score for number in range(seeds)]
                    trained += [(value, number, score) for number, score in enumerate(scores)]
                    seen.append(Seen(float(np.mean(scores)), place["lr"], place["tuning_factor"]))
                    spent += _LINES * seeds
                alive = {value for value, _, score in trained if not math.isnan(score)}
                curve = fit_curve(trained) if len(alive) > 2 else None
                more = () if curve is None else extension(curve)
                if not more:
                    break
            best = _best(seen)
            # Of too few that trained there is no curve to fit.
            top = getattr(best, name) if curve is None else curve.tuning_factor
            point = {"lr": best.lr, "tuning_factor": best.tuning_factor, name: top}
            steps.append(Step(spent, **point))
        return steps[-1:]

    return search


def _brought_lr(landscape: Landscape, seed: int) -> float:
    """The learning rate with which a user comes."""
    return float(landscape.about["work"]["lr"] * 4 ** np.random.default_rng(seed).uniform(-1, 1))


def isogon_one_unknown(task: Replayed, seed: int) -> list[Step]:
    """`isogon.search.run` with the defaults of its study file, but for the processes that train."""
    landscape = task.landscape
    lr = _brought_lr(landscape, seed)
    recipe = {name: value for name, value in landscape.recipe.to_dict().items() if value is not None}
    recipe |= {"lr": lr, "weight_decay": "?"}
    recipe = {name: recipe[name] for name in recipe if name in _RECIPE_KEYS}
    study = Study.from_tables({"recipe": recipe, "task": {"objective": "replay:objective"}})
    spent = 0.0
    known: dict[PlannedTrial, StoredTrial] = {}

    def train(plans: Any) -> list[StoredTrial]:
        nonlocal spent
        answer = []
        for plan in plans:
            if plan not in known:
                spent += plan.fraction
                score = task.run(lr, plan.tuning_factor, plan.fraction, plan.seed).score
                lost = math.isnan(score)
                state = ("diverged", None) if lost else ("finished", score)
                known[plan] = StoredTrial(plan, len(known), *state, images=0, seconds=0.0, error=None)
            answer.append(known[plan])
        return answer

    try:
        curves = _fit_curves(study, None, train, lambda sentence: None)  # type: ignore[arg-type]
    except IsogonError:  # too much diverged: it tells the user so, who has the guess that the grid began with
        return [Step(spent, lr, study.search.centre)]
    return [Step(spent, lr, transfer_trend(curves, study.recipe.samples).tuning_factor)]


_RECIPE_KEYS = ("optimizer", "lr", "weight_decay", "momentum", "beta2", "batch_size", "samples", "epochs")


def _random_points(landscape: Landscape, count: int, seed: int) -> list[tuple[float, float]]:
    random = np.random.default_rng(seed)
    logs = [random.uniform(*np.log(ends), count) for ends in landscape.box]
    return [(float(lr), float(factor)) for lr, factor in zip(*np.exp(logs), strict=True)]


def _gp(seed: int) -> optuna.samplers.BaseSampler:
    return optuna.samplers.GPSampler(seed=seed)


Searcher = Callable[[Replayed, int], list[Step]]
SEARCHERS: Mapping[str, Searcher] = {
    "random": by_optuna(lambda seed: optuna.samplers.RandomSampler(seed=seed)),
    "tpe": by_optuna(lambda seed: optuna.samplers.TPESampler(seed=seed)),
    "gp": by_optuna(_gp),
    "cma-es": by_optuna(lambda seed: optuna.samplers.CmaEsSampler(seed=seed)),
    "tpe + hyperband": by_optuna(lambda seed: optuna.samplers.TPESampler(seed=seed), prune=True),
    "halving epochs": halving_epochs,
    "halving data": halving_data,
    "grid": grid,
    "lines, 1 seed": lines(1),
    "lines, 3 seeds": lines(3),
    "isogon, F at one lr": isogon_one_unknown,
}


@cache
def _landscape(file: Path) -> Landscape:
    return Landscape.read(file)


def replay(file: Path, searcher: str, seeds: Sequence[int]) -> list[list[tuple[float, float]]]:
    """(cost, regret) as each replay goes on."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    landscape = _landscape(file)
    found = []
    for seed in seeds:
        steps = SEARCHERS[searcher](Replayed(landscape, seed), seed)
        found.append([(step.cost, landscape.regret(step.lr, step.tuning_factor)) for step in steps])
    return found


def _guess(file: Path) -> float:
    """The regret of the middle of the box."""
    landscape = _landscape(file)
    lr, factor = (math.sqrt(low * high) for low, high in landscape.box)
    return landscape.regret(lr, factor)


def at_costs(replays: Sequence[Sequence[tuple[float, float]]], guess: float) -> list[dict[str, float]]:
    """Mean regret and its standard error at each cost; searches that end at one cost have that alone.

    Before its first answer a search has the middle of the box to offer, whose regret is `guess`.
    """
    if max(map(len, replays)) == 1:
        return [_summary([cost for ((cost, _),) in replays], [regret for ((_, regret),) in replays])]
    answer = []
    for cost in _COSTS:
        regrets = [next((r for c, r in reversed(steps) if c <= cost), guess) for steps in replays]
        answer.append(_summary([cost], regrets))
    return answer


def _summary(costs: Sequence[float], regrets: Sequence[float]) -> dict[str, float]:
    values: NDArray[Any] = np.array(regrets)
    error = float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan
    return {"cost": float(np.mean(costs)), "regret": float(values.mean()), "error": error}


def measure(
    files: Sequence[Path], searchers: Sequence[str], replays: int, workers: int
) -> Iterator[tuple[str, str, list[dict[str, float]], float]]:
    """Work, searcher, what it reaches at its costs, and the seconds that a replay takes."""
    with ProcessPoolExecutor(workers) as pool:
        for file in files:
            for searcher in searchers:
                start = time.perf_counter()
                parts = [range(first, min(first + _PART, replays)) for first in range(0, replays, _PART)]
                jobs = [pool.submit(replay, file, searcher, list(part)) for part in parts]
                found = [one for job in jobs for one in job.result()]
                yield file.stem, searcher, at_costs(found, _guess(file)), (time.perf_counter() - start) / replays


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:12]


def draw(results: Sequence[Mapping[str, Any]], landscapes: Sequence[Landscape], file: Path) -> None:
    """Regret against cost, one panel a work."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(landscapes), figsize=(5 * len(landscapes), 4.2), squeeze=False)
    for panel, landscape in zip(panels[0], landscapes, strict=True):
        for number, searcher in enumerate(SEARCHERS):
            points = [row for row in results if (row["work"], row["searcher"]) == (landscape.name, searcher)]
            if not points:
                continue
            costs, regrets, errors = ([point[key] for point in points] for key in ("cost", "regret", "error"))
            style = "o-" if len(points) > 1 else "D"
            panel.errorbar(costs, regrets, errors, fmt=style, ms=4, lw=1.2, color=f"C{number}", label=searcher)
        unit = "nats" if landscape.metric == "test_loss" else "points"
        panel.set(title=landscape.name, xlabel="cost, full runs", ylabel=f"regret, {unit}", xscale="log", yscale="log")
        panel.grid(alpha=0.3)
    panels[0][0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})


def write_table(results: Sequence[Mapping[str, Any]], landscapes: Sequence[Landscape], head: str, file: Path) -> None:
    lines = ["# How good searches are", "", head, "", "![Regret against cost](search_quality.svg)", ""]
    for landscape in landscapes:
        unit = "nats" if landscape.metric == "test_loss" else "points"
        lines += [f"## {landscape.name}", "", f"| searcher | cost, full runs | regret, {unit} |", "|---|---|---|"]
        for row in results:
            if row["work"] == landscape.name:
                lines.append(f"| {row['searcher']} | {row['cost']:.3g} | {row['regret']:.3f} ± {row['error']:.3f} |")
        lines.append("")
    file.write_text("\n".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    tables = {file.stem: _landscape(file) for file in sorted(TABLES.glob("*.parquet"))}
    known = [name for name, landscape in tables.items() if landscape.about.get("complete")]
    if started := sorted(set(tables) - set(known)):
        print(f"Not replayed, since not all of their runs have been trained: {', '.join(started)}.")
    parser.add_argument("--works", nargs="+", default=known, help=f"tables, {', '.join(known)}, or files")
    parser.add_argument("--searchers", nargs="+", choices=list(SEARCHERS), default=[n for n in SEARCHERS if n != _SLOW])
    parser.add_argument("--replays", type=int, default=200)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path, help="write search_quality.md, .json and .svg into this folder")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    files = [Path(work) if work.endswith(".parquet") else TABLES / f"{work}.parquet" for work in options.works]
    try:
        chosen = {file.stem: _landscape(file) for file in files}
    except ArgumentError as error:
        parser.error(str(error))
    chosen_files = {file.stem: file for file in files}
    results: list[dict[str, Any]] = []
    start = time.perf_counter()
    for work, searcher, points, seconds in measure(files, options.searchers, options.replays, options.workers):
        about = {"work": work, "searcher": searcher, "replays": options.replays, "table": _digest(chosen_files[work])}
        results += [{**about, **point} for point in points]
        last = points[-1]
        print(
            f"{work:24} {searcher:20} cost {last['cost']:5.3g}: regret {last['regret']:7.3f} ± {last['error']:.3f} "
            f"({1000 * seconds:.0f} ms a replay)",
            flush=True,
        )
    took = time.perf_counter() - start
    print(f"{options.replays} replays each, {took:.0f} s")
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        stored = options.out / "search_quality.json"
        new = {(row["work"], row["searcher"]) for row in results}
        before = json.loads(stored.read_text()) if stored.exists() else []
        results += [row for row in before if (row["work"], row["searcher"]) not in new]
        results.sort(key=lambda row: list(SEARCHERS).index(row["searcher"]))
        tables |= chosen
        # Only what was found on the tables as they are, by as many replays.
        digests = {name: _digest(chosen_files.get(name, TABLES / f"{name}.parquet")) for name in tables}
        results = [
            row
            for row in results
            if (row.get("table"), row.get("replays")) == (digests.get(row["work"], ""), options.replays)
        ]
        landscapes = [tables[work] for work in sorted({row["work"] for row in results})]
        head = (
            f"`python benchmarks/search_quality.py`: {options.replays} replays of each searcher on each table, mean "
            "regret with its standard error. What each searcher is, and what regret and cost are, is said at the "
            "script's head."
        )
        write_table(results, landscapes, head, options.out / "search_quality.md")
        stored.write_text(json.dumps(results, indent=1) + "\n")
        draw(results, landscapes, options.out / "search_quality.svg")


if __name__ == "__main__":
    main()
