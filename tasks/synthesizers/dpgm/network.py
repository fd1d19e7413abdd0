"""Generative networks: what the training of one needs.

A network is a public object: its settings and, for a persistent chain, a state that is a function
of released parameters and public seeds. Private are only the vectors handed to `clipped_sum` and
`batch_gradients`.

Source: DPGM paper (Acs, Melis, Castelluccia and De Cristofaro 2019), sections 3.1 and 3.2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class ClippedSum:
    """Sum of clipped gradients, and the norms they had.

    Parameters
    ----------
    total : int64 array of shape (P,)
        Sum over the records, in grid points. Private.
    norms : float64 array of shape (n,)
        Euclidean norm of each record's gradient before clipping, infinite where the gradient is
        not finite. Private.
    """

    total: NDArray[np.int64]
    norms: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchGradients:
    """Gradients of the records of a batch, by their norms and their weighted sums alone.

    Parameters
    ----------
    norms : float64 array of shape (n,)
        Euclidean norm of each record's gradient.
    weighted_sum
        Maps factors of shape (n,) to the sum of the gradients times their factors, a float64 array
        of shape (P,).
    """

    norms: NDArray[np.float64]
    weighted_sum: Callable[[NDArray[np.float64]], NDArray[np.float64]]


@runtime_checkable
class GenerativeNetwork(Protocol):
    """A network that is trained by gradients of records and draws new ones.

    All arrays that enter and leave are numpy arrays; D is the width of a vector and P the number
    of parameters.
    """

    @property
    def width(self) -> int:
        """Number D of visible coordinates."""

    @property
    def n_parameters(self) -> int:
        """Number P of trained parameters."""

    def start(self, public_seed: int) -> NDArray[np.float64]:
        """Return the first parameters, shape (P,), from public settings alone."""

    def first_chains(self, public_seed: int) -> NDArray[np.float32]:
        """Return the first state of the persistent chains, shape (n_chains, D).

        A network without chains returns none: shape (0, D).
        """

    def chains(
        self, parameters: NDArray[np.floating], state: NDArray[np.float32], *, step_seed: int
    ) -> NDArray[np.float32]:
        """Move the chains on under released parameters; same shape as `state`."""

    def clipped_sum(
        self,
        parameters: NDArray[np.floating],
        vectors: NDArray[np.floating],
        weights: NDArray[np.float64],
        *,
        l2_clip_norm: float,
        scale: int,
        step_seed: int,
        state: NDArray[np.float32],
    ) -> ClippedSum:
        """Sum of clipped gradients of the loss on an integer grid, without holding them all.

        Record i adds ``trunc(weight_i * min(1, l2_clip_norm / |g_i|) * g_i * scale)``, computed in
        float64 from the float32 gradient; one whose gradient is not finite adds nothing.

        Parameters
        ----------
        parameters : (P,)
            Released parameters.
        vectors : (n, D), values in [0, 1]
            Private records.
        weights : (n,)
            Weights of the records, in [0, 1].
        l2_clip_norm
            Clipping norm, above 0.
        scale
            Grid points per unit, at least 1.
        step_seed
            Public seed of this step, from 0 to 2**32 - 1.
        state : (n_chains, D)
            What `first_chains` or `chains` returned.

        Privacy
        -------
        Adjacency: add or remove one patient. A record is computed by itself, to the last bit (see
        `tasks.synthesizers.dpgm.record_gradients.sum_of_clipped`), and adds a vector of Euclidean
        norm at most ``weight * l2_clip_norm * scale``; where the weights of a patient sum to at
        most 1, the sensitivity of `ClippedSum.total` is ``l2_clip_norm * scale``.
        """

    def batch_gradients(
        self,
        parameters: NDArray[np.floating],
        vectors: NDArray[np.floating],
        *,
        step_seed: int,
        state: NDArray[np.float32],
    ) -> BatchGradients:
        """Gradients of a whole batch in a few products, for the paper form alone.

        The gradient of a record by the weights of a layer is an outer product, so its norm and a
        weighted sum need none of their n * P values. Parameters as in `clipped_sum`.

        Privacy
        -------
        Nothing to build a proof on: a record's part may be rounded by who else is in the batch.
        """

    def fitted_to_mean(
        self, parameters: NDArray[np.floating], *, state: NDArray[np.float32]
    ) -> NDArray[np.float64]:
        """Parameters whose records have the network's released mean; post-processing.

        Only the biases of the visible units move. A network without a mean returns what it was
        given.

        Privacy
        -------
        A function of released values and a public seed: nothing to account for.
        """

    def sample(
        self,
        parameters: NDArray[np.floating],
        n_rows: int,
        rng: np.random.Generator,
        *,
        state: NDArray[np.float32],
    ) -> NDArray[np.float64]:
        """Draw vectors of shape (n_rows, D), values in [0, 1]; post-processing.

        A "unit" coordinate is its expected value, a "binary" one 0 or 1, a "one_hot" block has
        exactly one 1.
        """


def expect_at_least_one(**settings: int) -> None:
    """Raise ValueError if a setting is below 1."""
    for name, value in settings.items():
        if value < 1:
            raise ValueError(f"expected 1 or more {name}, found {value}")


def checked_seed(public_seed: int) -> int:
    """Return a seed if it is from 0 to 2**32 - 1; raise ValueError otherwise."""
    if not 0 <= public_seed < 2**32:
        raise ValueError(f"expected a seed from 0 to 2**32 - 1, found {public_seed}")
    return public_seed


def checked_parameters(
    parameters: NDArray[np.floating], *, n_parameters: int
) -> NDArray[np.floating]:
    """Return parameters if they are finite and of shape (P,); raise ValueError otherwise."""
    if parameters.shape != (n_parameters,):
        raise ValueError(
            f"expected parameters of shape ({n_parameters},), found {parameters.shape}"
        )
    if not np.isfinite(parameters).all():
        raise ValueError("expected finite parameters, found another")
    return parameters
