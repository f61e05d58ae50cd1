"""Numbers first, then pictures; this room draws what the others computed."""

from isogon.report.figures import draw_runs

__all__ = ["draw_runs"]
