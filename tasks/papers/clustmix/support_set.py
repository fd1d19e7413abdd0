"""Support sets of kernel inducing points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple


class SupportSet(NamedTuple):
    """Inducing points (s, d) and their label vectors (s, C)."""

    points: Any
    labels: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimisedSupport:
    """Outcome of a descent: the support set with the lowest loss seen, and the steps taken.

    The losses, at the start and of it, are private where the loss reads raw rows.
    """

    support: SupportSet
    start_loss: float
    loss: float
    steps_taken: int
