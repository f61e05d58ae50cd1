"""`ScaleMap`: what a check found, to be read as a table, sentence by sentence, or as data."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from isogon.errors import ArgumentError
from isogon.symmetry._degree import Degree

JOINT = "joint"


@dataclass(frozen=True)
class Break:
    """One place of the graph where the joint question stops being homogeneous.

    `kind` is one of: `bias` (a named parameter or buffer added to another degree), `constant`, `add` (branches of
    unequal degree), `activation` (a function that needs degree 0), `channels` (unequal channels mixed), `eval` (running
    statistics), `output` (homogeneous, but the output's degree is not 0), `unknown` (no rule), or one of the rarer
    `alias`, `ratio`, `factor`.
    """

    kind: str
    node: str
    op: str
    module: str
    reason: str
    cure: str
    parameters: tuple[str, ...] = ()  # named operands, such as the bias that breaks
    feeders: tuple[str, ...] = ()  # for each operand the module of the nearest linear layer or convolution before it


@dataclass(frozen=True)
class Disagreement:
    """A static answer that the numerical oracle contradicts."""

    name: str
    static: str
    measured: str
    radial: float
    deviation: float

    def __str__(self) -> str:
        return (
            f"{self.name}: the rules say {self.static}, the measurement says {self.measured} "
            f"(radial derivative {self.radial:.1e}, change on rescaling {self.deviation:.1e})"
        )


@dataclass(frozen=True)
class ScaleMap:
    """Which parameters of a model are scale-invariant, together and one by one, and why.

    `joint` is the degree of the model's output when all trainable parameters are scaled together, `alone` the degree in
    each parameter scaled by itself. `breaks` lists, in the order of the graph, where the joint question breaks.
    """

    model: str
    joint: Degree
    alone: Mapping[str, Degree]
    explanations: Mapping[str, str] = field(repr=False)
    shapes: Mapping[str, tuple[int, ...]] = field(repr=False)
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict, repr=False)
    assumptions: tuple[str, ...] = ()
    breaks: tuple[Break, ...] = ()
    disagreements: tuple[Disagreement, ...] = ()
    measured: Mapping[str, str] = field(default_factory=dict, repr=False)
    verification: str = "not verified numerically"
    # module with running statistics → source → degree of its input by channel; sources of degree 0 are left out
    statistics: Mapping[str, Mapping[str, tuple[float, ...]]] = field(default_factory=dict, repr=False)

    @property
    def is_invariant(self) -> bool:
        """Whether scaling all trainable parameters together provably leaves the output unchanged."""
        return self.joint.is_invariant

    @property
    def verdict(self) -> str:
        """The joint answer: `invariant`, `not invariant` or `unknown`."""
        return self.joint.verdict

    @property
    def invariant(self) -> tuple[str, ...]:
        """The parameters that are invariant by themselves."""
        return tuple(name for name, degree in self.alone.items() if degree.is_invariant)

    def statistics_degrees(self, names: Iterable[str]) -> dict[str, tuple[float, ...]]:
        """How the input of each batch norm scales when the parameters `names` are scaled together, channel by channel.

        Running means follow as c^d, running variances as c^(2d). Where a degree is not known the module is left out.
        """
        wanted = set(names)
        together = {JOINT} if wanted == set(self.alone) else wanted
        degrees_by_module = {}
        for module, sources in self.statistics.items():
            rows = [degrees for name, degrees in sources.items() if name in together]
            if rows:
                # A tensor homogeneous in each of several parameters is so in all together, and the degrees add up.
                total = tuple(sum(column) for column in zip(*rows, strict=True))
                if all(math.isfinite(degree) for degree in total):
                    degrees_by_module[module] = total
        return degrees_by_module

    def explain(self, name: str = JOINT) -> str:
        """Why the parameter `name`, or all of them together (`joint`), is or is not invariant, and what would help."""
        first = next((n for n, others in self.aliases.items() if name in others), name)
        if first not in self.explanations:
            close = difflib.get_close_matches(str(name), self.explanations, n=3)
            cure = f"did you mean {' or '.join(close)}" if close else "see the names in .alone"
            raise ArgumentError("name", "a trainable parameter of the model, or 'joint'", name, cure)
        measured = self.measured.get(first)
        degree = self.joint if first == JOINT else self.alone[first]
        if not degree.is_unknown or not measured:
            return self.explanations[first]
        # What would help is to measure, and that has been done.
        return f"{self.explanations[first].partition(' Cure: ')[0]} Measured in double precision: {measured}."

    def __str__(self) -> str:
        rows = [("parameter", "shape", "alone", "note")]
        for name, degree in self.alone.items():
            rows.append((name, "×".join(map(str, self.shapes[name])) or "scalar", str(degree), self._note(name)))
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        lines = [
            "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]).rstrip()
            for row in rows
        ]
        lines.insert(1, "  ".join("─" * width for width in [*widths, 4]))
        lines += [f"assuming: {sentence}" for sentence in self.assumptions]
        lines += [f"DISAGREEMENT: {disagreement}" for disagreement in self.disagreements]
        if self.verification.startswith("could not"):
            lines.append(self.verification)
        lines.append(f"jointly (all {len(self.alone)} together): {self.verdict}. {self.explain()}")
        return "\n".join(lines)

    def _note(self, name: str) -> str:
        tied = f"tied to {', '.join(self.aliases[name])}; " if name in self.aliases else ""
        degree = self.alone[name]
        measured = self.measured.get(name)
        seen = f" (measured: {measured})" if measured and degree.is_unknown else ""
        return tied + degree.verdict + seen

    def to_dict(self) -> dict[str, Any]:
        """The whole answer in plain types, for JSON."""
        return {
            "model": self.model,
            "is_invariant": self.is_invariant,
            "verdict": self.verdict,
            "joint": str(self.joint),
            "explanation": self.explain(),
            "parameters": [
                {
                    "name": name,
                    "shape": list(self.shapes[name]),
                    "alone": str(degree),
                    "verdict": degree.verdict,
                    "tied_to": list(self.aliases.get(name, ())),
                    "measured": self.measured.get(name),
                    "explanation": self.explain(name),
                }
                for name, degree in self.alone.items()
            ],
            "invariant": list(self.invariant),
            "assumptions": list(self.assumptions),
            "breaks": [vars(place) for place in self.breaks],
            "disagreements": [vars(entry) for entry in self.disagreements],
            "verification": self.verification,
        }
