"""Which accountant an event allows."""

from privacy.accountants.gaussian import GaussianAccountant
from privacy.accountants.loss_distribution import LossDistributionAccountant
from privacy.accountants.renyi import RenyiAccountant
from privacy.errors import ConfigurationError
from privacy.events import Event, UnsampledDraw, leaves
from privacy.parameters import Adjacency

Accountant = GaussianAccountant | LossDistributionAccountant | RenyiAccountant
"""A total of events that answers with epsilon or delta, always rounded up."""


def accountant_for(event: Event, *, adjacency: Adjacency) -> Accountant:
    """Return the tightest accountant that an event allows, with the event composed.

    Gaussian differential privacy where every draw reads all patients: exact. Otherwise privacy
    loss distributions where the question is about add or remove; otherwise Renyi differential
    privacy.

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
