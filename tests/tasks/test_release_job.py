import dataclasses
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.site.request import job_of
from flows.site.site_file import load_site
from privacy.charges import RHO_STEP
from privacy.gaussian import GaussianAccountant
from privacy.parameters import Adjacency, PrivacyParameters
from storage.ledger.ledger_db import LedgerDatabase

SITE = Path(__file__).parents[2] / "deployments" / "sites" / "breast-cancer.yaml"
JOB = job_of(load_site(SITE), "r-20260101-00000000")


@given(
    epsilon=st.floats(0.01, 20.0),
    delta=st.sampled_from([1e-9, 1e-6, 1e-5, 9e-4]),
    adjacency=st.sampled_from(Adjacency),
)
def test_the_plan_meets_the_target_and_the_charge_covers_it(epsilon, delta, adjacency):
    parameters = PrivacyParameters(epsilon=epsilon, delta=delta)
    job = dataclasses.replace(JOB, parameters=parameters, adjacency=adjacency)
    event = job.synthesizer.plan(mu=job.mu).event
    accountant = GaussianAccountant(adjacency=adjacency).compose(event)
    assert accountant.epsilon(delta=delta) <= epsilon
    # Little is given away: the budget is used up to the step of the ledger.
    assert accountant.epsilon(delta=delta) >= 0.99 * epsilon
    in_currency = GaussianAccountant(adjacency=Adjacency.ADD_REMOVE).compose(event)
    assert Decimal(in_currency.rho) <= job.charge_rho
    assert job.charge_rho == job.charge_rho.quantize(RHO_STEP)


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_a_lifetime_of_one_release_pays_for_exactly_one(adjacency, tmp_path):
    site = load_site(SITE)
    privacy = site.privacy.model_copy(update={"adjacency": adjacency})
    budget = site.budget.model_copy(update={"lifetime_epsilon": privacy.epsilon})
    once = site.model_copy(update={"privacy": privacy, "budget": budget})
    job = job_of(once, "r-20260101-00000000")
    ledger = LedgerDatabase(tmp_path / "ledger.sqlite")
    assert ledger.reserve(job.charge("0" * 64, owner="i-0123456789abcdef")).created
    assert ledger.balance(job.cohort).remaining_rho == 0
