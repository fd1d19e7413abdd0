import math
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.errors import IntegrityError
from privacy.events import Composed
from privacy.gaussian import GaussianAccountant
from privacy.parameters import Adjacency, PrivacyParameters
from tasks.measurement.measurement_plan import SumRequest, plan_measurement
from tasks.measurement.method import budget_left, checked_plan
from tasks.methods.clustmix.table_clustmix import TableClustMix

ACCOUNTANT = GaussianAccountant(adjacency=Adjacency.ADD_REMOVE)


def request(name, share, bound=1.0):
    return SumRequest(name, (3, 2), share=share, bound=bound)


@settings(max_examples=60, deadline=None)
@given(
    shares=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=12),
    bits=st.integers(20, 30),
    mu=st.floats(0.01, 10.0),
)
def test_composition_of_all_planned_events_is_within_the_target_and_uses_it(shares, bits, mu):
    requests = [request(f"s{i}", share, 2.0**bits / 2.0**24) for i, share in enumerate(shares)]
    plan = plan_measurement(requests, mu=mu)
    composed = ACCOUNTANT.compose(plan.event).mu
    assert mu * (1 - 1e-6) <= composed <= mu
    assert all(statistic.noise_stddev >= 50 for statistic in plan.statistics)
    total = sum(shares)
    for statistic, share in zip(plan.statistics, shares, strict=True):
        assert statistic.mu == pytest.approx(mu * math.sqrt(share / total))
        alone = ACCOUNTANT.compose(statistic.event_of(statistic.n_draws)).mu
        assert alone == pytest.approx(statistic.mu, rel=1e-6)


def test_a_budget_too_large_for_the_grid_still_gets_the_least_noise():
    plan = plan_measurement([request("s", 1.0, 100.0 / 2**24)], mu=1e3)
    assert plan["s"].noise_stddev == 50.0
    assert ACCOUNTANT.compose(plan.event).mu < 1e3


def test_events_carry_name_size_and_adjacency():
    plan = plan_measurement([request("s", 1.0)], mu=0.5)
    [event] = plan.event.events
    assert (event.statistic, event.n_values, event.adjacency) == ("s", 6, Adjacency.ADD_REMOVE)
    assert plan["s"].unit_noise_stddev == plan["s"].noise_stddev / 2**24


def test_budget_left_is_what_draws_leave_and_foreign_draws_are_refused(small):
    mu = 0.5
    method = TableClustMix(small.domain)
    plan = method.plan(mu=mu)
    events = plan.event.events

    def left(*happened):
        drawn = SimpleNamespace(plan=plan, event=Composed(events=happened))
        return budget_left(method, drawn, {})["mu_left"]

    assert left() == mu
    assert left(*events) == pytest.approx(0.0, abs=1e-3)
    spent = ACCOUNTANT.compose(Composed(events=events[:3])).mu
    assert left(*events[:3]) ** 2 + spent**2 == pytest.approx(mu**2)
    less_noise = replace(events[0], noise_stddev=events[0].noise_stddev * 0.999)
    for happened in (
        (less_noise,),
        events[::-1],
        (events[0], events[0]),
        (*events, events[-1]),
        events[1:],
    ):
        with pytest.raises(IntegrityError, match="expected exactly the planned draws so far"):
            left(*happened)


@pytest.mark.parametrize(
    ("times", "refused"),
    [(1.0, nullcontext()), (1.01, pytest.raises(IntegrityError, match="PLAN_OVER_BUDGET"))],
)
def test_a_plan_above_its_budget_is_refused(times, refused):
    def plan(mu):
        return plan_measurement([request("a", 1.0)], mu=mu * times)

    parameters = PrivacyParameters(epsilon=1.0, delta=1e-6)
    with refused:
        checked_plan(
            SimpleNamespace(plan=plan), parameters=parameters, adjacency=Adjacency.ADD_REMOVE
        )
