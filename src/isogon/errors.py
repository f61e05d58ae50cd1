"""What isogon raises, and the one way in which it phrases a refused argument.

Every message is one sentence that a user can act on: the argument's name, the rule, the value given and the cure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

# Names that people give to secrets (not the tokens of a text), and what stands behind them: key=…, 'key': '…',
# key = """…""", a list or table of such, or a word. What stands before the name does not matter, and the rest of its
# word is taken once (*+), so that a long word takes no longer than its length.
_NAMED_SECRET = re.compile(
    r"""(?ix)
    ( (?: password | passwd | passphrase | \bpwd | secret | token(?![si]) | credential | authorization
          | (?:api|access|private|wandb|account|signing)[_-]?key | (?<![^\W_])(?:pass|pw|auth)(?=["']?\s*=) )
      [\w-]*+ ["']? \s* [:=] \s* )
    (?: b?\"{3}.*?(?:\"{3}|\Z) | b?"(?:\\.|[^"\\\n])*"? | b?'(?:\\.|[^'\\\n])*'?
      | \[[^\]\n]*\]? | \{[^}\n]*\}? | \([^)\n]*\)? | (?:bearer|basic)\s+\S+ | \S+ )
    """,
    re.DOTALL,
)
# An address that was taken for a path has lost one of its slashes; C:/ is no address.
_SCHEME_END = re.compile(r"(?<=\w\w):/{1,2}")
# Characters of a value that are looked at, before it is cut to what a sentence can hold.
_MOST_LETTERS = 5000


class IsogonError(Exception):
    """Base of everything isogon raises on purpose; its message never holds a password."""

    def __str__(self) -> str:
        return without_secrets(super().__str__())


class ArgumentError(IsogonError, ValueError):
    """A value that breaks a rule.

    >>> print(ArgumentError("lr", "a number above 0", -1, "give the peak learning rate"))
    lr must be a number above 0, got -1: give the peak learning rate.
    """

    def __init__(self, name: str, rule: str, value: Any, cure: str) -> None:
        self.name, self.rule, self.value, self.cure = name, rule, value, cure
        super().__init__(f"{name} must be {rule}, got {_show(value)}: {cure}.")

    def __reduce__(self) -> Any:  # by what it was made from, so that it comes back from another process
        return type(self), (self.name, self.rule, self.value, self.cure)


class UnsolvableError(IsogonError, ValueError):
    """A transfer that has no answer."""


class MissingExtraError(IsogonError, ImportError):
    """An optional package that is not installed.

    >>> print(MissingExtraError("matplotlib", extra="report", purpose="to draw a PNG"))
    matplotlib is needed to draw a PNG and is not installed: run pip install 'isogon[report]'.
    """

    def __init__(self, package: str, *, extra: str, purpose: str) -> None:
        super().__init__(f"{package} is needed {purpose} and is not installed: run pip install 'isogon[{extra}]'.")


def _show(value: Any, limit: int = 200) -> str:
    """The value as the user would recognise it, on one line and never endless."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # more digits than Python agrees to print, or nested too deep
        text = f"a {type(value).__name__}"
    # Masked before it is cut for the sentence: half of an address with a password no longer looks like one.
    text = without_secrets(text[:_MOST_LETTERS], whole=len(text) <= _MOST_LETTERS)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def without_secrets(text: str, *, whole: bool = True) -> str:
    """`text` with passwords and tokens masked, wherever they stand; not `whole` is a text whose end was cut off.

    >>> without_secrets('storag = "postgresql://me:s3cret@host/db"')
    'storag = "postgresql://me:***@host/db"'
    >>> without_secrets("{'password': 's3cret'}"), without_secrets("host=db password=s3cret")
    ("{'password': ***}", 'host=db password=***')
    """
    lines = [_without_address(line, whole) for line in text.split("\n")]
    return _NAMED_SECRET.sub(r"\1***", "\n".join(lines))


def _without_address(line: str, whole: bool) -> str:
    """A line without what stands between user: and @ of an address, to its last @: passwords may hold anything."""
    end = line.rfind("@")
    for scheme in _SCHEME_END.finditer(line):
        colon = line.find(":", scheme.end())
        if colon < 0:
            break
        if not any(letter in " /@\"'" for letter in line[scheme.end() : colon]):
            if end > colon:
                return f"{line[: colon + 1]}***{line[end:]}"
            if not whole:
                return f"{line[: colon + 1]}***"
    return line


def printable(text: str) -> str:
    """`text` without what a terminal might obey.

    >>> printable("conv\\x1b[2J.weight")
    'conv�[2J.weight'
    """
    return "".join(letter if letter.isprintable() else "�" for letter in text)


def first_line(error: BaseException) -> str:
    """The message of somebody else's error, short enough for a sentence of ours.

    >>> first_line(OSError("\\nno room.\\n(background on this error)")), first_line(KeyError())
    ('no room', 'KeyError')
    """
    try:
        text = without_secrets(str(error)[:_MOST_LETTERS], whole=False)
    except Exception:  # somebody else's error may fail to print itself
        text = ""
    lines = (line.strip() for line in text.splitlines())
    return next(filter(None, lines), type(error).__name__)[:200].rstrip(".")


def last_line(trace: str | None) -> str:
    """The last line of a trace, short, and without what a terminal might obey.

    >>> last_line("Traceback ...\\n  File x\\nOSError: no room.\\n"), last_line(None)
    ('OSError: no room', 'no reason given')
    """
    lines = (trace or "").strip().splitlines()
    return printable(lines[-1][:200].rstrip(".")) if lines else "no reason given"


def check_number(
    name: str,
    value: Any,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    low_open: bool = False,
    high_open: bool = False,
    cure: str,
) -> float:
    """`value` as a finite float within the bounds, or an ArgumentError that names the rule it breaks."""
    try:
        number = math.nan if isinstance(value, bool | str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        number = math.nan
    too_low = number <= low if low_open else number < low
    too_high = number >= high if high_open else number > high
    if not math.isfinite(number) or too_low or too_high:
        raise ArgumentError(name, _range_rule("a finite number", low, high, low_open, high_open), value, cure)
    return number


def check_whole(name: str, value: Any, *, low: int = 1, high: int = 10**15, cure: str) -> int:
    """`value` as an int within the bounds; a float passes when it is whole."""
    try:
        whole = None if isinstance(value, bool | str | bytes) else int(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        whole = None
    if whole is None or whole != value or not low <= whole <= high:
        most = f"{high}" if high < 10**6 else f"{high:.0e}"
        raise ArgumentError(name, f"a whole number from {low} to {most}", value, cure)
    return whole


def check_choice(name: str, value: Any, choices: Iterable[str], *, cure: str | None = None) -> str:
    """`value` when it is one of `choices`."""
    options = tuple(choices)
    if not isinstance(value, str) or value not in options:
        raise ArgumentError(name, "one of " + ", ".join(options), value, cure or f"for example {options[0]}")
    return value


def _range_rule(kind: str, low: float, high: float, low_open: bool, high_open: bool) -> str:
    parts = []
    if math.isfinite(low):
        parts.append(f"{'above' if low_open else 'at least'} {low:g}")
    if math.isfinite(high):
        parts.append(f"{'below' if high_open else 'at most'} {high:g}")
    return " ".join([kind, " and ".join(parts)]).strip()
