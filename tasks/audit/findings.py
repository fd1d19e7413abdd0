"""From scores to findings: thresholds on one half of the runs, bounds on the other.

The half that chooses the attack, its threshold and its direction says nothing about the bound, so
any number of attacks may be tried; the other half counts the errors of what was chosen. The error
probability is divided over everything that is evaluated, so that all bounds of an audit hold
together with its confidence.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from scipy.special import betaincinv

from privacy.arrays import Floats, Integers
from privacy.calibration import gdp_mu
from privacy.errors import ConfigurationError
from privacy.gaussian import gaussian_epsilon
from privacy.parameters import Adjacency
from tasks.audit import bounds
from tasks.audit.game import Scores
from tasks.audit.one_run import GuessCounts

LOWER_BOUND = "a lower bound: it can show a flaw, never prove the absence of one"

WITHIN = "within the claim"
ABOVE = "ABOVE THE CLAIM"

_Choice = tuple[int, float, float, tuple[int, int]]
"""Column, direction, threshold, and errors on the first half."""

_CANDIDATES = 200
"""Thresholds tried in each direction, on the first half of the runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedGuarantee:
    """What a mechanism claims: epsilon at delta, and mu where the claim is mu-GDP."""

    epsilon: float
    delta: float
    mu: float | None = None

    @classmethod
    def of_budget(cls, *, epsilon: float, delta: float) -> Self:
        """Claim of a method whose noise is calibrated to this target."""
        return cls(epsilon=epsilon, delta=delta, mu=gdp_mu(epsilon=epsilon, delta=delta))


@dataclass(frozen=True, slots=True, kw_only=True)
class PairFinding:
    """What the best attacks achieved on one pair of tables, on epsilon and on mu."""

    pair: str
    attack: str
    runs: int
    epsilon: float
    mu: float
    mu_attack: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OneRunFinding(GuessCounts):
    """What guessing did in the one-run audit, and the bound on epsilon that it proves."""

    epsilon: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditResult:
    """What an audit found, all bounds with its confidence together.

    The power is, by factor, the simulated share of such audits that report a mechanism of so large
    a mu.
    """

    method: str
    claim: ClaimedGuarantee
    adjacency: Adjacency
    confidence: float
    runs: int
    pairs: tuple[PairFinding, ...]
    one_run: OneRunFinding | None = None
    power: dict[float, float] | None = None

    @property
    def audited_mu(self) -> float:
        """Largest lower bound on mu."""
        return max(finding.mu for finding in self.pairs)

    @property
    def direct_epsilon(self) -> float:
        """Largest lower bound on epsilon that assumes nothing about the mechanism."""
        direct = [finding.epsilon for finding in self.pairs]
        return max([*direct, *([self.one_run.epsilon] if self.one_run is not None else [])])

    @property
    def audited_epsilon(self) -> float:
        """Largest lower bound on epsilon; from mu too, where the claim is Gaussian-DP."""
        if self.claim.mu is None:
            return self.direct_epsilon
        from_mu = gaussian_epsilon(delta=self.claim.delta, mu=self.audited_mu)
        return max(self.direct_epsilon, from_mu)

    @property
    def within_claim(self) -> bool:
        """Whether no bound is above what is claimed."""
        if self.claim.mu is not None and self.audited_mu > self.claim.mu:
            return False
        return self.direct_epsilon <= self.claim.epsilon

    @property
    def verdict(self) -> str:
        """The finding in words."""
        return WITHIN if self.within_claim else ABOVE

    @property
    def exit_code(self) -> int:
        """Exit code of a command that shows this result."""
        return 0 if self.within_claim else 1

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values, with everything that is derived."""
        return {
            "method": self.method,
            "claimed_epsilon": self.claim.epsilon,
            "delta": self.claim.delta,
            "claimed_mu": self.claim.mu,
            "adjacency": self.adjacency.value,
            "audited_epsilon": self.audited_epsilon,
            "audited_epsilon_without_assumption": self.direct_epsilon,
            "audited_mu": self.audited_mu,
            "runs": self.runs,
            "confidence": self.confidence,
            "pairs": [asdict(finding) for finding in self.pairs],
            "one_run": None if self.one_run is None else asdict(self.one_run),
            "power": {f"{factor:g}": share for factor, share in (self.power or {}).items()},
            "verdict": self.verdict,
            "note": LOWER_BOUND,
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

    There are 4 runs or more of each table, equally many; half of the error goes to each bound.
    """
    runs = len(scores.absent)
    if runs < 4 or len(scores.present) != runs:
        raise ValueError("expected 4 or more runs of each table, equally many")
    half = runs // 2
    each = part_confidence(confidence, parts=2)
    choices: list[_Choice] = [
        (column, sign, threshold, errors)
        for column in range(len(scores.names))
        for sign in (1.0, -1.0)
        for threshold, errors in _thresholds(
            sign * scores.absent[:half, column], sign * scores.present[:half, column]
        )
    ]
    errors = np.array([choice[3] for choice in choices])
    tail = choices[int(np.argmax(_likely_epsilon(errors, half, delta=delta, confidence=each)))]
    middle = _middle_choice(scores, choices, errors.sum(axis=1), half)
    tail_counts = _count(scores, tail[:3], first=half)
    middle_counts = _count(scores, middle[:3], first=half)
    # The counts at the tail threshold bound epsilon and mu at once: both follow from one event.
    tail_mu = bounds.mu_lower_bound(tail_counts, confidence=each)
    middle_mu = bounds.mu_lower_bound_balanced(middle_counts, confidence=each)
    return PairFinding(
        pair=pair,
        attack=scores.names[tail[0]],
        runs=runs,
        epsilon=bounds.epsilon_lower_bound(tail_counts, delta=delta, confidence=each),
        mu=max(tail_mu, middle_mu),
        mu_attack=scores.names[(tail if tail_mu > middle_mu else middle)[0]],
    )


