"""Tables 1 to 11 of Yun et al.: accuracies over data sizes and batch sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from isogon.papers._printed import yun_headline
from isogon.papers.reproduction import Experiment, Scale, final_row
from isogon.papers.yun._columns import judge_table, show_table
from isogon.papers.yun._grids import (
    PANELS,
    STATED,
    STATED_TINY,
    STATED_TINY_IMAGENET,
    BatchGrid,
    Network,
    RateGrid,
    Varied,
    base_run,
    config_at,
    plan_table,
)

DATA_SIZES: Mapping[Scale, tuple[int, ...]] = {
    "tiny": (200, 400),
    "small": (3125, 6250, 12_500),
    "paper": (3125, 6250, 12_500, 25_000, 50_000),
}
_BATCH_SIZES: Mapping[Scale, tuple[int, ...]] = {
    "tiny": (100, 50),
    "small": (512, 256, 128),
    "paper": (2048, 1024, 512, 256, 128),
}
#: N where B varies, and B where N does
_FIXED_N: Mapping[Scale, int] = {"tiny": 400, "small": 12_500, "paper": 50_000}
_FIXED_B: Mapping[Scale, int] = {"tiny": 50, "small": 128, "paper": 128}
_SEEDS: Mapping[Scale, int] = {"tiny": 1, "small": 1, "paper": 3}
#: epochs at small scale where not all 300 are trained; the rate still drops after half and three quarters of them
_SMALL_EPOCHS, _SMALL_EPOCHS_DENSENET = 100, 60

COMMON = (
    "The accuracy is that of the last epoch; a run counts as diverged by the lab's rule and is left out of the mean.",
    "The three runs of a cell differ in seed (order of batches, augmentation, first weights) and share one "
    "class-balanced subset; smaller subsets lie within larger ones.",
    "No Nesterov momentum; weight decay covers all trained parameters, γ and β too; a last batch that is not full is "
    "dropped; 3×3 stem; padding, cropping and mirroring, as the appendix says (the main text speaks of resizing).",
    "bfloat16 on the GPU with weights in float32.",
    "At tiny scale a network of three convolutions with ghost batches of 25 on Fashion-MNIST averaged to 7×7 pixels, "
    "not augmented, with three epochs, N = 200 and 400, one seed, float32, and 0.32 for the stated tuning factor, "
    "among the best of a few runs there.",
)
_PLAIN = (
    "The unmodified network has plain batch norm; the paper does not say whether its ghost batches stay. At tiny scale "
    "they do."
)


@dataclass(frozen=True)
class Table:
    """A table over a grid of rates; `panels` and `columns` are those of a scale where they are not the usual ones."""

    number: int
    title: str
    claim: str
    varied: Varied = "samples"
    network: Network = "invariant"
    momentum: float = 0.9
    schedule: str = "step"
    stated: float = STATED
    every: bool = True
    #: the largest column that the claim is about
    largest: float = float("inf")
    panels: Mapping[Scale, tuple[str, ...]] = field(default_factory=dict)
    columns: Mapping[Scale, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    octaves: range = range(7)
    tiny_rows: int = 3
    #: at small scale; None for as many as printed
    small_epochs: int | None = _SMALL_EPOCHS
    choices: tuple[str, ...] = ()

    def grid(self, scale: Scale) -> RateGrid:
        if self.varied == "samples":
            usual = tuple((samples, _FIXED_B[scale]) for samples in DATA_SIZES[scale])
        else:
            usual = tuple((_FIXED_N[scale], batch_size) for batch_size in _BATCH_SIZES[scale])
        return RateGrid(
            base=base_run(
                scale,
                self.network,
                momentum=self.momentum,
                schedule=self.schedule,
                epochs=self.small_epochs if scale == "small" else None,
            ),
            columns=usual if scale == "tiny" else self.columns.get(scale, usual),
            varied=self.varied,
            octaves=range(self.tiny_rows) if scale == "tiny" else self.octaves,
            panels=self.panels.get(scale, PANELS),
            stated=STATED_TINY if scale == "tiny" else self.stated,
            seeds=_SEEDS[scale],
        )

    @property
    def experiment(self) -> Experiment:
        columns = yun_headline(self.number)
        met = int((columns["rank"] <= 2).sum())
        return Experiment(
            id=f"yun/table{self.number}",
            title=self.title,
            claim=f"{self.claim} (In the printed numbers: {met} of {len(columns)} columns.)",
            plan=lambda options: plan_table(self.number, self.grid(options.scale), options),
            keep=final_row,
            judge=partial(judge_table, every=self.every, counts=lambda column: int(column) <= self.largest),
            show=partial(show_table, title=f"Table {self.number}", varied=self.varied),
            choices=(*COMMON, *self.choices, *self._shortened),
        )

    @property
    def _shortened(self) -> tuple[str, ...]:
        if self.small_epochs is None:
            return ()
        return (f"At small scale {self.small_epochs} epochs; printed accuracies are those of all epochs.",)


_EVERY = (
    "In every column the cell of the stated tuning factor, {factor}, has the best or second-best accuracy, whether η, "
    "λ or both carry the change, and the best cell is within a factor of 2 of it."
)
_MOST = (
    "The stated tuning factor, {factor}, remains a good choice: in most columns its cell has the best or second-best "
    "accuracy, and the best cell is within a factor of 2 of it."
)
_B_ALONE: Mapping[Scale, tuple[str, ...]] = {"tiny": ("b",)}
_B_OF_COSTLY: Mapping[Scale, tuple[str, ...]] = {"tiny": ("b",), "small": ("b",)}
_WITHOUT_C: Mapping[Scale, tuple[str, ...]] = {"tiny": ("b",), "small": ("a", "b")}

TABLES = (
    Table(
        1,
        "Batch size 128, SGD with momentum: accuracy over data sizes",
        _EVERY.format(factor="10/128"),
        panels={"tiny": ("a", "b")},
        tiny_rows=4,
        small_epochs=None,
    ),
    Table(
        2,
        "Batch size 128, SGD without momentum: accuracy over data sizes",
        _EVERY.format(factor="10/128") + " So 1/(1 − μ) is the right factor for momentum.",
        momentum=0.0,
        panels=_B_ALONE,
        choices=(
            "Printed: the text claims all columns; in panel (a), N = 6250, the cell is third by 0.02 points.",
            "Printed: row η = 64 has four values; the blank is taken to be N = 50,000.",
        ),
    ),
    Table(
        3,
        "50,000 samples, SGD with momentum: accuracy over batch sizes",
        _EVERY.format(factor="10/128") + " λ can be scaled with B as well as η.",
        varied="batch_size",
        tiny_rows=4,
        panels=_WITHOUT_C,
        choices=("At small scale N = 12,500 and the panels (a) and (b).",),
    ),
    Table(
        4,
        "50,000 samples, SGD without momentum: accuracy over batch sizes",
        _EVERY.format(factor="10/128") + " Up to B = 512: the authors concede misses beyond, where η is very large.",
        varied="batch_size",
        momentum=0.0,
        largest=512,
        panels=_WITHOUT_C,
        choices=(
            "Printed: the text excuses columns with B above 512; in the numbers only B = 2048 misses.",
            "Printed: row η = 64 has four values; the blank is taken to be B = 128.",
            "At small scale N = 12,500 and the panels (a) and (b).",
        ),
    ),
    Table(
        6,
        "Cosine learning rate, batch size 128: accuracy over data sizes",
        _MOST.format(factor="10/128"),
        schedule="cosine",
        every=False,
        panels=_B_ALONE,
        choices=(
            "The cosine falls to 0, step by step.",
            "Printed: the text says that N is 50,000 and B varies; the caption has B = 128, and the columns are N.",
        ),
    ),
    Table(
        7,
        "Unmodified ResNet-18, batch size 128: accuracy over data sizes",
        _MOST.format(factor="10/128"),
        network="plain",
        every=False,
        panels=_B_ALONE,
        choices=(_PLAIN, "Printed: some low numbers of panel (a) look like means over partly failed runs."),
    ),
    Table(
        8,
        "Scale-invariant DenseNet-100 on CIFAR-100, batch size 128: accuracy over data sizes",
        _EVERY.format(factor="5/64"),
        network="densenet",
        small_epochs=_SMALL_EPOCHS_DENSENET,
        tiny_rows=4,
        panels=_B_OF_COSTLY,
        columns={"small": ((3125, 128), (6250, 128))},
        choices=(
            "DenseNet-BC with growth 12 and compression 0.5, without dropout; frozen classifier and last norm as in "
            "the scale-invariant ResNet.",
            "Printed: 71.98 stands twice in panel (c), N = 50,000; at (0.4, 0.0004) 62 to 64 would fit. 20.42 in panel "
            "(a), N = 25,000, lies far off its neighbours.",
            "At small scale panel (b) and two data sizes.",
        ),
    ),
    Table(
        9,
        "Scale-invariant ResNet-18 on Tiny ImageNet, batch size 256: accuracy over data sizes",
        _EVERY.format(factor="5/32") + " The factor is twice that of CIFAR: it depends on task and epochs.",
        network="tiny-imagenet",
        small_epochs=None,
        stated=STATED_TINY_IMAGENET,
        tiny_rows=4,
        panels=_B_OF_COSTLY,
        columns={
            "small": ((12_500, 256), (25_000, 256)),
            "paper": ((12_500, 256), (25_000, 256), (50_000, 256), (100_000, 256)),
        },
        octaves=range(1, 7),
        choices=(
            "Images of 64×64, 3×3 stem, padding, cropping and mirroring; the validation images are the test set.",
            "Printed: the bottom row is left out; panels (a) and (b) share four values at N = 100,000.",
            "At small scale panel (b) and two data sizes.",
        ),
    ),
    Table(
        10,
        "Scale-invariant DenseNet-100 on CIFAR-100, 50,000 samples: accuracy over batch sizes",
        _EVERY.format(factor="5/64"),
        varied="batch_size",
        network="densenet",
        small_epochs=_SMALL_EPOCHS_DENSENET,
        tiny_rows=4,
        panels=_B_OF_COSTLY,
        columns={"small": ((6250, 256), (6250, 128))},
        choices=(
            "Network as in table 8; 71.98 stands twice in panel (c), B = 128, as there.",
            "At small scale panel (b), N = 6250 and two batch sizes.",
        ),
    ),
    Table(
        11,
        "Unmodified ResNet-18, 50,000 samples: accuracy over batch sizes",
        _MOST.format(factor="5/64"),
        varied="batch_size",
        network="plain",
        every=False,
        panels=_WITHOUT_C,
        choices=(
            _PLAIN,
            "Printed: the bottom row has the numbers of N = 3125 … 50,000 at B = 128 and is not to be compared with; "
            "the column B = 128 differs from table 7's N = 50,000, the same runs; (a) and (b) share 95.16 and 95.25.",
            "At small scale N = 12,500 and the panels (a) and (b).",
        ),
    ),
)
BY_NUMBER = {table.number: table for table in TABLES}


def grid5(scale: Scale) -> BatchGrid:
    # Table 5 has the rates of row 4 of table 1's panel (b); at tiny scale those of row 1.
    base = config_at(base_run(scale), "b", 1 if scale == "tiny" else 4, samples=400, batch_size=50)
    return BatchGrid(
        base=base,
        batch_sizes=(25, 50, 100) if scale == "tiny" else (32, 64, 128, 256, 512, 1024, 2048),
        samples=DATA_SIZES[scale],
        stated=STATED_TINY if scale == "tiny" else STATED,
        seeds=_SEEDS[scale],
    )


TABLE5 = Experiment(
    id="yun/table5",
    title="η = 0.1, λ = 0.0016: accuracy over data and batch sizes",
    claim="For every data size the batch size of the stated tuning factor, 10/128 (B = 0.02048 N), has the best or "
    "second-best accuracy, and the best is within a factor of 2 of it. (In the printed numbers: 5 of 5 columns.)",
    plan=lambda options: plan_table(5, grid5(options.scale), options),
    keep=final_row,
    judge=judge_table,
    show=partial(show_table, title="Table 5", varied="samples", row_name="B", single=True),
    choices=(*COMMON, "A batch of 32, smaller than a ghost batch, is one ghost batch."),
)
