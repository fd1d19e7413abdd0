"""ClustMix in the proven analysis: partition, constrained GMM, KIP, noise calibration, mixing.

Approximate: a mixture per label and public slice, from noisy histograms. Adapt: a support set
optimised by KIP on noisy moments, chosen on noisy validation moments, and a label model corrected
by noisy residuals. Anonymise: every look at the rows is one planned Gaussian draw, and the whole
is mu-GDP by composition (Dong, Roth and Su 2019, Corollary 3.3).

Source of the method: Madl et al., "Approximate, Adapt, Anonymize (3A)", Algorithm 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.measurement import statistics
from tasks.measurement.cells import Cells
from tasks.measurement.curator import Curator
from tasks.measurement.encoded import N_FOLDS, EncodingDomain
from tasks.measurement.features import FeatureMap
from tasks.measurement.marginals import Mixture, build_mixture, sizes_of, to_marginals
from tasks.measurement.plan import MeasurementPlan, hold_against
from tasks.measurement.synthesizer import PUBLIC_SEED, Released, Stage
from tasks.synthesizers.clustmix.config import ClustMixConfig
from tasks.synthesizers.clustmix.earlier import adaptation
from tasks.synthesizers.clustmix.earlier import noise_calibration as calibration
from tasks.synthesizers.clustmix.earlier.constrained_gmm import fit_round
from tasks.synthesizers.clustmix.earlier.dependence import Dependence, fit_dependence
from tasks.synthesizers.clustmix.earlier.label_model import (
    LabelModel,
    correct,
    naive_bayes_log_odds,
    start_model,
)
from tasks.synthesizers.clustmix.earlier.mixing import sample_records
from tasks.synthesizers.clustmix.earlier.partition import partition

VALIDATION_FOLD = 0
"""Patients of this fold give the validation moments."""

_RIDGE_PER_NOISE = 1.5
"""Ridge added to a noisy second moment, in units of noise_stddev * sqrt(m)."""


@dataclass(frozen=True, slots=True)
class SlicedClustMix:
    """ClustMix bound to a public domain and public settings."""

    domain: EncodingDomain
    config: ClustMixConfig

    def plan(self, *, mu: float) -> MeasurementPlan:
        """Every noisy statistic and its noise, from public settings alone."""
        return calibration.calibrate(self.domain, self.config, mu=mu)

    def stages(self, *, mu: float) -> tuple[Stage, ...]:
        """Return the five stages of Algorithm 2; the last draw is made by mixing."""
        return (
            Stage(name="partition", run=self._partition),
            Stage(name="constrained-gmm", run=self._constrained_gmm),
            Stage(name="kip", run=self._kip),
            Stage(
                name="noise-calibration",
                run=lambda curator, _: self._noise_calibration(curator, mu=mu),
            ),
            Stage(name="mixing", run=self._mixing),
        )

    def sample(
        self, released: Released, *, n_rows: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
        """Sample from mixture, dependence and label model; see `Synthesizer.sample`."""
        return sample_records(
            Mixture(
                weights=released["mixture_weights"],
                marginals=released["mixture_marginals"],
                overall=released["overall_marginals"],
            ),
            Dependence(loadings=released["loadings"]),
            LabelModel(weights=released["label_weights"], log_prior=released["label_log_prior"]),
            self._feature_map,
            label_sharpness=self.config.label_sharpness,
            n_rows=n_rows,
            rng=rng,
        )

    @property
    def _feature_map(self) -> FeatureMap:
        return calibration.feature_map_of(self.domain, self.config)

    def _histograms(
        self, curator: Curator, name: str, cells: Cells
    ) -> tuple[NDArray[np.float64], float]:
        """Draw the histograms of the cells; return them in patients, with their noise."""
        root = np.sqrt(self.domain.n_columns)
        noisy = curator.release(
            name, statistics.cell_histograms, cells=cells, offsets=self.domain.one_hot_offsets
        )
        return noisy * root, curator.plan[name].unit_noise_stddev * float(root)

    def _partition(self, curator: Curator, released: Released) -> Released:
        cells = partition(
            self.domain,
            n_slices=self.config.slices,
            n_clusters=self.config.clusters_per_slice,
            public_seed=PUBLIC_SEED,
        )
        return _cells_to_arrays(cells)

    def _constrained_gmm(self, curator: Curator, released: Released) -> Released:
        cells = self._cells(released)
        offsets = self.domain.one_hot_offsets
        for index in range(self.config.clustering_rounds):
            histograms, noise = self._histograms(
                curator, calibration.clustering_round(index), cells
            )
            cells = fit_round(
                cells,
                histograms,
                min_cluster_size=self.config.min_cluster_size,
                noise_stddev=noise,
            )
        sizes = np.maximum(sizes_of(histograms, offsets), 1.0)
        marginals = to_marginals(histograms, offsets, noise_stddev=noise)
        return {**_cells_to_arrays(cells), "cell_sizes": sizes, "cell_marginals": marginals}

    def _kip(self, curator: Curator, released: Released) -> Released:
        feature_map, config = self._feature_map, self.config
        m = feature_map.n_features
        upper = curator.release(
            calibration.SECOND_MOMENT,
            statistics.second_moments,
            feature_map=feature_map,
            validation_fold=VALIDATION_FOLD,
        )
        second = statistics.symmetric_from_upper(upper, size=m)
        cross = curator.release(
            calibration.FEATURE_LABEL,
            statistics.feature_label_sums,
            feature_map=feature_map,
            validation_fold=VALIDATION_FOLD,
            n_labels=self.domain.n_labels,
        )
        sizes = released["cell_sizes"]
        n_patients, prior = float(sizes.sum()), sizes.sum(axis=1) / sizes.sum()
        noise = curator.plan[calibration.SECOND_MOMENT].unit_noise_stddev
        ridge = _RIDGE_PER_NOISE * noise * float(np.sqrt(m))
        held_out = n_patients / N_FOLDS
        training, validation = (
            adaptation.centre_moments(
                second[part], cross[part], prior=prior, size=size, ridge=ridge * (1 - part)
            )
            for part, size in enumerate((n_patients - held_out, held_out))
        )
        candidates = []
        for restart, alpha, ridge_lambda in product(
            range(config.restarts), config.alphas, config.lambdas
        ):
            points, labels = adaptation.support_starts(
                released["cell_marginals"],
                sizes,
                feature_map,
                prior=prior,
                support_per_label=config.support_per_label,
                public_seed=PUBLIC_SEED + restart,
            )
            candidates.append(
                adaptation.Candidate(
                    feature_map=feature_map,
                    start=points,
                    start_labels=labels,
                    training=training,
                    alpha=alpha,
                    ridge=ridge_lambda,
                    steps=config.kip_steps,
                    box=1.0,
                )
            )
        adapted = adaptation.choose(curator.map(adaptation.adapt, candidates), validation)
        return {
            # The training part alone: adding the validation part adds more noise than signal.
            "second_moment": second[0] * N_FOLDS / (N_FOLDS - 1),
            "support_points": adapted.points,
            "support_labels": adapted.labels,
            "krr_weights": adapted.weights,
        }

    def _noise_calibration(self, curator: Curator, *, mu: float) -> Released:
        left = hold_against(self.plan(mu=mu), curator.event, mu=mu)
        return {"mu_left_for_mixing": np.array(left)}

    def _mixing(self, curator: Curator, released: Released) -> Released:
        calibration.check_share(curator.plan, mu_left=float(released["mu_left_for_mixing"]))
        feature_map, offsets = self._feature_map, self.domain.one_hot_offsets
        histograms, noise = self._histograms(curator, calibration.HISTOGRAMS, self._cells(released))
        mixture = build_mixture(histograms, offsets, noise_stddev=noise)
        by_label = histograms.sum(axis=1)
        sizes = np.maximum(sizes_of(by_label, offsets), 1.0)
        prior, n_patients = sizes / sizes.sum(), float(sizes.sum())
        model = start_model(
            released["krr_weights"],
            naive_bayes_log_odds(
                by_label,
                offsets,
                prior=prior,
                noise_stddev=noise * float(np.sqrt(histograms.shape[1])),
            ),
            feature_map,
            prior=prior,
            naive_bayes_weight=self.config.naive_bayes_weight,
        )
        second = released["second_moment"]
        for index in range(self.config.residual_rounds):
            name = calibration.residual_round(index)
            residual = curator.release(
                name,
                statistics.residual_moments,
                feature_map=feature_map,
                weights=model.weights,
                log_prior=model.log_prior,
            )
            model = correct(
                model, residual, second, noise_stddev=curator.plan[name].unit_noise_stddev
            )
        moment_noise = curator.plan[calibration.SECOND_MOMENT].unit_noise_stddev
        dependence = fit_dependence(
            second / n_patients,
            feature_map,
            component_means=feature_map.raw_of_marginals(mixture.marginals),
            component_weights=mixture.weights,
            expected_squared_norm=_expected_squared_norm(feature_map, mixture.overall),
            noise_stddev=moment_noise * N_FOLDS / (N_FOLDS - 1) / n_patients,
        )
        return {
            "mixture_weights": mixture.weights,
            "mixture_marginals": mixture.marginals,
            "overall_marginals": mixture.overall,
            "loadings": dependence.loadings,
            "label_weights": model.weights,
            "label_log_prior": model.log_prior,
        }

    def _cells(self, released: Released) -> Cells:
        return Cells(
            offsets=self.domain.one_hot_offsets,
            code_scores=released["code_scores"],
            cut_offs=released["cut_offs"],
            centres=released["centres"],
            alive=released["alive"],
        )


def _cells_to_arrays(cells: Cells) -> dict[str, NDArray[Any]]:
    return {
        "code_scores": cells.code_scores,
        "cut_offs": cells.cut_offs,
        "centres": cells.centres,
        "alive": cells.alive,
    }


def _expected_squared_norm(feature_map: FeatureMap, overall: NDArray[np.float64]) -> float:
    """Return the expected squared norm of the raw features under these marginals."""
    squares = np.concatenate([(table**2).sum(axis=1) for table in feature_map.tables])
    return float(overall @ squares)
