"""HTML of claims, ledgers and runs for notebooks: a card with a title and a table of names and values.

The colours are those of light and dark notebooks alike: a coloured edge, and the notebook's own text and background.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

GOOD, BAD, NEUTRAL = "#2e7d32", "#c62828", "#546e7a"
"""Edges of cards: there is a guarantee, there is none, nothing is claimed."""

_CARD = "border-left:4px solid {edge};padding:.4em .9em;margin:.3em 0;max-width:60em"
_CELL = "text-align:left;vertical-align:top;padding:.1em .9em .1em 0;border:none;background:none"
_NAME = f"{_CELL};font-weight:normal;opacity:.7;white-space:nowrap"
_NUMBER = "text-align:right;padding:.1em .9em .1em 0;border:none;background:none"


def render_card(title: str, rows: Iterable[tuple[str, str]], *, edge: str = NEUTRAL, below: str = "") -> str:
    """Returns a card as HTML: a title, and a row for each name and value.

    Args:
        title: text, which is escaped.
        rows: names and values, text that is escaped.
        edge: the colour of its edge.
        below: HTML that stands under the rows.

    """
    cells = "".join(
        f'<tr style="background:none"><th style="{_NAME}">{escape(name)}</th>'
        f'<td style="{_CELL}">{escape(value)}</td></tr>'
        for name, value in rows
    )
    table = f'<table style="border:none;border-collapse:collapse;margin:.3em 0 0">{cells}</table>' if cells else ""
    return f'<div style="{_CARD.format(edge=edge)}"><b>{escape(title)}</b>{table}{below}</div>'


def render_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table as HTML: the first column aligned to the left, numbers to the right."""

    def render_row(tag: str, row: Sequence[str]) -> str:
        styles = [_CELL, *[_NUMBER] * (len(row) - 1)]
        cells = (f'<{tag} style="{style}">{escape(cell)}</{tag}>' for style, cell in zip(styles, row, strict=True))
        return f'<tr style="background:none">{"".join(cells)}</tr>'

    titles, body = render_row("th", head), "".join(render_row("td", row) for row in rows)
    return f'<table style="border:none;border-collapse:collapse;margin:.4em 0 0">{titles}{body}</table>'
