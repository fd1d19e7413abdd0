"""Templates of what a person reads, in which every value stands for itself.

Column names and levels are declared by people and end up in a page that a privacy officer opens.
Whatever a template writes is escaped for its format here, once, so that nothing a name contains
can become structure.
"""

import re
from functools import cache
from importlib import resources
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tasks.reporting.guarantee import rounded_up

_MARKDOWN = frozenset("\\`*_[]|~#>$@")
# A list, a rule or a heading at the start of a block; a bare address, which some readers link.
_MARKDOWN_START = re.compile(r"^(?:[-+=]|\d+(?=[.)](?: |$)))")
_MARKDOWN_ADDRESS = re.compile(r"(?i)(https?|ftp|mailto|xmpp)(?=:)|(www)(?=\.)")


def visible(text: object) -> str:
    """Write signs that do not print, which could make a page show another text, by their number."""
    return "".join(s if s.isprintable() else f"\\u{ord(s):04x}" for s in str(text))


def markdown(text: object) -> str:
    """Return text that stands for itself in Markdown, in a paragraph, a heading or a cell."""
    escaped = "".join(f"\\{sign}" if sign in _MARKDOWN else sign for sign in visible(text))
    escaped = escaped.replace("&", "&amp;").replace("<", "&lt;")
    escaped = _MARKDOWN_ADDRESS.sub(r"\g<0>\\", escaped)
    return _MARKDOWN_START.sub(
        lambda found: f"{found[0]}\\" if found[0].isdigit() else f"\\{found[0]}", escaped
    )


def render(name: str, **values: object) -> str:
    """Fill in a file of ``templates``, named without its suffix; a missing value is an error."""
    return _environment(name.rpartition(".")[2]).get_template(f"{name}.j2").render(**values)


@cache
def words() -> dict[str, Any]:
    """Return what card and page say of every release: ``words.yaml`` of the templates."""
    text = resources.files("tasks.reporting").joinpath("templates", "words.yaml").read_text("utf-8")
    found: dict[str, Any] = yaml.safe_load(text)
    return found


@cache
def _environment(suffix: str) -> Environment:
    environment = Environment(
        loader=PackageLoader("tasks.reporting"),
        autoescape=True,  # HTML; what is markup already stays as it is
        finalize=_for_markdown if suffix == "md" else _for_html,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["rounded_up"] = rounded_up
    return environment


def _for_html(value: object) -> object:
    return value if isinstance(value, Markup) else visible(value)


def _for_markdown(value: object) -> Markup:
    return value if isinstance(value, Markup) else Markup(markdown(value))  # noqa: S704 -- escaped
