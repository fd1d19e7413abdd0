"""Templates of HTML, Markdown and JSON with escaped values.

Column names and levels are declared by people and appear in a page that a privacy officer opens.
Every value is escaped here for its format, so that no name can become structure.
"""

import json
import re
from collections.abc import Callable
from functools import cache, partial
from importlib import resources
from typing import Any
from urllib.parse import quote

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tasks.reporting.claim import rounded_up

_MARKDOWN = frozenset("\\`*_[]|~#>$@")
# A list, a rule or a heading at the start of a block; a bare address, which some readers link.
_MARKDOWN_START = re.compile(r"^(?:[-+=]|\d+(?=[.)](?: |$)))")
_MARKDOWN_ADDRESS = re.compile(r"(?i)(https?|ftp|mailto|xmpp)(?=:)|(www)(?=\.)")


def visible(text: object) -> str:
    """Replace characters that do not print, and could alter the shown text, by their number."""
    return "".join(s if s.isprintable() else f"\\u{ord(s):04x}" for s in str(text))


def markdown(text: object) -> str:
    """Escape text for a paragraph, a heading or a cell of Markdown."""
    escaped = "".join(f"\\{sign}" if sign in _MARKDOWN else sign for sign in visible(text))
    escaped = escaped.replace("&", "&amp;").replace("<", "&lt;")
    escaped = _MARKDOWN_ADDRESS.sub(r"\g<0>\\", escaped)
    return _MARKDOWN_START.sub(
        lambda found: f"{found[0]}\\" if found[0].isdigit() else f"\\{found[0]}", escaped
    )


def render(name: str, /, **values: object) -> str:
    """Render a file of ``templates``, named without its suffix; a missing value is an error."""
    return _environment(name.rpartition(".")[2]).get_template(f"{name}.j2").render(**values)


@cache
def words() -> dict[str, Any]:
    """Return ``words.yaml``: the text of card and page that every release shares."""
    text = resources.files("tasks.reporting").joinpath("templates", "words.yaml").read_text("utf-8")
    found: dict[str, Any] = yaml.safe_load(text)
    return found


@cache
def _environment(suffix: str) -> Environment:
    as_json: Callable[..., str] = partial(json.dumps, ensure_ascii=False)
    escape = {"md": markdown, "json": as_json}.get(suffix)

    def finalize(value: object) -> object:
        if isinstance(value, Markup):
            return value
        return visible(value) if escape is None else Markup(escape(value))  # noqa: S704 -- escaped

    environment = Environment(
        loader=PackageLoader("tasks.reporting"),
        autoescape=True,  # what is markup already stays as it is
        finalize=finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"rounded_up": rounded_up, "quoted": partial(quote, safe="")}
    return environment
