"""Secret coins: which patients are in a Poisson sample.

A sample that amplifies privacy has to be one that nobody can foresee or learn. Each series of
draws has a key from the operating system that never leaves the run; a coin is a piece of a
SHAKE-256 stream of that key, the name of the shard and the number of the draw. So a worker that
has to compute a sum again finds the same sample, and no two draws, shards or patients share a coin.

Source: amplification by Poisson sampling, Zhu, Dong and Wang 2022, Theorem 11.
"""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privacy.arrays import Indices
from tasks.measurement.encoded import EncodedRows

COINS = "coins"
"""Name under which a contribution takes its coins."""

_KEY_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class PoissonCoins:
    """Coins of consecutive draws of one series, for one shard.

    The key of the series has 32 secret bytes; a patient is in the sample of a draw with a
    probability above 0 and at most 1. The name of the shard is another for each of a table; see
    `arguments_of_shard`.

    Privacy
    -------
    Every patient has one coin per draw, shared by all rows of the patient and independent of all
    other coins; a coin shows "in" with at most `probability`. Which coin a patient gets may depend
    on who else is in the shard: coins are alike, so the joint law of the sample does not.
    """

    key: bytes = field(repr=False)
    probability: float
    first_draw: int
    n_draws: int
    shard: str | None = None

    def __post_init__(self) -> None:
        if len(self.key) != _KEY_BYTES:
            raise ValueError(f"expected a key of {_KEY_BYTES} bytes, found {len(self.key)}")
        if not 0.0 < self.probability <= 1.0:
            raise ValueError(
                f"expected a probability above 0 and at most 1, found {self.probability}"
            )

    def included(self, n_patients: int) -> NDArray[np.bool_]:
        """Return who is in the sample of each draw, bool of shape (n_draws, n_patients)."""
        return np.array(list(self._draws(n_patients))).reshape(self.n_draws, n_patients)

    def rows(self, rows: EncodedRows) -> Iterator[Indices]:
        """Yield, draw by draw, the indices of the rows whose patient is in the sample."""
        if rows.patient is None:
            raise ValueError("expected the patient of every row, so that a patient has one coin")
        n_patients = int(rows.patient.astype(np.int64).max(initial=-1)) + 1
        for included in self._draws(n_patients):
            yield np.flatnonzero(included[rows.patient])

    def _draws(self, n_patients: int) -> Iterator[NDArray[np.bool_]]:
        if self.shard is None:
            raise ValueError("expected coins of a named shard; two shards may not share coins")
        # Rounded down: a coin never shows more often than the plan says.
        threshold = math.floor(self.probability * 2**64)
        stem = self.key + hashlib.sha256(self.shard.encode("utf-8")).digest()
        for draw in range(self.first_draw, self.first_draw + self.n_draws):
            if threshold >= 2**64:
                yield np.ones(n_patients, dtype=np.bool_)
                continue
            stream = hashlib.shake_256(stem + draw.to_bytes(8, "big")).digest(8 * n_patients)
            yield np.frombuffer(stream, dtype=">u8") < np.uint64(threshold)


def shard_name(number: int) -> str:
    """Return the name of a shard, of its file too: the coins of a patient depend on it."""
    return f"shard-{number:04d}.npz"


def arguments_of_shard(public: dict[str, Any], shard: str) -> dict[str, Any]:
    """Return the arguments of a contribution for one shard: coins, if any, are bound to it."""
    coins = public.get(COINS)
    if not isinstance(coins, PoissonCoins):
        return public
    return {**public, COINS: replace(coins, shard=shard)}
