import pytest
from pydantic import TypeAdapter, ValidationError

from privacy.accountants.gaussian import GaussianAccountant
from privacy.calibration import gdp_mu
from privacy.parameters import Adjacency, Guarantee
from tasks.synthesizers.clustmix.config import ClustMixConfig
from tasks.synthesizers.clustmix.synthesizer import ClustMix
from tasks.synthesizers.naive_bayes import NaiveBayes, NaiveBayesConfig
from tasks.synthesizers.registry import METHODS, MethodConfig, build, method_entry

CONFIG = TypeAdapter(MethodConfig)
PROVEN = [entry.kind for entry in METHODS if entry.guarantee is Guarantee.PROVEN]


@pytest.mark.parametrize("kind", PROVEN)
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_every_proven_method_has_a_plan_that_composes_within_its_budget(kind, epsilon, small):
    method = build(CONFIG.validate_python({"kind": kind}), small.domain)
    assert method.guarantee is Guarantee.PROVEN
    mu = gdp_mu(epsilon=epsilon, delta=1e-6)
    plan = method.plan(mu=mu)
    accountant = GaussianAccountant(adjacency=Adjacency.ADD_REMOVE).compose(plan.event)
    assert mu * (1 - 1e-6) <= accountant.mu <= mu
    assert accountant.epsilon(delta=1e-6) <= epsilon
    assert all(statistic.noise_stddev >= 50 for statistic in plan.statistics)
    assert len({stage.name for stage in method.stages(mu=mu)}) == len(method.stages(mu=mu))


def test_registry_and_settings_name_the_same_methods(small):
    assert PROVEN == ["clustmix", "naive_bayes"]
    for entry in METHODS:
        assert method_entry(entry.kind) is entry
        assert CONFIG.validate_python({"kind": entry.kind}).kind == entry.kind
    assert isinstance(build(ClustMixConfig(), small.domain), ClustMix)
    assert isinstance(build(NaiveBayesConfig(), small.domain), NaiveBayes)
    with pytest.raises(KeyError, match="expected a registered method, found 'dpgm'"):
        method_entry("dpgm")


@pytest.mark.parametrize(
    "settings",
    [
        {"kind": "dpgm"},
        {"kind": "naive_bayes", "slices": 2},
        {"kind": "clustmix", "random_features": 3},
        {"kind": "clustmix", "skip_weight": 0.0},
        {"kind": "clustmix", "alphas": []},
        {"kind": "clustmix", "alphas": [1.5]},
        {"kind": "clustmix", "lambdas": [0.0]},
        {"kind": "clustmix", "lambdas": [float("nan")]},
        {"kind": "clustmix", "shares": {"clustering": float("inf")}},
        {"kind": "clustmix", "shares": {"clustering": 0.0}},
    ],
)
def test_settings_that_make_no_release_are_refused(settings):
    with pytest.raises(ValidationError):
        CONFIG.validate_python(settings)
