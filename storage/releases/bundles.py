"""A published bundle, verified by its reader with public keys alone, events against claims."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from privacy.errors import ClustMixError, refusals
from privacy.events import Composed, Event, event_from_dict
from privacy.gaussian import GaussianAccountant
from privacy.parameters import Adjacency
from storage.files.documents import digest_of, has_digest
from storage.files.private import read_bounded
from storage.keys.keys import PublicKey
from storage.releases.manifest import MANIFEST_FILE, Manifest
from storage.releases.sealed_parts import require_parts
from storage.releases.signatures import (
    APPROVAL_FILE,
    SIGNATURE_FILE,
    Approval,
    Signature,
    require_approval,
)

refusal = refusals(__package__)

_RELATIVE_TOLERANCE = 1e-6


def totals_of(events: Sequence[Event], *, adjacency: Adjacency, delta: float) -> dict[str, float]:
    """Add up the events of a release; ConfigurationError if their adjacency does not allow it.

    `mu` and `rho` are the total of Gaussian differential privacy, ``rho = mu**2 / 2``; `epsilon` is
    at this delta and adjacency, `replace_one_epsilon` at this delta if one patient is replaced.
    """
    composed = Composed(events=tuple(events))
    accountant = GaussianAccountant(adjacency=adjacency).compose(composed)
    replaced = GaussianAccountant(adjacency=Adjacency.REPLACE_ONE).compose(composed)
    return {
        "mu": accountant.mu,
        "rho": accountant.rho,
        "epsilon": accountant.epsilon(delta=delta),
        "replace_one_epsilon": replaced.epsilon(delta=delta),
    }


def require_publishable(manifest: Manifest) -> None:
    """Refuse (`Withheld`) a release that is tainted, or did not pass its gate."""
    if manifest.tainted:
        raise refusal("TAINTED")
    failed = sorted(record.check for record in manifest.gate if not record.passed)
    if failed:
        raise refusal("GATE_FAILED", failed=", ".join(failed))


def verify_claims(manifest: Manifest) -> None:
    """Compute the guarantee anew from the events; IntegrityError if another one is stated."""
    problem = ""
    try:
        require_publishable(manifest)
        events = [event_from_dict(event) for event in manifest.events]
        expected = totals_of(events, adjacency=Adjacency(manifest.adjacency), delta=manifest.delta)
    except ClustMixError as error:
        problem = error.message
    except (ArithmeticError, TypeError, ValueError):
        problem = "field 'events' holds a value that no mechanism has"
    if problem:
        raise refusal("MANIFEST_CLAIM", problem=problem)
    for name, value in expected.items():
        if not math.isclose(getattr(manifest, name), value, rel_tol=_RELATIVE_TOLERANCE):
            raise refusal("MANIFEST_CLAIM number", name=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedBundle:
    """A bundle whose files and numbers agree with its signed manifest.

    Compare the digest of the manifest with the one in the ledger: anybody with the pipeline's key
    can sign a bundle that was never charged. Without approval, the officer's fields are None.
    """

    path: Path
    manifest: Manifest
    manifest_sha256: str
    signer: str
    approved_by: str | None
    reason: str | None


def verify_bundle(
    path: Path, *, trusted: Sequence[PublicKey], officers: Sequence[PublicKey] | None = None
) -> VerifiedBundle:
    """Verify a bundle with nothing but the bundle and public keys.

    Keys in `trusted` sign manifests and the parts of a pool, those in `officers` approve. If these
    are None, `trusted` may do both, and an officer could sign a manifest: give both where known.

    It is an IntegrityError if a signature is wrong or of an unknown key; a file is missing, extra,
    changed or not a regular file (names it); the manifest is malformed (names the field); mu, rho
    or an epsilon is not that of the events; an approval is needed, but none is of this release
    and by an allowed person; or the bundle should not have been published.
    """
    if not trusted:
        raise refusal("NO_PUBLIC_KEY")
    if path.is_symlink() or not path.is_dir():
        raise refusal("BUNDLE_MISSING", path=path)
    signature = Signature.read(path / SIGNATURE_FILE)
    signer = signature.verify(trusted)
    content = read_bounded(path / MANIFEST_FILE, Manifest.MAX_BYTES)
    if digest_of(content) != signature.manifest:
        raise refusal("FILE_CHANGED", name=MANIFEST_FILE)
    manifest = Manifest.from_bytes(content)
    documents = {MANIFEST_FILE, SIGNATURE_FILE, *([APPROVAL_FILE] * manifest.needs_approval)}
    present, listed = {entry.name for entry in os.scandir(path)}, documents | manifest.files.keys()
    for name in sorted(present - listed):
        shown = name if name.isprintable() else ascii(name)
        raise refusal("FILE_EXTRA", shown=shown)
    for name in sorted(listed - present):
        raise refusal("FILE_MISSING", name=name)
    for name, expected in sorted(manifest.files.items()):
        if not has_digest(path / name, expected):
            raise refusal("FILE_CHANGED", name=name)
    verify_claims(manifest)
    if manifest.pooled:
        require_parts(manifest, trusted)
    officer = approval = None
    if manifest.needs_approval:
        approval = Approval.read(path / APPROVAL_FILE)
        officer = require_approval(
            approval, manifest, signer=signer, officers=trusted if officers is None else officers
        )
    return VerifiedBundle(
        path=path,
        manifest=manifest,
        manifest_sha256=signature.manifest.sha256,
        signer=signer.key_id,
        approved_by=None if officer is None else officer.key_id,
        reason=None if approval is None else approval.statement.reason,
    )
