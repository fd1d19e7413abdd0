from dataclasses import replace
from decimal import Decimal

import pytest

from privacy.accountants.approximate_gaussian import ApproximateGaussianAccountant, series_mu
from privacy.accountants.gaussian import GaussianAccountant, unsampled_draw
from privacy.accountants.renyi import RenyiAccountant
from privacy.charges import RHO_STEP, charged_rho
from privacy.events import (
    ComposedEvent,
    DiscreteGaussianEvent,
    GaussianEvent,
    PoissonSampledGaussianEvent,
    RepeatedEvent,
)
from privacy.parameters import Adjacency, ProtectedUnit
from storage.releases.bundles import totals_of

GAUSSIAN = DiscreteGaussianEvent(statistic="a", l2_sensitivity=10.0, noise_stddev=100.0, n_values=1)
POISSON = PoissonSampledGaussianEvent(
    statistic="p", noise_multiplier=2.0, sampling_probability=0.1, n_values=1
)


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        ((), GaussianAccountant),
        ((GAUSSIAN,), GaussianAccountant),
        ((GAUSSIAN, POISSON), RenyiAccountant),
    ],
)
def test_a_replacement_is_answered_exactly_and_of_samples_by_renyi_bounds(events, kind):
    found = totals_of(events, adjacency=Adjacency.ADD_REMOVE, delta=1e-6)
    replaced = kind(adjacency=Adjacency.REPLACE_ONE).compose(ComposedEvent(events=events))
    assert found.replace_one_epsilon == replaced.epsilon(delta=1e-6)
    assert found.replace_one_epsilon >= found.epsilon >= 0


def test_a_ledger_books_poisson_samples_with_the_gain_of_sampling():
    event = ComposedEvent(events=(GAUSSIAN, RepeatedEvent(event=POISSON, count=8)))
    exact = Decimal(100) / Decimal(10_000 - 16) / 2
    mu = series_mu(sampling_probability=0.1, noise_multiplier=2.0, steps=8)
    accountant = ApproximateGaussianAccountant(adjacency=Adjacency.ADD_REMOVE)
    rho = charged_rho(accountant.compose(event).rho)
    assert exact + Decimal(mu) ** 2 / 2 <= rho <= exact + Decimal(mu) ** 2 / 2 + 2 * RHO_STEP
    # An eighth of the amount without sampling.
    assert rho - exact < Decimal("0.125")


def test_the_draw_from_everybody_is_about_the_same_unit():
    everybody = GaussianEvent(
        statistic="p", l2_sensitivity=1.0, noise_stddev=2.0, n_values=1, unit=ProtectedUnit.ROW
    )
    assert unsampled_draw(replace(POISSON, unit=ProtectedUnit.ROW)) == everybody
