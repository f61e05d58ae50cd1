"""`isogon demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("demo")(demo)


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the page and the runs; a second demo reads them.")] = Path(
        "isogon-demo"
    ),
    quick: Annotated[
        bool, typer.Option("--quick", help="A glimpse in half a minute: every step, but runs too short to judge by.")
    ] = False,
) -> None:
    """A demo in a few minutes: find a weight decay on 1/8 of the data, carry it to all of it, see why that works.

    It trains small networks on the CPU, on data that come with isogon, and writes a page that needs no network. After
    a stop the same command resumes.

    Example:

    [bold]isogon demo --quick --out isogon-glimpse[/bold]
    """
    from isogon.demo import GLIMPSE, WHOLE, run_demo

    run_demo(out, GLIMPSE if quick else WHOLE)
