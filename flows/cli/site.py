"""What a site file is written from: ``init``, ``ranges``, and ``methods``, which it can name."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli import terminal
from flows.cli.options import EXIT_CODES, AsJson, argument, option
from privacy.errors import ConfigurationError

if TYPE_CHECKING:
    import pandas as pd

    from flows.watching.planning import Planning
    from flows.watching.simulation import Utility
    from tasks.methods.registry import MethodEntry

_SETTING_FACTS = ("description", "default", "type", "minimum", "maximum", "enum")

app = typer.Typer()


@app.command(epilog=EXIT_CODES)
def init(
    table: Annotated[
        Path,
        argument("TABLE", "CSV file with a header line, Parquet file, or folder of Parquet files"),
    ],
    delimiter: Annotated[str, option("MARK", "delimiter of a CSV file")] = ",",
    codebook: Annotated[
        Path | None,
        option(
            "FILE",
            "what describes the columns: a sheet (.csv, .xlsx; REDCap's, too), or a schema (.json, "
            ".yaml) of Frictionless, JSON Schema or LinkML",
        ),
    ] = None,
    label: Annotated[str | None, option("COLUMN", "the column to predict")] = None,
    patient: Annotated[str | None, option("COLUMN", "the column that names the patient")] = None,
    ignore: Annotated[
        list[str] | None, option("COLUMN", "a column to leave out; may be given several times")
    ] = None,
    output: Annotated[
        Path | None,
        option("SITE.yaml", "file to write, which must not exist (default: standard output)"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a site file to fill in.

    It has the column names and types of a table, and comments. Bounds, levels, units and missing
    codes come from a codebook, or are left for you to declare, never from the records. What is a
    guess, such as bins and public clinical ranges, is marked as one. No row is read.
    """
    from flows.site.template import describe_table, site_template, source_of
    from storage.codebooks.codebook_files import read_codebook

    source = source_of(table, delimiter=delimiter)
    text = site_template(
        *describe_table(source),
        source,
        codebook=None if codebook is None else read_codebook(codebook),
        label=label,
        patient=patient,
        ignore=ignore or (),
    )
    if output is None:
        sys.stdout.write(json.dumps({"site": text}) + "\n" if as_json else text)
        return
    with output.open("x", encoding="utf-8") as handle:
        handle.write(text)
    n_guesses = text.count("# guess")
    guesses = f", and agree with {n_guesses} guesses or change them," if n_guesses else ""
    wrote = f"wrote {output}; replace every FILL_IN{guesses} before the first release"
    terminal.answer({"output": str(output)}, wrote, as_json=as_json)


