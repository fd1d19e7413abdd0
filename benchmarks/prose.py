"""Measures of the prose in code: words and openings that make a docstring hard to read."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

_QUESTION = re.compile(r"(What|Who|How|Where|Whether)\b")
_PAST = re.compile(r"\b(?:earlier (?:program|version)s?|former(?:ly)?)\b", re.IGNORECASE)
_TELL = re.compile(r"\b(?:tell|tells|told)\b", re.IGNORECASE)


def prose_measures(root: Path, paths: Iterable[str]) -> dict[str, list[str]]:
    """Return the places of each kind of riddle, as ``file:line``, in some files."""
    found: dict[str, list[str]] = {
        "docstrings that open with a question word": [],
        "lines of an earlier version": [],
        "tell, tells, told": [],
    }
    questions, past, tell = found.values()
    for path in paths:
        source = (root / path).read_text("utf-8")
        if path.endswith(".py"):
            questions += [
                f"{path}:{line}" for line, text in docstrings(source) if _QUESTION.match(text)
            ]
        for number, line in enumerate(source.split("\n"), start=1):
            past += [f"{path}:{number}"] * len(_PAST.findall(line))
            tell += [f"{path}:{number}"] * len(_TELL.findall(line))
    return found


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each docstring, those under constants and fields included."""
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield node.lineno, node.value.value.lstrip()
