"""ClustMix on images: approximate, adapt, anonymise, mix, by one public rule.

Approximate: sums and second moments of each label and of its cells are released, in low
frequencies, and a mixture of Gaussians is fitted to them. Adapt: images of it are the inducing
points of a Nystroem map of scattering features. Anonymise: a teacher, softmax regression on that
map, is taught by noisy sums of its residuals. Mix: images come from the mixture, varied by public
warps, and labels from the teacher. Every look at the rows is one planned Gaussian draw, and the
whole is mu-GDP by composition (Dong, Roth and Su 2019, Corollary 3.3).

Source of the chain: Madl et al., "Approximate, Adapt, Anonymize (3A)", Algorithm 2.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from privacy.arrays import Codes, Floats, Floats32, Integers, Records
from tasks.measurement.curator import Curator
from tasks.measurement.encoded import EncodingDomain
from tasks.measurement.measurement_plan import MeasurementPlan
from tasks.measurement.method import PUBLIC_SEED, Released, Stage, budget_left
from tasks.methods.clustmix.images import density
from tasks.methods.clustmix.images import image_draws as draws
from tasks.methods.clustmix.images import image_rule as rule
from tasks.methods.clustmix.images.density import Classes, Density
from tasks.methods.clustmix.images.image_layout import ImageLayout, basis_of
from tasks.methods.clustmix.images.image_rule import ImageRule
from tasks.methods.clustmix.images.scattering import feature_bound, scatter
from tasks.methods.clustmix.images.teacher import ReleasedTeacher, Whitening, whitening_of
from tasks.methods.clustmix.images.tone import Tone, norm_shares, warped
from tasks.methods.clustmix.tables.table_draws import residual_round
from tasks.methods.clustmix.tables.table_sampler import quotas

_TONE_IMAGES, _TONE_TEMPERATURES = 600, np.array([0.8, 0.8])
_IMAGES_AT_ONCE = 500
_MOST_DRAWN = 2
"""Images that are drawn for each that is published, at most."""


@dataclass(frozen=True, slots=True)
class ImageClustMix:
    """ClustMix bound to a public domain of images; `variation` is the strength of public warps.

    `points` is the number of inducing points (released images); it affects no plan or guarantee.
    """

    domain: EncodingDomain
    variation: float = 1.0
    points: int = rule.INDUCING_POINTS

    def plan(self, *, mu: float) -> MeasurementPlan:
        """Every noisy statistic and its noise, from public values alone."""
        return draws.plan_of(self._layout, self._rule(mu), mu=mu)

    def stages(self) -> tuple[Stage, ...]:
        """Return the five stages; the last draws are made by mixing."""
        return (
            Stage(name="partition", run=self._partition),
            Stage(name="constrained-gmm", run=self._density),
            Stage(name="kip", run=self._kip),
            Stage(name="noise-calibration", run=partial(budget_left, self)),
            Stage(name="mixing", run=self._mixing),
        )

    def sample(self, released: Released, *, n_rows: int, rng: np.random.Generator) -> Records:
        """Sample images of the mixture, labelled by the teacher; see `Synthesizer.sample`.

        Labels have the shares of the released sizes, unless too few images of a label are found.
        """
        layout = self._layout
        codes = np.empty((n_rows, layout.n_columns), dtype=np.uint16)
        labels = np.empty(n_rows, dtype=np.uint16)
        teacher = ReleasedTeacher.of(released, layout)
        left, every = quotas(released["label_sizes"], n_rows, rng), np.arange(layout.n_labels)
        start, to_draw = 0, _MOST_DRAWN * n_rows
        for batch in self._batches(released, to_draw, rng):
            found = teacher.labels(batch)
            to_draw -= len(batch)
            rank = (found[:, None] == every).cumsum(axis=0)[np.arange(len(found)), found]
            kept = np.flatnonzero(rank <= left[found])
            # Other labels fill the rows that the remaining draws cannot.
            more = max(0, n_rows - start - len(kept) - to_draw)
            kept = np.append(kept, np.flatnonzero(rank > left[found])[:more])
            part = slice(start, start + len(kept))
            codes[part], labels[part] = batch[kept], found[kept]
            left -= np.bincount(found[kept], minlength=layout.n_labels)
            start += len(kept)
            if start == n_rows:
                break
        # Rare labels come last, so rows are shuffled.
        order = rng.permutation(n_rows)
        return codes[order], labels[order]

    def probabilities(self, released: Released, codes: Codes) -> Floats:
        """Return the probabilities (n, C) of the labels of images as codes (n, columns)."""
        return ReleasedTeacher.of(released, self._layout).probabilities(codes)

    @property
    def _layout(self) -> ImageLayout:
        return ImageLayout.of(self.domain)

    def _rule(self, mu: float) -> ImageRule:
        return rule.rule_of(
            self._layout, patients=self.domain.patients, mu=mu, variation=self.variation
        )

    def _batches(self, released: Released, n: int, rng: np.random.Generator) -> Iterator[Codes]:
        """Yield codes (at most 500, columns) of so many images."""
        for start in range(0, n, _IMAGES_AT_ONCE):
            yield self.labelled(released, min(_IMAGES_AT_ONCE, n - start), rng)[0]

    def labelled(
        self, released: Released, n: int, rng: np.random.Generator
    ) -> tuple[Codes, Integers]:
        """Return codes (n, columns) of a few images, and the labels (n,) of their cells."""
        tone = Tone(sharpness=released["sharpness"], norms=released["norm_shares"])
        warps = released["warps"]
        # By one thread: the same images on a machine with more processors.
        with threadpool_limits(1, user_api="blas"):
            images, label = self._drawn(released, n, rng)
            if warps[1] > 0.0:
                images = warped(images, rng.uniform(warps[0], warps[1], size=n), rng)
            return self._layout.codes(tone.applied(images, label, rng)), label

    def _drawn(
        self, released: Released, n: int, rng: np.random.Generator
    ) -> tuple[Floats32, Integers]:
        """Draw unscaled images (n, channels, height, width), and the labels of their cells."""
        density = Density(
            shares=released["cell_shares"],
            centres=released["cell_centres"],
            factors=released["cell_factors"],
        )
        vectors, label = density.sample(n, rng, temperatures=released["temperatures"])
        # A measurement that names none has 14.
        layout = replace(self._layout, frequencies=int(released.get("frequencies", 14)))
        shape = (layout.channels, layout.height, layout.width)
        return basis_of(layout).to_images(vectors, shape=shape), label

    def _partition(self, curator: Curator, released: Released) -> Released:
        """Return the public settings of the sampler."""
        settings = self._rule(curator.plan.mu)
        return {
            "temperatures": np.array(settings.temperatures),
            "warps": np.array(settings.warps),
            "frequencies": np.array(settings.frequencies),
        }

    def _density(self, curator: Curator, released: Released) -> Released:
        """Draw sums, moments and cells of the labels; fit the mixture."""
        settings, rng = self._rule(curator.plan.mu), np.random.default_rng(PUBLIC_SEED)
        layout = replace(self._layout, frequencies=settings.frequencies)
        classes = Classes.of(curator.release(draws.CLASS_SUMS, draws.class_sums, layout=layout))
        noisy = curator.release(
            draws.CLASS_MOMENTS, draws.class_moments, layout=layout, means=classes.means
        )
        stddev = curator.plan[draws.CLASS_MOMENTS].unit_noise_stddev
        with threadpool_limits(1, user_api="blas"):
            covariances, leading = density.spread_of(noisy, classes, stddev=stddev)
            cells = density.first_cells(classes, covariances, settings.n_cells, rng)
        for index in range(rule.CELL_ROUNDS):
            name = draws.cell_round(index)
            if index:
                with threadpool_limits(1, user_api="blas"):
                    cells = density.restarted(cells, classes, covariances, rng)
            noisy = curator.release(
                name,
                draws.cell_sums,
                layout=layout,
                directions=leading,
                centres=cells.centres @ leading,
            )
            stddev = curator.plan[name].unit_noise_stddev
            with threadpool_limits(1, user_api="blas"):
                cells = density.moved(cells, noisy, classes, covariances, stddev=stddev)
        with threadpool_limits(1, user_api="blas"):
            fitted = Density.of(cells, classes, covariances)
        return {
            "label_sizes": classes.sizes,
            "cell_shares": fitted.shares,
            "cell_centres": fitted.centres,
            "cell_factors": fitted.factors,
        }

    def _kip(self, curator: Curator, released: Released) -> Released:
        """Draw brightness and intensities; whiten features on released images."""
        layout, rng = self._layout, np.random.default_rng(PUBLIC_SEED)
        settings = self._rule(curator.plan.mu)
        shares = norm_shares(
            curator.release(draws.NORMS, draws.norms, layout=layout),
            stddev=curator.plan[draws.NORMS].unit_noise_stddev,
        )
        intensity = curator.release(draws.INTENSITY, draws.intensity, layout=layout)
        with threadpool_limits(1, user_api="blas"):
            usual = {**released, "temperatures": _TONE_TEMPERATURES}
            images, label = self._drawn(usual, _TONE_IMAGES, rng)
            tone = Tone.fitted(images, label, norms=shares, intensity=intensity, rng=rng)
        toned: dict[str, NDArray[Any]] = {"sharpness": tone.sharpness, "norm_shares": tone.norms}
        batches = self._batches({**released, **toned}, self.points, rng)
        features = [scatter(layout.pixels(codes)) for codes in batches]
        with threadpool_limits(1, user_api="blas"):
            whitening = Whitening.fitted(
                np.concatenate(features),
                directions=settings.directions,
                flat=settings.flat,
                bound=feature_bound(layout.channels),
            )
        return {
            **toned,
            "whitening_matrix": whitening.matrix.astype(np.int16),
            "whitening_scales": whitening.scales,
            "whitening_shift": whitening.shift,
        }

    def _mixing(self, curator: Curator, released: Released) -> Released:
        """Teach the teacher by its residuals, and average the later half of its weights.

        Source: noisy gradient descent with every record in every step (Bassily, Smith and Thakurta
        2014), with residuals shortened in place of gradients.
        """
        settings = self._rule(curator.plan.mu)
        curator.recode(draws.with_features, layout=self._layout, whitening=whitening_of(released))
        weights = np.zeros((settings.directions, self._layout.n_labels))
        total, first = np.zeros_like(weights), settings.rounds // 2
        step = settings.step / float(released["label_sizes"].sum())
        for index in range(settings.rounds):
            noisy = curator.release(
                residual_round(index),
                draws.residuals,
                weights=weights,
                residual_norm=settings.residual_norm,
            )
            weights = weights - step * noisy
            if index >= first:
                total += weights
        return {"teacher_weights": total / (settings.rounds - first)}
