"""From scores to findings: thresholds on one half of the runs, bounds on the other.

The half that chooses the attack, its threshold and its direction says nothing about the bound, so
any number of attacks may be tried; the other half counts the errors of the chosen one. The error
probability is divided over everything that is evaluated, so that all bounds of an audit hold
together with its confidence.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any, Self

import numpy as np

from audits import bounds
from audits.game import Scores
from privacy.calibration import gdp_mu
from privacy.errors import ConfigurationError
from privacy.gaussian import gaussian_epsilon
from privacy.parameters import Adjacency

LOWER_BOUND = "a lower bound: it can show a flaw, never prove the absence of one"

WITHIN = "within the claim"
ABOVE = "ABOVE THE CLAIM"

_CANDIDATES = 200
"""Thresholds tried in each direction, on the first half of the runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Claim of a mechanism for adding or removing one patient: mu-GDP, and epsilon at delta."""

    epsilon: float
    delta: float
    mu: float

    @classmethod
    def of_budget(cls, *, epsilon: float, delta: float) -> Self:
        """Claim of a method whose noise is calibrated to this target."""
        return cls(epsilon=epsilon, delta=delta, mu=gdp_mu(epsilon=epsilon, delta=delta))

    def facts(self, *, within: bool) -> dict[str, Any]:
        """Facts of every audit: the claim and the verdict on it, JSON-ready."""
        return {
            "claimed_epsilon": self.epsilon,
            "delta": self.delta,
            "claimed_mu": self.mu,
            "adjacency": Adjacency.ADD_REMOVE.value,
            "verdict": WITHIN if within else ABOVE,
            "note": LOWER_BOUND,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PairFinding:
    """Bounds of the best attacks on one pair of tables, on epsilon and on mu."""

    pair: str
    attack: str
    runs: int
    epsilon: float
    mu: float
    mu_attack: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditResult:
    """Findings of an audit by many runs; all bounds hold together with its confidence.

    The power is, by factor, the probability that such an audit reports a mechanism of so large a
    mu.
    """

    method: str
    claim: Claim
    confidence: float
    runs: int
    pairs: tuple[PairFinding, ...]
    power: dict[float, float] = field(default_factory=dict)

    @property
    def audited_mu(self) -> float:
        """Largest lower bound on mu."""
        return max(finding.mu for finding in self.pairs)

    @property
    def direct_epsilon(self) -> float:
        """Largest lower bound on epsilon that assumes nothing about the mechanism."""
        return max(finding.epsilon for finding in self.pairs)

    @property
    def audited_epsilon(self) -> float:
        """Largest lower bound on epsilon, that from mu among them."""
        from_mu = gaussian_epsilon(delta=self.claim.delta, mu=self.audited_mu)
        return max(self.direct_epsilon, from_mu)

    @property
    def within_claim(self) -> bool:
        """True if no bound is above the claim."""
        return self.audited_mu <= self.claim.mu and self.direct_epsilon <= self.claim.epsilon

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values, with everything that is derived."""
        return {
            **self.claim.facts(within=self.within_claim),
            "method": self.method,
            "audited_epsilon": self.audited_epsilon,
            "audited_epsilon_without_assumption": self.direct_epsilon,
            "audited_mu": self.audited_mu,
            "runs": self.runs,
            "confidence": self.confidence,
            "pairs": [asdict(finding) for finding in self.pairs],
            "power": {f"{factor:g}": share for factor, share in self.power.items()},
        }


def check_confidence(confidence: float) -> None:
    """Refuse a confidence that is not from 0.9 to below 1 (ConfigurationError)."""
    if not 0.9 <= confidence < 1.0:
        raise ConfigurationError(
            "AUDIT_CONFIDENCE_INVALID",
            f"expected a confidence from 0.9 to below 1, found {confidence!r}",
        )


def part_confidence(confidence: float, *, parts: int) -> float:
    """Confidence of each of several bounds that hold together with `confidence` (Bonferroni)."""
    return 1.0 - (1.0 - confidence) / parts


def judge_pair(pair: str, scores: Scores, *, delta: float, confidence: float) -> PairFinding:
    """Choose attacks on the first half of the runs and bound epsilon and mu on the second.

    An attack is a column of scores, a direction, and a threshold above which it says "present".
    There are 4 runs or more of each table, equally many; half of the error goes to each bound.
    """
    runs = len(scores.absent)
    if runs < 4 or len(scores.present) != runs:
        raise ValueError("expected 4 or more runs of each table, equally many")
    first, second = slice(runs // 2), slice(runs // 2, runs)
    each = part_confidence(confidence, parts=2)
    attacks = [
        (column, sign, threshold)
        for column in range(len(scores.names))
        for sign in (1.0, -1.0)
        for threshold in _thresholds(scores, first, column, sign)
    ]
    errors = _errors(scores, first, attacks)
    likely = bounds.epsilon_lower_bound(errors, delta=delta, confidence=each)
    tail, middle = attacks[int(np.argmax(likely))], (0, 1.0, 0.0)
    # The best of many attacks on few runs is often the luckiest one. The first score at its neutral
    # point is kept unless another one is better by more than a standard deviation and a half.
    wrong, (own,) = errors.total, _errors(scores, first, [middle]).total
    if wrong.min() < own - np.sqrt(runs // 2):
        middle = attacks[int(np.argmin(wrong))]
    tail_errors, middle_errors = (_errors(scores, second, [one]) for one in (tail, middle))
    # The counts at the tail threshold bound epsilon and mu at once: both follow from one event.
    (epsilon,) = bounds.epsilon_lower_bound(tail_errors, delta=delta, confidence=each)
    (tail_mu,) = bounds.mu_lower_bound(tail_errors, confidence=each)
    (middle_mu,) = bounds.mu_lower_bound_balanced(middle_errors, confidence=each)
    return PairFinding(
        pair=pair,
        attack=scores.names[tail[0]],
        runs=runs,
        epsilon=float(epsilon),
        mu=float(max(tail_mu, middle_mu)),
        mu_attack=scores.names[(tail if tail_mu > middle_mu else middle)[0]],
    )


def _thresholds(scores: Scores, runs: slice, column: int, sign: float) -> list[float]:
    """Scores to try as thresholds: many at both ends, for epsilon, and in the middle, for mu."""
    pooled = np.sort(
        sign * np.concatenate([scores.absent[runs, column], scores.present[runs, column]])
    )
    tails = np.unique(np.geomspace(1, len(pooled), _CANDIDATES // 4).astype(np.intp)) - 1
    middle = np.linspace(0, len(pooled) - 1, _CANDIDATES // 2).astype(np.intp)
    index = np.unique(np.concatenate([tails, len(pooled) - 1 - tails, middle]))
    found: list[float] = np.unique(pooled[index]).tolist()
    return found


def _errors(
    scores: Scores, runs: slice, attacks: Sequence[tuple[int, float, float]]
) -> bounds.ErrorCounts:
    """Count the errors of attacks in some of the runs."""
    n_runs, false_positives, false_negatives = len(scores.absent[runs]), [], []
    for (column, sign), same in groupby(attacks, key=lambda attack: attack[:2]):
        thresholds = [attack[2] for attack in same]
        absent, present = (
            np.searchsorted(np.sort(sign * table[runs, column]), thresholds, side="right")
            for table in (scores.absent, scores.present)
        )
        false_positives.append(n_runs - absent)
        false_negatives.append(present)
    return bounds.ErrorCounts(
        false_positives=np.concatenate(false_positives),
        false_negatives=np.concatenate(false_negatives),
        runs=n_runs,
    )
