"""`write_exhibits`: an experiment as a page, as Markdown, its tables in LaTeX, its figures as a picture."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from isogon.errors import MissingExtraError
from isogon.files import write_whole
from isogon.report.exhibit._exhibits import Showing
from isogon.report.exhibit._figures import draw_panels
from isogon.report.exhibit._page import write_exhibit_page
from isogon.report.exhibit._text import latex_text, markdown_text


def write_exhibits(
    showing: Showing, folder: str | os.PathLike[str], stem: str, *, tell: Callable[[str], None]
) -> list[Path]:
    """Write `stem`.html, .md, .tex if there are tables and .png if there are figures; returns what was written.

    A file that needs a missing extra is left out, and `tell` is called with the reason.
    """
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    texts = {".md": markdown_text(showing)}
    if showing.tables:
        texts[".tex"] = latex_text(showing.tables)
    written = [write_whole(place / f"{stem}{ending}", text) for ending, text in texts.items()]
    drawings: list[Callable[[], Path]] = [lambda: write_exhibit_page(showing, place / f"{stem}.html")]
    if showing.figures:
        drawings.append(lambda: draw_panels(showing.figures, place / f"{stem}.png", title=showing.title))
    for draw in drawings:
        try:
            written.append(draw())
        except MissingExtraError as error:
            tell(str(error))
    return written
