"""`isogon demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("demo")(demo)


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the picture.")] = Path("isogon-demo"),
) -> None:
    """A tour in a few seconds: carry a weight decay from 1/16 of the data to all of it, and see why it works.

    Example:

    [bold]isogon demo --out isogon-demo[/bold]
    """
    from isogon.demo import tour

    tour(out)
