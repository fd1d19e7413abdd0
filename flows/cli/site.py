"""The commands of the first hour: ``init``, ``methods`` that a site file names, ``completion``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from flows.cli import terminal
from flows.cli.options import Commands, argument, option
from privacy.errors import refusals

if TYPE_CHECKING:
    from tasks.methods.registry import MethodEntry

refusal = refusals(__package__)

ALL_RANGES = "all"
COMPLETE = "_CLUSTMIX_COMPLETE"
"""Environment variable by which a shell asks for completions."""

_SETTING_FACTS = ("description", "default", "type", "minimum", "maximum", "enum")

app = Commands()


@app.command()
def init(
    table: Annotated[
        Path | None,
        argument("TABLE", "CSV file with a header line, Parquet file, or folder of Parquet files"),
    ] = None,
    *,
    delimiter: Annotated[str, option("MARK", "delimiter of a CSV file")] = ",",
    encoding: Annotated[str, option("NAME", "encoding of a CSV file, such as latin-1")] = "utf-8",
    codebook: Annotated[
        Path | None,
        option("FILE", "a sheet, also REDCap's, or a schema (Frictionless, JSON Schema, LinkML)"),
    ] = None,
    label: Annotated[str | None, option("COLUMN", "the column to predict")] = None,
    time: Annotated[str | None, option("COLUMN", "the time to the label, an event")] = None,
    patient: Annotated[str | None, option("COLUMN", "the column that names the patient")] = None,
    ignore: Annotated[
        list[str] | None, option("COLUMN", "a column to leave out; may be given several times")
    ] = None,
    events: Annotated[
        list[str] | None, option("NAME=TABLE", "a table of events; may be given several times")
    ] = None,
    output: Annotated[
        Path | None,
        option("SITE.yaml", "file to write, which must not exist (default: standard output)"),
    ] = None,
    ranges: Annotated[
        str | None,
        option(
            "QUANTITY",
            "instead list the public clinical ranges of a quantity, such as creatinine, with their "
            "sources, or of all",
        ),
    ] = None,
) -> None:
    """Write a site file to fill in.

    It has the column names and types of a table, of which no row is read. Bounds, levels, units and
    missing codes come from a codebook, or are left for you to declare. Guesses are marked as such.
    """
    if ranges is not None:
        _show_ranges(ranges)
        return
    if table is None:
        raise refusal("USAGE")
    from flows.site.template import describe_table, event_tables, site_template, source_of
    from storage.codebooks.codebook_files import read_codebook

    source = source_of(table, delimiter=delimiter, encoding=encoding)
    text = site_template(
        *describe_table(source),
        source,
        codebook=None if codebook is None else read_codebook(codebook),
        label=label,
        time=time,
        patient=patient,
        ignore=ignore or (),
        events=event_tables(events or (), delimiter=delimiter, encoding=encoding),
    )
    _write_site(text, output)


def _write_site(text: str, output: Path | None) -> None:
    if output is None:
        terminal.answer({"site": text}, text.removesuffix("\n"))
        return
    with output.open("x", encoding="utf-8") as handle:
        handle.write(text)
    n_guesses = text.count("# guess")
    guesses = f", and agree with {n_guesses} guesses or change them," if n_guesses else ""
    wrote = f"wrote {output}; replace every FILL_IN{guesses} before the first release"
    terminal.answer({"output": str(output)}, wrote)


def _show_ranges(quantity: str) -> None:
    """Show the public clinical ranges of a quantity, by its name as a column, or of all."""
    from storage.codebooks.ranges import CITATIONS, CLINICAL_RANGES, ranges_named
    from storage.schema.columns import did_you_mean

    found = CLINICAL_RANGES if quantity == ALL_RANGES else ranges_named(quantity)
    if not found:
        hint = did_you_mean(quantity, [one.key for one in CLINICAL_RANGES])
        raise refusal("RANGE_UNKNOWN", hint=hint)

    def show() -> None:
        if quantity == ALL_RANGES:
            terminal.table(
                [(o.key, o.title, f"{o.lower:g}", f"{o.upper:g}", o.unit) for o in found],
                ("name", "quantity", ">lower", ">upper", "unit"),
            )
            return
        for one in found:
            terminal.line(f"{one.title} in {one.unit}", style="bold")
            terminal.facts(
                {
                    "Bounds": f"{one.lower:g} to {one.upper:g}, decimals: {one.decimals}",
                    "Edges": ", ".join(f"{edge:g}" for edge in one.edges),
                    "LOINC": one.loinc,
                    "Sources": "; ".join(CITATIONS[source] for source in one.sources),
                }
            )

    terminal.answer([one.model_dump() for one in found], show)


@app.command()
def methods() -> None:
    """List the methods that a site file can name.

    Each is proven, and shown with its paper, data and settings.
    """
    from tasks.methods.registry import METHODS

    listed = [_facts(entry) for entry in METHODS]

    def show() -> None:
        for method in listed:
            terminal.line(f"\n{method['kind']}: {method['title']}", style="bold")
            terminal.facts(
                {
                    "Source": method["source"],
                    "Data": ", ".join(method["data_kinds"]),
                    "Settings": ", ".join(method["settings"]) or "none",
                }
            )

    terminal.answer(listed, show)


@app.command()
def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], argument("SHELL", "bash, zsh or fish")],
) -> None:
    """Print the completion of commands and options.

    A line of the start-up file loads it: eval "$(clustmix completion bash)" in ~/.bashrc, the same
    with zsh in ~/.zshrc after compinit, clustmix completion fish | source for fish.
    """
    from typer.completion import get_completion_script

    script = get_completion_script(prog_name="clustmix", complete_var=COMPLETE, shell=shell)
    terminal.answer({"shell": shell, "script": script}, script)


def _facts(entry: MethodEntry) -> dict[str, Any]:
    """Return the public facts about a method, in the form of the JSON answer."""
    schema = entry.config.model_json_schema(mode="validation")
    return {
        "kind": entry.kind,
        "title": entry.title,
        "source": entry.source,
        "data_kinds": list(entry.data_kinds),
        "settings": {
            name: {key: setting[key] for key in setting if key in _SETTING_FACTS}
            for name, setting in schema["properties"].items()
            if name != "kind"
        },
    }
