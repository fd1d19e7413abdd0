"""DPMix with a proof: Poisson samples of the whole table at a public rate.

Every mixture is the noisy sum of the records, and of the one-hot labels, of a fresh secret sample
of the patients; the printed algorithm (`tasks.papers.dp_mix`) draws a fixed
number of records from a table whose size is public. The Poisson form of DPMix was analysed by Li,
Cao and Yao (arXiv 2202.06467) with Gaussian differential privacy.

A mixture is an average over the whole table, so its record lies near the middle of all records:
DPMix is a yardstick, not a method of choice; DP-CDA mixes within a label. What all mixtures say
together of single records, `tasks.measurement.unmixing` gets out of them.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.sparse import csc_array

from privacy.arrays import Indices, Integers, Records
from privacy.errors import ConfigurationError
from tasks.measurement.curator import Curator
from tasks.measurement.encoded import EncodedRows, EncodingDomain, row_slices
from tasks.measurement.labelled_vectors import LabelledVectors, matched_labels
from tasks.measurement.plan import MeasurementPlan, plan_measurement, sum_request
from tasks.measurement.sampling import PoissonCoins
from tasks.measurement.synthesizer import Released, Stage
from tasks.measurement.unmixing import Mixtures, draw_records, drawn_coordinates, spread
from tasks.measurement.vectors import VectorMap, one_hot_numbers
from tasks.synthesizers.dp_mix.config import DPMixConfig

MIXTURES = "mixtures"
NOISE = "noise_stddev"
CENTRED = "centred"

_VALUES_AT_ONCE = 2**22
"""Numbers that one stage draws at most, about: bounds the memory of a worker."""


@dataclass(frozen=True, slots=True)
class DPMix:
    """DPMix bound to a public domain, with no more records in a mixture than declared patients.

    Otherwise it is a ConfigurationError (``ORDER_OF_MIXTURE_INVALID``).

    Privacy
    -------
    Adjacency: add or remove one patient. Sensitivity of one mixture: ``l2_bound`` of
    `LabelledVectors`. Event: ``n_mixtures`` Poisson-sampled Gaussian draws at rate
    ``order_of_mixture / declared_patients``. A wrong number of declared patients makes mixtures
    larger or smaller and leaves the guarantee as it is.
    """

    domain: EncodingDomain
    config: DPMixConfig

    def __post_init__(self) -> None:
        config = self.config
        if config.order_of_mixture > config.declared_patients:
            raise ConfigurationError(
                "ORDER_OF_MIXTURE_INVALID",
                "expected order_of_mixture of at most declared_patients, so that the sampling "
                f"probability is at most 1, found {config.order_of_mixture} and "
                f"{config.declared_patients}; lower order_of_mixture or declare more patients",
            )

    def plan(self, *, mu: float) -> MeasurementPlan:
        """One series, with the whole budget."""
        vectors = self._vectors()
        request = sum_request(
            MIXTURES,
            (vectors.width,),
            share=1.0,
            bound=vectors.l2_bound,
            sampling_probability=self.config.order_of_mixture / self.config.declared_patients,
            n_draws=self.config.n_mixtures,
        )
        return plan_measurement([request], mu=mu)

    def stages(self, *, mu: float) -> tuple[Stage, ...]:
        """Draw the mixtures, some at a time."""
        at_once = max(1, _VALUES_AT_ONCE // self._vectors().width)
        counts = [
            min(at_once, self.config.n_mixtures - start)
            for start in range(0, self.config.n_mixtures, at_once)
        ]
        return tuple(
            Stage(
                name=f"mixtures-{number}-of-{len(counts)}",
                run=partial(_draw, vectors=self._vectors(), number=number, n_draws=count),
            )
            for number, count in enumerate(counts, start=1)
        )

    def sample(self, released: Released, *, n_rows: int, rng: np.random.Generator) -> Records:
        """Draw records from mixtures, which repeat if they are fewer; see `Synthesizer.sample`."""
        names = sorted(name for name in released if name.startswith(MIXTURES))
        sums = np.concatenate([released[name] for name in names])
        vectors = self._vectors(centred=CENTRED in released)
        records, patients = VectorMap(vectors.domain), vectors.patients(sums)
        origin = np.concatenate([vectors.origin, np.zeros(self.domain.n_labels)])
        mixtures = Mixtures(
            means=sums / patients + origin,
            order=patients,
            noise_stddev=float(released[NOISE]) / patients,
            centre=origin,
        )
        drawn = drawn_coordinates(records)
        if len(drawn) > 0:
            drawn = np.concatenate([drawn, np.arange(vectors.record_width, vectors.width)])
        scores = spread(mixtures, drawn)
        labels = matched_labels(vectors.label_counts(scores * patients))
        chosen = rng.permutation(n_rows) % len(sums)
        codes = draw_records(mixtures, scores, records, chosen=chosen, rng=rng)
        return codes, labels[chosen]

    def _vectors(self, *, centred: bool = True) -> LabelledVectors:
        return LabelledVectors(
            domain=one_hot_numbers(self.domain, most_codes=self.config.one_hot_levels),
            l2_clip_norm=self.config.l2_clip_norm,
            label_share=self.config.label_share,
            centred=centred,
        )


def _draw(
    curator: Curator, released: Released, *, vectors: LabelledVectors, number: int, n_draws: int
) -> Released:
    """Draw the next mixtures of the series; their noise is public, and `sample` has to know it."""
    sums = curator.release_sample(MIXTURES, mixture_sums, n_draws, vectors=vectors)
    noise_stddev = curator.plan[MIXTURES].unit_noise_stddev
    mixtures = f"{MIXTURES}_{number:06d}"
    return {mixtures: sums, NOISE: np.array(noise_stddev), CENTRED: np.array(True)}


def mixture_sums(rows: EncodedRows, *, coins: PoissonCoins, vectors: LabelledVectors) -> Integers:
    """Weighted sums (n_draws, vectors.width) of the vectors of each sample, int64.

    In units of ``1 / SUM_SCALE``.

    Privacy
    -------
    Adjacency: add or remove one patient. Given that the patient is in the sample, one draw changes
    by at most ``vectors.l2_bound`` (``* SUM_SCALE`` grid points), because the weights of a
    patient's rows sum to at most one. Event: one Poisson-sampled discrete Gaussian per draw.
    """
    samples = list(coins.rows(rows))
    total = np.zeros((len(samples), vectors.width), dtype=np.int64)
    used = np.unique(np.concatenate(samples))
    for part in (used[block] for block in row_slices(len(used))):
        total += _membership(samples, part) @ vectors.grid(rows, part)
    return total


def _membership(samples: list[Indices], part: Indices) -> csc_array:
    """0/1 matrix of shape (n_draws, len(part)): integers, so that its product is exact."""
    draws = np.repeat(np.arange(len(samples)), [len(sample) for sample in samples])
    rows = np.concatenate(samples)
    inside = (rows >= part[0]) & (rows <= part[-1])
    columns = np.searchsorted(part, rows[inside])
    ones = np.ones(len(columns), dtype=np.int64)
    return csc_array((ones, (draws[inside], columns)), shape=(len(samples), len(part)))
