"""One search: its figures and its page."""

from __future__ import annotations

from isogon.report.search._page import write_search_page

__all__ = ["write_search_page"]
