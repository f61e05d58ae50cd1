"""Sets of powers as people read them: which weights grow, which shrink, and repeated layers once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any


def factor_text(value: Fraction) -> str:
    return "" if value == 1 else "-" if value == -1 else f"{value}·"


def powers_text(vector: Mapping[str, Fraction]) -> str:
    """Powers as people write them: which weights grow, and which shrink.

    >>> powers_text({"q.weight": Fraction(1), "k.weight": Fraction(-1), "o.weight": Fraction(-2)})
    'q.weight · c, k.weight / c, o.weight / c²'
    """
    digits = str.maketrans("0123456789/", "⁰¹²³⁴⁵⁶⁷⁸⁹ᐟ")
    texts = []
    for name, power in vector.items():
        size = "" if abs(power) == 1 else str(abs(power)).translate(digits)
        texts.append(f"{name} {'·' if power > 0 else '/'} c{size}")
    return ", ".join(texts)


_NUMBER = re.compile(r"(?<=\.)\d+(?=[.\[])|^\d+(?=\.)")


def find_repeats(basis: Iterable[Mapping[str, Fraction]]) -> list[tuple[str, int]]:
    """Vectors as text, those that differ in the numbers of their layers alone shown once with their count.

    >>> one = Fraction(1)
    >>> find_repeats([{f"h.{i}.q": one, f"h.{i}.k": -one} for i in range(12)])
    [('h.0…11.q · c, h.0…11.k / c', 12)]
    """
    families: dict[tuple[Any, ...], list[Mapping[str, Fraction]]] = {}
    for vector in basis:
        key = tuple((_NUMBER.sub("#", name), power) for name, power in _fold(vector))
        families.setdefault(key, []).append(vector)
    rows = []
    for members in families.values():
        texts = [_fold(vector) for vector in members]
        names = [_join_names([text[place][0] for text in texts]) for place in range(len(texts[0]))]
        rows.append(
            (powers_text({name: power for name, (_, power) in zip(names, texts[0], strict=True)}), len(members))
        )
    return rows


def scaling_text(vector: Mapping[str, Fraction]) -> str:
    """One vector as text, runs over the layers made one.

    >>> scaling_text({"embed": Fraction(1), "h.0.o": Fraction(1), "h.1.o": Fraction(1), "norm": Fraction(-1)})
    'embed · c, h.0…1.o · c, norm / c'
    """
    return find_repeats([vector])[0][0]


def repeated_groups(groups: Iterable[frozenset[str]]) -> list[tuple[str, int]]:
    """Groups as text, in the same way."""
    ordered = [dict.fromkeys(sorted(group, key=_natural), Fraction(1)) for group in groups]
    return [(text.replace(" · c", ""), count) for text, count in find_repeats(ordered)]


def _natural(name: str) -> list[Any]:
    return [(0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", name) if part]


def _fold(vector: Mapping[str, Fraction]) -> list[tuple[str, Fraction]]:
    """The vector with runs over the layers made one: h.0.o, h.1.o, … of one power are h.0…11.o."""
    families: dict[tuple[str, Fraction], list[str]] = {}
    for name, power in vector.items():
        families.setdefault((_NUMBER.sub("#", name), power), []).append(name)
    return [(_join_names(names), power) for (_, power), names in families.items()]


def _join_names(names: Sequence[str]) -> str:
    """One name for names that differ in numbers: the first and the last number where they differ.

    >>> _join_names(["h.0.o", "h.1.o", "h.2.o"])
    'h.0…2.o'
    """
    if len(set(names)) == 1:
        return names[0]
    parts = [re.split(r"(\d+)", name) for name in names]
    if len({len(part) for part in parts}) > 1:
        return ", ".join(names)
    whole = ""
    for column in zip(*parts, strict=True):
        different = list(dict.fromkeys(column))
        numbers = sorted(different, key=lambda text: int(text) if text.isdigit() else 0)
        whole += column[0] if len(different) == 1 else f"{numbers[0]}…{numbers[-1]}"
    return whole
