"""The page of `isogon demo`."""

from __future__ import annotations

from isogon.report.demo._page import AngleCurve, DemoSummary, write_demo_page

__all__ = ["AngleCurve", "DemoSummary", "write_demo_page"]
