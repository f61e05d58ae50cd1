"""An experiment in Markdown, its tables in LaTeX; texts from outside are escaped."""

from __future__ import annotations

import re
from collections.abc import Sequence

from isogon.report.exhibit._cells import LEGEND, CellText, cell_texts
from isogon.report.exhibit._exhibits import Showing, TableExhibit

#: in front of a marked cell if there is no colour
MARK = "▸"
_MARKDOWN = re.compile(r"([\\`*_\[\]<>|#~$&])")
# Letters beyond those that every LaTeX knows, as formulas.
_SYMBOLS = r"""
± \pm  − -  × \times  · \cdot  ÷ \div  √ \surd  ∞ \infty  ≈ \approx  ≤ \le  ≥ \ge  → \to  ∝ \propto  ° ^\circ  ‖ \Vert
² ^2  ³ ^3  ⁴ ^4  ₁ _1  ₂ _2  Δ \Delta  α \alpha  β \beta  γ \gamma  δ \delta  ε \varepsilon  η \eta  θ \theta
λ \lambda  μ \mu  π \pi  σ \sigma
"""
_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    **{letter: f"${formula}$" for letter, formula in zip(_SYMBOLS.split()[::2], _SYMBOLS.split()[1::2], strict=True)},
}


def markdown_text(showing: Showing) -> str:
    """Claim, verdict, tables and how they were made."""
    parts = [
        f"# {escape_markdown(f'{showing.id}: {showing.title}')}",
        f"Claim: {escape_markdown(showing.claim)}",
        f"**{escape_markdown(showing.verdict)}**: {escape_markdown(showing.sentence)}",
        *(markdown_table(table) for table in showing.tables),
    ]
    if showing.tables:
        parts.append(LEGEND.replace("Marked:", f"Marked {MARK}:"))
    parts += [_bullets(showing.notes), _bullets([f"{name}: {value}" for name, value in showing.made.items()])]
    return "\n\n".join(part for part in parts if part) + "\n"


def markdown_table(table: TableExhibit) -> str:
    """One table."""
    texts = cell_texts(table)
    corner = escape_markdown(f"{table.row_name} \\ {table.column_name}" if table.column_name else table.row_name)
    lines = [
        _markdown_row([corner, *map(escape_markdown, table.columns)]),
        _markdown_row(["---", *("---:" for _ in table.columns)]),
    ]
    for row in table.rows:
        lines.append(
            _markdown_row([escape_markdown(row), *(_markdown_cell(texts[row, column]) for column in table.columns)])
        )
    return f"**{escape_markdown(table.title)}**\n\n" + "\n".join(lines)


def latex_text(tables: Sequence[TableExhibit]) -> str:
    """The tables, to be included in a document."""
    head = r"% Needs \usepackage[table]{xcolor} for the marked cells."
    return "\n\n".join([head, *(latex_table(table) for table in tables)]) + "\n"


def latex_table(table: TableExhibit) -> str:
    """One table; a cell with several lines is a small table of its own."""
    texts = cell_texts(table)
    head = " & ".join([escape_latex(table.row_name), *map(escape_latex, table.columns)])
    body = "\n".join(
        " & ".join([escape_latex(row), *(_latex_cell(texts[row, column]) for column in table.columns)]) + r" \\"
        for row in table.rows
    )
    over = rf"& \multicolumn{{{len(table.columns)}}}{{c}}{{{escape_latex(table.column_name)}}} \\" + "\n"
    return rf"""\begin{{table}}
\centering
\caption{{{escape_latex(table.title)}}}
\begin{{tabular}}{{l{"r" * len(table.columns)}}}
\hline
{over if table.column_name and table.columns else ""}{head} \\
\hline
{body}
\hline
\end{{tabular}}
\end{{table}}"""


def escape_markdown(text: str) -> str:
    """`text` on one line, with everything escaped that has a meaning in Markdown or a table's row.

    >>> print(escape_markdown("a|b *c*"))
    a\\|b \\*c\\*
    """
    return _MARKDOWN.sub(r"\\\1", " ".join(text.split()))


def escape_latex(text: str) -> str:
    """`text` with everything escaped that has a meaning in LaTeX.

    >>> print(escape_latex("50% of η_eff"))
    50\\% of $\\eta$\\_eff
    """
    return "".join(_LATEX.get(letter, letter) for letter in " ".join(text.split()))


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown_cell(cell: CellText) -> str:
    if not cell.lines:
        return ""
    first, *rest = map(escape_markdown, cell.lines)
    first = f"**{first}**" if cell.best else first
    return "<br>".join([f"{MARK} {first}" if cell.marked else first, *rest])


def _latex_cell(cell: CellText) -> str:
    colour = r"\cellcolor{yellow!40}" if cell.marked else ""
    if not cell.lines:
        return colour
    first, *rest = map(escape_latex, cell.lines)
    first = rf"\textbf{{{first}}}" if cell.best else first
    lines = [first, *(rf"\scriptsize {line}" for line in rest)]
    stacked = r"\\".join(lines)
    return rf"{colour}\begin{{tabular}}[t]{{@{{}}r@{{}}}}{stacked}\end{{tabular}}"


def _bullets(sentences: Sequence[str]) -> str:
    return "\n".join(f"- {escape_markdown(sentence)}" for sentence in sentences)
