"""What a manifest claims, held against its own events."""

import math

from privacy.accountants.gaussian import GaussianAccountant
from privacy.errors import ClustMixError, IntegrityError, Withheld
from privacy.event_records import event_from_dict
from privacy.events import leaves
from privacy.parameters import Adjacency, ProtectedUnit
from storage.manifest import MANIFEST_FILE, Manifest

_RELATIVE_TOLERANCE = 1e-6


def require_publishable(manifest: Manifest) -> None:
    """Refuse a release that must not leave the place where it was made.

    Parameters
    ----------
    manifest : Manifest
        Its manifest.

    Raises
    ------
    Withheld
        If it is tainted, its analysis is not proven, or a check of its gate failed.
    """
    if manifest.tainted:
        raise Withheld(
            "TAINTED", "the noise came from a source for tests; run without it to publish"
        )
    if manifest.analysis != "proven":
        raise Withheld(
            "ANALYSIS_NOT_PROVEN",
            "only a release with analysis 'proven' is published; change the site file and run "
            "again",
        )
    failed = sorted(record.check for record in manifest.gate if not record.passed)
    if failed:
        raise Withheld("GATE_FAILED", f"the release gate failed: {', '.join(failed)}")


def verify_claims(manifest: Manifest) -> None:
    """Compute the guarantee again from the events, and refuse a manifest that states another.

    Parameters
    ----------
    manifest : Manifest
        Manifest of a bundle.

    Raises
    ------
    IntegrityError
        If an event is none, if mu, rho or an epsilon is not what the events give to one part in a
        million, or if the release should not have been published.
    """
    problem = ""
    try:
        require_publishable(manifest)
        events = [event_from_dict(event) for event in manifest.events]
        if any(
            leaf.unit is not ProtectedUnit.PATIENT for event in events for leaf in leaves(event)
        ):
            problem = "field 'events' protects rows, expected events that protect patients"
        totals = {}
        for adjacency in (Adjacency(manifest.adjacency), Adjacency.REPLACE_ONE):
            accountant = GaussianAccountant(adjacency=adjacency)
            for event in events:
                accountant = accountant.compose(event)
            totals[adjacency] = accountant
        stated = totals[Adjacency(manifest.adjacency)]
        expected = {
            "mu": stated.mu,
            "rho": stated.rho,
            "epsilon": stated.epsilon(delta=manifest.delta),
            "replace_one_epsilon": totals[Adjacency.REPLACE_ONE].epsilon(delta=manifest.delta),
        }
    except ClustMixError as error:
        problem = error.message
    except (ArithmeticError, TypeError, ValueError):
        problem = "field 'events' holds a value that no mechanism has"
    if problem:
        raise IntegrityError("MANIFEST_CLAIM", f"file {MANIFEST_FILE}: {problem}")
    for name, value in expected.items():
        if not math.isclose(getattr(manifest, name), value, rel_tol=_RELATIVE_TOLERANCE):
            raise IntegrityError(
                "MANIFEST_CLAIM",
                f"file {MANIFEST_FILE}: field '{name}' is not what its events give; do not rely "
                "on the stated guarantee",
            )
