"""Models and plans as a notebook shows them: a table and a sentence, in the notebook's colours."""

from collections.abc import Iterable, Sequence
from html import escape

_BOX = (
    "border:1px solid;border-radius:.4em;padding:.6em .9em;max-width:56em;overflow-x:auto;"
    "font-size:.95em;line-height:1.45"
)
_TABLE = "border-collapse:collapse;border:0;margin:.5em 0;font-size:inherit"
_HEAD = "border:0;border-bottom:1px solid;font-weight:600"


def page(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]], words: str = "") -> str:
    """Return HTML with a heading, a table whose first column has names, and words below it."""
    sides = ["left", *["right"] * (len(heads) - 1)]
    head = _row("th", heads, sides, _HEAD)
    body = "".join(_row("td", row, sides, "border:0") for row in rows)
    below = f'<p style="margin:.5em 0">{escape(words)}</p>' if words else ""
    return (
        f'<div style="{_BOX}"><strong>{escape(title)}</strong><table style="{_TABLE}">'
        f"<thead>{head}</thead><tbody>{body}</tbody></table>{below}</div>"
    )


def _row(tag: str, cells: Sequence[str], sides: Sequence[str], style: str) -> str:
    written = (
        f'<{tag} style="padding:.15em .8em;text-align:{side};{style}">{escape(cell)}</{tag}>'
        for cell, side in zip(cells, sides, strict=True)
    )
    return f'<tr style="background:transparent">{"".join(written)}</tr>'
