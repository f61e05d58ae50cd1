"""Yun et al., On the Angular Update and Hyperparameter Tuning of a Scale-Invariant Network: all tables and figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

from isogon.lab import Config
from isogon.papers.reproduction import Experiment, Label, Options, Planned, Scale, curves
from isogon.papers.yun._angle_figures import (
    CONTRAST,
    COSINE,
    STEP,
    TUNED,
    judge_angles,
    judge_rates,
    show_angles,
    show_rates,
)
from isogon.papers.yun._grids import STATED, STATED_TINY, Grid, base_run, config_at, factor_of
from isogon.papers.yun._imagenet import FIGURE8
from isogon.papers.yun._tables import BY_NUMBER, COMMON, TABLE5, TABLES, grid5


def _curve(config: Config, stated: float, seed: int, **labels: Label) -> Planned:
    """A run whose curve is drawn, named by what it was trained with."""
    r = config.recipe
    row = f"N={r.samples} B={r.batch_size} η={r.lr:g} λ={r.weight_decay:g}"
    return Planned(
        replace(config, seed=seed), {"row": row, "factor": factor_of(config, stated), "seed": seed, **labels}
    )


def _plan_angles(grid: Callable[[Scale], Grid], contrast: Callable[[Scale], int], options: Options) -> list[Planned]:
    """The stated cells of every column as the tuned curves; the row of octave `contrast` is compared with them."""
    cells = grid(options.scale)
    places = list(cells.places())
    tuned = [place for place in places if factor_of(place.config, cells.stated) == 1.0]
    others = [place for place in places if place.octave == contrast(options.scale)]
    return [
        _curve(place.config, cells.stated, seed, panel=place.panel, column=place.column, kind=kind)
        for kind, group in ((TUNED, tuned), (CONTRAST, others))
        for place in group
        for seed in options.seed_range(1)
    ]


_ANGLE_CHOICES = (
    "One run of each cell. The contrast, which the paper does not draw, keeps η and λ (in figure 5 B) the same for all "
    "columns: the bottom row of the table.",
    "Agreement is measured in the last half of each phase of the schedule, as the ratio of the largest to the smallest "
    "curve: below √2, what one step of the ×2 grid makes, and below that of the contrast.",
)


def _angle_figure(number: int, table: int, title: str, *, choices: Iterable[str] = ()) -> Experiment:
    if table == 5:
        plan = partial(_plan_angles, grid5, lambda scale: -1 if scale == "tiny" else -2)
        contrast, schedule = "the same B for all", STEP
    else:
        plan = partial(_plan_angles, BY_NUMBER[table].grid, lambda scale: 0)
        contrast, schedule = "the same η and λ for all", COSINE if BY_NUMBER[table].schedule == "cosine" else STEP
    return Experiment(
        id=f"yun/fig{number}",
        title=f"{title}: angle per epoch",
        claim=f"The stated cells of table {table} turn by the same angle per epoch once the first epochs are over, "
        "through all changes of the learning rate, although N, B, η and λ differ.",
        plan=plan,
        keep=curves,
        judge=partial(judge_angles, drops=schedule),
        show=partial(show_angles, title=f"Figure {number}", contrast=f"For contrast: {contrast}"),
        choices=(*COMMON, *_ANGLE_CHOICES, *choices),
    )


#: N, B, panel, octave well tuned, octave badly tuned
_SIX: Mapping[Scale, tuple[tuple[int, int, str, int, int], ...]] = {
    "paper": (
        (50_000, 256, "a", 2, 0),
        (50_000, 256, "b", 3, 5),
        (50_000, 1024, "c", 4, 0),
        (25_000, 128, "a", 2, 5),
        (12_500, 128, "b", 3, 0),
        (6250, 128, "c", 3, 6),
    ),
    "small": (
        (12_500, 256, "a", 4, 0),
        (12_500, 256, "b", 4, 6),
        (12_500, 512, "b", 5, 0),
        (6250, 128, "a", 4, 6),
        (6250, 128, "b", 4, 0),
        (3125, 128, "c", 5, 0),
    ),
    "tiny": (
        (400, 50, "a", 1, 3),
        (400, 50, "b", 1, 0),
        (400, 100, "b", 2, 0),
        (200, 50, "a", 2, 3),
        (200, 50, "b", 2, 0),
        (200, 25, "b", 1, 0),
    ),
}
_SIX_CHOICES = (
    "The well-tuned values are lost with the legend; they are read off tables 1 and 3: η = 0.4; λ = 0.0008; (0.4, "
    "0.0004); η = 0.4; λ = 0.0008; (0.2828, 0.0002828). Their tuning factors are 1, 2, 1, 1, 1 and ½ times 10/128.",
    "One run of each. At smaller scales six cells of the stated factor on what the tables train there.",
)


def _plan_six(options: Options, *, badly: bool) -> list[Planned]:
    scale, base = options.scale, base_run(options.scale)
    stated = STATED_TINY if scale == "tiny" else STATED
    planned = []
    for place, (samples, batch_size, panel, well, bad) in enumerate(_SIX[scale], start=1):
        kinds = ((TUNED, "a", well), (CONTRAST, "b", bad)) if badly else ((TUNED, "ab", well),)
        for kind, shown_in, octave in kinds:
            config = config_at(base, panel, octave, samples=samples, batch_size=batch_size)
            labels: dict[str, Label] = {"panel": shown_in, "column": str(place), "kind": kind, "samples": samples}
            planned += [_curve(config, stated, seed, **labels) for seed in options.seed_range(1)]
    return planned


_FIGURE1 = Experiment(
    id="yun/fig1",
    title="Effective learning rate, and that per epoch, of six well-tuned runs",
    claim="η/‖x‖² rises and settles before the first drop, at no level common to the six; times N/B, the three runs of "
    "equal N coincide and the others do not.",
    plan=partial(_plan_six, badly=False),
    keep=curves,
    judge=judge_rates,
    show=show_rates,
    choices=(
        *COMMON,
        *_SIX_CHOICES,
        "Settled: from the third to the last quarter before the drop the mean moves by less than 10 %. No common "
        "level: a factor of 2 or more apart. Coinciding: within √(2 · span of the tuning factors).",
    ),
)
_FIGURE2 = Experiment(
    id="yun/fig2",
    title="Angle per epoch of six well-tuned and six badly tuned runs",
    claim="Well-tuned runs turn by nearly the same angle per epoch although N, B, η and λ differ; badly tuned ones "
    "turn by different angles.",
    plan=partial(_plan_six, badly=True),
    keep=curves,
    judge=lambda table: judge_angles(table.assign(panel="a")),
    show=partial(show_angles, title="Figure 2", contrast="Figure 2 (b): badly tuned"),
    choices=(
        *COMMON,
        *_SIX_CHOICES,
        "The badly tuned combinations are not named: the ends of the grids searched, low and high in turn (tuning "
        "factors from 1/16 to 8 times the stated one).",
        "Agreement is measured in the last half of each phase as the ratio of the largest to the smallest curve: below "
        "√(2 · span of the tuning factors) and below that of the badly tuned.",
    ),
)
_ALL_WEIGHTS = "The angle is that of all scale-invariant weights as one vector."

EXPERIMENTS: tuple[Experiment, ...] = (
    *(table.experiment for table in TABLES[:4]),
    TABLE5,
    *(table.experiment for table in TABLES[4:]),
    _FIGURE1,
    _FIGURE2,
    _angle_figure(3, 1, "Batch size 128 over data sizes"),
    _angle_figure(4, 3, "50,000 samples over batch sizes"),
    _angle_figure(5, 5, "η = 0.1, λ = 0.0016, batch sizes in step with data sizes"),
    _angle_figure(
        6,
        6,
        "Cosine learning rate",
        choices=("The caption has N = 50,000 like table 6's text; the runs are those of the table.",),
    ),
    _angle_figure(7, 7, "Unmodified ResNet-18 over data sizes", choices=(_ALL_WEIGHTS,)),
    FIGURE8,
    _angle_figure(9, 11, "Unmodified ResNet-18 over batch sizes", choices=(_ALL_WEIGHTS,)),
)
