"""Text that is safe inside a page, and the elements that hold it.

Column names and levels are declared by people and end up in a page that a privacy officer opens.
`element` escapes every child and attribute that is not `Markup`, so that nothing a name contains
can become structure.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TypeAlias

# Control and format characters (line breaks, bidirectional overrides, invisible signs) can make
# a page show another text than the one that is written.
_INVISIBLE = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})
_VOID = frozenset({"br", "hr", "img", "link", "meta", "rect"})
_MARKDOWN = frozenset("\\`*_[]|~#>$@")
# A list, a rule or a heading at the start of a block; a bare address, which some readers link.
_MARKDOWN_START = re.compile(r"^([-+=]|\d+(?=[.)]))")
_MARKDOWN_ADDRESS = re.compile(r"(?i)(https?|ftp|mailto|xmpp)(?=:)|(www)(?=\.)")


class Markup(str):
    """Text that is already markup."""

    __slots__ = ()


Child: TypeAlias = "str | int | Iterable[Child] | None"


def visible(text: object) -> str:
    """Return the text with invisible characters written out by their number."""
    return "".join(
        f"\\u{ord(sign):04x}" if unicodedata.category(sign) in _INVISIBLE else sign
        for sign in str(text)
    )


def escape(text: object) -> Markup:
    """Return text as markup in which it stands for itself."""
    return Markup(html.escape(visible(text), quote=True))


def join(*children: Child) -> Markup:
    """Join children, escaping each one that is not markup; None is left out."""
    return Markup("".join(_pieces(children)))


def element(name: str, *children: Child, **attributes: str | float | bool | None) -> Markup:
    """Return an element.

    Parameters
    ----------
    name
        Element name; a constant of this package, never data.
    children
        Text (escaped), markup, or nested sequences of them.
    attributes
        Attribute values, escaped. ``class_`` stands for ``class``, an underscore for a hyphen.
        None and False leave an attribute out; True writes it without a value.
    """
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}"
        + ("" if value is True else f'="{escape(_number(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _VOID:
        return Markup(f"<{name}{written}/>" if name == "rect" else f"<{name}{written}>")
    return Markup(f"<{name}{written}>{join(*children)}</{name}>")


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, caption: str, numeric: int = 0
) -> Markup:
    """Return a table below its caption; its last ``numeric`` columns hold numbers."""
    first_number = len(header) - numeric

    def class_of(i: int) -> str | None:
        return "num" if i >= first_number else ("name" if i == 0 else None)

    head = [element("th", text, class_=class_of(i), scope="col") for i, text in enumerate(header)]
    body = [
        element("tr", [element("td", text, class_=class_of(i)) for i, text in enumerate(row)])
        for row in rows
    ]
    grid = element(
        "table",
        element("thead", element("tr", head)),
        element("tbody", body),
    )
    return join(element("p", caption, class_="note"), element("div", grid, class_="scroll"))


def items(texts: Sequence[str], *, class_: str) -> Markup:
    """Return a list of texts."""
    return element("ul", [element("li", text) for text in texts], class_=class_)


def markdown(text: object) -> str:
    """Return text that stands for itself in Markdown, in a paragraph, a heading or a cell."""
    escaped = "".join(f"\\{sign}" if sign in _MARKDOWN else sign for sign in visible(text))
    escaped = escaped.replace("&", "&amp;").replace("<", "&lt;")
    escaped = _MARKDOWN_ADDRESS.sub(lambda found: f"{found.group()}\\", escaped)
    return _MARKDOWN_START.sub(_escape_start, escaped)


def _escape_start(found: re.Match[str]) -> str:
    text = found.group()
    return f"{text}\\" if text[0].isdigit() else f"\\{text}"


def _pieces(children: Iterable[Child]) -> Iterable[str]:
    for child in children:
        if child is None:
            continue
        if isinstance(child, Markup):
            yield child
        elif isinstance(child, str | int):
            yield escape(child)
        else:
            yield from _pieces(child)


def _number(value: object) -> object:
    return f"{value:.6g}" if isinstance(value, float) else value
