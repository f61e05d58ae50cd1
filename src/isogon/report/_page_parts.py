"""What isogon's pages share, and the style and script of a run's page, which are the same for every run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from isogon.errors import ArgumentError, MissingExtraError
from isogon.files import WriteError, write_whole
from isogon.report._drawing import PLOTLY_CONFIG, check_target

# A page may run its own scripts and save its own pictures; the browser blocks everything else.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def asset(name: str) -> str:
    """A style or script of `report/assets`, on lines of its own as in a page."""
    return "\n" + (files("isogon.report.assets") / name).read_text(encoding="utf-8")


def json_text(content: Any) -> str:
    """JSON that no HTML parser can take for markup."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")


def plotly_script() -> str:
    """The text of plotly.js; raises if plotly is not installed. Call it before the work that ends in a page."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise MissingExtraError("plotly", extra="report", purpose="to write the page") from None
    return str(get_plotlyjs())


def document(title: str, body: str, style: str, *, renew: float | None = None) -> str:
    """A whole page with this markup as its body; `title` is escaped already.

    A browser loads the page again after `renew` seconds.
    """
    again = "" if renew is None else f'\n<meta http-equiv="refresh" content="{renew:g}">'
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">{again}
<title>{title}</title>
<style>{STYLE}{style}</style>
</head>
<body>
{body}
</body>
</html>
"""


def fact_spans(facts: Mapping[str, Any]) -> str:
    """Named values, such as a recipe's, one span each.

    >>> fact_spans({"lr": 0.1, "optimizer": "sgd"})
    '<span>lr 0.1</span><span>optimizer sgd</span>'
    """
    texts = (f"{name} {value:.6g}" if isinstance(value, float) else f"{name} {value}" for name, value in facts.items())
    return "".join(f"<span>{escape(text)}</span>" for text in texts)


def article(title: str, body: str, figures: Mapping[str, Any], style: str) -> str:
    """A page of text in which each of the `figures` (as Plotly takes them) is drawn at the place of its name."""
    scripts = ""
    if figures:
        data = json_text({"figures": figures, "config": PLOTLY_CONFIG})
        scripts = f"""
<script>{plotly_script()}</script>
<script type="application/json" id="figures">{data}</script>
<script>{_ARTICLE_SCRIPT}</script>"""
    return document(title, body + scripts, _ARTICLE_STYLE + style)


def write_html(text: str, path: str | os.PathLike[str], *, name: str = "path") -> Path:
    """Write a page to `path`; `name` is what an error calls it."""
    target = check_target(name, path, [".html"])
    try:
        return write_whole(target, text)
    except WriteError as error:
        raise ArgumentError(name, "a file we can write", str(path), error.reason) from error


# For pages that are texts with figures between them.
_ARTICLE_STYLE = asset("article.css")
# Draws each figure of the element `figures` at the place that has its name.
_ARTICLE_SCRIPT = asset("article.js")


STYLE = asset("run.css")

SCRIPT = asset("run.js")
