"""Attacks on every method: short ones with the tests, long ones with ``make audit``."""

import json

import pytest
from broken_mechanisms import BROKEN, CLAIM, REPAIRED

from audits.command import write
from audits.subjects import NOISE, SUBJECTS, audit, subject_of
from tests.processes import ROOT

OUTPUT = ROOT / "audit-output"
LONG = (pytest.mark.audit, pytest.mark.timeout(3600))

# A method or a repaired mechanism that is flagged is a false alarm. At this confidence, all audits
# of one command together give one with probability below 1e-3.
CONFIDENCE, LONG_CONFIDENCE = 0.99995, 0.99997

# Runs of each table, at epsilon 4. `make audit` takes thirty times as many.
RUNS = {"clustmix": 20, "naive_bayes": 300, "dp_cda": 60, "dp_kmeans": 60, "dpgm": 20, NOISE: 300}

# Share of the claimed mu that a long audit at epsilon 4 must reach, so that it is known to see.
# The many draws of a training hide most of it.
REACHED = {"clustmix": 0.3, "dp_cda": 0.4, "dp_kmeans": 0.4, "naive_bayes": 0.7, NOISE: 0.75}

LONG_AUDITS = [(subject.name, epsilon) for subject in SUBJECTS for epsilon in (1.0, 4.0)]
MORE_RUNS = pytest.mark.parametrize("more", [1, pytest.param(5, marks=LONG)])


def test_false_alarms_are_bounded():
    assert RUNS.keys() == {subject.name for subject in SUBJECTS}
    assert (len(RUNS) + len(REPAIRED)) * (1 - CONFIDENCE) < 1e-3
    assert (len(LONG_AUDITS) + len(REPAIRED)) * (1 - LONG_CONFIDENCE) < 1e-3


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


@pytest.mark.parametrize(
    ("name", "epsilon"), [pytest.param(*one, marks=LONG) for one in LONG_AUDITS]
)
def test_nothing_above_the_claim_in_many_runs(name, epsilon):
    subject = subject_of(name)
    found = audit(
        subject, epsilon=epsilon, delta=1e-6, runs=subject.runs, confidence=LONG_CONFIDENCE
    )
    write(found, OUTPUT)
    assert found.within_claim, found.to_dict()
    if epsilon == 4.0:
        # Of DPGM nothing shows in as many runs as there is time for.
        assert name == "dpgm" or found.audited_mu > REACHED[name] * found.claim.mu


@MORE_RUNS
@pytest.mark.parametrize("mechanism", REPAIRED, ids=lambda mechanism: mechanism.name)
def test_nothing_above_the_claim_of_a_repaired_mechanism(mechanism, more):
    confidence = CONFIDENCE if more == 1 else LONG_CONFIDENCE
    found = mechanism.audit(runs=more * mechanism.runs, confidence=confidence)
    assert found.within_claim, found.to_dict()


@MORE_RUNS
@pytest.mark.parametrize("mechanism", BROKEN, ids=lambda mechanism: mechanism.name)
def test_every_planted_flaw_is_found(mechanism, more):
    # The bounds are four or more of their standard deviations above the claim on average.
    found = mechanism.audit(runs=more * mechanism.runs, confidence=0.999)
    if more > 1:
        path, drawing = write(found, OUTPUT)
        path.write_text(json.dumps({**found.to_dict(), "planted": True}, indent=2) + "\n", "utf-8")
        drawing.unlink()
    assert not found.within_claim, found.to_dict()
    assert found.audited_epsilon > CLAIM.epsilon
