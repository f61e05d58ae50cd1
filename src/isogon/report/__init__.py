"""Numbers first, then pictures; this room draws what the others computed."""

from isogon.report.figures import draw_runs
from isogon.report.run_figures import draw_run
from isogon.report.run_page import write_page
from isogon.report.run_tables import RunSummary, summarise

__all__ = ["RunSummary", "draw_run", "draw_runs", "summarise", "write_page"]
