"""The commands that read a table: ``release`` and ``check``."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli import terminal
from flows.cli.options import Commands, Explain, RequesterKey, SitePath, load_settings, option
from flows.cli.publishing import show_outcome
from flows.cli.stopping import note_release
from flows.stages import PUBLISH
from privacy.errors import InputError

if TYPE_CHECKING:
    from flows.cli.progress import Progress
    from flows.site.request import SiteRequest
    from flows.site.site_file import SiteFile
    from tasks.steps.job import ReleaseJob


app = Commands()

_Fallback = Annotated[
    Path | None,
    option("SITE.yaml", "site file to use where the public dataset of the first is not at hand"),
]
_ADJACENCY_TEXTS = {"add_remove": "add or remove one patient", "replace_one": "replace one patient"}


@app.command()
def release(
    site: SitePath,
    *,
    fallback: _Fallback = None,
    new_draw: Annotated[
        bool,
        option(
            None, "draw new noise where the table was measured before: a new charge", "--new-draw"
        ),
    ] = False,
    again: Annotated[
        bool,
        option(None, "charge again after a release that burned; its cause is mended", "--again"),
    ] = False,
    period: Annotated[
        str | None, option("PERIOD", "period of a release by entry (default: the last that ended)")
    ] = None,
    key: RequesterKey = None,
    explain: Explain = False,
) -> None:
    """Make and publish one release of a dataset.

    The table of the site file is read and measured once under differential privacy, and a bundle of
    synthetic rows is published with its manifest, data card and report. The budget is charged first
    and is not given back afterwards, except for a table that breaks a declared rule.
    """
    # If Prefect is loaded already, as in a notebook, an early start saves no time.
    prepared = None if "prefect" in sys.modules else _prepare_orchestrator()
    # While it starts, every fault of the request that shows without a row is looked for.
    from flows.cli.progress import Progress

    with Progress(f"reading {site.name}") as progress:
        asked = {"new_draw": new_draw, "again": again, "period": period, "key": key}
        request, job = _checked_or_fallback(site, fallback, progress=progress, **asked)
        from flows.installation import Installation

        here, outcome = Installation.open(load_settings()), None
        if here.entries.keeps_smaller_cap(job.cohort, job.caps):
            progress.note(f"warning: {job.cohort} keeps its smaller lifetime cap: caps only fall")
        if not new_draw:
            progress.begin("looking whether this was answered before")
            outcome = here.answered_before(job)
        if outcome is None:
            stages = [stage.name for stage in job.synthesizer.stages()]
            with _answering(prepared or _prepare_orchestrator(), stages, progress):
                from flows.release import run_release

                outcome = run_release(request, job)
    show_outcome(outcome, explain=explain, stage_seconds=progress.stage_seconds)


@app.command()
def check(
    site: SitePath,
    *,
    show: Annotated[
        bool, option(None, "show the summary; for the owner, never for a log", "--show")
    ] = False,
    key: RequesterKey = None,
) -> None:
    """Check a table against its site file; nothing is charged.

    Every row is checked against the declared rules. A summary of each column (cells clipped, sent
    to other, missing or undeclared, and what would mend it) and violations go to a restricted file,
    and are shown only with --show. The ledger records the check; if the declarations change after a
    check, passed or not, the data card says so. Whether a table passes is internal.
    """
    from flows.cli.progress import Progress
    from flows.site.site_file import load_site

    settings = load_settings()
    with Progress(f"reading {site.name}") as progress:
        _, job = _checked_request(site, load_site(site), key=key)
        progress.begin(f"checking the table of {job.ref.dataset}")
        from flows.check import check_table
        from flows.installation import Installation
        from tasks.execution.runtime import guarded_call, private_log_directory
        from tasks.steps.entries import CHECK_FAILED

        with private_log_directory(settings.diagnostics / job.ref.release_id):
            here = Installation.open(settings)
            here.janitor.clean_up()
            checked = guarded_call(
                "check",
                check_table,
                job,
                entries=here.entries,
                tables=here.tables,
                workplace=here.workplace,
            )
    answer: dict[str, Any] = {"dataset": job.ref.dataset, "passed": checked is None}
    # The same words for every table that passes: what was clipped is for its owner alone.
    more = "" if show else "; add --show to see what is clipped, missing or sent to other"
    shown: list[Any] = [f"the table of {job.ref.dataset} passes; nothing is charged{more}"]
    failed = None if checked is None else checked.error()
    if show and (failed is None or failed.code == CHECK_FAILED):
        records = here.workplace.diagnostics_of(job.ref.release_id).records()
        answer["summary"] = [record for record in records if "rule" not in record]
        refused = dict.fromkeys(one["rule"] for one in records if one.get("column") == "")
        answer["refused"] = [*refused]
        shown.append(partial(_show_summary, answer["summary"], refused))
    if failed is None:
        terminal.answer(answer, *shown)
    elif "summary" in answer and terminal.answers_program():  # in one object
        terminal.answer(answer | {"error": failed.code, "message": failed.message})
        raise typer.Exit(failed.exit_code)
    else:
        for part in shown[1:]:
            part()
        raise failed


def _checked_or_fallback(
    site: Path, fallback: Path | None, *, progress: Progress, **asked: Any
) -> tuple[SiteRequest, ReleaseJob]:
    """Check a request, or that of the fallback where the public data are not at hand; show it."""
    from flows.site.site_file import load_site

    for path in (site, fallback or site):
        site_file = load_site(path)
        progress.begin(f"looking for the table of {site_file.dataset}")
        try:
            request, job = _checked_request(path, site_file, **asked)
            break
        except InputError as error:
            if path == (fallback or site) or error.code != "DATA_UNAVAILABLE":
                raise
            progress.note(
                f"the data of {site.stem} are not at hand and could not be fetched; releasing "
                f"{fallback} instead"
            )
    progress.line(site_file.title, "bold")
    progress.note(
        f"epsilon {job.parameters.epsilon:g}, delta {job.parameters.delta:g} "
        f"({_ADJACENCY_TEXTS[job.adjacency]}); {job.rows:,} synthetic rows by method "
        f"{site_file.method.kind}"
    )
    if job.caution is not None:
        progress.note(f"warning: {job.caution}")
    return request, job


def _checked_request(
    path: Path, site: SiteFile, *, key: Path | None, **asked: Any
) -> tuple[SiteRequest, ReleaseJob]:
    """Check the request, the folders and the header of the source; no row is read."""
    from flows.site.request import SiteRequest, asked_job
    from storage.files.private import ensure_private_directory
    from storage.releases.release_store import ReleaseStore
    from storage.sources.cohorts import CohortReader
    from tasks.steps.source import check_source

    settings = load_settings()
    requester = None
    if key is not None:
        from storage.keys.keys import SigningKey

        requester = SigningKey.read(key).key_id
    request = SiteRequest(site_file=str(path), dataset=site.dataset, requester=requester, **asked)
    note_release(request.release_id)
    job = asked_job(request, site, requester=requester)
    ensure_private_directory(settings.home)
    ReleaseStore(settings.releases).check_usable(site.dataset)
    own: Any = {"places": settings.data_places, "scratch": settings.private_root}
    beside = {table.name: CohortReader(table.source, **own) for table in job.events}
    reader = CohortReader(job.source, **own, beside=beside)
    check_source(job.columns_to_read, job.table_schema, reader, job.events)
    return request, job


def _prepare_orchestrator() -> tuple[bool, int | None]:
    """Choose the server of Prefect: the named one, this installation's, or a new one.

    A new server starts at once, in a process of its own, and ends with this command. Return whether
    another one was joined, and the port of the new one.
    """
    from flows.orchestrator import join_ready_server, start_server
    from tasks.execution.runtime import configure_prefect

    settings = load_settings()
    joined = join_ready_server(settings.server_home)
    # Prefect reads its environment once, when it is imported.
    configure_prefect(settings)
    return joined, start_server()


@contextmanager
def _answering(
    prepared: tuple[bool, int | None], stages: Iterable[str], progress: Progress
) -> Iterator[None]:
    """Load what every release needs while the server starts; then run the block with progress."""
    joined, own_port = prepared
    text = f"{'joining' if joined else 'starting'} the orchestrator"
    progress.note(text)
    progress.begin(text)
    import flows.release  # noqa: F401
    from flows.orchestrator import answering
    from tasks.execution.runtime import listen_to_stages

    with nullcontext() if own_port is None else answering(own_port):
        progress.expect_stages(("ingest", *stages, *PUBLISH))
        with listen_to_stages(progress):
            yield


def _show_summary(records: Sequence[Mapping[str, Any]], refused: Iterable[str]) -> None:
    """Write faulty columns, worst first, changes as YAML, and refusals; for the owner alone."""
    *faults, last = records
    rows = [
        [one["column"], _shares(one["shares"]) or _shares({"": one["share"]}), one["seen"]]
        for one in faults
    ]
    if faults:
        terminal.table(rows, ("column", "cells", "seen"))
    fine = [f"{name} ({_shares(own)})".removesuffix(" ()") for name, own in last["fine"].items()]
    text = f"nothing to mend in {len(fine)}: {', '.join(fine)}"
    terminal.line(textwrap.fill(text, terminal.WIDTH, subsequent_indent="  "))
    if faults:
        terminal.line("\nWhat would mend it, where the codebook agrees, which says each FILL_IN:\n")
    for record in faults:
        terminal.line(f"# {record['column']}: {record['advice']}")
        if record["change"]:
            terminal.line(record["change"])
    for sentence in refused:
        terminal.line(textwrap.fill(f"refused: {sentence}", terminal.WIDTH))


def _shares(shares: Mapping[str, float]) -> str:
    """Return the shares above zero, such as ``34 % clipped high``."""
    texts = [f"{100 * share:.3g} % {kind}" for kind, share in shares.items() if share]
    return ", ".join(texts).replace("_", " ")
