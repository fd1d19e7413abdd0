"""Which accountant an event allows, and what a ledger may book for it."""

from dataclasses import replace
from decimal import Decimal
from typing import Protocol, Self

from privacy.accountants.approximate_gaussian import ApproximateGaussianAccountant
from privacy.accountants.gaussian import GaussianAccountant, unsampled_draw
from privacy.accountants.loss_distribution import LossDistributionAccountant
from privacy.accountants.renyi import RenyiAccountant
from privacy.errors import ConfigurationError
from privacy.events import (
    ComposedEvent,
    Event,
    ParallelEvent,
    RepeatedEvent,
    SampledDraw,
    UnsampledDraw,
    leaves,
)
from privacy.ledger import charged_rho
from privacy.parameters import Adjacency


class Accountant(Protocol):
    """A total of events that answers with epsilon or delta, always rounded up."""

    @property
    def adjacency(self) -> Adjacency:
        """The neighbours for which the guarantee is asked."""

    def compose(self, event: Event) -> Self:
        """Return the accountant after one more event on the same patients."""

    def epsilon(self, *, delta: float) -> float:
        """Return epsilon at `delta`."""

    def delta(self, *, epsilon: float) -> float:
        """Return delta at `epsilon`."""


def accountant_for(event: Event, *, adjacency: Adjacency) -> Accountant:
    """Return the tightest accountant that an event allows, with the event composed.

    Gaussian differential privacy where every draw reads all patients: exact. Otherwise privacy
    loss distributions where the sampled draws are Poisson samples and the question is about add
    or remove; otherwise Renyi differential privacy.

    Parameters
    ----------
    event : Event
        Everything that was drawn. With sampled draws its parameters were fixed in advance.
    adjacency : Adjacency
        The neighbours for which the guarantee is asked.

    Returns
    -------
    Accountant
        A `GaussianAccountant`, `LossDistributionAccountant` or `RenyiAccountant`.

    Raises
    ------
    ConfigurationError
        If the adjacency of a draw does not allow the question (code ``ADJACENCY_MISMATCH``).
    """
    if all(isinstance(leaf, UnsampledDraw) for leaf in leaves(event)):
        return GaussianAccountant(adjacency=adjacency).compose(event)
    try:
        return LossDistributionAccountant(adjacency=adjacency).compose(event)
    except ConfigurationError as error:
        if error.code != "ACCOUNTANT_UNSUITABLE":
            raise
    return RenyiAccountant(adjacency=adjacency).compose(event)


def without_sampling(event: Event) -> Event:
    """Return the event in which every sampled draw reads all patients.

    Its guarantee holds for the sampled event too. *Proof.* Fix who else is in the sample. With the
    patient left out, the two neighbours give the same output; with the patient in it they are a
    pair of the unsampled mechanism, of the stated sensitivity. The output of the sampled draw is a
    mixture of such pairs with equal weights on both sides, hockey-stick divergences of every order
    are jointly convex, and an equal pair has the least of all pairs: the trade-off function of the
    sampled draw lies above that of the unsampled one. For a sample of fixed size under replacement
    the same holds, with the replaced patient in or out of the sample. []

    Parameters
    ----------
    event : Event
        Any event.

    Returns
    -------
    Event
        Of the same form, with `GaussianEvent` for each sampled draw.
    """
    if isinstance(event, UnsampledDraw):
        return event
    if isinstance(event, SampledDraw):
        return unsampled_draw(event)
    if isinstance(event, RepeatedEvent):
        return replace(event, event=without_sampling(event.event))
    members = tuple(map(without_sampling, event.events))
    if isinstance(event, ComposedEvent):
        return ComposedEvent(events=members)
    return ParallelEvent(events=members)


def ledger_rho(event: Event, *, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> Decimal:
    """Return the amount that a ledger may book for an event, rounded up to its unit.

    The sum of the ledger is valid for releases that are chosen in view of earlier ones because
    ``mu**2`` of Gaussian differential privacy adds up under a cap (see `privacy.ledger`). So the
    amount is ``mu**2 / 2`` of a ``mu`` that is proven for the whole event: exact for draws from all
    patients; for series of Poisson samples under add or remove that of
    `privacy.accountants.approximate_gaussian`, which has the gain of sampling and whose slack is
    to be added to the delta of all releases together; and for other samples, or where there are
    too many series, that of `without_sampling`, without any slack.

    The epsilon that is printed for a schedule alone may be a little smaller than the booked one: a
    distribution of the loss is tighter, and may not be added up in a ledger.

    Parameters
    ----------
    event : Event
        Everything that a release draws.
    adjacency : Adjacency
        The neighbours of the ledger.

    Returns
    -------
    Decimal
        A positive multiple of `privacy.ledger.RHO_STEP`.

    Raises
    ------
    ConfigurationError
        If the adjacency of a draw does not allow it, nothing is drawn, or the amount is above
        `privacy.ledger.MAX_RHO`.
    """
    try:
        booked = ApproximateGaussianAccountant(adjacency=adjacency).compose(event).rho
    except ConfigurationError as error:
        if error.code != "ACCOUNTANT_UNSUITABLE":
            raise
        booked = GaussianAccountant(adjacency=adjacency).compose(without_sampling(event)).rho
    return charged_rho(booked)
