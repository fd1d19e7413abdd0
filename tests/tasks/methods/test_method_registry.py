import pytest
from pydantic import TypeAdapter, ValidationError

from flows.stages import text_of
from privacy.calibration import gdp_mu
from privacy.gaussian import GaussianAccountant
from privacy.parameters import Adjacency
from tasks.methods.method_config import MethodConfig
from tasks.methods.naive_bayes import NaiveBayes, NaiveBayesConfig
from tasks.methods.registry import METHODS, build, method_entry

CONFIG = TypeAdapter(MethodConfig)
PROVEN = [entry.kind for entry in METHODS]


SETTINGS = {
    "dp_cda": {"order_of_mixture": 8},
    "dpgm": {"clusters": 2, "hidden_units": 2, "fourier_features": 4, "epochs": 2},
}
"""Small, for methods that train."""


def settings_of(kind):
    return CONFIG.validate_python({"kind": kind, **SETTINGS.get(kind, {})})


@pytest.mark.parametrize("kind", PROVEN)
@pytest.mark.parametrize("epsilon", [pytest.param(0.1, marks=pytest.mark.integration), 3.0])
def test_every_proven_method_has_a_plan_that_composes_within_its_budget(kind, epsilon, small):
    method = build(settings_of(kind), small.domain)
    mu = gdp_mu(epsilon=epsilon, delta=1e-6)
    plan = method.plan(mu=mu)
    accountant = GaussianAccountant(adjacency=Adjacency.ADD_REMOVE).compose(plan.event)
    assert mu * (1 - 1e-6) <= accountant.mu <= mu
    assert accountant.epsilon(delta=1e-6) <= epsilon
    assert all(statistic.noise_stddev >= 50 for statistic in plan.statistics)
    names = [stage.name for stage in method.stages(mu=mu)]
    assert len(set(names)) == len(names)
    # What an operator reads while it runs.
    assert all(text_of(name) for name in names)


def test_registry_and_settings_name_the_same_methods(small):
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
        {"kind": "mwem"},
    ],
)
def test_settings_that_make_no_release_are_refused(settings):
    with pytest.raises(ValidationError):
        CONFIG.validate_python(settings)
