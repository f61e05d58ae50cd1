"""`isogon report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from isogon.errors import check_number, printable


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("report")(report)


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder, or a Parquet file of records.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="The page (default: report.html in the run's folder).")
    ] = None,
    png: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw the same panels into a .png, .pdf or .svg too.")
    ] = None,
    layer: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Show this layer alone; repeats.")] = None,
    keep_following: Annotated[
        bool, typer.Option("--follow", help="Write the page again whenever the run has something new, until it ends.")
    ] = False,
    every: Annotated[float, typer.Option(metavar="SECONDS", help="How often --follow looks.")] = 10.0,
) -> None:
    """One page about a watched run: its findings, and how fast each layer turned against what theory predicts.

    The page needs no network. Runs come from isogon.dynamics.Monitor with a RunFolder among its sinks. With --follow
    an open page renews itself while the run is under way; Ctrl-C stops following.

    Example:

    [bold]isogon report runs/first --out first.html --png first.png[/bold]
    """
    from isogon.report import STATIC, check_target, draw_run, follow, summarise, write_page

    page = out or (run / "report.html" if run.is_dir() else run.with_suffix(".html"))
    if out is not None:
        check_target("--out", out, [".html"])
    if png is not None:
        check_target("--png", png, STATIC)
    if not keep_following:
        summary = summarise(run, layer or ())
        for finding in summary.findings:
            typer.echo(f"{finding.severity}: {printable(finding.advice)}")
        typer.echo(f"Written {write_page(summary, page, name='--out')}.")
        if png is not None:
            typer.echo(f"Drawn {draw_run(summary, png, name='--png')}.")
        return
    check_number("--every", every, low=0, low_open=True, cure="give seconds, for example 10")
    typer.echo(f"Following {run}; the page is {page}. Ctrl-C stops.")
    known = set()
    try:
        for summary in follow(run, page, layers=layer or (), every=every, name="--out"):
            for finding in summary.findings:
                if finding.key not in known:
                    known.add(finding.key)
                    typer.echo(f"step {summary.last_step}: {finding.severity}: {printable(finding.advice)}")
            if png is not None:
                draw_run(summary, png, name="--png")
    except KeyboardInterrupt:
        typer.echo(f"No longer following; the run continues, and {page} stays as it is.")
        return
    typer.echo(f"The run is over: {page} is complete.")
