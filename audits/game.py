"""The game: run a method on one of two neighbouring tables and score everything it shows.

The run is the one of a release: the method's own plan and stages, the curator, and noise from the
operating system. The referee sits where the sums are made, so it knows the exact statistics of
both tables at the arguments that were really released, also where a later draw depends on an
earlier one; the attack is thereby the best one there is against Gaussian noise.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from audits.pairs import AuditPatient, NeighbourPair
from privacy.arrays import Codes, Floats, Integers
from privacy.mechanisms import NoisyStatistic
from privacy.randomness import NoiseSource, OperatingSystemNoise
from tasks.execution.executor import InProcessExecutor
from tasks.measurement.curator import Curator, exact_sum
from tasks.measurement.method import Synthesizer, measure

SYNTHETIC_ROWS = 40
"""Synthetic rows that the attack looks at after each run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One noisy draw in grid units, and the referee's knowledge of it.

    `values` were drawn; `absent` and `present` are the exact statistics of both tables at the
    released arguments. All three have one shape.
    """

    name: str
    absent: Integers
    present: Integers
    values: Integers
    noise_stddev: float

    def standardised(self, values: Integers) -> Floats:
        """Distance of values from the absent table in standard deviations of the noise, flat."""
        return ((values - self.absent) / self.noise_stddev).reshape(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """Everything that one run shows."""

    draws: tuple[Draw, ...]
    codes: Codes
    labels: Codes
    patient: AuditPatient


Attack = Callable[[Transcript], Mapping[str, float]]
"""Scores by name; a larger score speaks for the patient. The names are the same in every run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Scores of all attacks in all runs.

    `absent` and `present`, the tables without and with the patient, are float64 arrays of shape
    (runs, k). The first of the k scores is the reference: 0 speaks for neither table.
    """

    names: tuple[str, ...]
    absent: Floats
    present: Floats


class Referee(InProcessExecutor):
    """An executor that sums over one of two tables for a curator, and keeps the sums of both."""

    def __init__(self, pair: NeighbourPair, *, play_present: bool) -> None:
        super().__init__()
        self._tables = [[pair.rows(present=present)] for present in (False, True)]
        self._played = int(play_present)
        self._exact: list[Integers] = []
        self.draws: list[Draw] = []

    def sum(
        self, function: Callable[..., Integers], shards: Sequence[Any], public: Mapping[str, Any]
    ) -> Integers:
        """Return the exact sum that a curator asks for, over the table that is played."""
        contribution, arguments = public["contribution"], public["public"]
        self._exact = [exact_sum(contribution, arguments, table) for table in self._tables]
        return self._exact[self._played]

    def seal(self, name: str, noisy: NoisyStatistic) -> None:
        """Keep a noisy statistic; the curator calls it right after its sum."""
        absent, present = self._exact
        self._exact = []
        self.draws.append(
            Draw(
                name=noisy.event.statistic,
                absent=absent,
                present=present,
                values=noisy.values,
                noise_stddev=noisy.event.noise_stddev,
            )
        )


def play_once(
    synthesizer: Synthesizer,
    pair: NeighbourPair,
    *,
    mu: float,
    present: bool,
    noise_source: NoiseSource,
) -> Transcript:
    """Run a method once, with this budget, on the table of a pair without or with the patient."""
    referee = Referee(pair, play_present=present)
    curator = Curator(
        plan=synthesizer.plan(mu=mu),
        shards=(),
        executor=referee,
        noise_source=noise_source,
        seal=referee.seal,
    )
    released = measure(synthesizer, curator)
    # Unseeded: the randomness of post-processing must not be the same in all runs.
    codes, labels = synthesizer.sample(released, n_rows=SYNTHETIC_ROWS, rng=np.random.default_rng())
    return Transcript(draws=tuple(referee.draws), codes=codes, labels=labels, patient=pair.patient)


def likelihood_ratios(transcript: Transcript) -> dict[str, float]:
    """Log-likelihood ratio of present to absent, of all draws and of each.

    The normaliser of a discrete Gaussian does not depend on its integer centre, so the ratio
    ``<y - (a + b) / 2, b - a> / sigma**2`` is exact for the noise that the events state.
    """
    ratios: dict[str, float] = {}
    for draw in transcript.draws:
        shift = draw.standardised(draw.present)
        ratio = float(np.sum((draw.standardised(draw.values) - shift / 2.0) * shift))
        ratios[f"draw {draw.name}"] = ratios.get(f"draw {draw.name}", 0.0) + ratio
    return {"all draws": sum(ratios.values()), **ratios}


def noise_differences(transcript: Transcript) -> dict[str, float]:
    """Scores of differences of two draws of one size: noise that was used twice cancels."""
    scores = {}
    for first, second in combinations(transcript.draws, 2):
        if first.values.size == second.values.size:
            shift = first.standardised(first.present) - second.standardised(second.present)
            seen = first.standardised(first.values) - second.standardised(second.values)
            score = float(np.sum((seen - shift / 2.0) * shift))
            scores[f"difference {first.name}, {second.name}"] = score
    return scores


def noise_sizes(transcript: Transcript) -> dict[str, float]:
    """Squared distance from the absent table in standard deviations: noise that follows data."""
    return {
        "size of the noise": sum(
            float(np.sum(draw.standardised(draw.values) ** 2)) for draw in transcript.draws
        )
    }


def synthetic_counts(transcript: Transcript) -> dict[str, float]:
    """Count synthetic rows that look like the patient, as a reader of a release sees them."""
    record, label = transcript.patient.records[0]
    same_label = transcript.labels == label
    same_codes = transcript.codes == np.array(record, dtype=np.uint16)
    return {
        "synthetic rows with the label": float(same_label.sum()),
        "synthetic codes of the patient": float((same_codes.sum(axis=1) * same_label).sum()),
        "synthetic copies of the patient": float((same_codes.all(axis=1) & same_label).sum()),
    }


ATTACKS: tuple[Attack, ...] = (likelihood_ratios, noise_differences, noise_sizes, synthetic_counts)
"""Attacks of every audit: three on the noisy draws, one on the synthetic rows."""


def play(
    synthesizer: Synthesizer,
    pair: NeighbourPair,
    *,
    mu: float,
    runs: int,
    attacks: Sequence[Attack] = ATTACKS,
    new_noise_source: Callable[[], NoiseSource] = OperatingSystemNoise,
) -> Scores:
    """Run a method `runs` times on each table of a pair, with this budget, and score every run."""
    rows: tuple[list[list[float]], list[list[float]]] = ([], [])
    names: tuple[str, ...] = ()
    for _ in range(runs):
        for present in (False, True):
            transcript = play_once(
                synthesizer, pair, mu=mu, present=present, noise_source=new_noise_source()
            )
            scores = {k: v for attack in attacks for k, v in attack(transcript).items()}
            names = tuple(scores)
            rows[int(present)].append(list(scores.values()))
    return Scores(names=names, absent=np.array(rows[0]), present=np.array(rows[1]))
