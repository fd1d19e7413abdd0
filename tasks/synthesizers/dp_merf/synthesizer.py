r"""DP-MERF with a proof: one Gaussian release of the mean embedding, then free training.

Harder, Adamczewski and Park (AISTATS 2021): release the kernel mean embedding of the records of
each label once, and fit a generator to it. Here the features have public frequencies and a public
length scale, sums are on an integer grid, nobody's number of records is assumed known, and the
unit is a patient; `tasks.papers.dp_merf` lists what the authors do instead.

The class counts are a draw of their own. A feature of frequency zero would carry them inside the
embedding at the same cost; apart, the embedding keeps its norm and the counts their meaning.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np

from privacy.arrays import Floats, Records
from tasks.measurement.curator import Curator
from tasks.measurement.encoded import EncodingDomain
from tasks.measurement.marginals import draw_codes
from tasks.measurement.plan import MeasurementPlan, plan_measurement, sum_request
from tasks.measurement.statistics import class_counts
from tasks.measurement.synthesizer import Released, Stage
from tasks.synthesizers.dp_merf.config import PUBLIC_SEED, DpMerfConfig
from tasks.synthesizers.dp_merf.features import EmbeddingFeatures, embedding_sums, vector_map_of
from tasks.synthesizers.dp_merf.generator import Generator

EMBEDDING = "mean_embedding"
CLASS_COUNTS = "class_counts"


@dataclass(frozen=True, slots=True)
class DpMerf:
    """DP-MERF bound to a public domain and public settings.

    Privacy
    -------
    Adjacency: add or remove one patient. Two discrete Gaussian draws, each of sensitivity 1; the
    generator and its records are post-processing.
    """

    domain: EncodingDomain
    config: DpMerfConfig

    def plan(self, *, mu: float) -> MeasurementPlan:
        """Class counts and embedding, each with its share of the budget."""
        n_labels, shares = self.domain.n_labels, self.config.shares
        n_features = EmbeddingFeatures.draw(self.domain, self.config).n_features
        counts = sum_request(CLASS_COUNTS, (n_labels,), share=shares.class_counts)
        sums = sum_request(EMBEDDING, (n_labels, n_features), share=shares.embedding)
        return plan_measurement([counts, sums], mu=mu)

    def stages(self, *, mu: float) -> tuple[Stage, ...]:
        """Return the embedding, then the training; every stage leaves a generator behind."""
        count = self.config.training_stages
        return (
            Stage(name="embedding", run=self._embedding),
            *(
                Stage(
                    name=f"train-{number:02d}-of-{count:02d}",
                    run=partial(self._train, number=number),
                )
                for number in range(1, count + 1)
            ),
        )

    def sample(self, released: Released, *, n_rows: int, rng: np.random.Generator) -> Records:
        """Sample records from the trained generator; see `Synthesizer.sample`."""
        labels = draw_codes(released["label_frequencies"], n_rows, rng)
        codes = Generator.of_arrays(released).sample(
            vector_map_of(self.domain, self.config),
            labels,
            code_dimensions=self.config.code_dimensions,
            rng=rng,
        )
        return codes, labels

    def _embedding(self, curator: Curator, released: Released) -> Released:
        """Draw the two statistics; start the generator from the public seed."""
        n_labels = self.domain.n_labels
        features = EmbeddingFeatures.draw(self.domain, self.config)
        counts = curator.release(CLASS_COUNTS, class_counts, n_labels=n_labels)
        sums = curator.release(EMBEDDING, embedding_sums, features=features, n_labels=n_labels)
        noise = curator.plan[EMBEDDING].unit_noise_stddev
        sizes = np.maximum(counts, 1.0)
        start = Generator.start(self.config, n_labels=n_labels, width=features.vector_map.width)
        return {
            "label_frequencies": sizes / sizes.sum(),
            "label_embeddings": features.uncentred(sums / sizes[:, None]),
            "label_weights": label_weights(sizes, n_features=sums.shape[1], noise_stddev=noise),
            **start.arrays,
        }

    def _train(self, curator: Curator, released: Released, *, number: int) -> Released:
        """Take the steps of training stage ``number``, from 1; the step size falls linearly."""
        # Imported here: jax takes seconds to load, and a plan or a sample does not need it.
        from tasks.synthesizers.dp_merf.training import TrainingItem, train

        config = self.config
        item = TrainingItem(
            generator=Generator.of_arrays(released),
            features=EmbeddingFeatures.draw(self.domain, config),
            targets=released["label_embeddings"],
            label_weights=released["label_weights"],
            config=config,
            learning_rate=config.learning_rate * (1.0 - (number - 1) / config.training_stages),
            public_seed=PUBLIC_SEED + number,
        )
        [trained] = curator.map(train, [item])
        return {**trained.arrays}


def label_weights(sizes: Floats, *, n_features: int, noise_stddev: float) -> Floats:
    """Weights in (0, 1] of the labels in the loss: less where noise is stronger than any signal.

    It is ``1 / (1 + r)``, r the expected squared norm of the noise of a mean embedding, of norm 1.
    """
    weights: Floats = 1.0 / (1.0 + n_features * (noise_stddev / sizes) ** 2)
    return weights
