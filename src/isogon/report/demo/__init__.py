"""The page of `isogon demo`."""

from __future__ import annotations

from isogon.report.demo._page import Curve, DemoSummary, write_demo_page

__all__ = ["Curve", "DemoSummary", "write_demo_page"]
