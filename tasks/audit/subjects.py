"""What can be audited: every proven method of the registry, small, and the noise path itself."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from privacy.arrays import Records
from privacy.errors import ConfigurationError
from privacy.parameters import Adjacency
from tasks.audit.findings import (
    AuditResult,
    ClaimedGuarantee,
    OneRunFinding,
    PairFinding,
    check_confidence,
    judge_pair,
    part_confidence,
)
from tasks.audit.game import play
from tasks.audit.one_run import canary_domain, one_run_epsilon_lower_bound, play_one_run
from tasks.audit.pairs import AUDIT_DOMAIN, neighbour_pairs
from tasks.audit.power import detection_rates, strengths_of
from tasks.measurement.curator import Curator
from tasks.measurement.encoded import EncodingDomain
from tasks.measurement.method import Released, Stage, Synthesizer
from tasks.measurement.plan import MeasurementPlan, plan_measurement, sum_request
from tasks.measurement.statistics import patient_count
from tasks.methods.clustmix.tables.table_clustmix import Effort, TableClustMix
from tasks.methods.dp_cda.dp_cda_settings import DpCdaConfig
from tasks.methods.dpgm.dp_kmeans_settings import DpKMeansConfig
from tasks.methods.dpgm.dpgm_settings import DpgmConfig
from tasks.methods.naive_bayes import NaiveBayesConfig
from tasks.methods.registry import build

MIN_RUNS = 20
"""Fewest runs of each table: half of them choose a threshold."""

_COUNT = "patient_count"


@dataclass(frozen=True, slots=True)
class PatientCount:
    """One count through the curator and its noise: the path that every method takes."""

    domain: EncodingDomain

    def plan(self, *, mu: float) -> MeasurementPlan:
        """One count, with the whole budget."""
        return plan_measurement([sum_request(_COUNT, (1,), share=1.0)], mu=mu)

    def stages(self, *, mu: float) -> tuple[Stage, ...]:
        """One stage: the count."""
        return (Stage(name="count", run=self._count),)

    def sample(self, released: Released, *, n_rows: int, rng: np.random.Generator) -> Records:
        """Rows of zeros: a count says nothing about columns."""
        shape = (n_rows, self.domain.n_columns)
        return np.zeros(shape, dtype=np.uint16), np.zeros(n_rows, dtype=np.uint16)

    def _count(self, curator: Curator, released: Released) -> Released:
        return {_COUNT: curator.release(_COUNT, patient_count)}


_SMALL: dict[str, Any] = {
    "naive_bayes": NaiveBayesConfig(),
    "dp_cda": DpCdaConfig(order_of_mixture=4, declared_patients=40),
    "dpgm": DpgmConfig(
        clusters=2,
        clustering_rounds=1,
        fourier_features=4,
        network="vae",
        hidden_units=2,
        latent_dimensions=1,
        epochs=2,
        norm_bins=4,
        min_cluster_size=1,
    ),
    "dp_kmeans": DpKMeansConfig(clusters=2, rounds=2, n_features=4),
}
"""Every draw of a method on a small domain; what follows the draws is as short as it can be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Something to audit, by its name on the command line, and how to `bind` it to a domain.

    There are `runs` of each table by default, a few minutes, and two canaries for each of
    `canary_codes`; None leaves the one-run audit out.
    """

    name: str
    bind: Callable[[EncodingDomain], Synthesizer]
    runs: int
    canary_codes: int | None


NOISE = "noise"

_LITTLE = Effort(starts=1, steps=10, fit_rows=400)

SUBJECTS: tuple[Subject, ...] = (
    Subject(
        name="clustmix", bind=partial(TableClustMix, effort=_LITTLE), runs=1_000, canary_codes=60
    ),
    *(
        Subject(name=kind, bind=partial(build, _SMALL[kind]), runs=runs, canary_codes=canary_codes)
        for kind, runs, canary_codes in (
            ("naive_bayes", 5_000, 1_000),
            ("dp_cda", 1_000, None),
            ("dpgm", 200, None),
            ("dp_kmeans", 1_000, None),
        )
    ),
    Subject(name=NOISE, bind=PatientCount, runs=10_000, canary_codes=None),
)
"""One subject for every proven method of the registry, and the noise path."""


def subject_of(name: str) -> Subject:
    """Return the subject of this name (ConfigurationError if there is none)."""
    for subject in SUBJECTS:
        if subject.name == name:
            return subject
    known = ", ".join(subject.name for subject in SUBJECTS)
    raise ConfigurationError(
        "METHOD_UNKNOWN", f"expected a method to audit among {known}, found {name!r}"
    )


def audit(
    subject: Subject,
    *,
    epsilon: float,
    delta: float,
    runs: int,
    confidence: float,
    show: Callable[[str], None] = lambda text: None,
) -> AuditResult:
    """Audit a subject on every pair of tables, and in one run with canaries.

    The noise is calibrated to the target by the same code as a release. Each table of each pair has
    `MIN_RUNS` runs or more; all bounds hold together with the confidence, from 0.9.

    Privacy
    -------
    Reads no private table: the tables of the game are made from a public domain.
    """
    if runs < MIN_RUNS:
        raise ConfigurationError(
            "AUDIT_RUNS_INVALID", f"expected {MIN_RUNS} or more runs of each table, found {runs}"
        )
    check_confidence(confidence)
    claim = ClaimedGuarantee.of_budget(epsilon=epsilon, delta=delta)
    mu = claim.mu or 0.0
    pairs = neighbour_pairs(AUDIT_DOMAIN)
    one_run = subject.canary_codes is not None
    each = part_confidence(confidence, parts=len(pairs) + int(one_run))
    synthesizer = subject.bind(AUDIT_DOMAIN)
    findings: list[PairFinding] = []
    for pair in pairs:
        show(f"{subject.name}: {pair.name}, {2 * runs} runs")
        scores = play(synthesizer, pair, mu=mu, runs=runs)
        findings.append(judge_pair(pair.name, scores, delta=delta, confidence=each))
    guessed = None
    if subject.canary_codes is not None:
        show(f"{subject.name}: one run with canaries")
        domain = canary_domain(subject.canary_codes)
        counts = play_one_run(subject.bind(domain), domain, mu=mu)
        proven = one_run_epsilon_lower_bound(counts, delta=delta, confidence=each)
        guessed = OneRunFinding(**asdict(counts), epsilon=proven)
    show(f"{subject.name}: how often such an audit finds too little noise")
    power = detection_rates(
        (strengths_of(synthesizer, pair, mu=mu) for pair in pairs),
        claim=claim,
        runs=runs,
        confidence=each,
        rng=np.random.default_rng(),
    )
    return AuditResult(
        method=subject.name,
        claim=claim,
        adjacency=Adjacency.ADD_REMOVE,
        confidence=confidence,
        runs=2 * runs * len(pairs) + int(one_run),
        pairs=tuple(findings),
        one_run=guessed,
        power=power,
    )