def _middle_choice(
    scores: Scores, choices: Sequence[_Choice], errors: Integers, half: int
) -> tuple[int, float, float]:
    """Attack with the fewest errors on the first half, or the reference if it is as good.

    The best of many attacks on few runs is often the luckiest one. The first score at its neutral
    point 0 is kept unless another one is better by more than a standard deviation and a half.
    """
    reference = (0, 1.0, 0.0)
    own = int((scores.absent[:half, 0] > 0.0).sum() + (scores.present[:half, 0] <= 0.0).sum())
    best = int(np.argmin(errors))
    return choices[best][:3] if errors[best] < own - np.sqrt(half) else reference


def _thresholds(absent: Floats, present: Floats) -> list[tuple[float, tuple[int, int]]]:
    """Thresholds with their false positives and false negatives; "present" means above."""
    absent, present = np.sort(absent), np.sort(present)
    pooled = np.sort(np.concatenate([absent, present]))
    # Dense at both ends, where epsilon is decided, and in the middle, where mu is.
    tails = np.unique(np.geomspace(1, len(pooled), _CANDIDATES // 4).astype(np.intp)) - 1
    middle = np.linspace(0, len(pooled) - 1, _CANDIDATES // 2).astype(np.intp)
    index = np.unique(np.concatenate([tails, len(pooled) - 1 - tails, middle]))
    values = np.unique(pooled[index])
    false_positives = len(absent) - np.searchsorted(absent, values, side="right")
    false_negatives = np.searchsorted(present, values, side="right")
    return [
        (float(value), (int(fp), int(fn)))
        for value, fp, fn in zip(values, false_positives, false_negatives, strict=True)
    ]


def _likely_epsilon(errors: Integers, runs: int, *, delta: float, confidence: float) -> Floats:
    """`epsilon_lower_bound` of many counts at once; used to choose, never to state a bound."""
    each = 1.0 - (1.0 - confidence) / 2.0
    table = np.ones(runs + 1)
    counts = np.arange(runs)
    table[:runs] = betaincinv(counts + 1, runs - counts, each)
    upper = table[errors]
    gained = np.maximum(1.0 - upper[:, ::-1] - delta, 1e-300)
    best: Floats = np.log(gained / upper).max(axis=1)
    return best


def _count(scores: Scores, choice: tuple[int, float, float], *, first: int) -> bounds.ErrorCounts:
    column, sign, threshold = choice
    above_absent = sign * scores.absent[first:, column] > threshold
    above_present = sign * scores.present[first:, column] > threshold
    return bounds.ErrorCounts(
        false_positives=int(above_absent.sum()),
        absent_runs=len(above_absent),
        false_negatives=int((~above_present).sum()),
        present_runs=len(above_present),
    )
