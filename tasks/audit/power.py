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


@dataclass(frozen=True, slots=True, kw_only=True)
class Strengths:
    """How far the patient of a pair moves each draw.

    `norms` (runs, k) are distances of both tables' statistics in stated standard deviations, of
    each draw of a series; `probabilities` (k,) are those of the patient's being in the sample.
    """

    norms: Floats
    probabilities: Floats

    @property
    def mu(self) -> float:
        """About the mu that the pair shows: what sampling hides is left out."""
        return float(np.sqrt(((self.norms * self.probabilities) ** 2).sum(axis=1).mean()))


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
    norms, probabilities = zip(*(_of_run(transcript) for transcript in transcripts), strict=True)
    return Strengths(norms=np.array(norms), probabilities=probabilities[0])


def _of_run(transcript: Transcript) -> tuple[Floats, Floats]:
    norms: list[float] = []
    probabilities: list[float] = []
    for draw in transcript.draws:
        difference = (draw.present - draw.absent) / draw.noise_stddev
        q = draw.sampling_probability
        steps = difference.reshape(1 if q is None else len(difference), -1)
        norms += np.linalg.norm(steps, axis=1).tolist()
        probabilities += [1.0 if q is None else q] * len(steps)
    return np.array(norms), np.array(probabilities)


def simulate(strengths: Strengths, *, factor: float, runs: int, rng: np.random.Generator) -> Scores:
    """Simulate `runs` likelihood ratios for each table, with noise too small by `factor`."""
    q = strengths.probabilities
    # A draw whose sample has the patient for certain may as well be one that reads everybody.
    log_out = np.log1p(-np.minimum(q, 1.0 - 1e-300), where=q < 1.0, out=np.full(len(q), -np.inf))
    sides = []
    for present in (False, True):
        norms = strengths.norms[rng.integers(0, len(strengths.norms), runs)]
        inside = (rng.random(norms.shape) < q) & present
        noise = rng.standard_normal(norms.shape) / factor
        products = norms * (noise + norms * (inside - 0.5))
        sides.append(np.logaddexp(log_out, np.log(q) + products).sum(axis=1, keepdims=True))
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
