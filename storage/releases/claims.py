"""What a manifest claims, held against its own events."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from privacy.accountants.approximate_gaussian import ApproximateGaussianAccountant
from privacy.accountants.gaussian import GaussianAccountant
from privacy.accountants.renyi import RenyiAccountant
from privacy.errors import ClustMixError, IntegrityError, Withheld
from privacy.event_records import event_from_dict
from privacy.events import ComposedEvent, Event, UnsampledDraw, leaves
from privacy.parameters import Adjacency, ProtectedUnit
from storage.releases.manifest import MANIFEST_FILE, Manifest

_RELATIVE_TOLERANCE = 1e-6


AccountantName = Literal["gaussian", "approximate_gaussian"]
"""How the events of a release were added up: exactly, or with the slack of sampled draws."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What the events of a release amount to.

    The accountant is ``approximate_gaussian`` where draws read samples of the patients. `mu` and
    `rho` are the total of Gaussian differential privacy, ``rho = mu**2 / 2``; `epsilon` is at the
    delta and under the adjacency that were asked about, `replace_one_epsilon` at the same delta for
    one patient who is replaced.
    """

    accountant: AccountantName
    mu: float
    rho: float
    epsilon: float
    replace_one_epsilon: float


def totals_of(events: Sequence[Event], *, adjacency: Adjacency, delta: float) -> Totals:
    """Add up the events of a release; ConfigurationError if they do not allow the question."""
    composed = ComposedEvent(events=tuple(events))
    accountant = ApproximateGaussianAccountant(adjacency=adjacency).compose(composed)
    # Exact where every draw reads all patients; of samples, only Renyi bounds hold for replacement.
    exact = all(isinstance(leaf, UnsampledDraw) for leaf in leaves(composed))
    kind = GaussianAccountant if exact else RenyiAccountant
    replaced = kind(adjacency=Adjacency.REPLACE_ONE).compose(composed)
    return Totals(
        accountant="approximate_gaussian" if accountant.slack_delta > 0 else "gaussian",
        mu=accountant.mu,
        rho=accountant.rho,
        epsilon=accountant.epsilon(delta=delta),
        replace_one_epsilon=replaced.epsilon(delta=delta),
    )


def require_publishable(manifest: Manifest) -> None:
    """Refuse a release that must not leave the place where it was made (`Withheld`).

    It is one that is tainted, whose analysis is not proven, or of which a check of its gate failed.
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

    It is an IntegrityError if an event is none, if mu, rho or an epsilon is not what the events
    give to one part in a million, or if the release should not have been published.
    """
    problem = ""
    try:
        require_publishable(manifest)
        events = [event_from_dict(event) for event in manifest.events]
        if any(
            leaf.unit is not ProtectedUnit.PATIENT for event in events for leaf in leaves(event)
        ):
            problem = "field 'events' protects rows, expected events that protect patients"
        expected = asdict(
            totals_of(events, adjacency=Adjacency(manifest.adjacency), delta=manifest.delta)
        )
    except ClustMixError as error:
        problem = error.message
    except (ArithmeticError, TypeError, ValueError):
        problem = "field 'events' holds a value that no mechanism has"
    if problem:
        raise IntegrityError("MANIFEST_CLAIM", f"file {MANIFEST_FILE}: {problem}")
    if expected.pop("accountant") != manifest.accountant:
        raise IntegrityError(
            "MANIFEST_CLAIM",
            f"file {MANIFEST_FILE}: field 'accountant' is not the one that its events need",
        )
    for name, value in expected.items():
        if not math.isclose(getattr(manifest, name), value, rel_tol=_RELATIVE_TOLERANCE):
            raise IntegrityError(
                "MANIFEST_CLAIM",
                f"file {MANIFEST_FILE}: field '{name}' is not what its events give; do not rely "
                "on the stated guarantee",
            )
