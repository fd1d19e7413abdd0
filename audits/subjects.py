"""Subjects of an audit: the methods of the registry, small, and the noise path itself."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from audits.findings import AuditResult, Claim, check_confidence, judge_pair, part_confidence
from audits.game import play
from audits.pairs import AUDIT_DOMAIN, neighbour_pairs
from audits.power import detection_rates, shown_mu
from privacy.arrays import Integers, Records
from privacy.errors import ConfigurationError
from tasks.measurement.curator import Curator
from tasks.measurement.encoded import EncodedRows, EncodingDomain
from tasks.measurement.measurement_plan import MeasurementPlan, SumRequest, plan_measurement
from tasks.measurement.method import Released, Stage, Synthesizer
from tasks.measurement.statistics import SUM_SCALE
from tasks.methods.clustmix.table_clustmix import TableClustMix
from tasks.methods.clustmix.tables.mixture import Effort
from tasks.methods.dp_cda.dp_cda_settings import DpCdaConfig
from tasks.methods.dpgm.dpgm_settings import DpgmConfig, DpKMeansConfig
from tasks.methods.naive_bayes import NaiveBayesConfig
from tasks.methods.registry import build

MIN_RUNS = 20
"""Fewest runs of each table: half of them choose a threshold."""

NOISE = "noise"

_COUNT = "patient_count"


def patient_count(rows: EncodedRows) -> Integers:
    """Sum of the weights (1,), the number of patients, in units of ``1 / SUM_SCALE``.

    Privacy
    -------
    Adjacency: add or remove one patient. Sensitivity 1 (``SUM_SCALE`` grid points). Event: one
    discrete Gaussian.
    """
    return np.array([np.trunc(rows.weight * SUM_SCALE).astype(np.int64).sum()], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class PatientCount:
    """One count through the curator and its noise: the path that every method takes."""

    domain: EncodingDomain

    def plan(self, *, mu: float) -> MeasurementPlan:
        """One count, with the whole budget."""
        return plan_measurement([SumRequest(_COUNT, (1,), share=1.0)], mu=mu)

    def stages(self) -> tuple[Stage, ...]:
        """One stage: the count."""
        return (Stage(name="count", run=self._count),)

    def sample(self, released: Released, *, n_rows: int, rng: np.random.Generator) -> Records:
        """Rows of zeros: a count says nothing about columns."""
        shape = (n_rows, self.domain.n_columns)
        return np.zeros(shape, dtype=np.uint16), np.zeros(n_rows, dtype=np.uint16)

    def _count(self, curator: Curator, released: Released) -> Released:
        return {_COUNT: curator.release(_COUNT, patient_count)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A method to audit, by its name on the command line, and how to `bind` it to a domain.

    There are `runs` of each table by default, a few minutes.
    """

    name: str
    bind: Callable[[EncodingDomain], Synthesizer]
    runs: int


# Every draw of a method on a small domain; what follows the draws is as short as it can be.
_GROUPS = DpCdaConfig(order_of_mixture=4, declared_patients=40)
_NETWORKS = DpgmConfig(
    clusters=2,
    clustering_rounds=1,
    fourier_features=4,
    network="vae",
    hidden_units=2,
    latent_dimensions=1,
    epochs=2,
    norm_bins=4,
    min_cluster_size=1,
)
_CLUSTERS = DpKMeansConfig(clusters=2, rounds=2, n_features=4)
_LITTLE = Effort(starts=1, steps=10, fit_rows=400)

SUBJECTS: tuple[Subject, ...] = (
    Subject(name="clustmix", bind=partial(TableClustMix, effort=_LITTLE), runs=1_000),
    Subject(name="naive_bayes", bind=partial(build, NaiveBayesConfig()), runs=5_000),
    Subject(name="dp_cda", bind=partial(build, _GROUPS), runs=1_000),
    Subject(name="dp_kmeans", bind=partial(build, _CLUSTERS), runs=1_000),
    Subject(name="dpgm", bind=partial(build, _NETWORKS), runs=200),
    Subject(name=NOISE, bind=PatientCount, runs=10_000),
)
"""One subject for every method of the product, and the noise path."""


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
    """Audit a subject on every pair of tables.

    The noise is calibrated to the target by the same code as a release. Each table of each pair has
    `MIN_RUNS` runs or more; all bounds hold together with the confidence, from 0.9. `show` takes
    each step as it starts.

    Privacy
    -------
    Reads no private table: the tables of the game are made from a public domain.
    """
    if runs < MIN_RUNS:
        raise ConfigurationError(
            "AUDIT_RUNS_INVALID", f"expected {MIN_RUNS} or more runs of each table, found {runs}"
        )
    check_confidence(confidence)
    claim = Claim.of_budget(epsilon=epsilon, delta=delta)
    pairs = neighbour_pairs(AUDIT_DOMAIN)
    each = part_confidence(confidence, parts=len(pairs))
    synthesizer = subject.bind(AUDIT_DOMAIN)
    findings = []
    for pair in pairs:
        show(f"{subject.name}: {pair.name}, {2 * runs} runs")
        scores = play(synthesizer, pair, mu=claim.mu, runs=runs)
        findings.append(judge_pair(pair.name, scores, delta=delta, confidence=each))
    return AuditResult(
        method=subject.name,
        claim=claim,
        confidence=confidence,
        runs=2 * runs * len(pairs),
        pairs=tuple(findings),
        power=detection_rates(
            max(shown_mu(synthesizer, pair, mu=claim.mu) for pair in pairs),
            claimed=claim.mu,
            runs=runs - runs // 2,
            confidence=part_confidence(each, parts=2),
        ),
    )
