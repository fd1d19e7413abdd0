import numpy as np
import pytest

from audits import game
from audits.pairs import AUDIT_DOMAIN, AuditPatient, neighbour_pairs
from audits.subjects import PatientCount, subject_of
from benchmarks.in_process import SeededNoise
from privacy.randomness import OperatingSystemNoise

PAIRS = {pair.name: pair for pair in neighbour_pairs(AUDIT_DOMAIN)}


@pytest.mark.parametrize("pair", PAIRS.values(), ids=lambda pair: pair.name)
def test_tables_of_a_pair_differ_in_one_patient_of_weight_one(pair):
    absent, present = pair.rows(present=False), pair.rows(present=True)
    extra = len(pair.patient.records)
    assert len(present) == len(absent) + extra
    for field in ("codes", "label", "weight", "fold"):
        np.testing.assert_array_equal(getattr(present, field)[:-extra], getattr(absent, field))
    assert present.weight[-extra:].sum() == pytest.approx(1.0)
    assert len(set(present.fold[-extra:])) == 1
    assert (present.codes < np.array(AUDIT_DOMAIN.n_codes)).all()
    assert (present.label < AUDIT_DOMAIN.n_labels).all()


@pytest.mark.parametrize("name", ["clustmix", "naive_bayes", "noise"])
def test_a_run_is_that_of_a_release_and_its_draws_are_those_of_the_plan(name):
    synthesizer = subject_of(name).bind(AUDIT_DOMAIN)
    plan, pair = synthesizer.plan(mu=1.0), PAIRS["outlier"]
    for present in (False, True):
        seen = game.play_once(
            synthesizer, pair, mu=1.0, present=present, noise_source=OperatingSystemNoise()
        )
        assert [d.name for d in seen.draws] == [s.name for s in plan.statistics]
        for d, statistic in zip(seen.draws, plan.statistics, strict=True):
            exact, other = (d.present, d.absent) if present else (d.absent, d.present)
            assert d.noise_stddev == statistic.noise_stddev
            difference = np.linalg.norm((d.present - d.absent).astype(float))
            assert 0 < difference <= statistic.l2_sensitivity
            # Eight standard deviations of the noise, and far less than that from nothing.
            assert np.abs(d.values - exact).max() < 8 * statistic.noise_stddev
            assert not np.array_equal(d.values, exact)
            assert other.shape == exact.shape
        assert len(seen.codes) == len(seen.labels)


def test_ratios_of_a_count_have_the_moments_that_its_budget_says():
    # Under mu-GDP with one exact attack the ratio is N(-mu**2/2, mu**2) and N(mu**2/2, mu**2).
    # 2000 runs: means within 5 standard errors, the rate of a false alarm is below 1e-5; a noise
    # of 0.7 or 1.3 of the planned one is 9 or more standard errors away.
    mu, runs, seeds = 0.8, 2_000, iter(range(10**6))
    scores = game.play(
        PatientCount(AUDIT_DOMAIN),
        PAIRS["empty table"],
        mu=mu,
        runs=runs,
        attacks=(game.likelihood_ratios,),
        new_noise_source=lambda: SeededNoise(next(seeds)),
    )
    assert scores.names == ("all draws", "draw patient_count")
    for values, mean in ((scores.absent[:, 0], -(mu**2) / 2), (scores.present[:, 0], mu**2 / 2)):
        assert abs(values.mean() - mean) < 5 * mu / np.sqrt(runs)
        assert abs(values.std() / mu - 1) < 5 / np.sqrt(2 * runs)


def test_noise_is_in_standard_deviations_and_counts_are_of_the_patients_first_record():
    sums = {name: np.array(two) for name, two in (("absent", [0, 10]), ("present", [0, 0]))}
    draw = game.Draw(name="count", values=np.array([120, 70]), noise_stddev=60.0, **sums)
    seen = game.Transcript(
        draws=(draw,),
        codes=np.array([(2, 1), (2, 0), (2, 1), (0, 0)]),
        labels=np.array([1, 1, 0, 1]),
        patient=AuditPatient(records=(((2, 1), 1),), fold=0),
    )
    assert game.noise_sizes(seen) == {"size of the noise": pytest.approx(2.0**2 + 1.0**2)}
    assert game.synthetic_counts(seen) == {
        "synthetic rows with the label": 3.0,
        "synthetic codes of the patient": 3.0,
        "synthetic copies of the patient": 1.0,
    }
