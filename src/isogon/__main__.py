"""`python -m isogon` is the command `isogon`."""

from __future__ import annotations

import sys

from isogon.guard import INTERRUPTED, leave_at_second_interrupt


def main() -> None:
    """The command; Ctrl-C while it is still being imported ends it without a traceback."""
    try:
        leave_at_second_interrupt()
        from isogon.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
