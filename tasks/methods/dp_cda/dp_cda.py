"""DP-CDA with a proof: noisy sums of groups or of Poisson samples of patients, class by class.

What the paper's analysis lacks is replaced: public scaling for the private z-score, a public
sampling rate and a public divisor for draws from a class of private size, add or remove of a
patient for replacement inside a class, no noise on labels that are constant anyway. Flaws A1 to A8
are listed in `tasks.papers.dp_cda`.

Two forms. **Groups**: a public hash parts the records into g groups; the g sums of every class
are one Gaussian release, because a patient adds an array of norm c to all of them together.
**Poisson**: each of T draws sums a secret random sample of the patients, at the rate that gives
the smallest declared class l of them; the draws compose as sampled Gaussians. Nobody knows who is
in a sample, so at a small epsilon or a small order its noise is several times below that of a
group of the same order. Groups need no secret coins, and read every patient.

The paper leaves open how a mixture becomes a record of a table. Here its shares are spread to the
variance of records, and columns are drawn from them (`tasks.measurement.unmixing`).
"""

from dataclasses import dataclass, field

import numpy as np

from privacy.arrays import Floats, Floats32, Records
from privacy.errors import ConfigurationError
from tasks.measurement.curator import Curator
from tasks.measurement.encoded import EncodingDomain
from tasks.measurement.marginals import draw_codes
from tasks.measurement.method import Released, Stage
from tasks.measurement.plan import MeasurementPlan, plan_measurement, sum_request
from tasks.measurement.statistics import class_counts
from tasks.measurement.unmixing import Mixtures, draw_records, drawn_coordinates, spread
from tasks.measurement.vectors import VectorMap, one_hot_numbers
from tasks.methods.dp_cda.dp_cda_settings import DpCdaConfig
from tasks.methods.dp_cda.group_sums import RecordMap, group_sums, sampled_sums

COUNTS = "class_counts"
SUMS = "mixture_sums"
MAX_VALUES = 200_000_000
"""Most numbers in all mixtures together; exact noise takes about a second for 80,000 of them."""

DRAWS_PER_STAGE = 100
_MIN_COUNT = 1.0


