"""All solutions of a set of linear equations, exactly, with a basis that people can read."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from math import gcd, lcm

#: a vector of rational numbers by the places where it is not zero, and one of whole numbers
Vector = dict[int, Fraction]
Whole = dict[int, int]

# Passes over the basis in search of shorter vectors; each ends where nothing was gained.
_PASSES = 6
# Steps that the search for one group of ones may take.
_MOST_STEPS = 20_000


def rational(value: float) -> Fraction | None:
    """The power that a floating-point number stands for; None where it is no simple fraction.

    >>> rational(2 / 3), rational(3.14159265)
    (Fraction(2, 3), None)
    """
    simple = Fraction(value).limit_denominator(5040)
    return simple if simple and abs(simple - Fraction(value)) < 1e-9 else None


def eliminate(equations: Iterable[Vector]) -> dict[int, Vector]:
    """The equations solved for some of their unknowns: pivot → the equation, in which it has coefficient 1.

    No pivot is in another pivot's equation. A pivot is an unknown that few equations have, the last of these, so that
    what links many (the residual stream) stays free.
    """
    rows = [dict(row) for row in equations if row]
    uses = Counter(unknown for row in rows for unknown in row)
    solved: dict[int, Vector] = {}
    users: dict[int, set[int]] = defaultdict(set)  # unknown → pivots whose equations have it
    for row in sorted(rows, key=len):
        row = dict(row)
        for unknown in [u for u in row if u in solved]:
            _add(row, solved[unknown], -row[unknown])
        if not row:
            continue
        pivot = min(row, key=lambda unknown: (uses[unknown], -unknown))
        scale = 1 / row[pivot]
        row = {unknown: value * scale for unknown, value in row.items()}
        for other in list(users[pivot]):
            before = set(solved[other])
            _add(solved[other], row, -solved[other][pivot])
            for unknown in before ^ set(solved[other]):
                (users[unknown].add if unknown in solved[other] else users[unknown].discard)(other)
        solved[pivot] = row
        for unknown in row:
            users[unknown].add(pivot)
    return solved


def _add(row: Vector, other: Vector, factor: Fraction) -> None:
    for unknown, value in other.items():
        total = row.get(unknown, Fraction(0)) + factor * value
        if total:
            row[unknown] = total
        else:
            row.pop(unknown, None)


def null_space(equations: Iterable[Vector], unknowns: int) -> list[Vector]:
    """A basis of what solves the equations, in whole numbers, with small powers and few unknowns each.

    >>> one = Fraction(1)
    >>> null_space([{0: one, 1: one}, {2: 2 * one, 0: one}], 4)
    [{3: Fraction(1, 1)}, {0: Fraction(2, 1), 1: Fraction(-2, 1), 2: Fraction(-1, 1)}]
    """
    solved = eliminate(equations)
    basis: dict[int, Vector] = {free: {free: Fraction(1)} for free in range(unknowns) if free not in solved}
    for pivot, row in solved.items():
        for unknown, value in row.items():
            if unknown != pivot:
                basis[unknown][pivot] = -value
    vectors = _shorten([_whole(vector) for vector in basis.values()])
    ordered = sorted(
        (dict(sorted(vector.items())) for vector in vectors), key=lambda vector: (len(vector), min(vector))
    )
    return [{unknown: Fraction(value) for unknown, value in vector.items()} for vector in ordered]


def _whole(vector: Mapping[int, Fraction | int]) -> Whole:
    """The same direction in the smallest whole numbers, the first of them positive."""
    scale = lcm(*(value.denominator for value in vector.values()))
    whole = {unknown: value.numerator * (scale // value.denominator) for unknown, value in vector.items()}
    common = gcd(*whole.values()) * (1 if whole[min(whole)] > 0 else -1)
    return whole if common == 1 else {unknown: value // common for unknown, value in whole.items()}


def _length(vector: Whole) -> tuple[int, int, int]:
    """What a reader would rather have small: the powers, how many unknowns there are, how far they lie apart.

    Where all powers are positive the distance does not matter: a group is wherever it is.
    """
    apart = max(vector) - min(vector) if min(vector.values()) < 0 else 0
    return max(map(abs, vector.values())), len(vector), apart


def _shorten(basis: list[Whole]) -> list[Whole]:
    """The basis with vectors replaced by shorter sums of two, as long as there are any."""
    users: dict[int, set[int]] = defaultdict(set)
    for place, vector in enumerate(basis):
        for unknown in vector:
            users[unknown].add(place)
    for _ in range(_PASSES):
        changed = False
        for place in range(len(basis)):
            while (shorter := _shorter(basis, place, users)) is not None:
                for unknown in basis[place].keys() ^ shorter.keys():
                    (users[unknown].add if unknown in shorter else users[unknown].discard)(place)
                basis[place] = shorter
                changed = True
        if not changed:
            break
    return basis


def _shorter(basis: list[Whole], place: int, users: Mapping[int, set[int]]) -> Whole | None:
    vector = basis[place]
    if len(vector) == 1:
        return None
    best, least = None, _length(vector)
    partners = {other for unknown in vector for other in users[unknown] if other != place}
    for other in sorted(partners):
        if len(basis[other]) > 2 * len(vector):  # it would only add
            continue
        # What cancels one of the unknowns, and a single step either way.
        factors = {Fraction(-vector[unknown], value) for unknown, value in basis[other].items() if unknown in vector}
        for factor in factors | {Fraction(1), Fraction(-1)}:
            if least[0] == 1 and _growth(vector, basis[other], factor) >= (0 if least[2] == 0 else 1):
                continue  # with powers of one only fewer unknowns help
            total = _combine(vector, basis[other], factor)
            if (length := _length(total)) < least:
                best, least = total, length
    return best


def _growth(vector: Whole, other: Whole, factor: Fraction) -> int:
    """How many unknowns more vector + factor · other has."""
    return sum(
        1 if unknown not in vector else -(vector[unknown] * factor.denominator == -value * factor.numerator)
        for unknown, value in other.items()
    )


def _combine(vector: Whole, other: Whole, factor: Fraction) -> Whole:
    total = {unknown: value * factor.denominator for unknown, value in vector.items()}
    for unknown, value in other.items():
        total[unknown] = total.get(unknown, 0) + value * factor.numerator
        if not total[unknown]:
            del total[unknown]
    return _whole(total)


def groups_of_ones(equations: Sequence[Vector], unknowns: int, basis: Sequence[Vector] = ()) -> list[frozenset[int]]:
    """Sets of unknowns that solve the equations with power 1 each; none has a part that does.

    First those of the `basis`, then one for each unknown that is in none yet, of unknowns that are in none. Where one
    unknown could stand in for another, the later one is taken.

    >>> one = Fraction(1)
    >>> groups_of_ones([{0: one, 1: -one}, {2: one, 3: one}], 5)
    [frozenset({0, 1}), frozenset({4})]
    """
    search = _Ones([_whole(row) for row in equations if row], unknowns)
    from_basis = [frozenset(vector) for vector in basis if set(vector.values()) == {1}]
    groups = list(dict.fromkeys(_smallest_part(search, group, min(group)) for group in from_basis))
    for group in groups:
        search.exclude(group)
    for unknown in range(unknowns):
        ones = search.containing(unknown) if search.values[unknown] is None else None
        if ones is not None:
            groups.append(_smallest_part(search, ones, unknown))
            search.exclude(groups[-1])
    return groups


def _smallest_part(search: _Ones, group: frozenset[int], unknown: int) -> frozenset[int]:
    """The part of `group` with `unknown` that no smaller solution can be taken from."""
    if search.containing(unknown, within=group) == group and search.steps == 1:
        return group  # one of it forces all others
    for member in sorted(group, reverse=True):
        if member in group and (part := search.containing(member, within=group)) is not None and part < group:
            group = part if unknown in part else group - part
    return group


class _Ones:
    """Zeros and ones that solve equations, by following what each choice forces."""

    def __init__(self, rows: list[Whole], unknowns: int) -> None:
        self.rows = rows
        self.of: dict[int, list[int]] = defaultdict(list)
        for place, row in enumerate(rows):
            for unknown in row:
                self.of[unknown].append(place)
        self.values: list[int | None] = [None] * unknowns
        self.steps = 0
        self._force(range(len(rows)), [])

    def exclude(self, group: Iterable[int]) -> None:
        """Zeros from now on, as far as that forces no others."""
        for unknown in group:
            self.values[unknown] = 0

    def containing(self, unknown: int, within: frozenset[int] | None = None) -> frozenset[int] | None:
        """The set with `unknown` that the search comes to first; None where there is none."""
        self.steps = 0
        trail = [u for u, value in enumerate(self.values) if value is None and within is not None and u not in within]
        for outside in trail:
            self.values[outside] = 0
        ones = self._search(unknown, trail)
        for place in trail:
            self.values[place] = None
        return ones

    def _search(self, unknown: int, trail: list[int]) -> frozenset[int] | None:
        self.steps += 1
        start = len(trail)
        if self.steps <= _MOST_STEPS and self._set(unknown, 1, trail) and self._force(self.of[unknown], trail):
            row = next((row for member in trail if self.values[member] == 1 for row in self._open_rows(member)), None)
            if row is None:
                return frozenset(place for place in trail if self.values[place] == 1)
            for choice in sorted((u for u in self.rows[row] if self.values[u] is None), reverse=True):
                ones = self._search(choice, trail)
                if ones is not None:
                    return ones
                if not (self._set(choice, 0, trail) and self._force(self.of[choice], trail)):
                    break
        for place in trail[start:]:
            self.values[place] = None
        del trail[start:]
        return None

    def _open_rows(self, unknown: int) -> Iterable[int]:
        """Equations with `unknown` that do not hold yet with zeros for what is open."""
        return (place for place in self.of[unknown] if self._sum(place) != 0)

    def _sum(self, place: int) -> int:
        return sum(value for u, value in self.rows[place].items() if self.values[u] == 1)

    def _set(self, unknown: int, value: int, trail: list[int]) -> bool:
        if self.values[unknown] is None:
            self.values[unknown] = value
            trail.append(unknown)
        return self.values[unknown] == value

    def _force(self, places: Iterable[int], trail: list[int]) -> bool:
        """Follow what the equations at `places` force; whether they can still hold."""
        queue = list(places)
        while queue:
            row = self.rows[queue.pop()]
            total = sum(value for u, value in row.items() if self.values[u] == 1)
            free = {u: value for u, value in row.items() if self.values[u] is None}
            low = total + sum(value for value in free.values() if value < 0)
            high = total + sum(value for value in free.values() if value > 0)
            if low > 0 or high < 0:
                return False
            for unknown, value in free.items():
                # A one that leaves the sum too large or too small is a zero, and a zero that does so is a one.
                width = abs(value)
                forced = None
                if (value > 0 and low + width > 0) or (value < 0 and high - width < 0):
                    forced = 0
                elif (value > 0 and high - width < 0) or (value < 0 and low + width > 0):
                    forced = 1
                if forced is not None:
                    self.values[unknown] = forced
                    trail.append(unknown)
                    queue += self.of[unknown]  # this one among them
                    break
        return True
