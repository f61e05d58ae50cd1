"""What a search costs and what its answer is worth: isogon's fractions of the data against searches on all of them.

    python benchmarks/search_cost.py [--out search-cost] [--minutes 30] [--workers 2] [--epochs 12] [--seeds 3]
        [--finals 5] [--trials 21]

The task is that of `isogon search --init`: cnn4 of width 6, 8,000 images of fashion-mini, batch 32. Five ways to choose
its rates:

- `isogon`: `search.run` with the defaults of the study file, fractions 1/16 and 1/8, seven tuning factors, three seeds.
- `full grid`: the same grid and seeds on the full data; the tuning factor with the best mean is taken.
- `TPE`, `random`: Optuna over (lr, weight decay), each two decades wide round the guess that isogon's grid is centred
  on, with as many runs on the full data as the full grid has; the best single run is taken.
- `TPE + hyperband`: the same with Optuna's HyperbandPruner.

Each answer is then trained at the full size with seeds that no search has seen; all choose by the test images, as the
papers do. The settings were chosen before the first run and not since: the template's, but half its epochs, so that all
fits into half an hour on two cores. When `--minutes` are over the benchmark stops and shows what there is; the same
command resumes. The table is also in `search_cost.md` and `search_cost.json` in the folder `--out`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import shlex
import signal
import statistics
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import optuna
import torch
from machine import processor
from search_baselines import search_rates

from isogon import Recipe
from isogon.files import write_json
from isogon.lab import Config, Event, EventListener, ObjectiveEnded, RunFailed, run_all
from isogon.lab.engines._workers import work_through
from isogon.search import Outcome, Study, run, study_template

FIRST_FRESH_SEED = 100
# Baselines look in two decades of each rate, the guess in the middle.
HALF_RANGE = 10.0


class OutOfTimeError(Exception):
    """The minutes are over."""


@dataclass(frozen=True)
class Answer:
    """The rates that a search chose, the runs and training images that it took, and the runs it lost."""

    lr: float
    weight_decay: float
    runs: int
    images: int
    lost: Mapping[str, int]


@dataclass(frozen=True)
class BaselineJob:
    """A whole search over (lr, weight decay), for a worker."""

    name: str
    config: Config
    out: str
    settings: Mapping[str, Any]

    @property
    def keys(self) -> list[str]:
        return [self.name]

    def work(self, emit: EventListener) -> None:
        rates = search_rates(self.config, self.out, **self.settings)
        answer = Answer(rates.recipe.lr, rates.recipe.weight_decay, rates.trials, rates.images, rates.lost)
        emit(ObjectiveEnded(self.name, asdict(answer)))


def make_study(options: argparse.Namespace, fractions: Sequence[float]) -> Study:
    """The template's study; monitoring costs time and changes nothing."""
    content = tomllib.loads(study_template())
    content["recipe"]["epochs"] = options.epochs
    content["task"]["monitor_every"] = 0
    content["search"] |= {"seeds": options.seeds, "fractions": list(fractions)}
    content["run"] = {"engine": "local", "workers": options.workers, "device": "cpu"}
    return Study.from_tables(content)


def make_answer(outcome: Outcome, recipe: Recipe) -> Answer:
    return Answer(recipe.lr, recipe.weight_decay, len(outcome.trials), outcome.cost.images, outcome.lost)


def best_of_grid(outcome: Outcome) -> Answer:
    """The tuning factor with the best mean on the full data, as one would read it off the table."""
    (curve,) = outcome.curve.values()
    _, factor = max((mean, factor) for factor, mean in zip(curve.grid, curve.means, strict=True) if math.isfinite(mean))
    return make_answer(outcome, outcome.study.recipe.recipe(tuning_factor=factor))


def run_baselines(options: argparse.Namespace, keep: Callable[[str, Answer], None], missing: Sequence[str]) -> None:
    """The searches over two rates, each in a worker of its own."""
    study = make_study(options, [1.0])
    config = study.config(tuning_factor=study.search.centre, samples=study.recipe.samples, seed=0)
    guess = config.recipe
    settings = {
        "lr": (guess.lr / HALF_RANGE, guess.lr * HALF_RANGE),
        "weight_decay": (guess.weight_decay / HALF_RANGE, guess.weight_decay * HALF_RANGE),
        "trials": options.trials,
        "device": "cpu",
    }
    kinds = {
        "TPE": {"sampler": "tpe"},
        "TPE + hyperband": {"sampler": "tpe", "pruner": "hyperband"},
        # Another seed: TPE's first trials are random too, and would be the same ones.
        "random": {"sampler": "random", "seed": 1000},
    }
    jobs = [
        BaselineJob(name, config, str(options.out / name.replace(" ", "")), {**settings, **kind})
        for name, kind in kinds.items()
        if name in missing
    ]

    def handle(event: Event) -> None:
        if isinstance(event, RunFailed):
            raise RuntimeError(f"{event.key}: {event.error}")
        if isinstance(event, ObjectiveEnded):
            keep(event.key, Answer(**event.result))

    if jobs:
        work_through(jobs, workers=min(options.workers, len(jobs)), on_event=handle)


