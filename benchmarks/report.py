"""Lay out the stored rows: ``python -m benchmarks report`` writes the pages and the plots.

A pure function of ``benchmarks/results`` and ``benchmarks/papers.toml``: ``docs/results.html`` has
everything and needs nothing else, ``docs/results.md`` has tables between marks that name them, and
``auc.svg`` and ``tables.svg`` stand in the README. Made twice, the files have the same bytes.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

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


def _html_table(table: Table) -> str:
    columns = zip(*(cells for cells, _ in table.lines), strict=True)
    kinds = [" class=l" * any(re.search("[a-z]{3}", cell) for cell in one) for one in columns]
    named = zip(table.header, kinds, strict=True)
    head = "".join(f"<th{kind}>{escape(name)}</th>" for name, kind in named)
    lines = []
    for line, commands in table.lines:
        cells = "".join(
            f"<td{' class=w' if len(cell) > 48 else kind}>{escape(cell)}</td>"
            for cell, kind in zip(line, kinds, strict=True)
        )
        words, n = "\n".join(map(escape, commands)), len(commands)
        more = f"<details><summary>{n}</summary><pre>{words}</pre></details>" if n else ""
        lines.append(f"<tr>{cells}<td>{more}</td></tr>")
    body, is_open = "\n".join(lines), len(lines) <= LONG
    title = escape(table.title) + ("" if is_open else f" ({len(lines)} lines)")
    return (
        f'<details class="t"{" open" * is_open}><summary>{title}</summary>\n<table><thead><tr>'
        f"{head}<th>commands</th></tr></thead><tbody>\n{body}\n</tbody></table></details>\n"
    )


def _parts_of(stored: Stored, parts: Sequence[Any]) -> Iterator[str]:
    for found in (made(stored, part) for part in parts):
        for part in [found] if isinstance(found, Table | str) else found:
            if isinstance(part, str):
                yield part
            elif part.lines:
                yield _html_table(part)


def html_page(stored: Stored) -> str:
    links, body = [], []
    for one in LAYOUT["section"]:
        title = one["title"]
        if parts := [part for part in _parts_of(stored, one["parts"]) if part]:
            anchor = re.sub(r"\W+", "-", title.lower())
            links.append(f'<a href="#{anchor}">{title}</a>')
            head = f'<h2 id="{anchor}">{title}</h2>\n<p>{one["text"]}</p>\n'
            body += [head, *parts]
    sources = "".join(
        f"<li><b>{escape(name)}</b>: {escape(one['source'])}. {escape(one['text'])}.</li>\n"
        for name, one in stored.protocols.items()
    )
    if sources:
        body.append(f"<h2>Sources of printed figures</h2>\n<ul>\n{sources}</ul>\n")
    # Matplotlib names its parts by their content: in one page each picture needs names of its own.
    page = "".join(
        re.sub(r'((?:id="|href="#|url\(#))(?=[\w-])', rf"\g<1>p{place}-", part)
        if part.startswith("<svg") else part
        for place, part in enumerate(body)
    )  # fmt: skip
    style = (HERE / "report.css").read_text("utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>ClustMix: results</title><style>\n{style}</style></head><body>\n"
        "<h1>Results</h1>\n<p>Every figure is measured, and the last column of a line opens the "
        "commands that made it. What other papers print is named as such. None of these figures "
        "may accompany a release of private data: they are computed from real records without "
        f"noise.</p>\n<nav>{''.join(links)}</nav>\n{page}</body></html>\n"
    )


def _written(stored: Stored, mark: re.Match[str]) -> str:
    return f"<!-- {mark[1]} -->\n\n{made(stored, mark[1]).markdown()}\n<!-- end -->"


def files(stored: Stored) -> dict[str, str]:
    page, written = (DOCS / "results.md").read_text(encoding="utf-8"), partial(_written, stored)
    return {
        "results.md": re.sub(r"<!-- (\w+) -->\n.*?<!-- end -->", written, page, flags=re.DOTALL),
        "results.html": html_page(stored),
        "auc.svg": report_sections.auc_plot(stored),
        "tables.svg": report_sections.tables_plot(stored),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks report", description=__doc__)
    parser.add_argument("--output", type=Path, default=DOCS, help="folder, docs if left out")
    output: Path = parser.parse_args(arguments).output
    output.mkdir(parents=True, exist_ok=True)
    for name, text in files(Stored.read()).items():
        (output / name).write_text(text, encoding="utf-8")
    return 0
