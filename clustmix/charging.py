"""The charge of a measurement in a notebook, in the ledger that releases charge too."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Unpack

from clustmix.guarantee import Charged
from clustmix.target import Target
from privacy.calibration import release_rho
from privacy.charges import Caps, Charge, unit_in_words
from privacy.errors import ClustMixError, refusals
from privacy.ledger import EntryState, Noted
from privacy.parameters import PrivacyParameters
from storage.files.refs import new_release_id
from storage.ledger.ledger_db import LedgerDatabase

refusal = refusals(__package__)

OWNER = "notebook"
"""Owner of the entries of notebooks, which no installation closes."""


_STOPPED = {EntryState.RESERVED: EntryState.VOID, EntryState.EXECUTING: EntryState.BURNED}


@dataclass(slots=True)
class Payment:
    """A charge and its state, or none without a ledger; it can be given back until it begins."""

    ledger: LedgerDatabase | None = None
    charged: Charged | None = None
    state: EntryState = EntryState.RESERVED

    def begin(self) -> None:
        """Record that something is computed for release: from here on the charge stands."""
        self._move(EntryState.EXECUTING)

    def seal(self, content: bytes) -> None:
        """Record that the measurement is whole, with its digest."""
        self._move(EntryState.SEALED, digest=hashlib.sha256(content).hexdigest())

    def stop(self, error: BaseException) -> None:
        """Give back what has not begun, and burn what is not sealed."""
        note = error.code if isinstance(error, ClustMixError) else f"run:{error.__class__.__name__}"
        # If the ledger cannot be reached, the charge stands.
        with suppress(ClustMixError):
            if self.state in _STOPPED:
                self._move(_STOPPED[self.state], note=note)

    def _move(self, state: EntryState, **noted: Unpack[Noted]) -> None:
        if self.ledger is not None and self.charged is not None:
            self.ledger.transition(self.charged.entry, state, expected_from=self.state, **noted)
        self.state = state


@contextmanager
def charging(
    ledger: LedgerDatabase | Path | str | None,
    *,
    cohort: str | None,
    lifetime_epsilon: float | None,
    target: Target,
) -> Iterator[Payment]:
    """Charge before the block reads a row; on failure, void the charge, or burn it if it has begun.

    The ledger, cohort and cap are those of `clustmix.Synthesizer.fit`.

    It is a ConfigurationError if only one of ledger and cohort is given, or a first charge comes
    without a cap; BudgetRefused, and nothing is recorded, if the charge does not fit under a cap;
    and a LedgerError if the ledger cannot be used, or the cohort needs the approval of an officer,
    which a notebook cannot ask for.
    """
    if ledger is None:
        if cohort is not None or lifetime_epsilon is not None:
            raise refusal("LEDGER_MISSING")
        yield Payment()
        return
    if cohort is None:
        raise refusal("COHORT_MISSING")
    if isinstance(ledger, str) and not ledger.startswith(("postgresql://", "postgres://")):
        ledger = Path(ledger)
    books = ledger if isinstance(ledger, LedgerDatabase) else LedgerDatabase(ledger)
    charge = Charge(
        cohort=cohort,
        dataset=cohort,
        release_id=new_release_id(),
        # A table in memory is not recognised: every measurement of it is new.
        request_key=os.urandom(32).hex(),
        rho=release_rho(target.parameters, adjacency=target.adjacency),
        epsilon=target.epsilon,
        delta=target.delta,
        adjacency=target.adjacency,
        unit=unit_in_words(target.unit),
        caps=Caps(lifetime_rho=_lifetime_rho(books, cohort, lifetime_epsilon, target)),
        partition=None,
        owner=OWNER,
        requester=None,
        needs_approval=False,
    )
    entry = books.reserve(charge, new_draw=True).entry.entry_id
    payment = Payment(books, Charged(entry=entry, cohort=cohort))
    try:
        yield payment
    except BaseException as error:
        payment.stop(error)
        raise


def _lifetime_rho(
    books: LedgerDatabase, cohort: str, lifetime_epsilon: float | None, target: Target
) -> Decimal:
    if lifetime_epsilon is not None:
        lifetime = PrivacyParameters(epsilon=lifetime_epsilon, delta=target.delta)
        return release_rho(lifetime, adjacency=target.adjacency)
    recorded = books.balance(cohort).cap_rho
    if recorded is None:
        raise refusal("CAP_MISSING", cohort=cohort)
    return recorded
