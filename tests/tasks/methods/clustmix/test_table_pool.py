"""Pools of measurements: one part is its release, several are the table that they make up."""

from dataclasses import replace

import numpy as np
import pytest
from measuring import domain_with, in_shards, rows_with, transcript_of

from privacy.errors import IntegrityError
from tasks.measurement.pooled_sums import joint_mu, part_of, pool_of, redrawn, sums_of
from tasks.methods.clustmix.table_clustmix import Effort, TableClustMix
from tasks.methods.naive_bayes import NaiveBayes

N = 1_500
DOMAIN = domain_with(
    5, 2, 12, 3, numeric=(0, 2), missing=(0,), labels=("a", "b", "c"), rows_per_patient=2,
    patients=N,
)  # fmt: skip
EFFORT = Effort(starts=1, steps=200, fit_rows=2_000, points=60)
METHODS = (TableClustMix(DOMAIN, EFFORT), NaiveBayes(DOMAIN))


def table(seed=1):
    rng = np.random.default_rng(seed)
    label = rng.choice(3, N, p=[0.6, 0.3, 0.1])
    widths = enumerate(DOMAIN.n_codes)
    codes = [np.minimum(rng.poisson(0.3 * k * (1 + (label + j) % 3) / 2), k - 1) for j, k in widths]
    return rows_with(np.column_stack(codes), label)


def measured(method, rows, *, mu, seed=1):
    """A release, and the part that it is in a pool."""
    plan = method.plan(mu=mu)
    drawn, released = transcript_of(method, rows, mu=mu, seed=seed)
    sealed = {noisy.event.statistic: noisy.values for noisy, *_ in drawn}
    sums = sums_of(plan, sealed)
    return released, part_of(method, plan, released, sums=sums, events=plan.event.events)


@pytest.mark.parametrize("method", [*METHODS, TableClustMix(replace(DOMAIN, parts=4), EFFORT)])
def test_a_pool_of_one_is_its_release(method):
    released, part = measured(method, table(), mu=0.8)
    found, sums = method.pooled([part])
    for name, values in found.items():
        np.testing.assert_allclose(values, released[name], atol=2e-4, err_msg=name)
    assert released.keys() - found.keys() <= {"n_codes", "n_visits", "mu_left"}
    assert sums
    for name, values in sums.items():
        np.testing.assert_array_equal(values, part[name])


@pytest.mark.parametrize("method", METHODS, ids=["clustmix", "naive_bayes"])
def test_parts_add_up_to_the_table_that_they_make_up(method):
    # Of unequal size, each with a choice of pairs and groups of its own, with hardly any noise.
    order, mu = np.arange(N), 500.0
    parts = [
        measured(method, rows, mu=mu, seed=seed)[1]
        for seed, rows in enumerate(in_shards(table(), order, [100, 900]))
    ]
    whole, _ = measured(method, table(), mu=mu)
    found = method.pooled(parts)[0]
    for name in ("counts_by_label", "code_shares", "label_shares", "marginals"):
        if name in whole:
            np.testing.assert_allclose(found[name], whole[name], atol=0.02 * whole[name].max())
    rng = np.random.default_rng(0)
    records = [method.sample(of, n_rows=20_000, rng=rng) for of in (found, whole)]
    joint = [
        np.bincount(codes[:, 2] * 3 + label, minlength=36) / len(label) for codes, label in records
    ]
    assert np.abs(joint[0] - joint[1]).sum() / 2 < 0.03


def test_noise_adds_in_squares():
    parts = [{"mu": np.array(0.5), "patients": np.array(float(n))} for n in (1_000, 3_000)]
    assert joint_mu(parts) == (4_000.0, pytest.approx(0.5 / np.sqrt(2.0)))
    part = {"sum_x": np.zeros((2, 5_000)), "stddev_x": np.array(3.0), "log_odds": np.ones(2)}
    again = redrawn(part, np.random.default_rng(1))
    assert again["sum_x"].std() == pytest.approx(3.0, rel=0.05)
    assert (again["log_odds"] == 1.0).all()


WRONG = {
    "of another shape": lambda part: {"sum_label_counts": part["sum_label_counts"][:, 1:]},
    "not finite": lambda part: {"stddev_pair_tables": np.array(np.nan)},
    "without noise": lambda part: {"stddev_label_counts": np.array(0.0)},
    "of text": lambda part: {"mu": np.array("1")},
    "of groups that are none": lambda part: {"code_groups": part["code_groups"] + 1},
    "of too few cells": lambda part: {"sum_pair_tables": part["sum_pair_tables"][:20]},
    "unknown": lambda part: {"sum_more": np.zeros(3)},
    "of a kernel": lambda part: {"kernel_points": np.zeros(3)},
}


@pytest.mark.parametrize("how", WRONG)
def test_arrays_that_are_no_part_are_refused(how):
    method = METHODS[0]
    _, part = measured(method, table(), mu=0.8)
    part = {name: own for name, own in part.items() if "kernel" not in name}
    with pytest.raises(IntegrityError, match="PART_INVALID"):
        pool_of(method, [part, {**part, **WRONG[how](part)}])
