"""Stage 4, noise calibration: the plan of every draw, and its check against what happened.

The plan is calibrated from public settings before the private table is opened: how the budget is
split, and the smallest noise of each statistic that meets its part, rounded to more noise. The
stage of this name re-derives the plan, holds it against the events that really happened, and
hands mixing what is left. The paper's Nelder-Mead search on Eq. 8 may stop on the unsafe side of
its target and lives in the paper form only.
"""

from __future__ import annotations

import numpy as np

from privacy.accountants.gaussian import GaussianAccountant
from privacy.errors import IntegrityError
from privacy.events import ComposedEvent
from privacy.parameters import Adjacency
from privacy.sensitivity import second_moment_l2_sensitivity
from tasks.measurement.encoded import EncodingDomain
from tasks.measurement.features import FeatureMap, build_feature_map
from tasks.measurement.plan import (
    MeasurementPlan,
    StatisticRequest,
    plan_measurement,
    sum_request,
)
from tasks.measurement.statistics import ROOT_SCALE, SECOND_MOMENT_SCALE
from tasks.measurement.synthesizer import PUBLIC_SEED
from tasks.synthesizers.clustmix.config import ClustMixConfig

SECOND_MOMENT = "second_moments"
FEATURE_LABEL = "feature_label_sums"
HISTOGRAMS = "cell_histograms"


def clustering_round(index: int) -> str:
    """Name of the statistic of clustering round ``index``, from 0."""
    return f"clustering_round_{index + 1}"


_RESIDUAL_ROUND = "residual_round_"


def residual_round(index: int) -> str:
    """Name of the statistic of residual round ``index``, from 0."""
    return f"{_RESIDUAL_ROUND}{index + 1}"


def feature_map_of(domain: EncodingDomain, config: ClustMixConfig) -> FeatureMap:
    """Public feature map of a domain under the settings."""
    return build_feature_map(
        domain,
        n_random=config.random_features,
        skip_weight=config.skip_weight,
        public_seed=PUBLIC_SEED,
        block_kind=None if config.features == "auto" else config.features,
    )


def calibrate(domain: EncodingDomain, config: ClustMixConfig, *, mu: float) -> MeasurementPlan:
    """Plan every noisy statistic of the chain for a Gaussian-DP budget.

    Privacy
    -------
    Reads no data. Sensitivities are those proved in ``tasks.measurement.statistics``,
    with the margin for double precision of ``privacy.sensitivity``.
    """
    feature_map = feature_map_of(domain, config)
    m = feature_map.n_features
    cells = config.slices * config.clusters_per_slice
    histogram_shape = (domain.n_labels, cells, domain.one_hot_width)
    shares = config.shares

    rounds, corrections = config.clustering_rounds, config.residual_rounds
    return plan_measurement(
        [
            *(
                sum_request(clustering_round(i), histogram_shape, share=shares.clustering / rounds)
                for i in range(rounds)
            ),
            StatisticRequest(
                name=SECOND_MOMENT,
                shape=(2, m * (m + 1) // 2),
                l2_sensitivity=second_moment_l2_sensitivity(
                    scale=ROOT_SCALE, max_fourth_power_sum=feature_map.max_fourth_power_sum
                ),
                scale=SECOND_MOMENT_SCALE,
                share=shares.second_moment,
            ),
            sum_request(FEATURE_LABEL, (2, m, domain.n_labels), share=shares.feature_label),
            sum_request(HISTOGRAMS, histogram_shape, share=shares.histograms),
            *(
                sum_request(
                    residual_round(i),
                    (m, domain.n_labels),
                    share=shares.residuals / corrections,
                    bound=float(np.sqrt(2.0)),
                )
                for i in range(corrections)
            ),
        ],
        mu=mu,
    )


def check_share(plan: MeasurementPlan, *, mu_left: float) -> None:
    """Refuse (IntegrityError) draws of mixing that need more than noise calibration hands it.

    `mu_left` is what `hold_against` returned.
    """
    own = [
        statistic.event
        for statistic in plan.statistics
        if statistic.name == HISTOGRAMS or statistic.name.startswith(_RESIDUAL_ROUND)
    ]
    accountant = GaussianAccountant(adjacency=Adjacency.ADD_REMOVE)
    needed = accountant.compose(ComposedEvent(events=tuple(own))).mu
    # The two sides were rounded on different ways; the plan as a whole was checked exactly.
    if needed > mu_left * (1.0 + 1e-6):
        raise IntegrityError(
            "SHARE_EXCEEDED",
            "expected mixing to draw within its share of the budget, found a plan that needs "
            "more; nothing is released",
        )
