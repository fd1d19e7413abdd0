"""Every method is described in the report, in steps of its own."""

from types import SimpleNamespace

import pytest

from privacy.accountants.calibration import gdp_rho
from privacy.event_records import event_to_dict
from privacy.events import ExponentialMechanismEvent, PoissonSampledGaussianEvent, RepeatedEvent
from tasks.methods.registry import METHODS
from tasks.reporting import facts
from tasks.reporting.facts import steps


def manifest_of(kind):
    return SimpleNamespace(method=SimpleNamespace(name=kind))


@pytest.mark.parametrize("kind", [entry.kind for entry in METHODS])
def test_every_method_has_steps_of_its_own(kind):
    first, *own, last = steps(manifest_of(kind)).items()
    assert (first[0], last[0]) == ("Encode", "Decode and check")
    others = [steps(manifest_of(entry.kind)) for entry in METHODS if entry.kind != kind]
    assert own
    assert steps(manifest_of(kind)) not in others
    for title, text in own:
        assert title[0].isupper()
        assert text.endswith(".")


def test_unknown_methods_have_general_steps():
    first, general, last = steps(manifest_of("another"))
    assert (first, general, last) == ("Encode", "Measure and synthesise", "Decode and check")
    assert "Images" in steps(manifest_of("clustmix"), images=True)["Anonymise"]


def test_series_and_choices_are_told_in_the_table_of_noise():
    series = RepeatedEvent(
        event=PoissonSampledGaussianEvent(
            statistic="gradients", noise_multiplier=1.5, sampling_probability=0.125, n_values=1000
        ),
        count=30,
    )
    choice = ExponentialMechanismEvent(statistic="query", epsilon=0.25, n_candidates=2000)
    events = tuple(event_to_dict(event) for event in (series, choice))
    first, second = facts.noise_table(SimpleNamespace(events=events)).rows
    how = "Gaussian on a random sample of 12.5 %, 30 times"
    assert first == ("gradients", how, "1,000", "1", "1.5", "1.50")
    how = "exponential mechanism, epsilon 0.25"
    assert second == ("query", how, "1 of 2,000", "-", "-", "-")


def test_a_sampled_release_is_charged_what_was_asked_for():
    asked = {"accountant": "approximate_gaussian", "request": {"epsilon": 1.0}, "delta": 1e-6}
    asked |= {"rho": 0.02793, "mu": 0.2364, "ledger_entry": "e-0"}
    charged = float(gdp_rho(epsilon=1.0, delta=1e-6))
    assert asked["rho"] < charged
    sentence = facts.budget_sentence(SimpleNamespace(**asked))
    assert sentence == "Charged to ledger entry e-0: rho = 0.02802 (mu = 0.2364)."
    exact = SimpleNamespace(**{**asked, "accountant": "gaussian"})
    assert "rho = 0.02793" in facts.budget_sentence(exact)
