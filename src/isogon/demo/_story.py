"""`run_demo`: make the runs, turn their numbers into sentences, a page and a summary of one screen."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from rich.console import Console

from isogon.demo import _plan as plan
from isogon.demo import _sentences as sentences
from isogon.demo import network
from isogon.demo._plan import APART, WHOLE, Size
from isogon.demo._results import angle_curve, best_factor, make_rows, with_factor
from isogon.errors import ArgumentError
from isogon.lab import Config, Run, run_all
from isogon.nets import Conversion
from isogon.recipe import Recipe
from isogon.report import AngleCurve, DemoSummary, plotly_script, write_demo_page
from isogon.symmetry import ScaleMap, check

PAGE, RUNS = "demo.html", "runs"
_WIDTH = 100


@dataclass(frozen=True)
class DemoResult:
    """What the demo found: the network before and after, the runs of its three parts, one row per run."""

    size: Size
    checked: ScaleMap
    conversion: Conversion
    best: Recipe
    search: pd.DataFrame
    full: pd.DataFrame
    near: pd.DataFrame
    runs: Sequence[Run]

    @property
    def factor(self) -> float:
        return best_factor(self.search)

    @property
    def transferred(self) -> Recipe:
        return plan.on_the_full_set(self.best, self.size)

    @property
    def findings(self) -> list[str]:
        searched, on_full = int(self.search.images.sum()), plan.config_of(self.transferred, 0).images
        return [
            sentences.angles_sentence(self.near, self.factor),
            sentences.search_sentence(self.search, self.factor),
            sentences.transfer_sentence(self.full, self.factor),
            sentences.best_angles_sentence(self.search, self.full),
            sentences.spread_sentence(self.search, self.full),
            sentences.cost_sentence(searched, len(self.search) * on_full),
        ]


def run_demo(out: Path, size: Size = WHOLE) -> Path:
    """Run the demo in the folder `out` and print its findings; returns the page's path.

    Runs of an earlier demo in `out` are read, not trained again.
    """
    plotly_script()
    progress = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        (out / RUNS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError("out", "a folder we can make", str(out), error.strerror or "choose another") from None

    progress.print("1 of 3: check a small network and convert it …")
    model = network.ordinary()
    checked = check(model, network.example_inputs())
    conversion = network.conversion(model)

    grid = plan.search_grid(size)
    progress.print(f"2 of 3: search the tuning factor on {size.fraction:,} images, {len(grid)} short runs …")
    searched = _train(grid, out, size.workers)
    search = make_rows(searched, size)
    best = plan.recipe_with(best_factor(search), size)

    on_full, relatives = plan.full_runs(best, size), plan.relatives(best, size)
    progress.print(f"3 of 3: train on all {size.full:,} images with the best factor and with others, to compare …")
    compared = _train([*on_full, *relatives], out, size.workers)
    rows = make_rows(compared, size)
    outcome = DemoResult(
        size=size,
        checked=checked,
        conversion=conversion,
        best=best,
        search=search,
        full=rows.iloc[: len(on_full)],
        near=pd.concat([search, rows], ignore_index=True).query("seed == 0"),
        runs=[*searched, *compared],
    )
    page = write_demo_page(_page(outcome), out / PAGE)
    for line in _summary(outcome):
        print(line)
    print(page)
    return page


def _train(configs: Sequence[Config], out: Path, workers: int | None) -> list[Run]:
    return run_all(configs, engine="local", out=out / RUNS, workers=workers, device="cpu")


def _summary(outcome: DemoResult) -> list[str]:
    """One screen: what each part showed."""
    angles, search, transfer, best_angles, spread, cost = outcome.findings
    formula = "F = N·lr·wd / (B·(1 − momentum)), for N images in batches of B, is the tuning factor."
    decays = f"{outcome.best.weight_decay:.3g} → {outcome.transferred.weight_decay:.3g}"
    findings = [
        f"1. {sentences.check_sentence(outcome.checked)}",
        f"{sentences.conversion_sentence(outcome.conversion)} The last: {outcome.conversion.changes[-1]}",
        f"2. {formula} {angles}",
        f"3. {search} {transfer} (Weight decay {decays}.)",
        *[f"   {line}" for line in sentences.accuracy_lines(outcome.search, outcome.full)],
        spread,
        best_angles,
        cost,
        outcome.size.note,
    ]
    return [
        *(line for sentence in findings for line in _wrap(sentence)),
        "Pictures, and how to continue with your own model:",
    ]


def _wrap(sentence: str) -> list[str]:
    """Lines of one screen's width; a numbered sentence starts at the edge, and a line of a table stays as it is."""
    if sentence.startswith(" "):
        return [sentence]
    first = "" if sentence[:1].isdigit() else "   "
    return textwrap.wrap(sentence, _WIDTH, initial_indent=first, subsequent_indent="   ")


