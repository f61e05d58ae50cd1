"""Li and Arora's appendix E: degrees of homogeneity of modules, chains and networks, as the checker finds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
import torch
from torch import nn

from isogon import nets
from isogon.papers.reproduction import Experiment, Judgement, Options
from isogon.report import Cell, Exhibit, TableExhibit
from isogon.symmetry import check

NOT_HOMOGENEOUS = "not homogeneous"
_CHANNELS = 4


class _Sum(nn.Module):
    """The sum of two branches, each of which may be several modules."""

    def __init__(self, main: Sequence[nn.Module], shortcut: Sequence[nn.Module] = ()) -> None:
        super().__init__()
        self.main, self.shortcut = nn.Sequential(*main), nn.Sequential(*shortcut)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = self.main(x) + self.shortcut(x)
        return total


class _Bias(nn.Module):
    """B: one trainable bias per channel."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.ones(_CHANNELS, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.bias


def _linear(bias: bool = False) -> nn.Module:
    """L."""
    return nn.Conv2d(_CHANNELS, _CHANNELS, 3, padding=1, bias=bias)


def _norm() -> nn.Module:
    """N."""
    return nn.BatchNorm2d(_CHANNELS, affine=False)


def _affine() -> nn.Module:
    """NA."""
    return nn.BatchNorm2d(_CHANNELS)


def _chain(letters: str) -> list[nn.Module]:
    """Modules by the paper's letters: L, N, A (norm with affine), B, and r for ReLU."""
    makers: dict[str, Callable[[], nn.Module]] = {"L": _linear, "N": _norm, "A": _affine, "B": _Bias, "r": nn.ReLU}
    return [makers[letter]() for letter in letters]


def _residual(start: str, block: str, down: str | None, *, last: str = "N") -> list[nn.Module]:
    """S, Block, D-Block, and the last norm: figure 9. `down` is the D-Block's shortcut."""
    blocks = [_Sum(_chain(block))] + ([_Sum(_chain(block), _chain(down))] if down is not None else [])
    return [*_chain(start), *blocks, *_chain(last)]


def _put_bias_before(norm: nn.Module) -> list[nn.Module]:
    """Figure 15: a second linear layer with a trainable bias before a norm."""
    return [*_chain("LA"), nn.ReLU(), _linear(bias=True), norm]


#: name, what to build, the degree that the paper gives
_MODULES: tuple[tuple[str, Callable[[], list[nn.Module]], str], ...] = (
    ("figure 7: L", lambda: _chain("L"), "1"),
    ("figure 7: L, L", lambda: _chain("LL"), "2"),
    ("figure 7: L, B", lambda: _chain("LB"), "1"),
    ("figure 7: L, L, B", lambda: _chain("LLB"), NOT_HOMOGENEOUS),
    ("figure 7: L + L", lambda: [_Sum(_chain("L"), _chain("L"))], "1"),
    ("figure 7: L + L, L", lambda: [_Sum(_chain("L"), _chain("LL"))], NOT_HOMOGENEOUS),
    ("figure 7: L, L, N", lambda: _chain("LLN"), "0"),
    ("figure 7: L, L, NA", lambda: _chain("LLA"), "1"),
    ("figure 8: plain network", lambda: _chain("LNrLNr"), "0"),
    ("figure 12: plain network, affine", lambda: _chain("LArLArN"), "0"),
    ("figure 10: ResNet", lambda: _residual("LNr", "LNrLN", "LN"), "0"),
    ("figure 10: ResNet without the added norm", lambda: _residual("LNr", "LNrLN", "L"), NOT_HOMOGENEOUS),
    ("figure 13: ResNet, affine", lambda: _residual("LAr", "LArLA", "LA"), "0"),
    ("figure 13: ResNet, affine, without the added norm", lambda: _residual("LAr", "LArLA", "L"), NOT_HOMOGENEOUS),
    ("figure 11: PreResNet", lambda: _residual("L", "NrLNrL", "NL"), "0"),
    ("figure 11: PreResNet without the added norm", lambda: _residual("L", "NrLNrL", "L"), NOT_HOMOGENEOUS),
    ("figure 14: PreResNet, affine", lambda: _residual("LArL", "ArLArL", "AL"), "0"),
    ("figure 14: PreResNet, affine, start of degree 1", lambda: _residual("L", "ArLArL", "AL"), NOT_HOMOGENEOUS),
    (
        "figure 15: bias before group norm",
        lambda: _put_bias_before(nn.GroupNorm(2, _CHANNELS, affine=False)),
        NOT_HOMOGENEOUS,
    ),
    ("figure 15: bias before batch norm", lambda: _put_bias_before(_norm()), "0"),
)
#: name, function of `nets`, its options, the degree: with a trained classifier the output is not even homogeneous
_NETWORKS: tuple[tuple[str, Callable[..., nn.Module], dict[str, Any], str], ...] = (
    ("plain CNN", nets.cnn4, {"scale_invariant": "plain"}, "0"),
    ("plain CNN, affine", nets.cnn4, {"scale_invariant": "affine"}, "0"),
    ("ResNet-18", nets.resnet18, {"scale_invariant": "plain"}, "0"),
    ("ResNet-18, affine", nets.resnet18, {"scale_invariant": "affine"}, "0"),
    ("PreResNet-32", nets.preresnet32, {"scale_invariant": "plain"}, "0"),
    ("PreResNet-32, affine", nets.preresnet32, {"scale_invariant": "affine"}, "0"),
    ("PreResNet-32 as published", nets.preresnet32, {}, NOT_HOMOGENEOUS),
)


