"""Every draw of every proven method, held against its planned sensitivity by brute force.

A method is run; then each function that it had summed is asked again, with the arguments that were
really released, on the same table with one patient more. A sampled draw is asked with everybody in
the sample, where the patient counts most.
"""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from privacy.mechanisms import SelectedCandidate
from privacy.parameters import Guarantee
from privacy.randomness import SeededNoise
from tasks.audit.pairs import AUDIT_DOMAIN, AuditPatient, encode
from tasks.audit.subjects import NOISE, SUBJECTS
from tasks.measurement.curator import Curator, InProcessCompute
from tasks.measurement.sampling import COINS
from tasks.measurement.synthesizer import measure
from tasks.synthesizers.registry import METHODS

RECORDS = [
    (codes, label)
    for codes in itertools.product(*(range(width) for width in AUDIT_DOMAIN.n_codes))
    for label in range(AUDIT_DOMAIN.n_labels)
]
"""Every record that there can be: twelve."""


def table_of(patients):
    return InProcessCompute([encode(patients, n_columns=AUDIT_DOMAIN.n_columns)])


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


class Recorder(InProcessCompute):
    """Notes which function was summed, with which arguments, for which planned draw."""

    def __init__(self, patients):
        super().__init__([encode(patients, n_columns=AUDIT_DOMAIN.n_columns)])
        self._last = None
        self.draws = []

    def sum(self, contribution, public):
        self._last = contribution, public
        return super().sum(contribution, public)

    def seal(self, name, noisy):
        self.draws.append(
            (noisy.event.statistic, isinstance(noisy, SelectedCandidate), *self._last)
        )


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_no_patient_moves_a_draw_by_more_than_planned(subject):
    others = made_up_patients()
    recorder, method = Recorder(others), subject.bind(AUDIT_DOMAIN)
    plan = method.plan(mu=1.0)
    curator = Curator(plan=plan, compute=recorder, noise_source=SeededNoise(1), seal=recorder.seal)
    measure(method, curator, mu=1.0)
    assert {name for name, *_ in recorder.draws} == {planned.name for planned in plan.statistics}
    # The same function is asked in many rounds: the first and the last are enough.
    asked = {}
    for name, is_choice, contribution, public in recorder.draws:
        places = asked.setdefault((name.rstrip("0123456789"), contribution.__name__), [])
        places[1:] = [(name, is_choice, contribution, public)]
    for name, is_choice, contribution, arguments in itertools.chain(*asked.values()):
        public = dict(arguments)
        if COINS in public:
            public[COINS] = replace(public[COINS], probability=1.0)
        planned = plan.planned(name)
        without = table_of(others).sum(contribution, public)
        most = 0.0
        for patient in possible_patients():
            change = table_of([*others, patient]).sum(contribution, public) - without
            if is_choice:
                assert np.abs(change).max() <= planned.score_sensitivity
                most = max(most, np.abs(change).max() / planned.score_sensitivity)
                continue
            draws = change.reshape(public[COINS].n_draws if COINS in public else 1, -1)
            norms = np.sqrt((draws.astype(np.float64) ** 2).sum(axis=1))
            assert (norms <= planned.l2_sensitivity).all(), (name, norms.max())
            most = max(most, norms.max() / planned.l2_sensitivity)
        # The bound means something: some patient comes near it, or moves the draw at least.
        assert most > 0.02, (name, most)


def test_every_proven_method_is_here():
    proven = {entry.kind for entry in METHODS if entry.guarantee is Guarantee.PROVEN}
    assert {subject.name for subject in SUBJECTS} == {*proven, NOISE}