def _page(outcome: DemoResult) -> DemoSummary:
    size, factor = outcome.size, outcome.factor
    *_, spread, cost = outcome.findings
    few, many = f"{size.fraction:,} images", f"all {size.full:,} images"
    accuracy = pd.concat([outcome.search.assign(data=few), outcome.full.assign(data=many)])
    columns = {
        "samples": "images N",
        "batch_size": "batch B",
        "lr": "lr",
        "weight_decay": "wd",
        "momentum": "momentum",
        "angle": "angle (°)",
        "predicted": "by noise alone (°)",
        "accuracy": "accuracy (%)",
    }
    return DemoSummary(
        findings=[*outcome.findings, *([size.note] if size.note else [])],
        before=sentences.check_sentence(outcome.checked),
        changes=outcome.conversion.changes,
        after=sentences.conversion_sentence(outcome.conversion),
        curves=_curves(outcome),
        drops=[size.epochs // 2, 3 * size.epochs // 4],
        accuracy=accuracy[["data", "factor", "seed", "accuracy"]],
        equals=with_factor(outcome.near, factor)[list(columns)].rename(columns=columns),
        law=sentences.law_sentence(outcome.near, factor),
        spread=spread,
        cost=cost,
        code=_code(outcome),
    )


def _curves(outcome: DemoResult) -> list[AngleCurve]:
    """Every run of the first seed with the best factor or a neighbour's."""
    by_name = {run.config.name: run for run in outcome.runs}
    groups = {"F/4": 1 / APART, "F": 1.0, "4F": APART}
    curves = []
    for group, times in groups.items():
        for row in with_factor(outcome.near, outcome.factor * times).itertuples():
            curve = angle_curve(by_name[str(row.run)])
            name = f"{row.samples:,} images, batch {row.batch_size}, lr {row.lr:g}, wd {row.weight_decay:.2g}"
            name += "" if row.momentum == outcome.best.momentum else f", momentum {row.momentum:g}"
            label = f"{group} = {row.factor:.4g}"
            curves.append(AngleCurve(name=name, group=label, epoch=curve.epoch.tolist(), angle=curve.angle.tolist()))
    return curves


def _code(outcome: DemoResult) -> str:
    best, moved = outcome.best, outcome.transferred
    settings = ", ".join(f"{name}={value:g}" for name, value in best.to_dict().items() if name != "optimizer")
    return f"""from isogon import Monitor, Recipe, check
from isogon.dynamics import RunFolder

print(check(model, inputs))      # which weights are scale-invariant, and why not; your model can stay as it is

small = Recipe({settings})
full = small.transfer(samples={moved.samples}, batch_size={moved.batch_size}, solve="weight_decay")
print(full.recipe.weight_decay, full.interval)  # {moved.weight_decay:.4g}, and where the best is expected

sinks = [RunFolder("run")]       # where the measurements go
with Monitor(model, optimizer, batch_size=batch_size, samples=samples, inputs=inputs, sinks=sinks):
    train(model, optimizer)      # your loop, as it is

# From the shell:
#   isogon report run            # a page about how the weights turned
#   isogon check mine.py:Net --input 2,3,32,32
#   isogon transfer --help"""
