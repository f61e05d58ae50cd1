"""One run: its tables, its figures, and the page that shows them."""

from __future__ import annotations

from isogon.report.run._figures import draw_run
from isogon.report.run._follow import follow
from isogon.report.run._page import write_page
from isogon.report.run._tables import RunSummary, summarise

__all__ = ["RunSummary", "draw_run", "follow", "summarise", "write_page"]
