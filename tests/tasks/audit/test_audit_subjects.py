import pytest
from broken_mechanisms import BROKEN, REPAIRED

from tasks.audit.findings import ABOVE, WITHIN
from tasks.audit.subjects import NOISE, SUBJECTS, audit, subject_of

# A proven method or a repaired mechanism that is flagged is a false alarm. All audits are held to a
# confidence of 0.99995 each, so that all of them together give one with probability below 1e-3.
CONFIDENCE = 0.99995
N_AUDITS = 13

# Runs of each table. `make audit` takes thirty times as many.
AUDITS = [
    ("clustmix", 1.0, 20),
    ("clustmix", 4.0, 20),
    ("naive_bayes", 1.0, 200),
    ("naive_bayes", 4.0, 300),
    ("dp_cda", 4.0, 60),
    ("dpgm", 4.0, 20),
    ("dp_kmeans", 4.0, 100),
    (NOISE, 1.0, 200),
    (NOISE, 4.0, 300),
]


def test_false_alarms_of_this_file_are_bounded():
    assert len(AUDITS) + len(REPAIRED) <= N_AUDITS
    assert N_AUDITS * (1 - CONFIDENCE) < 1e-3
    assert {name for name, _, _ in AUDITS} == {subject.name for subject in SUBJECTS}


@pytest.mark.integration
@pytest.mark.parametrize(("name", "epsilon", "runs"), AUDITS)
def test_nothing_above_the_claim_of_a_proven_method(name, epsilon, runs):
    found = audit(subject_of(name), epsilon=epsilon, delta=1e-6, runs=runs, confidence=CONFIDENCE)
    assert found.verdict == WITHIN, found.to_dict()
    assert len(found.pairs) == 6
    assert (found.one_run is None) == (subject_of(name).canary_codes is None)
    if runs >= 300:
        # The audit is not blind: of five pairs with the full sensitivity one or more shows some.
        assert found.audited_mu > 0.0


@pytest.mark.integration
@pytest.mark.parametrize("mechanism", REPAIRED, ids=lambda mechanism: mechanism.name)
def test_nothing_above_the_claim_of_a_repaired_mechanism(mechanism):
    found = mechanism.audit(runs=mechanism.runs, confidence=CONFIDENCE)
    assert found.verdict == WITHIN, found.to_dict()


@pytest.mark.integration
@pytest.mark.parametrize("mechanism", BROKEN, ids=lambda mechanism: mechanism.name)
def test_every_planted_flaw_is_found(mechanism):
    # The bounds are four or more of their standard deviations above the claim on average.
    found = mechanism.audit(runs=mechanism.runs, confidence=0.999)
    assert found.verdict == ABOVE, found.to_dict()
    assert found.audited_epsilon > mechanism.claim.epsilon
    assert found.exit_code == 1