def _compute(options: Options) -> pd.DataFrame:
    """The degree that the checker finds for each; the networks only at `small` and `paper`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        image = torch.randn(2, _CHANNELS, 8, 8)
        rows = [
            {"panel": "modules", "row": name, "expected": degree, "found": _degree(nn.Sequential(*make()), image)}
            for name, make, degree in _MODULES
        ]
        if options.scale != "tiny":
            colour = torch.randn(2, 3, 16, 16)
            rows += [
                {"panel": "networks", "row": name, "expected": degree, "found": _degree(make(width=4, **with_), colour)}
                for name, make, with_, degree in _NETWORKS
            ]
    return pd.DataFrame(rows)


def _degree(model: nn.Module, inputs: torch.Tensor) -> str:
    return str(check(model.train(), inputs).joint)


def _judge(table: pd.DataFrame) -> Judgement:
    wrong = table[table["expected"] != table["found"]]
    numbers = {"checked": float(len(table)), "as the paper says": float(len(table) - len(wrong))}
    if not len(table):
        return Judgement("undecided", "Nothing was checked.", numbers)
    if not len(wrong):
        return Judgement("holds", f"All {len(table)} have the degree that the paper gives.", numbers)
    unknown = (wrong["found"] == "unknown").all()
    first = wrong.iloc[0]
    sentence = (
        f"{len(wrong)} of {len(table)} differ, the first: {first['row']} is {first['found']}, "
        f"the paper says {first['expected']}."
    )
    return Judgement("undecided" if unknown else "fails", sentence, numbers)


def _show(table: pd.DataFrame) -> Sequence[Exhibit]:
    """1 where the network's output is scale-invariant, 0 where it is not."""
    exhibits = []
    for panel, rows in table.groupby("panel", sort=False):
        names = list(rows["row"])
        ours = {(name, "invariant"): _cell(degree) for name, degree in zip(names, rows["found"], strict=True)}
        printed = {(name, "invariant"): float(d == "0") for name, d in zip(names, rows["expected"], strict=True)}
        title = f"Scale invariance of {panel} (1: invariant, 0: not)"
        exhibits.append(
            TableExhibit(title, "network", "", names, ["invariant"], ours, printed, digits=0, best=None)
        )  # fmt: skip
    return exhibits


def _cell(degree: str) -> Cell:
    return Cell(mean=float(degree == "0"), spread=float("nan"), survived=1, runs=1)


DEGREES = Experiment(
    id="la/degrees",
    title="The degree of homogeneity of modules, chains and networks",
    claim="The checker of appendix E tells the networks that are scale-invariant from those that are not.",
    judge=_judge,
    show=_show,
    compute=_compute,
    choices=(
        "the drawing of the affine PreResNet's start is lost; convolution, norm, convolution has the degree 2 it needs",
        "convolutions of four channels stand for L; networks of width 4",
    ),
)
