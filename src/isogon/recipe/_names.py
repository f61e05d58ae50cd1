"""What people call the fields of a recipe, and new values relative to old ones."""

from __future__ import annotations

import re
from typing import Any

from isogon.errors import ArgumentError

#: other words for a field, on the command line, in Python and in files
ALIASES = {
    "wd": "weight_decay",
    "batch": "batch_size",
    "beta1": "momentum",
    "learning_rate": "lr",
    "data": "samples",
    "parameters": "params",
}
# x4 and 4x multiply, /4 and ÷4 divide.
_RELATIVE = re.compile(
    r"\s*(?:[x×*]\s*(?P<times>.+)|(?P<before>[^\s/÷].*?)\s*[x×]|[/÷]\s*(?P<over>.+))\s*", re.IGNORECASE
)
#: what `beta2` may be besides a number: as many samples remembered as before
HALF_LIFE = "half-life"


def field_name(name: str) -> str:
    """The field that `name` means; unknown names come back as they are.

    >>> field_name("WD"), field_name("--batch-size"), field_name("depth")
    ('weight_decay', 'batch_size', 'depth')
    """
    plain = name.strip().lower().lstrip("-").replace("-", "_")
    return ALIASES.get(plain, plain)


def is_relative(value: Any) -> bool:
    """Whether a value is a factor such as "x4"."""
    return isinstance(value, str) and _RELATIVE.fullmatch(value) is not None


def new_value(name: str, value: Any, old: float | None) -> Any:
    """The value meant: a factor such as "x4" of the `old` one, or a number as it is or written out.

    >>> new_value("batch_size", "x4", 256), new_value("lr", "3e-4", 1.0), new_value("samples", "/10", 1005)
    (1024, 0.0003, 100)
    """
    if not isinstance(value, str):
        return value
    relative = _RELATIVE.fullmatch(value)
    try:
        if relative is None:
            number = float(value)
        else:
            number = 1 / float(relative["over"]) if relative["over"] else float(relative["times"] or relative["before"])
    except (ValueError, ZeroDivisionError):
        raise ArgumentError(name, "a number, or a factor such as x4 or x0.5", value, "for example x4") from None
    if not relative:
        return number
    if old is None:
        raise ArgumentError(name, "a number where the recipe has none", value, f"give {name} itself")
    if not 0 < number < float("inf"):
        raise ArgumentError(name, "a factor above 0", value, "for example x4 or x0.5")
    # Whole things stay whole; a batch of nothing is refused later, by name.
    return round(old * number) if isinstance(old, int) and name in ("batch_size", "samples") else old * number
