"""Models and plans as a notebook shows them: small tables in HTML, in its own colours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

# No colour of our own: text and lines are those of the notebook, light or dark.
_CELL = "padding:.15em .8em;border:0;text-align:{side};vertical-align:top"
_HEAD = "border-bottom:1px solid;opacity:.75;font-weight:600"


def page(title: str, *parts: str) -> str:
    """Return a heading and the parts below it."""
    return (
        '<div style="border:1px solid;border-radius:.4em;padding:.6em .9em;max-width:56em;'
        'overflow-x:auto;font-size:.95em;line-height:1.45">'
        f"<div><strong>{escape(title)}</strong></div>{''.join(parts)}</div>"
    )


def text(words: str) -> str:
    """Return a paragraph."""
    return f'<p style="margin:.5em 0">{escape(words)}</p>'


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, n_names: int = 1) -> str:
    """Return a table in which columns of names come first, and columns of numbers after them."""
    sides = ["left" if place < n_names else "right" for place in range(len(heads))]
    styles = [_CELL.format(side=side) for side in sides]
    head = "".join(
        f'<th style="{style};{_HEAD}">{escape(name)}</th>'
        for name, style in zip(heads, styles, strict=True)
    )
    body = "".join(
        '<tr style="background:transparent">'
        + "".join(
            f'<td style="{style}">{escape(cell)}</td>'
            for cell, style in zip(row, styles, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return (
        '<table style="border-collapse:collapse;border:0;margin:.5em 0;font-size:inherit">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def settings(values: Mapping[str, object]) -> str:
    """Return a table of settings by name."""
    rows = [(name, repr(value)) for name, value in values.items()]
    return table(("setting", "value"), rows, n_names=2)
