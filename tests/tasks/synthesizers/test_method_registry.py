import numpy as np
import pytest
from measuring import assert_valid, random_records
from pydantic import TypeAdapter, ValidationError

from flows.stages import text_of
from privacy.accountants.approximate_gaussian import ApproximateGaussianAccountant
from privacy.accountants.calibration import gdp_mu
from privacy.parameters import Adjacency, PrivacyParameters
from tasks.measurement.plan import PlannedStatistic
from tasks.synthesizers.naive_bayes import NaiveBayes, NaiveBayesConfig
from tasks.synthesizers.registry import METHODS, build, build_paper, method_entry
from tasks.synthesizers.settings import MethodConfig

CONFIG = TypeAdapter(MethodConfig)
PROVEN = [entry.kind for entry in METHODS if entry.proven is not None]


SETTINGS = {
    "dp_cda": {"sampling": "poisson", "mixtures_per_class": 20, "order_of_mixture": 8},
    "dp_merf": {"fourier_features": 10, "hidden_units": [4], "steps_per_stage": 2},
    "dp_mix": {"n_mixtures": 20, "declared_patients": 200},
    "dpgm": {"clusters": 2, "hidden_units": 2, "fourier_features": 4, "epochs": 2},
    "random_projection": {"n_projected": 2},
}
"""Small, and such that a series of samples is planned where a method has one."""


def settings_of(kind):
    return CONFIG.validate_python({"kind": kind, **SETTINGS.get(kind, {})})


@pytest.mark.parametrize("kind", PROVEN)
@pytest.mark.parametrize("epsilon", [pytest.param(0.1, marks=pytest.mark.integration), 3.0])
def test_every_proven_method_has_a_plan_that_composes_within_its_budget(kind, epsilon, small):
    method = build(settings_of(kind), small.domain)
    mu = gdp_mu(epsilon=epsilon, delta=1e-6)
    plan = method.plan(mu=mu)
    accountant = ApproximateGaussianAccountant(adjacency=Adjacency.ADD_REMOVE).compose(plan.event)
    # A series is calibrated to one part in 1,000, and leaves something for its slack.
    room = 3e-3 if accountant.slack_delta > 0 else 1e-6
    assert mu * (1 - room) <= accountant.mu <= mu
    assert accountant.epsilon(delta=1e-6) <= epsilon
    assert all(
        statistic.noise_stddev >= 50
        for statistic in plan.statistics
        if isinstance(statistic, PlannedStatistic)
    )
    names = [stage.name for stage in method.stages(mu=mu)]
    assert len(set(names)) == len(names)
    # What an operator reads while it runs.
    assert all(text_of(name) for name in names)


# ClustMix as printed takes long, and the flow of the benchmark runs it in a test of its own.
PUBLISHED = [e.kind for e in METHODS if e.has_paper_form and e.kind != "clustmix"]


@pytest.mark.integration
@pytest.mark.parametrize("kind", PUBLISHED)
def test_every_paper_form_makes_valid_records(kind, small):
    codes, labels = random_records(small.domain, 120, 5)
    published = {"dpgm": {"epochs": 1, "sampling_probability": 0.2, "clustering_rounds": 2}}
    changes = {"published": published[kind]} if kind in published else {}
    config = CONFIG.validate_python({**settings_of(kind).model_dump(), **changes})
    method = build_paper(config, small.domain, PrivacyParameters(epsilon=10.0, delta=1e-5))
    found, found_labels = method.synthesize(codes, labels, np.random.default_rng(6))
    assert len(found) > 0
    assert_valid(small.domain, found, found_labels, len(found))


def test_registry_and_settings_name_the_same_methods(small):
    assert PROVEN == [entry.kind for entry in METHODS]
    for entry in METHODS:
        assert method_entry(entry.kind) is entry
        assert CONFIG.validate_python({"kind": entry.kind}).kind == entry.kind
    assert isinstance(build(NaiveBayesConfig(), small.domain), NaiveBayes)
    with pytest.raises(KeyError, match="expected a registered method, found 'gan'"):
        method_entry("gan")


@pytest.mark.parametrize(
    "settings",
    [
        {"kind": "gan"},
        {"kind": "naive_bayes", "slices": 2},
        {"kind": "clustmix", "random_features": 3},
        {"kind": "dpgm", "fourier_features": 7},
        {"kind": "dp_kmeans", "n_features": 3},
        {"kind": "dp_merf", "fourier_features": 3},
    ],
)
def test_settings_that_make_no_release_are_refused(settings):
    with pytest.raises(ValidationError):
        CONFIG.validate_python(settings)
