"""Class-centric mixing: every output is the mean of a few records of one class.

Source: Saha, Tonoy and Imtiaz, "DP-CDA: an algorithm for enhanced privacy preservation in dataset
synthesis through randomized mixing", Algorithm 1, steps 8 to 11 without the noise.

Privacy: none by itself. Which records a mean is made of, how many records a class has and whether
it has enough of them are all exact here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassPool:
    """The records (n, D) of one class, and how many means of l of them, at most n, are made."""

    records: NDArray[np.floating]
    label: int
    order: int
    n_mixtures: int

    def __post_init__(self) -> None:
        if not 1 <= self.order <= len(self.records):
            raise ValueError(
                f"expected an order of mixture from 1 to the records of a class, found "
                f"{self.order} for class {self.label}"
            )


def distinct_indices(
    n_records: int, *, order: int, n_samples: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw samples of `order` different records, every set of records as likely as any other.

    Floyd's algorithm (Bentley and Floyd, CACM 1987), all samples side by side: no shuffling of the
    whole class for a few records of it.

    The result is of shape (n_samples, order), with values below n_records, one or more of each
    sample (ValueError); the records of a sample are in no order that means anything.
    """
    if not 1 <= order <= n_records:
        raise ValueError(f"expected from 1 to {n_records} different records, found {order}")
    chosen = np.empty((n_samples, order), dtype=np.int64)
    for place, last in enumerate(range(n_records - order, n_records)):
        drawn = rng.integers(0, last + 1, size=n_samples)
        repeated = (chosen[:, :place] == drawn[:, None]).any(axis=1)
        chosen[:, place] = np.where(repeated, last, drawn)
    return chosen


def mix_class(pool: ClassPool, rng: np.random.Generator) -> NDArray[np.floating]:
    """Return the means, of shape (n_mixtures, D), in the precision of the records.

    The samples of different means are independent, as in step 10: a record may be in many means.
    """
    index = distinct_indices(
        len(pool.records), order=pool.order, n_samples=pool.n_mixtures, rng=rng
    )
    # One record after the other: no array of n_mixtures * order * D numbers.
    total = np.zeros((pool.n_mixtures, pool.records.shape[1]), dtype=pool.records.dtype)
    for place in range(pool.order):
        total += pool.records[index[:, place]]
    total /= pool.order
    return total


def class_pools(
    records: NDArray[np.floating],
    labels: NDArray[Any],
    *,
    n_labels: int,
    order: int,
    mixtures_per_class: int,
) -> list[ClassPool]:
    """Part the records of a table by their class, in the order of the labels.

    Each class has as many records, of shape (n, D), as the order of mixture l (ValueError), and
    `mixtures_per_class` means T_k.
    """
    return [
        ClassPool(
            records=records[labels == label],
            label=label,
            order=order,
            n_mixtures=mixtures_per_class,
        )
        for label in range(n_labels)
    ]
