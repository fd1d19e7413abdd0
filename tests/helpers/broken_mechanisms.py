"""Mechanisms that are broken on purpose, each beside its repaired form, for the audits' tests."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from audits.findings import AuditResult, Claim, judge_pair
from audits.game import ATTACKS, play
from audits.pairs import AUDIT_DOMAIN, AuditPatient, neighbour_pairs
from audits.subjects import PatientCount, patient_count, subject_of
from benchmarks.in_process import SeededNoise
from privacy.randomness import OperatingSystemNoise
from tasks.measurement.measurement_plan import SumRequest, plan_measurement
from tasks.measurement.method import Stage
from tasks.measurement.statistics import SUM_SCALE

PAIRS = {pair.name: pair for pair in neighbour_pairs(AUDIT_DOMAIN)}
CLAIM = Claim.of_budget(epsilon=4.0, delta=1e-6)


@dataclass(frozen=True)
class Mechanism:
    """A mechanism of the claim `CLAIM`, played on two neighbouring tables."""

    name: str
    method: object
    pair: object
    runs: int
    attacks: tuple = ATTACKS
    noise: Callable = OperatingSystemNoise

    def audit(self, *, runs, confidence):
        scores = play(
            self.method,
            self.pair,
            mu=CLAIM.mu,
            runs=runs,
            attacks=self.attacks,
            new_noise_source=self.noise,
        )
        finding = judge_pair(self.name, scores, delta=CLAIM.delta, confidence=confidence)
        return AuditResult(
            method=self.name, claim=CLAIM, confidence=confidence, runs=2 * runs, pairs=(finding,)
        )


NAIVE_BAYES = subject_of("naive_bayes").bind(AUDIT_DOMAIN)


class HalvedNoise:
    tainted = False

    def discrete_gaussian(self, shape, *, noise_stddev):
        return OperatingSystemNoise().discrete_gaussian(shape, noise_stddev=noise_stddev / 2)


@dataclass(frozen=True)
class WholeWeights:
    """A pair in which every row of a patient counts in full."""

    pair: object

    @property
    def patient(self):
        return self.pair.patient

    def rows(self, *, present):
        rows = self.pair.rows(present=present)
        return replace(rows, weight=np.ones(len(rows)))


def age_sum(rows, *, divisor, clip):
    age = rows.codes[:, 0] / divisor
    return np.array([np.trunc(rows.weight * np.minimum(age, clip) * SUM_SCALE).sum()], np.int64)


def age_sum_by_own_largest(rows):
    return age_sum(rows, divisor=max(int(rows.codes[:, 0].max(initial=1)), 1), clip=1.0)


@dataclass(frozen=True)
class AgeSum(PatientCount):
    """A sum of ages in place of the count, with the plan of the count: sensitivity one."""

    contribution: Callable = patient_count
    public: tuple = ()

    def stages(self):
        def run(curator, released):
            name = curator.plan.statistics[0].name
            return {name: curator.release(name, self.contribution, **dict(self.public))}

        return (Stage(name="sum", run=run),)


ADULTS = replace(
    PAIRS["outlier"],
    name="oldest",
    others=tuple(AuditPatient(records=(((1, 0), 0),), fold=1) for _ in range(20)),
)


def nobody(rows):
    return np.zeros(1, dtype=np.int64)


class CountedAndNot(PatientCount):
    """The count, and beside it a count of nobody, of the same size."""

    def plan(self, *, mu):
        requests = [SumRequest(name, (1,), share=1.0) for name in ("everybody", "nobody")]
        return plan_measurement(requests, mu=mu)

    def stages(self):
        def run(curator, released):
            counted = {"everybody": patient_count, "nobody": nobody}
            return {name: curator.release(name, each) for name, each in counted.items()}

        return (Stage(name="counts", run=run),)


class ReusedNoise:
    """One vector for all statistics of a size, stretched to the planned scale."""

    tainted = False

    def __init__(self):
        self._kept = {}

    def discrete_gaussian(self, shape, *, noise_stddev):
        size = int(np.prod(shape))
        if size not in self._kept:
            noise = OperatingSystemNoise().discrete_gaussian(shape, noise_stddev=noise_stddev)
            self._kept[size] = noise.reshape(-1) / noise_stddev
        return np.rint(self._kept[size] * noise_stddev).astype(np.int64).reshape(shape)


# Seeded noise: another seed in every run, a counter, which the attacker knows.

SEEDS_OF_RUNS, SEEDS_OF_ATTACK = count(), count()


def subtract_known_noise(transcript):
    source = SeededNoise(next(SEEDS_OF_ATTACK))
    score = 0.0
    for draw in transcript.draws:
        noise = source.discrete_gaussian(draw.values.shape, noise_stddev=draw.noise_stddev)
        guessed = (draw.values - noise).astype(float)
        far = np.sum((guessed - draw.absent) ** 2) - np.sum((guessed - draw.present) ** 2)
        score += float(far) / draw.noise_stddev**2
    return {"known noise": score}


BROKEN = (
    Mechanism("noise halved", NAIVE_BAYES, PAIRS["outlier"], 1_000, noise=HalvedNoise),
    Mechanism(
        "row not clipped",
        AgeSum(AUDIT_DOMAIN, contribution=age_sum, public=(("divisor", 1.0), ("clip", 9.0))),
        PAIRS["outlier"],
        800,
    ),
    Mechanism("contribution not bounded", NAIVE_BAYES, WholeWeights(PAIRS["same rows"]), 200),
    Mechanism(
        "private bounds", AgeSum(AUDIT_DOMAIN, contribution=age_sum_by_own_largest), ADULTS, 200
    ),
    Mechanism("noise reused", CountedAndNot(AUDIT_DOMAIN), PAIRS["outlier"], 80, noise=ReusedNoise),
    Mechanism(
        "noise from a known seed",
        NAIVE_BAYES,
        PAIRS["outlier"],
        200,
        attacks=(*ATTACKS, subtract_known_noise),
        noise=lambda: SeededNoise(next(SEEDS_OF_RUNS)),
    ),
)

REPAIRED = (
    Mechanism(
        "row clipped",
        AgeSum(AUDIT_DOMAIN, contribution=age_sum, public=(("divisor", 1.0), ("clip", 1.0))),
        PAIRS["outlier"],
        400,
    ),
    Mechanism(
        "public bounds",
        AgeSum(AUDIT_DOMAIN, contribution=age_sum, public=(("divisor", 2.0), ("clip", 1.0))),
        ADULTS,
        400,
    ),
)
