"""Every draw of every proven method, held against its planned sensitivity by brute force.

A method is run; then each function that it had summed is asked again, with the arguments that were
really released, on the same table with one patient more.
"""

import itertools

import numpy as np
import pytest
from measuring import every_labelled_record, transcript_of

from audits.pairs import AUDIT_DOMAIN, AuditPatient, encode
from audits.subjects import NOISE, SUBJECTS
from tasks.measurement.curator import exact_sum, in_memory
from tasks.methods.registry import METHODS

RECORDS = every_labelled_record(AUDIT_DOMAIN)
"""Every record that there can be: twelve."""


def table_of(patients):
    return in_memory([encode(patients, n_columns=AUDIT_DOMAIN.n_columns)])


def made_up_patients():
    rng = np.random.default_rng(3)
    return [
        AuditPatient(
            records=tuple(RECORDS[i] for i in rng.integers(len(RECORDS), size=rng.integers(1, 4))),
            fold=int(rng.integers(5)),
        )
        for _ in range(30)
    ]


def possible_patients():
    """Every patient of one record, and some of several, in a fold of either kind."""
    rng = np.random.default_rng(4)
    yield from (AuditPatient(records=(record,), fold=fold) for record in RECORDS for fold in (0, 1))
    for _ in range(16):
        chosen = rng.integers(len(RECORDS), size=rng.integers(2, 5))
        yield AuditPatient(records=tuple(RECORDS[i] for i in chosen), fold=int(rng.integers(2)))


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_no_patient_moves_a_draw_by_more_than_planned(subject):
    others, method = made_up_patients(), subject.bind(AUDIT_DOMAIN)
    plan = method.plan(mu=1.0)
    draws, _ = transcript_of(method, table_of(others)[0].load(), mu=1.0)
    names = {noisy.event.statistic for noisy, *_ in draws}
    assert names == {planned.name for planned in plan.statistics}
    # The same function is asked in many rounds: the first and the last are enough.
    asked = {}
    for noisy, contribution, public in draws:
        name = noisy.event.statistic
        places = asked.setdefault((name.rstrip("0123456789"), contribution.__name__), [])
        places[1:] = [(name, contribution, public)]
    for name, contribution, public in itertools.chain(*asked.values()):
        planned = plan[name]
        without = exact_sum(contribution, public, table_of(others))
        most = 0.0
        for patient in possible_patients():
            change = exact_sum(contribution, public, table_of([*others, patient])) - without
            norm = np.linalg.norm(change.astype(np.float64))
            assert norm <= planned.l2_sensitivity, (name, norm)
            most = max(most, norm / planned.l2_sensitivity)
        # The bound means something: some patient comes near it, or moves the draw at least.
        assert most > 0.02, (name, most)


def test_every_proven_method_is_here():
    proven = {entry.kind for entry in METHODS}
    assert {subject.name for subject in SUBJECTS} == {*proven, NOISE}
