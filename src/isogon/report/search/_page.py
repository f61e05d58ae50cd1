"""The page about a search: one HTML file that asks nothing of the network.

Texts of the user (the study file, errors) are escaped in the markup, and passwords in them left out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from isogon.errors import last_line, without_secrets
from isogon.report._page_parts import article, asset, fact_spans, write_html
from isogon.report.search._figures import accuracy_figure, angle_figure, cost_figure, trend_figure

if TYPE_CHECKING:
    from isogon.search import Outcome

_STYLE = asset("search.css")


def write_search_page(
    outcome: Outcome, folder: str | os.PathLike[str], path: str | os.PathLike[str], *, study_file: str | None = None
) -> Path:
    """Write the page about `outcome` to `path`.

    `folder` is the study's, where the records of its trials are read; `study_file` is the text that the study came
    from, shown at the end.
    """
    return write_html(search_text(outcome, folder, study_file=study_file), path)


def search_text(outcome: Outcome, folder: str | os.PathLike[str], *, study_file: str | None = None) -> str:
    """The whole page, including plotly.js."""
    from isogon.search import TRIALS, cost_sentence, loss_sentence, remarks, trend_sentence

    angles = angle_figure(outcome, Path(folder) / TRIALS)
    figures = {"accuracies": accuracy_figure(outcome), "trend": trend_figure(outcome), "cost": cost_figure(outcome)}
    if angles is not None:
        figures["angles"] = angles
    metric = escape(outcome.study.task.metric.capitalize())
    title = escape(f"Search in {Path(folder).resolve().name}")
    study = study_file if study_file is not None else json.dumps(outcome.study.model_dump(mode="json"), indent=2)
    body = f"""<h1>{title}</h1>
<div class="recipe">{fact_spans({**outcome.recipe.to_dict(), "tuning factor": outcome.tuning_factor})}</div>
<section><h2>What was found</h2><ul class="findings">{_findings(outcome, remarks(outcome))}</ul></section>
<section><h2>{metric} against the tuning factor</h2>
<div id="accuracies" class="figure"></div>
<p>Open circles are runs, dots joined by a line the means over the seeds that survived; the dashed curve is fitted near
the top, the star is its top F* with the 90 % interval. Crosses at the worst value are runs that
were lost. {escape(loss_sentence(outcome))}</p></section>
<section><h2>From the fractions to the full data</h2>
<div id="trend" class="figure"></div>
<p>{escape(trend_sentence(outcome))} The slope is shrunk towards none; bars are 90 % intervals.</p></section>
{_angles_section(outcome) if angles is not None else ""}
<section><h2>Cost</h2><div id="cost"></div><p>{escape(cost_sentence(outcome))}</p></section>
<section><h2>Trials</h2>{_trials(outcome)}</section>
<section><h2>The study file</h2><pre id="study">{escape(without_secrets(study))}</pre></section>
<footer>Drag in a figure to zoom, double-click to return, click a name to hide its line.</footer>"""
    return article(f"{title} · isogon", body, figures, _STYLE)


def _findings(outcome: Outcome, remarks: Iterable[str]) -> str:
    low, high = outcome.interval
    least, most = outcome.trend.interval
    value = getattr(outcome.recipe, outcome.unknown)
    answer = (
        f"<li><b>answer</b> {escape(outcome.unknown)} = {value:.4g}, 90 % interval {low:.3g} … {high:.3g} (tuning "
        f"factor {outcome.tuning_factor:.4g}, {least:.3g} … {most:.3g}) for the full run on "
        f"{outcome.study.recipe.samples:,} samples</li>"
    )
    return answer + "".join(f'<li class="warning"><b>warning</b> {escape(remark)}</li>' for remark in remarks)


def _angles_section(outcome: Outcome) -> str:
    return f"""<section><h2>How fast the weights turned</h2>
<div id="angles" class="figure"></div>
<p>The angle by which all scale-invariant weights together turned in each epoch at {max(outcome.curve)} samples, one run
per tuning factor; the wide line is the best of them.</p></section>"""


def _trials(outcome: Outcome) -> str:
    from isogon.search import fraction_name, metric_value

    lines = [
        (
            str(trial.number),
            f"{trial.planned.tuning_factor:.4g}",
            f"{trial.planned.samples:,}",
            fraction_name(trial.planned.fraction),
            str(trial.planned.seed),
            trial.planned.purpose,
            trial.status,
            "–" if trial.score is None else metric_value(outcome.study, trial.score),
            f"{trial.images:,}",
            f"{trial.seconds:.1f}",
            last_line(trial.error) if trial.error else "",
        )
        for trial in outcome.trials
    ]
    metric = outcome.study.task.metric
    head = ("trial", "F", "samples", "fraction", "seed", "for", "status", metric, "images", "seconds", "error")
    body = "".join(_line("td", line) for line in lines)
    return f"<table><thead>{_line('th', head)}</thead><tbody>{body}</tbody></table>"


def _line(tag: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"
