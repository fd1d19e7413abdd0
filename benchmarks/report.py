"""Lay out the stored rows: ``python -m benchmarks report`` writes the pages and the plots.

A pure function of ``benchmarks/results`` and ``benchmarks/papers.toml``: ``docs/results.html`` has
everything and needs nothing else, ``docs/results.md`` has tables between marks that name them, and
``auc.svg`` and ``tables.svg`` stand in the README. Made twice, the files have the same bytes.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader

from benchmarks import report_papers, report_sections
from benchmarks.stored_rows import LAYOUT, Stored, Table, table_of

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent / "docs"
LONG = 30
"""Lines of a table that is folded."""


def made(stored: Stored, part: Any) -> Any:
    """Return a table, a plot or several of them: of a name in ``report.toml``, or of a suite."""
    if isinstance(part, str):
        found = getattr(report_sections, part, None) or getattr(report_papers, part)
        return found(stored)
    if "printed" in part:
        return report_papers.printed(stored.figures(**part["printed"]), part["title"])
    rows = stored.of(part["suite"], **part.get("of", {}))
    return table_of(rows, *part.get("figures", ()), title=part["title"])


def _kinds(table: Table) -> list[str]:
    columns = zip(*(cells for cells, _ in table.lines), strict=True)
    return [" class=l" * any(re.search("[a-z]{3}", cell) for cell in one) for one in columns]


def _parts_of(stored: Stored, parts: Sequence[Any]) -> Iterator[Table | str]:
    for found in (made(stored, part) for part in parts):
        for part in [found] if isinstance(found, Table | str) else found:
            if part if isinstance(part, str) else part.lines:
                yield part


def html_page(stored: Stored) -> str:
    sections, place = [], 0
    for one in LAYOUT["section"]:
        parts = list(_parts_of(stored, one["parts"]))
        for i, part in enumerate(parts):
            # Matplotlib names its parts by their content: each picture needs names of its own.
            if isinstance(part, str) and part.startswith("<svg"):
                place += 1
                own = rf"\g<1>p{place}-"
                parts[i] = re.sub(r'((?:id="|href="#|url\(#))(?=[\w-])', own, part)
        if parts:
            anchor = re.sub(r"\W+", "-", one["title"].lower())
            sections.append({**one, "anchor": anchor, "parts": parts})
    pages = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    style = (HERE / "report.css").read_text("utf-8")
    return pages.get_template("report.html").render(
        sections=sections, protocols=stored.protocols, style=style, kinds=_kinds, long=LONG
    )


def files(stored: Stored) -> dict[str, str]:
    page = (DOCS / "results.md").read_text(encoding="utf-8")
    return {
        "results.md": re.sub(
            r"<!-- (\w+) -->\n.*?<!-- end -->",
            lambda mark: f"<!-- {mark[1]} -->\n\n{made(stored, mark[1]).markdown()}\n<!-- end -->",
            page, flags=re.DOTALL,
        ),
        "results.html": html_page(stored),
        "auc.svg": report_sections.auc_plot(stored),
        "tables.svg": report_sections.tables_plot(stored),
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    argparse.ArgumentParser(prog="benchmarks report", description=__doc__).parse_args(arguments)
    for name, text in files(Stored.read()).items():
        (DOCS / name).write_text(text, encoding="utf-8")
    return 0
