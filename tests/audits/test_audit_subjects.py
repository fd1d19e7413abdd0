import pytest
from broken_mechanisms import BROKEN, CLAIM, REPAIRED

from audits.subjects import NOISE, SUBJECTS, audit, subject_of

# A method or a repaired mechanism that is flagged is a false alarm. All audits are held to a
# confidence of 0.99995 each, so that all of them together give one with probability below 1e-3.
CONFIDENCE = 0.99995
N_AUDITS = 18

# Runs of each table, at epsilon 4. `make audit` takes thirty times as many.
RUNS = {"clustmix": 20, "naive_bayes": 300, "dp_cda": 60, "dp_kmeans": 60, "dpgm": 20, NOISE: 300}


def test_false_alarms_of_this_file_are_bounded():
    assert len(RUNS) + len(REPAIRED) <= N_AUDITS
    assert N_AUDITS * (1 - CONFIDENCE) < 1e-3
    assert RUNS.keys() == {subject.name for subject in SUBJECTS}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.integration] * (name in ("clustmix", "dpgm")))
        for name in RUNS
    ],
)
def test_nothing_above_the_claim_of_a_proven_method(name):
    found = audit(subject_of(name), epsilon=4.0, delta=1e-6, runs=RUNS[name], confidence=CONFIDENCE)
    assert found.within_claim, found.to_dict()
    assert len(found.pairs) == 6
    if RUNS[name] >= 300:
        # The audit is not blind: of five pairs with the full sensitivity one or more shows some.
        assert found.audited_mu > 0.0


@pytest.mark.parametrize("mechanism", REPAIRED, ids=lambda mechanism: mechanism.name)
def test_nothing_above_the_claim_of_a_repaired_mechanism(mechanism):
    found = mechanism.audit(runs=mechanism.runs, confidence=CONFIDENCE)
    assert found.within_claim, found.to_dict()


@pytest.mark.parametrize("mechanism", BROKEN, ids=lambda mechanism: mechanism.name)
def test_every_planted_flaw_is_found(mechanism):
    # The bounds are four or more of their standard deviations above the claim on average.
    found = mechanism.audit(runs=mechanism.runs, confidence=0.999)
    assert not found.within_claim, found.to_dict()
    assert found.audited_epsilon > CLAIM.epsilon
