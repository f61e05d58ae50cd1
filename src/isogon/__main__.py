"""`python -m isogon` is the command `isogon`."""

from __future__ import annotations

import sys


def main() -> None:
    """The command; Ctrl-C while it is still being imported ends it without a traceback."""
    try:
        from isogon.cli import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
