"""What isogon's pages share, and the style and script of a run's page, which are the same for every run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isogon.errors import ArgumentError, MissingExtraError
from isogon.files import WriteError, write_whole
from isogon.report._drawing import PLOTLY_CONFIG, check_target

# A page may run its own scripts and save its own pictures; the browser blocks everything else.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def json_text(content: Any) -> str:
    """JSON that no HTML parser can take for markup."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")


def plotly_script() -> str:
    """plotly.js, or a sentence about what is missing; whoever works for minutes towards a page asks before."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise MissingExtraError("plotly", extra="report", purpose="to write the page") from None
    return str(get_plotlyjs())


def document(title: str, body: str, style: str) -> str:
    """A whole page with this markup as its body; `title` is escaped already."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{STYLE}{style}</style>
</head>
<body>
{body}
</body>
</html>
"""


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
    """Write a page to `path`; `name` is what a refusal calls it."""
    target = check_target(name, path, [".html"])
    try:
        return write_whole(target, text)
    except WriteError as error:
        raise ArgumentError(name, "a file we can write", str(path), error.reason) from error


# For pages that are texts with figures between them.
_ARTICLE_STYLE = """
table { border-collapse: collapse; font-size: .9rem; }
th, td { padding: .15rem .8rem .15rem 0; text-align: right; border-bottom: 1px solid #e6e9ee; }
pre { padding: .6rem .8rem; background: #f7f9fb; overflow-x: auto; font-size: .85rem; }
"""
# Draws each figure of the element `figures` at the place that has its name.
_ARTICLE_SCRIPT = """
"use strict";
const page = JSON.parse(document.getElementById("figures").textContent);
for (const [place, figure] of Object.entries(page.figures)) {
  Plotly.newPlot(place, figure.data, figure.layout, page.config);
}
"""


STYLE = """
body { margin: 0 auto; max-width: 1500px; padding: 1.2rem 1.6rem; font: 15px/1.5 system-ui, sans-serif; color: #222; }
h1 { font-size: 1.5rem; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin: 1.2rem 0 .4rem; }
.recipe span { display: inline-block; margin: 0 .4rem .3rem 0; padding: .05rem .55rem; border-radius: 1rem;
  background: #f0f2f5; font-size: .85rem; }
.findings { list-style: none; margin: 0; padding: 0; }
.findings li { margin: .35rem 0; padding: .45rem .8rem; border-left: 4px solid #56B4E9; background: #f7f9fb;
  overflow-wrap: anywhere; }
.findings li.problem { border-color: #D55E00; background: #fdf3ec; }
.findings li.warning { border-color: #E69F00; background: #fdf8ea; }
.findings b { display: inline-block; min-width: 4.6rem; font-size: .8rem; text-transform: uppercase; }
.findings button { border: 0; padding: 0; margin-right: .5rem; background: none; color: #0072B2; font: inherit;
  text-decoration: underline; cursor: pointer; }
main { display: grid; grid-template-columns: 17rem minmax(0, 1fr); gap: 1rem; margin-top: .6rem; }
aside { font-size: .87rem; }
aside > label { display: block; margin-top: .4rem; }
aside input[type=search] { width: 100%; box-sizing: border-box; margin: .4rem 0; padding: .25rem .4rem; }
#layers { max-height: 34rem; overflow-y: auto; }
#layers label { display: flex; align-items: baseline; padding: .08rem 0; overflow-wrap: anywhere; cursor: pointer; }
#layers label[hidden] { display: none; }
#layers i { flex: 0 0 1.1rem; height: .3rem; margin: 0 .35rem .15rem; border-radius: .2rem; }
#panels { height: 760px; }
footer { color: #667; font-size: .85rem; }
@media (max-width: 900px) { main { grid-template-columns: 1fr; } #layers { max-height: 10rem; } }
"""

SCRIPT = """
"use strict";
const run = JSON.parse(document.getElementById("run").textContent);
const panels = document.getElementById("panels");
const boxes = [...document.querySelectorAll("#layers input")];
const show = () => Plotly.restyle(panels, { visible: run.layer_of.map((layer) => boxes[layer].checked) });
const pick = (wanted) => { boxes.forEach((box, layer) => { box.checked = wanted(layer); }); show(); };

Plotly.newPlot(panels, run.data, run.layout, run.config);
if (run.epochs) Plotly.newPlot("epochs", run.epochs.data, run.epochs.layout, run.config);
boxes.forEach((box) => box.addEventListener("change", show));
document.getElementById("every").addEventListener("click", () => pick(() => true));
document.getElementById("opening").addEventListener("click", () => pick((layer) => run.opening.includes(layer)));
document.getElementById("filter").addEventListener("input", (event) => {
  const wanted = event.target.value.toLowerCase();
  boxes.forEach((box) => { box.parentElement.hidden = !box.parentElement.textContent.toLowerCase().includes(wanted); });
});
document.getElementById("linear").addEventListener("change", (event) => {
  const type = event.target.checked ? "linear" : "log";
  Plotly.relayout(panels, Object.fromEntries(run.heights.map((axis) => [axis + ".type", type])));
});
document.querySelectorAll(".findings button").forEach((button) => button.addEventListener("click", () => {
  const named = Number(button.dataset.layer);
  pick((layer) => layer === named || layer === run.joint);
  panels.scrollIntoView({ behavior: "smooth" });
}));
"""