def final_runs(options: argparse.Namespace, answers: Mapping[str, Answer]) -> dict[str, list[float | None]]:
    """Accuracies of each answer at the full size over fresh seeds, in per cent; None where a run diverged."""
    study = make_study(options, [1.0])
    base = study.config(tuning_factor=study.search.centre, samples=study.recipe.samples, seed=0)
    configs = {
        (name, seed): replace(
            base, seed=seed, recipe=replace(base.recipe, lr=answer.lr, weight_decay=answer.weight_decay)
        )
        for name, answer in answers.items()
        for seed in range(FIRST_FRESH_SEED, FIRST_FRESH_SEED + options.finals)
    }
    different = list(dict.fromkeys(configs.values()))
    runs = run_all(different, "local", options.out / "finals", workers=options.workers, device="cpu", progress=False)
    accuracy = {trained.config: None if math.isnan(trained.accuracy) else 100 * trained.accuracy for trained in runs}
    accuracies: dict[str, list[float | None]] = {}
    for (name, _), config in configs.items():
        accuracies.setdefault(name, []).append(accuracy[config])
    return accuracies


def measure(options: argparse.Namespace, state: dict[str, Any]) -> None:
    """All that is not in `state` yet; each answer is kept as soon as it is there."""
    answers: dict[str, Answer] = {name: Answer(**content) for name, content in state["answers"].items()}

    def keep(name: str, answer: Answer) -> None:
        answers[name] = answer
        state["answers"][name] = asdict(answer)
        write_json(options.out / "state.json", state)
        print(f"{name}: {answer.images:,} images", file=sys.stderr, flush=True)

    if "isogon" not in answers:
        outcome = run(make_study(options, [1 / 16, 1 / 8]), options.out / "isogon", progress=False)
        keep("isogon", make_answer(outcome, outcome.recipe))
    if "full grid" not in answers:
        outcome = run(make_study(options, [1.0]), options.out / "grid", progress=False)
        keep("full grid", best_of_grid(outcome))
    run_baselines(options, keep, [name for name in ("TPE", "TPE + hyperband", "random") if name not in answers])
    state["accuracies"] = final_runs(options, answers)
    write_json(options.out / "state.json", state)


def table(state: Mapping[str, Any]) -> str:
    """What is known, as Markdown."""
    full = state["answers"].get("full grid", {}).get("images")
    lines = [
        "| search | lr | weight decay | runs | lost | images | of the full grid's | accuracy at the full size (%) |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, answer in state["answers"].items():
        share = "" if full is None else f"{answer['images'] / full:.3f}"
        lost = ", ".join(f"{count} {status}" for status, count in answer["lost"].items() if count) or "none"
        rates = f"{answer['lr']:.3g} | {answer['weight_decay']:.3g}"
        accuracy = format_accuracies(state["accuracies"].get(name, []))
        lines.append(f"| {name} | {rates} | {answer['runs']} | {lost} | {answer['images']:,} | {share} | {accuracy} |")
    return "\n".join(lines)


def format_accuracies(accuracies: Sequence[float | None]) -> str:
    alive = [value for value in accuracies if value is not None]
    if not alive:
        return "not yet" if not accuracies else "all diverged"
    spread = f" ± {statistics.stdev(alive):.2f}" if len(alive) > 1 else ""
    lost = f", {len(accuracies) - len(alive)} diverged" if len(alive) < len(accuracies) else ""
    return f"{statistics.mean(alive):.2f}{spread} ({len(alive)} seeds{lost})"


def verdict(state: Mapping[str, Any]) -> str:
    """The target, and what came of it."""
    ours, grid = (state["accuracies"].get(name, []) for name in ("isogon", "full grid"))
    pairs = [pair for pair in zip(ours, grid, strict=False) if None not in pair]
    if len(pairs) < 2:
        return "Not finished: the same command resumes."
    differences = [mine - other for mine, other in pairs]
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    share = state["answers"]["isogon"]["images"] / state["answers"]["full grid"]["images"]
    return (
        f"isogon's answer less the full grid's best, by seed: {statistics.mean(differences):+.2f} points, standard "
        f"error {error:.2f}, at {share:.3f} of its images (target: −0.3 or better at 0.125 or less)."
    )


def make_page(state: Mapping[str, Any], about: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    return f"""# What a search costs

`{about["command"]}`, {about["date"]}; {about["machine"]}, {versions}. The script describes what is compared.

{table(state)}

Accuracies are means ± standard deviation over fresh seeds, images those seen in training. {verdict(state)}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("search-cost"))
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--finals", type=int, default=5, help="fresh seeds for each answer")
    parser.add_argument("--trials", type=int, default=21, help="runs of each search over two rates")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    settings = {name: getattr(options, name) for name in ("epochs", "seeds", "finals", "trials")}
    file = options.out / "state.json"
    state: dict[str, Any] = {"settings": settings, "answers": {}, "accuracies": {}}
    if file.exists():
        state = json.loads(file.read_text(encoding="utf-8"))
        if state["settings"] != settings:
            raise SystemExit(f"{options.out} was started with other settings: {state['settings']}.")

    def out_of_time(*_: Any) -> None:
        raise OutOfTimeError

    signal.signal(signal.SIGALRM, out_of_time)
    signal.setitimer(signal.ITIMER_REAL, 60 * options.minutes)
    try:
        measure(options, state)
    except OutOfTimeError:
        print(f"{options.minutes:g} minutes are over.", file=sys.stderr)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    command = f"python benchmarks/search_cost.py {shlex.join(sys.argv[1:])}".strip()
    about = {
        "command": command,
        "date": datetime.date.today().isoformat(),
        "machine": f"{processor()}, {options.workers} of {os.cpu_count()} cores",
        "versions": {
            "torch": torch.__version__,
            "optuna": optuna.__version__,
            "python": platform.python_version(),
        },
    }
    write_json(options.out / "search_cost.json", {**about, **state})
    page = make_page(state, about)
    (options.out / "search_cost.md").write_text(page, encoding="utf-8")
    print(page, end="")


if __name__ == "__main__":
    main()
