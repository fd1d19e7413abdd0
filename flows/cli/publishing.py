"""The commands ``publish``, ``verify``, ``export`` and ``pool``; none reads a table."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from flows.cli import terminal
from flows.cli.options import Bundle, Commands, Explain, ReleaseId, argument, load_settings, option
from flows.cli.terminal import Whole
from flows.stages import PUBLISH
from privacy.errors import refusals

if TYPE_CHECKING:
    from flows.installation import Installation
    from flows.publication import ReleaseOutcome
    from storage.releases.bundles import VerifiedBundle
    from storage.releases.manifest import Manifest

refusal = refusals(__package__)

MAX_ROWS = 10_000_000
"""Most synthetic rows of one bundle."""

app = Commands()


@app.command()
def publish(
    release: Annotated[str, argument("RELEASE", "id of the release that paid")],
    *,
    rows: Annotated[
        int | None, option("N", "publish other rows, as many as these", min=1, max=MAX_ROWS)
    ] = None,
    where: Annotated[
        list[str] | None,
        option(
            "COLUMN=LEVEL",
            "publish other rows that meet a condition: a declared level, LOW..HIGH of whole bins, "
            "or LABEL=balanced; may be given several times",
        ),
    ] = None,
    explain: Explain = False,
) -> None:
    """Publish a sealed release, or other rows of it.

    Without options it publishes a release whose run ended before; the same request (clustmix
    release) does so too, as long as the table is the same. A release that waits for an officer goes
    on waiting. With --rows or --where it publishes other rows of a release. Both sample its sealed
    measurement: no table is read, no noise is drawn, nothing is charged.
    """
    conditions: dict[str, str] = {}
    for text in where or ():
        column, mark, level = text.partition("=")
        if not mark or column in conditions:
            raise refusal("CONDITION_INVALID", found=text[:80])
        conditions[column] = level
    with publishing() as here:
        if rows is None and not conditions:
            outcome = here.publisher.publish(release)
        else:
            outcome = here.publisher.resample(release, rows=rows, conditions=conditions)
    show_outcome(outcome, explain=explain)


@app.command()
def resample(
    release: ReleaseId,
    *,
    draws: Annotated[int, option("N", "number of draws", min=2, max=100)] = 20,
    rows: Annotated[int | None, option("N", "synthetic rows", min=1, max=MAX_ROWS)] = None,
) -> None:
    """Publish rows of a release and of other draws of its noise, at no charge.

    An estimate varies over the draws in draws.parquet as it would over other releases of the table:
    clustmix.combine makes its interval. Methods: clustmix on tables, and naive_bayes.
    """
    with publishing() as here:
        outcome = here.publisher.resample(release, rows=rows, draws=draws)
    show_outcome(outcome, explain=False)


_OURS = "(default: this installation's)"


@app.command()
def verify(
    bundle: Bundle,
    *,
    key: Annotated[
        list[Path] | None,
        option("FILE", f"public key, or folder of them, of the pipeline that publishes {_OURS}"),
    ] = None,
    officer: Annotated[
        list[Path] | None, option("FILE", f"public key, or folder of them, of the officers {_OURS}")
    ] = None,
    revoked: Annotated[
        Path | None,
        option("FILE", "list of revoked releases (default: revoked.json of the bundle's store)"),
    ] = None,
    explain: Explain = False,
) -> None:
    """Check a published bundle.

    Offline, with public keys alone: the signature of the pipeline, the officer's where one was
    needed, every file against the manifest, and epsilon computed anew from the recorded events.
    Names a file that changed. Prints the guarantee.
    """
    from flows.cli.progress import Progress
    from tasks.reporting.claim import Claim

    with Progress("checking the files against the manifest"):
        verified, not_on = verified_bundle(bundle, keys=key, officers=officer, revoked=revoked)
    manifest, approver = verified.manifest, verified.approved_by
    stated = ("dataset", "release_id", "epsilon", "delta", "adjacency")
    terminal.answer(
        {
            "verified": True,
            **{name: getattr(manifest, name) for name in stated},
            "manifest_sha256": verified.manifest_sha256,
            "signed_by": verified.signer,
            "approved_by": approver,
            "reason": verified.reason,
            "revocations_checked": not_on is not None,
        },
        {
            "Verified": f"{manifest.dataset}/{manifest.release_id}: {len(manifest.files)} files as "
            "the manifest states them, epsilon as its events give it",
            "Manifest": f"SHA-256 {verified.manifest_sha256}",
            "Signed": f"by the pipeline with key {verified.signer}"
            + (" of this installation" if key is None else ""),
            "Approved": approver and f"by the officer with key {approver}: {verified.reason}",
            "Revoked": not_on
            or "not checked, no list of revocations is here (--revoked names one)",
            "Guarantee": _in_a_line(manifest, Claim(manifest).statement, explain=explain),
        },
    )


@app.command()
def export(
    release: ReleaseId, *, to: Annotated[Path, option("FILE", "the new file", "--to")]
) -> None:
    """Write the sealed sums of a release as a signed file that others pool.

    It holds no row, only what the noise has made public. Methods: clustmix on tables, naive_bayes.
    """
    from flows.pooling import exported
    from storage.files.private import write_durably

    with publishing() as here:
        write_durably(to, exported(here.publisher, release), mode=0o644)
    terminal.answer({"release_id": release, "file": str(to)}, {"Exported": Whole(str(to))})


@app.command()
def pool(
    parts: Annotated[list[str], argument("PARTS", "ids of releases, and files of export")],
    *,
    key: Annotated[
        list[Path] | None,
        option("FILE", "public key, or folder of them, of the hospitals that exported", "--key"),
    ] = None,
    rows: Annotated[int | None, option("N", "synthetic rows", min=1, max=MAX_ROWS)] = None,
) -> None:
    """Publish one release of several measurements of one table, at no charge.

    Noisy sums of different patients add up: the guarantee is that of the largest part of a
    partitioned cohort. Of several hospitals it assumes that no patient is in two, and says so. The
    manifest lists every part, with its signature.
    """
    from flows.pooling import pooled
    from storage.keys.key_store import read_public_keys
    from storage.releases.manifest import MANIFEST_FILE, Manifest
    from tasks.reporting.claim import Claim

    hospitals = read_public_keys(key) if key else ()
    with publishing() as here:
        bundle = pooled(here.publisher, parts, hospitals=hospitals, rows=rows)
    manifest = Manifest.read(bundle / MANIFEST_FILE)
    stated = ("dataset", "release_id", "epsilon", "delta", "adjacency", "rows")
    terminal.answer(
        {**{name: getattr(manifest, name) for name in stated}, "bundle": str(bundle)},
        {
            "Pooled": f"{len(parts)} measurements; nothing is charged",
            "Guarantee": Claim(manifest).statement,
            "Bundle": Whole(str(bundle)),
        },
    )


@app.command()
def estimate(
    release: ReleaseId,
    quantity: Annotated[
        str, argument("QUANTITY", "share, mean, risk_difference, risk_ratio or odds_ratio")
    ],
    of: Annotated[str, argument("OF", "COLUMN=LEVEL, or LOW..HIGH of bins; a mean: COLUMN")],
    *,
    by: Annotated[
        str | None, option("COLUMN=LEVEL", "the group of a risk or odds ratio", "--by")
    ] = None,
    against: Annotated[
        str | None, option("LEVEL", "the group to compare with (default: all others)", "--against")
    ] = None,
) -> None:
    """Estimate a quantity, with its interval, from the sealed tables of a release.

    The interval covers the sampling of patients and the noise; nothing is read or charged. A
    quantity is refused, with the reason, where a model would bias it.
    """
    from flows.pooling import estimated

    asked = {"kind": quantity, "of": of, "by": by, "against": against}
    with publishing() as here:
        found = estimated(here.publisher, release, **asked)
    logs = ", of the logarithm" if quantity.endswith("ratio") else ""
    terminal.answer(
        {"release_id": release, **asked, **asdict(found)},
        {
            quantity.replace("_", " ").capitalize(): str(found),
            "Std. error": f"{found.sampling:.3g} sampling, {found.noise:.3g} noise{logs}",
            "Cite": f"with release {release}, whose manifest states the guarantee and the noise",
        },
    )


def verified_bundle(
    bundle: Path,
    *,
    keys: list[Path] | None = None,
    officers: list[Path] | None = None,
    revoked: Path | None = None,
) -> tuple[VerifiedBundle, str | None]:
    """Verify a bundle by public keys, those of this installation by default.

    Returns it with a text about the list of revocations that was checked, None if there is none.
    """
    from storage.keys.key_store import KeyStore, read_public_keys
    from storage.releases.bundles import verify_bundle
    from storage.releases.revocations import list_beside, read_revocations

    ours = KeyStore(load_settings().key_folder)
    trusted = read_public_keys(keys) if keys else ours.pipeline_public()
    signers = read_public_keys(officers) if officers else ours.officers()
    verified = verify_bundle(bundle, trusted=trusted, officers=signers)
    place = revoked or list_beside(bundle)
    if place is None:
        return verified, None
    revocations = read_revocations(place, trusted=trusted)
    revocations.require_not_revoked(verified)
    last = revocations.revocations[-1].revoked_on
    return verified, f"not by {place}, whose last entry is of {last}"


@contextmanager
def publishing() -> Iterator[Installation]:
    """Open the installation for a command that publishes, and show its stages on a terminal."""
    from flows.cli.progress import Progress
    from flows.installation import Installation
    from tasks.execution.runtime import listen_to_stages

    with Progress(quiet=terminal.answers_program() or not sys.stderr.isatty()) as progress:
        progress.expect_stages(PUBLISH)
        with listen_to_stages(progress):
            yield Installation.open(load_settings())


def _in_a_line(numbers: ReleaseOutcome | Manifest, statement: str, *, explain: bool) -> str:
    """Return a guarantee in one line, or the whole statement if asked, or if it warns."""
    from tasks.reporting.claim import rounded_up

    if explain or statement.startswith("WARNING"):
        return statement
    budget = f"epsilon {rounded_up(numbers.epsilon)}, delta {rounded_up(numbers.delta)}"
    return f"{budget} for any one patient; see --explain"


def show_outcome(outcome: ReleaseOutcome, *, explain: bool = False, **more: Any) -> None:
    """Show the guarantee, the remaining budget and the bundle; a program gets more facts."""
    count = outcome.releases_left
    left = f"left: {count} more release{'s' * (count != 1)} like this one"
    charged = f"charged epsilon {outcome.epsilon:.4g}; {left}"
    if outcome.reused:
        charged = f"nothing charged, measured and paid for before; {left}"
    guarantee = _in_a_line(outcome, outcome.guarantee, explain=explain)
    facts = {"Guarantee": guarantee, "Budget": charged}
    if outcome.state == "published":
        facts["Bundle"] = Whole(outcome.bundle)
        facts |= {} if outcome.pool is None else {"Pool": Whole(outcome.pool)}
        facts["Check it"] = Whole(f"clustmix verify {outcome.bundle}")
    else:
        facts["Waits"] = Whole(f"for an officer, who finds it in {outcome.bundle}")
        facts["Then"] = Whole(f"clustmix approve {outcome.release_id} --key FILE --reason TEXT")
    terminal.answer({**outcome.model_dump(), **more}, facts)