@app.command(epilog=EXIT_CODES)
def ranges(
    name: Annotated[
        str | None, argument("[NAME]", "a quantity, as a column has it (default: all of them)")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List public clinical ranges of adults, each with its sources.

    They are what ``init`` proposes where a codebook has no bounds: a help, and no limit.
    """
    from storage.codebooks.ranges import citations, clinical_ranges, ranges_named

    found = clinical_ranges() if name is None else ranges_named(name)
    if not found:
        raise ConfigurationError(
            "RANGE_UNKNOWN",
            "expected a quantity that clustmix ranges lists, found none of that name",
        )
    if as_json:
        terminal.answer([one.model_dump() for one in found], as_json=True)
        return
    if name is None:
        terminal.table(
            [(one.key, one.title, f"{one.lower:g}", f"{one.upper:g}", one.unit) for one in found],
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
                "Sources": "; ".join(citations()[source] for source in one.sources),
            }
        )


@app.command(epilog=EXIT_CODES)
def plan(
    site: Annotated[Path, argument("SITE.yaml", "site file of the dataset")],
    epsilon: Annotated[
        list[float] | None,
        option("NUMBER", "what to ask for, beside the declared one; may be given several times"),
    ] = None,
    plot: Annotated[Path | None, option("FILE", "draw it: .svg, .pdf or .png")] = None,
    simulate: Annotated[
        bool, option(None, "also try releases of made-up rows, which takes minutes", "--simulate")
    ] = False,
    like: Annotated[
        Path | None,
        option("BUNDLE", "try releases of the rows of an earlier bundle instead of made-up ones"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what a release would tell at several budgets. No row is read.

    For each epsilon: how many such releases the lifetime budget allows, and how far noise alone
    moves a number of patients, of a label and of one bin or level. A bin that fewer patients have
    cannot be told from an empty one. With rows that stand in for the table also what a model learns
    from a release of them.
    """
    from flows.site.request import job_of
    from flows.site.site_file import load_site
    from flows.watching.planning import EPSILONS, Planning, draw_prospects
    from storage.files.refs import new_release_id

    job = job_of(load_site(site), new_release_id())
    planning = Planning(job)
    n_patients = planning.patients
    found = planning.prospects(epsilon or EPSILONS)
    nullable = planning.nullable_error
    if plot is not None:
        draw_prospects(found, n_patients, plot)
    tried = {}
    if simulate or like is not None:
        epsilons = [each.epsilon for each in found]
        tried = _tried(planning, epsilons, like, quiet=as_json)
    if as_json:
        told = {"patients": n_patients, "nullable_error": nullable, "prospects": found}
        terminal.answer(told | ({"simulated": tried} if tried else {}), as_json=True)
        return
    declared = "declared" if job.patients else "assumed, as the site file declares no number"
    terminal.line(job.title, style="bold")
    terminal.facts(
        {
            "Patients": f"{n_patients:,} ({declared})",
            "Guarantee": f"epsilon as below, delta {job.parameters.delta:g}, {job.method.kind}",
            "Errors": "of noise in the counts by label, in patients, exceeded once in 20 times; "
            "what else counts bins makes theirs smaller in a release",
            "Drowned": "a column whose bins or levels, were they equally frequent, would each have "
            "fewer patients than the error of one; declare fewer of them",
            "Simulated": None
            if not tried
            else f"releases of {next(iter(tried.values())).rows:,} rows that stand in for the "
            "table, one a patient and without constraints: AUC of a model trained on one, where "
            f"one trained on the rows themselves has {next(iter(tried.values())).auc_of_rows:.3f}; "
            "mean distance of the shares of a column. Your table may tell more or less",
            "Nullable": None
            if nullable is None
            else f"were an empty cell allowed in every column: bin +- {_patients(nullable)} at the "
            "declared epsilon, where the rule may give counts more of the budget",
        }
    )
    terminal.table(
        [
            (
                f"{each.epsilon:g}"
                + (" (declared)" if each.epsilon == job.parameters.epsilon else ""),
                f"{each.releases:,}",
                _patients(each.label_error),
                _patients(each.code_error),
                _share(each.code_error, n_patients),
                "-"
                if each.code_error is None
                else f"{len(each.drowned)} of {len(job.table_schema.columns)}",
                *_learnt(tried.get(each.epsilon)),
            )
            for each in found
        ],
        (
            *("epsilon", ">releases", ">label +-", ">bin +-", ">of all", ">drowned columns"),
            *((">AUC", ">distance") if tried else ()),
        ),
    )


def _learnt(tried: Utility | None) -> tuple[str, ...]:
    return () if tried is None else (f"{tried.auc:.3f}", f"{tried.one_way:.3f}")


def _released(bundle: Path, planning: Planning) -> pd.DataFrame:
    """Read the rows of a bundle that this installation has published, and not taken back."""
    from flows.watching.simulation import rows_of
    from storage.keys.key_store import KeyStore
    from storage.releases.bundles import verify_bundle
    from storage.releases.revocations import list_beside, read_revocations
    from storage.settings import load_settings

    keys = KeyStore(load_settings().key_folder)
    trusted = keys.pipeline_public()
    verified = verify_bundle(bundle, trusted=trusted, officers=keys.officers())
    place = list_beside(bundle)
    if place is not None:
        read_revocations(place, trusted=trusted).require_not_revoked(verified)
    return rows_of(verified, planning)


def _tried(
    planning: Planning, epsilons: list[float], like: Path | None, *, quiet: bool
) -> dict[float, Utility]:
    """Try releases at these epsilons."""
    from flows.cli.progress import Progress
    from flows.watching.simulation import Simulation

    with Progress("making rows up", quiet=quiet) as progress:
        simulation = Simulation(planning, None if like is None else _released(like, planning))
        found = {}
        for epsilon in epsilons:
            progress.begin(f"epsilon {epsilon:g}")
            found[epsilon] = simulation.utility(epsilon)
    return found


def _patients(error: float | None) -> str:
    return "-" if error is None else f"{error:,.3g}" if error < 100 else f"{error:,.0f}"


def _share(error: float | None, n_patients: int) -> str:
    return "-" if error is None else f"{100 * error / n_patients:.2g} %"


@app.command(epilog=EXIT_CODES)
def methods(as_json: AsJson = False) -> None:
    """List the methods that a site file can name: paper, data and settings. All are proven."""
    from tasks.methods.registry import METHODS

    listed = [_facts(entry) for entry in METHODS]
    if as_json:
        terminal.answer(listed, as_json=True)
        return
    for method in listed:
        terminal.line(f"\n{method['kind']}: {method['title']}", style="bold")
        terminal.facts(
            {
                "Source": method["source"],
                "Data": ", ".join(method["data_kinds"]),
                "Settings": ", ".join(method["settings"]) or "none",
            }
        )


def _facts(entry: MethodEntry) -> dict[str, Any]:
    """Return what is public about a method, in the form of the JSON answer."""
    schema = entry.config.model_json_schema(mode="validation")
    return {
        "kind": entry.kind,
        "title": entry.title,
        "source": entry.source,
        "data_kinds": [kind.value for kind in entry.data_kinds],
        "settings": {
            name: {key: setting[key] for key in setting if key in _SETTING_FACTS}
            for name, setting in schema["properties"].items()
            if name != "kind"
        },
    }
