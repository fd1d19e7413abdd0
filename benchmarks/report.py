"""Lay out the stored rows: ``python -m benchmarks report`` writes the pages and the plots.

A pure function of ``benchmarks/results`` and ``benchmarks/papers.toml``: ``docs/results.html`` has
everything and needs nothing else, ``docs/results.md`` has tables between marks that name them, and
``auc.svg`` and ``tables.svg`` stand in the README. Made twice, the files have the same bytes.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

from benchmarks import report_papers as papers
from benchmarks import report_sections as sections
from benchmarks.report_sections import Parts
from benchmarks.stored_rows import Stored, Table, table_of

DOCS = Path(__file__).resolve().parents[1] / "docs"

TABLES: dict[str, Callable[[Stored], Table | list[Table]]] = {
    "auc": sections.auc,
    "probabilities": sections.probabilities,
    "peers": sections.peers,
    "images": sections.images,
    "methods": sections.methods,
    "dp_cda": papers.dp_cda_best,
    "parts": sections.parts,
    "cost": sections.cost,
    "nist": papers.nist_brief,
    "distilled": sections.distilled,
    "three_a": papers.approximate_adapt_anonymise,
}
"""Tables of ``docs/results.md``, by their marks."""


def _tables(stored: Stored) -> Parts:
    every = {name: name for name in sections.datasets(stored) if name not in AT_ONE_ALONE}
    return [
        sections.tables_plot(stored),
        sections.auc(stored),
        sections.auc_plot(stored, every, columns=4),
        sections.probabilities(stored),
        *sections.verdicts(stored),
        *sections.fairness(stored),
        sections.peers(stored),
        *sections.time_plot(stored),
        *table_of(
            [
                row
                for row in stored.of("tables", dataset="adult")
                if row.epsilon == 1.0 or row.method == "real"
            ],
            ("auc", "accuracy", "log_loss", "tvd_1way", "tvd_2way", "cpu_seconds"),
            title="Adult at epsilon 1, every method, form and rival",
        ),
    ]


AT_ONE_ALONE = ("breast-cancer", "diabetes130-length-of-stay", "physionet2012-length-of-stay",
                "census-income", "isolet-vowels")  # fmt: skip


def _images(stored: Stored) -> Parts:
    names = ("accuracy", "cnn_accuracy", "paper_cnn_accuracy", "teacher_accuracy", "cpu_seconds")
    return [
        sections.image_plot(stored),
        *papers.image_anchors(stored),
        *table_of(
            [r for r in stored.of("images") if (r.method, r.delta) != ("clustmix", 1e-6)],
            names,
            title="All methods and rivals",
        ),
    ]


QUICK = ("auc", "accuracy", "log_loss", "tvd_2way", "importance_agreement", "cpu_seconds")

SECTIONS: Sequence[tuple[str, str, Callable[[Stored], Parts]]] = (
    ("3A", "Madl, Xu, Choudhury and Howard. The form as printed has an epsilon that is claimed and "
     "not proven. From the file: the score of the released file as a reader has it. Its authors' "
     "score takes codes as numbers.",
     lambda s: [*papers.approximate_adapt_anonymise(s), *papers.rivals_of_3a(s),
                *papers.figures_of_3a(s)]),
    ("DP-CDA", "Saha, Tonoy and Imtiaz. Epsilon is claimed and not proven.", papers.dp_cda),
    ("DPGM", "Acs, Melis, Castelluccia and De Cristofaro. Variants of DPGM, DP k-means and naive "
     "Bayes are proven; MWEM is not.", papers.dpgm),
    ("NIST Diverse Communities", "Scored by NIST's own program. Printed figures of AIM and MST "
     "include a share of epsilon for preprocessing.", papers.nist),
    ("Tables", "AUC of LightGBM trained on a release, on held-out real rows. Error bars and ± are "
     "standard deviations over splits.", _tables),
    ("Rules of several columns", "XOR shows in no pair of columns. A model of the label can see "
     "a rule of the label and columns; no method of pairs sees a rule of columns alone.",
     sections.structure),
    ("Images", "DPImageBench trains three large networks for longer; ours is a small one. The "
     "protocols differ.", _images),
    ("Rivals", "Programs of others on the same splits, each with a limit of time.",
     lambda s: table_of(s.of("rivals"), title="Rivals")),
    ("Distilled sets", "What a model learns from a few distilled points, as many random released "
     "rows, and all of them.", sections.distilled),
    ("Parts of the method", "Releases of ClustMix without one of their parts.",
     lambda s: [sections.parts(s), *sections.points(s)]),
    ("Quick suite", "5,000 rows, one draw.",
     lambda s: table_of(s.of("quick"), QUICK, title="Quick suite")),
    ("Cost", "The whole command on two cores.", lambda s: [sections.cost(s)]),
    ("Without a figure", "Jobs that failed, or were ended at their limit.", papers.outcomes),
)  # fmt: skip

LONG = 30
"""Lines of a table that is folded."""

STYLE = """
:root{color-scheme:light dark;--line:#d8dee4;--quiet:#59636e}
@media(prefers-color-scheme:dark){:root{--line:#30363d;--quiet:#a5afb9}}
body{font:15px/1.5 system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;margin:2rem auto;
max-width:76rem;padding:0 1rem}
h1,h2{line-height:1.2}h2{border-top:1px solid var(--line);margin-top:2.5rem;padding-top:1.2rem}
table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums;display:block;
overflow-x:auto;margin:0 0 1.5rem}
th,td{padding:.25rem .6rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th{white-space:normal;vertical-align:bottom}
th:first-child,td:first-child,th:nth-child(2),td:nth-child(2),.l{text-align:left}th{font-weight:600}
td.w{white-space:normal;text-align:left;min-width:18rem}
details{display:inline}summary{cursor:pointer;color:var(--quiet)}
details.t{display:block}.t>summary{font-weight:600;font-size:14px;padding:.6rem 0;color:inherit}
code{font-size:12px}
pre{font-size:12px;text-align:left;margin:.3rem 0}svg{display:block;max-width:100%;height:auto}
figure{display:inline-block;margin:0 1rem 1rem 0}figure img{width:420px;image-rendering:pixelated}
figcaption,.quiet{color:var(--quiet);font-size:13px}nav a{margin-right:1rem}
"""


def _html_table(table: Table) -> str:
    columns = zip(*(one.cells for one in table.lines), strict=True)
    kinds = [" class=l" * any(re.search("[a-z]{3}", cell) for cell in one) for one in columns]
    named = zip(table.header, kinds, strict=True)
    head = "".join(f"<th{kind}>{escape(name)}</th>" for name, kind in named)
    lines = []
    for one in table.lines:
        cells = "".join(
            f"<td{' class=w' if len(cell) > 48 else kind}>{escape(cell)}</td>"
            for cell, kind in zip(one.cells, kinds, strict=True)
        )
        words = "\n".join(map(escape, one.commands))
        n = len(one.commands)
        more = f"<details><summary>{n}</summary><pre>{words}</pre></details>" if n else ""
        lines.append(f"<tr>{cells}<td>{more}</td></tr>")
    body = "\n".join(lines)
    found = (
        f"<table><thead><tr>{head}<th>commands</th></tr></thead><tbody>\n{body}\n</tbody></table>"
    )
    is_open = " open" if len(lines) <= LONG else ""
    title = f"{escape(table.title)} ({len(lines)} lines)" if not is_open else escape(table.title)
    return f'<details class="t"{is_open}><summary>{title}</summary>\n{found}</details>\n'


def html_page(stored: Stored) -> str:
    """Return the page of everything."""
    links, body = [], []
    for title, text, parts_of in SECTIONS:
        found = parts_of(stored)
        parts = [part for part in found if (part.lines if isinstance(part, Table) else part)]
        if parts:
            anchor = re.sub(r"\W+", "-", title.lower())
            links.append(f'<a href="#{anchor}">{title}</a>')
            body.append(f'<h2 id="{anchor}">{title}</h2>\n<p>{text}</p>\n')
            body += [_html_table(p) if isinstance(p, Table) else p for p in parts]
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
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>ClustMix: results</title><style>{STYLE}</style></head><body>\n"
        "<h1>Results</h1>\n<p>Every figure is measured, and the last column of a line opens the "
        "commands that made it. What other papers print is named as such. None of these figures "
        "may accompany a release of private data: they are computed from real records without "
        f"noise.</p>\n<nav>{''.join(links)}</nav>\n{page}</body></html>\n"
    )


def with_tables(page: str, stored: Stored) -> str:
    """Return the text of a page with its tables written anew."""

    def written(mark: re.Match[str]) -> str:
        found = TABLES[mark[1]](stored)
        tables = found if isinstance(found, list) else [found]
        text = "\n".join(table.markdown() for table in tables if table.lines)
        return f"<!-- {mark[1]} -->\n\n{text}\n<!-- end -->"

    return re.sub(r"<!-- (\w+) -->\n.*?<!-- end -->", written, page, flags=re.DOTALL)


def files(stored: Stored) -> dict[str, str]:
    """Return every file of the report by its name in ``docs``."""
    page = (DOCS / "results.md").read_text(encoding="utf-8")
    return {
        "results.md": with_tables(page, stored),
        "results.html": html_page(stored),
        "auc.svg": sections.auc_plot(stored),
        "tables.svg": sections.tables_plot(stored),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks report", description=__doc__)
    parser.add_argument("--output", type=Path, default=DOCS, help="folder, docs if left out")
    output: Path = parser.parse_args(arguments).output
    output.mkdir(parents=True, exist_ok=True)
    for name, text in files(Stored.read()).items():
        (output / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
