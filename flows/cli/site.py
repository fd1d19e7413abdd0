"""What a site file is written from: ``init``, and ``methods``, which it can name."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli import terminal
from flows.cli.options import EXIT_CODES, AsJson, argument, option

if TYPE_CHECKING:
    from tasks.synthesizers.registry import MethodEntry

_SETTING_FACTS = ("description", "default", "type", "minimum", "maximum", "enum")

app = typer.Typer()


@app.command(epilog=EXIT_CODES)
def init(
    table: Annotated[
        Path,
        argument("TABLE", "CSV file with a header line, Parquet file, or folder of Parquet files"),
    ],
    delimiter: Annotated[str, option("MARK", "delimiter of a CSV file")] = ",",
    output: Annotated[
        Path | None,
        option("SITE.yaml", "file to write, which must not exist (default: standard output)"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a site file to fill in.

    It has the column names and types of a table, and comments. Bounds and levels are left for you
    to declare: they must come from a codebook, not from the records. No row is read.
    """
    from flows.site.template import describe_table, site_template, source_of

    source = source_of(table, delimiter=delimiter)
    text = site_template(*describe_table(source), source)
    if output is None:
        sys.stdout.write(json.dumps({"site": text}) + "\n" if as_json else text)
        return
    with output.open("x", encoding="utf-8") as handle:
        handle.write(text)
    wrote = f"wrote {output}; replace every FILL_IN before the first release"
    terminal.answer({"output": str(output)}, wrote, as_json=as_json)


@app.command(epilog=EXIT_CODES)
def methods(as_json: AsJson = False) -> None:
    """List the methods that a site file can name: paper, guarantee, data and settings."""
    from tasks.synthesizers.registry import METHODS

    listed = [_facts(entry) for entry in METHODS]
    if as_json:
        terminal.answer(listed, as_json=True)
        return
    for method in listed:
        terminal.line(f"\n{method['kind']}: {method['title']}", style="bold")
        terminal.facts(
            {
                "Source": method["source"],
                "Guarantee": method["guarantee"],
                "Forms": ", ".join(method["analyses"]),
                "Data": ", ".join(method["data_kinds"]),
                "Settings": ", ".join(method["settings"]) or "none",
            }
        )


def _facts(entry: MethodEntry) -> dict[str, Any]:
    """Return what is public about a method, in the form of the JSON answer."""
    schema = entry.config.model_json_schema(mode="validation")
    forms = (("proven", entry.proven), ("published", entry.paper))
    return {
        "kind": entry.kind,
        "title": entry.title,
        "source": entry.source,
        "guarantee": "none" if entry.proven is None else "proven",
        "analyses": [name for name, form in forms if form is not None],
        "data_kinds": [kind.value for kind in entry.data_kinds],
        "settings": {
            name: {key: setting[key] for key in setting if key in _SETTING_FACTS}
            for name, setting in schema["properties"].items()
            if name != "kind"
        },
    }
