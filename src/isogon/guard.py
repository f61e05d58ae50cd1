"""`run_guarded`: a command that ends in one sentence, whatever happens inside it."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

from isogon.errors import IsogonError, first_line, printable, without_secrets

#: exit codes: refused, interrupted by Ctrl-C, reader of our output gone
REFUSED, INTERRUPTED, NO_READER = 2, 130, 141


def run_guarded(work: Callable[[], int], *, debug: bool = False, stopped: str | None = None) -> int:
    """The exit code of `work()`, or of what it raised.

    What isogon refuses, and what no check foresaw, becomes one sentence on stderr without secrets; `debug` adds the
    traceback. `stopped` is the sentence after Ctrl-C.
    """
    try:
        code = work()
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        if stopped:
            _print_error(stopped)
        return INTERRUPTED
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _reader_has_gone():
            return NO_READER
        if debug:
            print(without_secrets(traceback.format_exc()), file=sys.stderr)
        _print_error(str(error) if isinstance(error, IsogonError) else _describe(error))
        return REFUSED


def _reader_has_gone() -> bool:
    """Whether nobody reads our output any more, for example `head`; other pipes break too."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def _describe(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "There is not enough memory for this: give less data, or smaller numbers."
    if isinstance(error, OSError) and error.strerror:
        named = f" ({error.filename})" if error.filename else ""
        return f"The system refused: {error.strerror}{named}; --debug shows where."
    kind = type(error).__name__
    reason = first_line(error)
    return f"isogon did not foresee this{'' if reason == kind else f': {reason}'} ({kind}); --debug shows where."


def _print_error(sentence: str) -> None:
    print(printable(without_secrets(" ".join(sentence.split()))), file=sys.stderr)


def leave_at_second_interrupt() -> None:
    """For our own processes: the first Ctrl-C ends them in order, the second at once.

    Nothing is lost by that, since what is on the disk is whole at any moment; and no traceback of Python's own way out
    is printed.
    """
    interrupted = False

    def interrupt(number: int, frame: Any) -> None:
        nonlocal interrupted
        if interrupted:
            if sys.stderr.isatty():
                os.write(2, b"\x1b[?25h")  # a progress bar may have hidden the cursor
            os._exit(INTERRUPTED)
        interrupted = True
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell may have set it to be ignored
        signal.signal(signal.SIGINT, interrupt)
