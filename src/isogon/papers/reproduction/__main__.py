"""`python -m isogon.papers.reproduction RESULTS FILE.md`: write the page about what was reproduced."""

from __future__ import annotations

import sys

from isogon.papers.reproduction._reproduction_page import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
