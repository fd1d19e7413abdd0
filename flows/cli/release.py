"""What each command of ``clustmix`` does; each returns its exit code.

Heavy imports are made where they are needed, so that help and bad site files are answered at once.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from flows.cli import terminal
from privacy.errors import ConfigurationError, InputError

if TYPE_CHECKING:
    from flows.server.orchestrator import OwnServer
    from flows.site.request import SiteRequest
    from flows.site.site_file import SiteFile
    from storage.settings import Settings


def release(options: argparse.Namespace) -> int:
    """Make and publish one release."""
    from storage.settings import load_settings

    settings = load_settings()
    progress = terminal.Progress(quiet=options.json)
    orchestrator = _Orchestrator(settings)
    # Everything that a person can get wrong before a row is read is checked while it starts.
    from flows.site.site_file import load_site

    path, site = options.site, load_site(options.site)
    progress.waiting(f"looking for the table of {site.dataset}")
    try:
        request = _checked_request(path, site, settings, options)
    except InputError as error:
        if options.fallback is None or error.code != "DATA_UNAVAILABLE":
            raise
        path, site = options.fallback, load_site(options.fallback)
        progress.note(
            f"the data of {options.site.stem} are not at hand and could not be fetched; "
            f"releasing {site.title} instead"
        )
        request = _checked_request(path, site, settings, options)
    progress.title(site)
    with orchestrator.answering(progress):
        from flows.release import run_release
        from tasks.steps.run import listen_to_stages

        with listen_to_stages(progress):
            outcome = run_release(request)
    answer = {**outcome.model_dump(), "stage_seconds": progress.stage_seconds}
    if options.json:
        terminal.print_json(answer)
    else:
        terminal.outcome(outcome)
    return 0


def _checked_request(
    path: Path, site: SiteFile, settings: Settings, options: argparse.Namespace
) -> SiteRequest:
    """Check the request, the folders and the header of the source; no row is read."""
    from flows.site.request import SiteRequest, load_job
    from storage.files.private import ensure_private_directory
    from storage.releases.store import ReleaseStore
    from storage.sources.cohorts import CohortReader
    from tasks.steps.ledger_steps import check_source

    requester = None
    if options.key is not None:
        from storage.keys.keys import SigningKey

        requester = SigningKey.read(options.key).key_id
    request = SiteRequest(
        site_file=str(path),
        dataset=site.dataset,
        new_draw=options.new_draw,
        requester=requester,
    )
    job = load_job(request, settings)
    ensure_private_directory(settings.home)
    ReleaseStore(settings.releases).check_usable(site.dataset)
    check_source(job, CohortReader(job.source, settings=settings))
    return request


class _Orchestrator:
    """Prefect and a server: the named one, this installation's, or one of this command's own.

    A server of its own starts at once, in its own process, and ends with this one. Where Prefect
    is loaded already, in a notebook say, there is nothing to hasten.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._server: OwnServer | None = None
        self._joined = self._hastened = False
        if "prefect" not in sys.modules:
            self._hastened = True
            gc.disable()  # what modules make when they are loaded stays to the end
            self._prepare()

    def _prepare(self) -> None:
        from flows.server.orchestrator import join_ready_server, start_server
        from tasks.execution.runtime import configure_prefect

        self._joined = join_ready_server(self._settings)
        # Prefect reads its environment once, when it is imported.
        configure_prefect(self._settings)
        self._server = start_server()

    @contextmanager
    def answering(self, progress: terminal.Progress) -> Iterator[None]:
        """Load what every release needs while the server starts; then run the block."""
        if not self._hastened:
            self._prepare()
        progress.note(f"{'joining' if self._joined else 'starting'} the orchestrator")
        if self._hastened:
            from tasks.gates.expectation_suites import silent_great_expectations

            import_module("flows.release")
            silent_great_expectations()
            gc.freeze()
            gc.enable()
        with nullcontext() if self._server is None else self._server.answering():
            yield


def benchmark(options: argparse.Namespace) -> int:
    """Run the published analysis on public data."""
    from storage.settings import load_settings

    settings = load_settings()
    orchestrator = _Orchestrator(settings)
    from flows.site.site_file import load_site
    from tasks.steps.run import listen_to_stages

    site = load_site(options.site)
    progress = terminal.Progress(quiet=options.json)
    with orchestrator.answering(progress):
        from flows.operations.benchmark import benchmark_paper

        with listen_to_stages(progress):
            answer = benchmark_paper(site, settings, options.output)
    if options.json:
        terminal.print_json({**answer, "stage_seconds": progress.stage_seconds})
    else:
        terminal.line(f"{answer['claim']}\n{answer['folder']}")
    return 0


