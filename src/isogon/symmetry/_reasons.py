"""Why homogeneity broke, in words that can be put together for any source afterwards."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from isogon.symmetry import _state as st
from isogon.symmetry._degree import Degree
from isogon.symmetry._state import State

BIAS_CURE = "drop the bias, or follow it by batch norm, which removes it"
ADD_CURE = "normalise the branches so that they reach the addition with equal degrees"
ACTIVATION_CURE = "normalise without trainable affine before it, or use ReLU"
CHANNEL_CURE = "normalise each channel (batch norm) before they are mixed"
ORACLE_CURE = "measure it with check(..., verify=True)"
RULE_CURE = "measure it with check(..., verify=True), or add a rule with isogon.symmetry.register_rule"


#: a small constant up to this counts as ε before a root or a division
LARGEST_EPS = 1e-3
#: fields of a reason that say what may end it
Mark = Literal["in_parts", "logged"]


@dataclass(frozen=True)
class Reason:
    """Why homogeneity broke: at which operation, of which operands, and what helps."""

    kind: str
    node: str
    op: str
    module: str
    text: str  # "{0}" stands for the first operand's degree, and so on
    cure: str
    unknown: bool
    operands: tuple[State, ...] = ()
    met: str = ""  # for a shift: the operation that could not carry it
    in_parts: bool = False  # of a choice between elements: those of some part may all be of one degree
    logged: bool = False  # of a logarithm: an exponential may undo it, and with it what was not homogeneous

    def sentence(self, source: int) -> str:
        words = self.text.format(*(describe(operand, source) for operand in self.operands))
        return f"{words} {self.met}".strip()


def describe(state: State, source: int) -> str:
    """The operand as the user knows it: its name if it has one, and its degrees."""
    row = state.degree[source]
    numbers = sorted({float(d) for d in row if np.isfinite(d)})
    if np.isnan(row).any():
        degree = "a non-homogeneous tensor" if not numbers else "a partly homogeneous tensor"
    elif not numbers:
        degree = "zeros"
    else:
        shown = [str(Degree.of(d)) for d in numbers]
        degree = f"a tensor of degree {shown[0]}" if len(shown) == 1 else f"degrees {', '.join(shown)}"
    if state.value is not None:
        return f"the constant {state.value:g}"
    return f"{state.label} ({degree.removeprefix('a tensor of ')})" if state.label else degree


@dataclass
class Book:
    """Everything a pass over the graph collects besides the states."""

    reasons: list[Reason] = field(default_factory=list)
    eps: list[tuple[str, str, float]] = field(default_factory=list)  # module, operation, ε
    notes: list[str] = field(default_factory=list)
    averaged: dict[str, State] = field(default_factory=dict)  # module → what its running statistics are taken of
    largest_eps: float = LARGEST_EPS
    running: list[int] = field(default_factory=list)  # reasons about normalisations that use running statistics
    _met: dict[tuple[int, str, bool], int] = field(default_factory=dict)
    _marked: dict[tuple[int, str, bool], int] = field(default_factory=dict)

    def add(self, reason: Reason) -> int:
        self.reasons.append(reason)
        return len(self.reasons) - 1 + (st.UNKNOWN_BASE if reason.unknown else 0)

    def get(self, number: int) -> Reason:
        return self.reasons[number % st.UNKNOWN_BASE]

    def meet(self, number: int, node: str, words: str, unknown: bool) -> int:
        """The reason for a shift, now that an operation could not carry it, or may not be able to."""
        key = (number, node, unknown)
        if key not in self._met:
            old = self.get(number)
            same = old.met and (old.unknown or not unknown)
            self._met[key] = number if same else self.add(replace(old, met=words, unknown=old.unknown or unknown))
        return self._met[key]

    def mark_reason(self, number: int, mark: Mark, on: bool = True) -> int:
        """The same reason with a mark, or without."""
        key = (number, mark, on)
        if key not in self._marked:
            changes: dict[str, Any] = {mark: on}
            self._marked[key] = self.add(replace(self.get(number), **changes))
        return self._marked[key]


@dataclass
class Site:
    """An operation's place in the model, from where reasons and assumptions are noted."""

    name: str
    node: str
    module: str
    module_type: str
    book: Book

    @property
    def short(self) -> str:
        return self.name.split(".")[1].removesuffix("_") if "." in self.name else self.name

    @property
    def place(self) -> str:
        """Where it happens, as the user would say it: the layer's name, or the operation within a larger module."""
        if not self.module:
            return self.short
        where = f"{self.module} ({self.module_type.rsplit('.', 1)[-1]})"
        return where if self.module_type.startswith("torch.nn.modules.") else f"{self.short} in {where}"

    def broken(self, kind: str, text: str, *operands: State, cure: str = "") -> int:
        """Number of a new reason for "not homogeneous"."""
        return self.book.add(Reason(kind, self.node, self.name, self.module, text, cure, False, operands))

    def unsure(self, kind: str, text: str, *operands: State, cure: str = RULE_CURE) -> int:
        """Number of a new reason for "unknown"."""
        return self.book.add(Reason(kind, self.node, self.name, self.module, text, cure, True, operands))

    def assume_small(self, eps: float) -> None:
        """Note that a small positive constant counts as zero."""
        self.book.eps.append((self.module, self.short, eps))

    def note(self, sentence: str) -> None:
        if sentence not in self.book.notes:
            self.book.notes.append(sentence)
