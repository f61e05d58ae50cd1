"""The newcomer's tour: a weight decay found on 1/16 of ImageNet, carried to all of it (Yun et al., section 6)."""

from __future__ import annotations

import math
from pathlib import Path

from rich.console import Console

from isogon.errors import ArgumentError
from isogon.predict import Curves, curves
from isogon.recipe import Recipe
from isogon.report.figures import draw_runs
from isogon.schedules import step_decay

SMALL = Recipe(lr=0.1, weight_decay=0.0016, momentum=0.9, batch_size=512, samples=80_000, epochs=200)
FULL_SAMPLES = 1_280_000
MILESTONES = (100, 150, 180)
FIRST_NORM = 2.0


def tour(out: Path) -> Path:
    """Transfer the recipe, predict three runs, draw them into `out`; returns the picture's path."""
    console = Console(highlight=False, soft_wrap=True)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError("out", "a folder we can make", str(out), error.strerror or "choose another") from None

    settings = ", ".join(f"{name}={value:g}" for name, value in SMALL.to_dict().items() if name != "optimizer")
    console.print("[bold]1. A recipe found on 80,000 images[/bold]: EfficientNet-B0 on 1/16 of ImageNet.")
    console.print("   A search over weight decay, cheap at this size, found 0.0016 best.\n")
    console.print(f"   >>> small = Recipe({settings})")
    console.print(f"   >>> small.tuning_factor\n   {SMALL.tuning_factor:.4g}\n")

    console.print("[bold]2. The same recipe on all 1,280,000 images[/bold]: which weight decay now?\n")
    moved = SMALL.transfer(samples=FULL_SAMPLES, solve="weight_decay")
    assert moved.interval is not None
    low, high = moved.interval
    console.print(f'   >>> small.transfer(samples={FULL_SAMPLES:_}, solve="weight_decay").recipe.weight_decay')
    console.print(f"   {moved.recipe.weight_decay:g}\n")
    console.print(f"   The best is expected between {low:g} and {high:g}; the paper's full search found 5e-05 best,")
    console.print("   1e-04 second. No full-size run was needed.\n")

    console.print("[bold]3. Why it works[/bold]: runs whose weights turn alike train alike. Predicted, per epoch:\n")
    naive = Recipe(**{**SMALL.to_dict(), "samples": FULL_SAMPLES})
    runs = {
        "80,000 images, weight decay 0.0016": predicted(SMALL),
        "1,280,000 images, transferred: 0.0001": predicted(moved.recipe),
        "1,280,000 images, kept at 0.0016": predicted(naive),
    }
    for label, run in runs.items():
        console.print(f"   {label:<40} {math.degrees(run.epoch_angle[90]):5.1f}° before the first drop")
    picture = draw_runs(runs, out / "demo.png", title="Equal tuning factor, equal angle per epoch (predicted)")
    console.print(f"\n[bold]The picture is {picture}.[/bold]")
    console.print("Next: isogon transfer --help, isogon predict --help, or your own recipe:")
    console.print("  isogon predict --lr 0.1 --wd 5e-4 --batch 128 --samples 50000 --epochs 300 --schedule cosine")
    return picture


def predicted(recipe: Recipe) -> Curves:
    """The run under the tour's schedule: η ÷ 10 after epochs 100, 150 and 180."""
    milestones = [round(epoch * recipe.steps_per_epoch) for epoch in MILESTONES]
    schedule = step_decay(recipe.lr, recipe.weight_decay, milestones)
    return curves(recipe, schedule, initial_norm=FIRST_NORM)