def verify(options: argparse.Namespace) -> int:
    """Check a published bundle."""
    from storage.keys.keys import KeyStore, read_public_keys
    from storage.releases.revocations import list_beside, read_revocations
    from storage.releases.store import verify_bundle
    from storage.settings import load_settings
    from tasks.reporting.guarantee import Claim, guarantee_statement

    keys = KeyStore(load_settings().key_folder)
    trusted = read_public_keys(options.key) if options.key else keys.pipeline_public()
    verified = verify_bundle(
        options.bundle,
        trusted=trusted,
        officers=read_public_keys(options.officer) if options.officer else keys.officers(),
    )
    place = options.revoked or list_beside(options.bundle)
    revoked = None if place is None else read_revocations(place, trusted=trusted)
    if revoked is not None:
        revoked.require_not_revoked(verified)
    manifest = verified.manifest
    if options.json:
        terminal.print_json(
            {
                "verified": True,
                "dataset": manifest.dataset,
                "release_id": manifest.release_id,
                "epsilon": manifest.epsilon,
                "delta": manifest.delta,
                "adjacency": manifest.adjacency,
                "manifest_sha256": verified.manifest_sha256,
                "signed_by": verified.signer,
                "approved_by": verified.approved_by,
                "reason": verified.reason,
                "revocations_checked": revoked is not None,
                "suspect": manifest.is_suspect,
            }
        )
        return 1 if manifest.is_suspect else 0
    terminal.paragraph(
        "Verified",
        f"{manifest.dataset}/{manifest.release_id}: {len(manifest.files)} files as the manifest "
        "states them, epsilon as its events give it",
    )
    terminal.paragraph("Manifest", f"SHA-256 {verified.manifest_sha256}")
    terminal.paragraph("Signed", f"by the pipeline with key {verified.signer}")
    if verified.approved_by is not None:
        terminal.paragraph(
            "Approved", f"by the officer with key {verified.approved_by}: {verified.reason}"
        )
    if revoked is None:
        terminal.paragraph(
            "Revoked", "not checked, no list of revocations is here (--revoked names one)"
        )
    else:
        last = revoked.revocations[-1].revoked_on
        terminal.paragraph("Revoked", f"not by {place}, whose last entry is of {last}")
    terminal.paragraph("Guarantee", guarantee_statement(Claim.of(manifest)))
    if manifest.is_suspect:
        terminal.paragraph(
            "Suspect",
            "the program that made this bundle named the label levels in the order of the "
            "alphabet, in whatever order they were measured, so they may be exchanged. Do not "
            "train on it. Its publisher can publish the measurement again in the right order at "
            "no charge (clustmix publish RELEASE --site SITE.yaml --key FILE) and takes this "
            "bundle back (clustmix revoke RELEASE --key FILE --reason TEXT). The guarantee holds "
            "all the same",
        )
    return 1 if manifest.is_suspect else 0


def doctor(options: argparse.Namespace) -> int:
    """Check the installation."""
    from flows.operations.doctor import examine
    from storage.settings import load_settings

    findings = examine(load_settings())
    if options.json:
        terminal.print_json([finding.as_json() for finding in findings])
    else:
        terminal.findings(findings)
    return 0 if all(finding.good for finding in findings) else 1


def init(options: argparse.Namespace) -> int:
    """Write a site file to fill in."""
    from flows.site.template import describe_table, site_template, source_of

    source = source_of(options.table, delimiter=options.delimiter)
    text = site_template(*describe_table(source), source)
    if options.output is None:
        sys.stdout.write(json.dumps({"site": text}) + "\n" if options.json else text)
        return 0
    try:
        with options.output.open("x", encoding="utf-8") as handle:
            handle.write(text)
    except FileExistsError:
        raise ConfigurationError(
            "FILE_EXISTS", f"expected no file at {options.output}, found one; name another"
        ) from None
    if options.json:
        terminal.print_json({"output": str(options.output)})
    else:
        terminal.line(f"wrote {options.output}; replace every FILL_IN before the first release")
    return 0
