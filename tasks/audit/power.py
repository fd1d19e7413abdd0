"""Power of an audit by many runs: how often it reports a mechanism whose mu is too large.

"Within the claim" says little where nothing would have been found. The scores of such an audit
follow from how far the patient moves each draw, so they are simulated with too little noise, and
judged by the same rules.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from privacy.arrays import Floats
from privacy.randomness import OperatingSystemNoise
from tasks.audit.findings import ClaimedGuarantee, judge_pair
from tasks.audit.game import Scores, Transcript, play_once
from tasks.audit.pairs import NeighbourPair
from tasks.measurement.method import Synthesizer

FACTORS = (1.5, 2.0, 3.0)
"""Factors of mu that the power is stated for."""

SIMULATIONS = 40
"""Simulated audits of each factor: a share is known to within about 0.08."""

_RUNS = 2
"""Runs of a pair that show how far its patient moves each draw."""


@dataclass(frozen=True, slots=True)
class Strengths:
    """How far the patient of a pair moves each draw.

    `norms` (runs, k) are distances of both tables' statistics in stated standard deviations.
    """

    norms: Floats

    @property
    def mu(self) -> float:
        """About the mu that the pair shows."""
        return float(np.sqrt((self.norms**2).sum(axis=1).mean()))


def strengths_of(synthesizer: Synthesizer, pair: NeighbourPair, *, mu: float) -> Strengths:
    """Run a method a few times on a pair and see how far the patient moves each draw."""
    plan = synthesizer.plan(mu=mu)
    tables = (pair.rows(present=False), pair.rows(present=True))
    transcripts = [
        play_once(
            synthesizer,
            tables,
            plan=plan,
            present=True,
            patient=pair.patient,
            noise_source=OperatingSystemNoise(),
        )
        for _ in range(_RUNS)
    ]
    return Strengths(np.array([_of_run(transcript) for transcript in transcripts]))


def _of_run(transcript: Transcript) -> list[float]:
    moved = [(draw.present - draw.absent) / draw.noise_stddev for draw in transcript.draws]
    return [float(np.linalg.norm(difference)) for difference in moved]


def simulate(strengths: Strengths, *, factor: float, runs: int, rng: np.random.Generator) -> Scores:
    """Simulate `runs` likelihood ratios for each table, with noise too small by `factor`."""
    sides = []
    for present in (False, True):
        norms = strengths.norms[rng.integers(0, len(strengths.norms), runs)]
        noise = rng.standard_normal(norms.shape) / factor
        ratios = norms * (noise + norms * (float(present) - 0.5))
        sides.append(ratios.sum(axis=1, keepdims=True))
    return Scores(names=("all draws",), absent=sides[0], present=sides[1])


def detection_rates(
    all_strengths: Iterable[Strengths],
    *,
    claim: ClaimedGuarantee,
    runs: int,
    confidence: float,
    rng: np.random.Generator,
) -> dict[float, float]:
    """Share of simulated audits of the strongest pair that report, by the factor of mu."""
    strongest = max(all_strengths, key=lambda strengths: strengths.mu)
    rates = {}
    for factor in FACTORS:
        found = 0
        for _ in range(SIMULATIONS):
            scores = simulate(strongest, factor=factor, runs=runs, rng=rng)
            finding = judge_pair("simulated", scores, delta=claim.delta, confidence=confidence)
            found += finding.epsilon > claim.epsilon or (
                claim.mu is not None and finding.mu > claim.mu
            )
        rates[factor] = found / SIMULATIONS
    return rates