@dataclass(frozen=True, slots=True)
class DpCda:
    """DP-CDA bound to a public domain and public settings.

    It is a ConfigurationError if the declared class sizes do not fit the labels or the order of
    mixture, or the mixtures together would have more than `MAX_VALUES` numbers.

    Privacy
    -------
    Adjacency: add or remove one patient. Events: a Gaussian of sensitivity 1 for the class counts;
    for the mixtures a Gaussian of sensitivity c, or a series of Poisson-sampled ones. Sizes that
    are declared wrongly change no sensitivity and no probability.
    """

    domain: EncodingDomain
    config: DpCdaConfig
    record_map: RecordMap = field(init=False)
    smallest_class: float = field(init=False)

    def __post_init__(self) -> None:
        config = self.config
        vectors = VectorMap(one_hot_numbers(self.domain, most_codes=config.one_hot_levels))
        centre: Floats | float = config.centre or 0.0
        if config.centre is None and config.l2_clip_norm is None:
            centre = vectors.middle
        largest = vectors.radius(centre) / config.scale
        clip = largest if config.l2_clip_norm is None else min(config.l2_clip_norm, largest)
        record_map = RecordMap(
            vectors=vectors, centre=centre, scale=config.scale, l2_clip_norm=clip
        )
        object.__setattr__(self, "record_map", record_map)
        object.__setattr__(self, "smallest_class", min(config.sizes(self.domain.n_labels)))
        if self.n_mixtures * self.domain.n_labels * vectors.width > MAX_VALUES:
            raise ConfigurationError(
                "MIXTURES_TOO_MANY",
                f"expected mixtures of at most {MAX_VALUES} numbers in all, found more; raise "
                "order_of_mixture or lower mixtures_per_class",
            )

    @property
    def n_mixtures(self) -> int:
        """Mixtures of each class: T_k draws, or the groups of l that the smallest class gives."""
        if self.config.sampling == "poisson":
            return self.config.mixtures_per_class
        return max(int(self.smallest_class / self.config.order_of_mixture), 1)

    @property
    def sampling_probability(self) -> float:
        """Public share of a class in a mixture: the smallest declared class has l records there."""
        if self.config.sampling == "poisson":
            return self.config.order_of_mixture / self.smallest_class
        return 1.0 / self.n_mixtures

    def plan(self, *, mu: float) -> MeasurementPlan:
        """Class counts and mixtures, with their shares of the budget."""
        n_labels, width = self.domain.n_labels, self.record_map.vectors.width
        poisson = self.config.sampling == "poisson"
        counts = sum_request(COUNTS, (n_labels,), share=self.config.count_share)
        sums = sum_request(
            SUMS,
            (n_labels, width) if poisson else (self.n_mixtures, n_labels, width),
            share=1.0 - self.config.count_share,
            bound=self.record_map.l2_clip_norm,
            sampling_probability=self.sampling_probability if poisson else 1.0,
            n_draws=self.n_mixtures if poisson else 1,
        )
        return plan_measurement([counts, sums], mu=mu)

    def stages(self, *, mu: float) -> tuple[Stage, ...]:
        """Count the classes, then mix: all groups at once, or `DRAWS_PER_STAGE` draws a stage."""
        counts = Stage(name="class-counts", run=self._count)
        if self.config.sampling == "groups":
            return (counts, Stage(name="mix", run=self._mix_groups))
        n_stages = -(-self.n_mixtures // DRAWS_PER_STAGE)
        return (
            counts,
            *(
                Stage(name=f"mix-{number:02d}-of-{n_stages:02d}", run=self._mix_samples)
                for number in range(1, n_stages + 1)
            ),
        )

    def sample(self, released: Released, *, n_rows: int, rng: np.random.Generator) -> Records:
        """Pick mixtures and draw a record from each; see `Synthesizer.sample`.

        Labels are drawn by the released frequencies; a mixture comes again only after all others
        of its class.
        """
        n_mixtures = len(released["mixtures"])
        # An earlier program has subtracted a number alone, and has not kept it.
        centre = released.get("centre", self.config.centre or 0.0)
        vectors, scale = self.record_map.vectors, self.record_map.scale
        drawn = drawn_coordinates(vectors)
        labels = draw_codes(released["label_frequencies"], n_rows, rng)
        codes = np.empty((n_rows, self.domain.n_columns), dtype=np.uint16)
        for label in range(self.domain.n_labels):
            mixtures = Mixtures(
                means=released["mixtures"][:, label] * scale + centre,
                order=float(released["mixture_orders"][label]),
                noise_stddev=float(released["mixture_noise_stddevs"][label]) * scale,
                centre=centre,
            )
            member = np.flatnonzero(labels == label)
            codes[member] = draw_records(
                mixtures,
                spread(mixtures, drawn),
                vectors,
                chosen=rng.permutation(n_mixtures)[np.arange(len(member)) % n_mixtures],
                rng=rng,
            )
        return codes, labels

    def _count(self, curator: Curator, released: Released) -> Released:
        """Count the classes; a mixture is divided by the expected number of its records."""
        noisy = curator.release(COUNTS, class_counts, n_labels=self.domain.n_labels)
        counts = np.maximum(noisy, _MIN_COUNT)
        orders = self.sampling_probability * counts
        return {
            "class_counts": counts,
            "label_frequencies": counts / counts.sum(),
            "mixture_orders": orders,
            "mixture_noise_stddevs": curator.plan[SUMS].unit_noise_stddev / orders,
            "centre": np.asarray(self.record_map.centre, dtype=np.float64),
        }

    def _mix_groups(self, curator: Curator, released: Released) -> Released:
        sums = curator.release(
            SUMS,
            group_sums,
            record_map=self.record_map,
            n_labels=self.domain.n_labels,
            n_groups=self.n_mixtures,
        )
        return {"mixtures": self._means(sums, released)}

    def _mix_samples(self, curator: Curator, released: Released) -> Released:
        earlier = released.get("mixtures")
        n_drawn = 0 if earlier is None else len(earlier)
        sums = curator.release_sample(
            SUMS,
            sampled_sums,
            min(DRAWS_PER_STAGE, self.n_mixtures - n_drawn),
            record_map=self.record_map,
            n_labels=self.domain.n_labels,
        )
        means = self._means(sums, released)
        return {"mixtures": means if earlier is None else np.concatenate([earlier, means])}

    def _means(self, sums: Floats, released: Released) -> Floats32:
        """Divide by the expected number of records in a mixture, from the released counts."""
        means: Floats32 = (sums / released["mixture_orders"][:, None]).astype(np.float32)
        return means
