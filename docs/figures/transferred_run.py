"""The README's picture: python docs/figures/transferred_run.py [FILE.png].

A weight decay found on 1/16 of ImageNet, carried to all of it (Yun et al., section 6), as the theory predicts the runs.
"""

from __future__ import annotations

import sys
from pathlib import Path

from isogon import Recipe
from isogon.predict import Curves, curves
from isogon.report import draw_runs
from isogon.schedules import step_decay

SMALL = Recipe(lr=0.1, weight_decay=0.0016, momentum=0.9, batch_size=512, samples=80_000, epochs=200)
FULL_SAMPLES = 1_280_000
MILESTONES = (100, 150, 180)


def predict(recipe: Recipe) -> Curves:
    """The run under η ÷ 10 after epochs 100, 150 and 180, from twice the norm of equilibrium."""
    milestones = [round(epoch * recipe.steps_per_epoch) for epoch in MILESTONES]
    return curves(recipe, step_decay(recipe.lr, recipe.weight_decay, milestones), initial_norm=2.0)


def main(file: Path) -> None:
    moved = SMALL.transfer(samples=FULL_SAMPLES, solve="weight_decay").recipe
    runs = {
        "80,000 images, weight decay 0.0016": predict(SMALL),
        f"1,280,000 images, transferred: {moved.weight_decay:g}": predict(moved),
        "1,280,000 images, kept at 0.0016": predict(Recipe(**{**SMALL.to_dict(), "samples": FULL_SAMPLES})),
    }
    print(draw_runs(runs, file, title="Equal tuning factor, equal angle per epoch (predicted)"))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "transferred-run.png"))
