"""Simulated utility of a release, on rows that stand in for the table, which is not read.

The rows are made up by a public rule, or taken from an earlier release of the same table. Such rows
follow a model already, so the simulation is optimistic rather than pessimistic.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import ndtr, softmax

from flows.watching.planning import Planning
from privacy.errors import refusals
from privacy.randomness import OperatingSystemNoise
from storage.releases.bundles import VerifiedBundle
from storage.schema.table import TableSchema
from tasks.gates.agreement import CodedTable, shares_by_label, total_variation
from tasks.ingest.encoding import domain_of, encode_chunk
from tasks.measurement.curator import Curator
from tasks.measurement.encoded import N_FOLDS, EncodedRows, EncodingDomain
from tasks.measurement.method import PUBLIC_SEED, measure

refusal = refusals(__package__)

MOST_PATIENTS, TESTED = 100_000, 20_000
_FACTORS, _RARE, _SIGNAL, _LOUDNESS, _STEPS = 3, 0.15, 3.0, 0.7, 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Utility:
    """Utility of a release of rows that stand in for the table.

    `auc` is the held-out area under the curve, mean over labels, of a model trained on the release,
    `auc_of_rows` of one of the rows themselves; `one_way` the mean distance of a column's shares.
    """

    rows: int
    auc: float
    auc_of_rows: float
    one_way: float


class Simulation:
    """Releases of a job, of rows that stand in for its table, a row a patient.

    As many rows are released as the job has patients, at most `MOST_PATIENTS`: those of `like`, an
    earlier release of the table, or rows by the public rule. It is a ConfigurationError if the data
    are images, of which no rows are made up, and an InputError if the rows are not of the declared
    schema, or too few.
    """

    def __init__(self, planning: Planning, like: pd.DataFrame | None = None) -> None:
        if planning.schema.image is not None:
            raise refusal("SIMULATION_IMAGES")
        # One row a patient, and no constraints: whole visits and records would have to be made up.
        self._planning, schema = planning, planning.schema
        self._domain, self._rng = domain_of(schema), np.random.default_rng(PUBLIC_SEED)
        n_rows = min(planning.patients, MOST_PATIENTS)
        if like is None:
            rows = made_up(self._domain, n_rows + TESTED, self._rng)
        else:
            rows = _coded(like, schema, n_rows, self._rng)
        self._rows, self._others = _part(rows, slice(n_rows)), _part(rows, slice(n_rows, None))
        self._own = self._auc(self._rows)

    def utility(self, epsilon: float) -> Utility:
        """Measure and sample the rows at an epsilon, and score the result on held-out rows."""
        rows = self._rows
        synthesizer, mu = self._planning.method(epsilon, len(rows))
        encoded = EncodedRows(
            codes=rows.codes,
            label=rows.label,
            weight=np.ones(len(rows)),
            fold=self._rng.integers(N_FOLDS, size=len(rows), dtype=np.uint8),
        )
        curator = Curator(
            plan=synthesizer.plan(mu=mu), shards=[encoded], noise_source=OperatingSystemNoise()
        )
        released = measure(synthesizer, curator)
        n_rows = max(len(rows), TESTED)
        codes, label = synthesizer.sample(released, n_rows=n_rows, rng=self._rng)
        made = CodedTable(codes=codes, label=label)
        return Utility(
            rows=len(rows),
            auc=self._auc(made),
            auc_of_rows=self._own,
            one_way=_one_way(made, rows, self._domain),
        )

    def _auc(self, rows: CodedTable) -> float:
        """Mean over the labels, and over the levels of each against its others."""
        from sklearn.ensemble import HistGradientBoostingClassifier
        from sklearn.metrics import roc_auc_score

        found = np.zeros((len(self._others), self._domain.n_labels))
        if len(np.unique(rows.label)) > 1:
            model = HistGradientBoostingClassifier(max_iter=60, random_state=0)
            model.fit(rows.codes, rows.label)
            found[:, model.classes_] = model.predict_proba(self._others.codes)
        means = []
        for parts in self._planning.schema.labels.parts.values():
            levels = np.array(parts, dtype=object)
            of = [(levels == level) for level in dict.fromkeys(parts)]
            true = [own[self._others.label] for own in of]
            areas = [
                roc_auc_score(one, found[:, own].sum(axis=1))
                for one, own in zip(true, of, strict=True)
                if 0 < one.sum() < len(one)
            ]
            if not areas:
                raise refusal("SIMULATION_ROWS levels")
            means.append(np.mean(areas))
        return float(np.mean(means))


def rows_of(bundle: VerifiedBundle, planning: Planning) -> pd.DataFrame:
    """Read the rows of a release of the same dataset (InputError if it is another)."""
    manifest = bundle.manifest
    rows = pd.read_parquet(bundle.path / "synthetic.parquet")
    absent = {*planning.schema.released_columns} - {*rows.columns}
    if manifest.dataset != planning.dataset or absent:
        found = manifest.dataset + (f" without {', '.join(sorted(absent))}" if absent else "")
        raise refusal("SIMULATION_ROWS", dataset=planning.dataset, found=found)
    return rows


def made_up(domain: EncodingDomain, n_rows: int, rng: np.random.Generator) -> CodedTable:
    """Make rows up by a public rule.

    Three hidden factors move every column: numbers are evenly spread over their bins, levels are
    the largest of random scores. They predict the label as well as in a typical hospital table:
    its first level is the usual one, and each other one has 15 % of the rows, or an equal share.
    """
    factors = rng.standard_normal((n_rows, _FACTORS))
    codes = np.zeros((n_rows, domain.n_columns), dtype=np.uint16)
    for column, (size, numeric) in enumerate(zip(domain.n_codes, domain.numeric, strict=True)):
        loudness = rng.normal(0.0, _LOUDNESS, (_FACTORS, 1 if numeric else size))
        scores = factors @ loudness
        if numeric:
            spread = np.sqrt(1.0 + (loudness**2).sum())
            place = ndtr((scores[:, 0] + rng.standard_normal(n_rows)) / spread)
            codes[:, column] = np.minimum(place * size, size - 1)
        else:
            codes[:, column] = (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)
    others = domain.n_labels - 1
    rare = min(_RARE, 1.0 / domain.n_labels)
    shares = np.array([1.0 - others * rare, *[rare] * others])
    directions = rng.standard_normal((_FACTORS, domain.n_labels))
    directions -= directions.mean(axis=1, keepdims=True)
    # The log-odds of two labels have this standard deviation, on average, whatever was drawn.
    apart = 2.0 * (directions**2).sum() / max(domain.n_labels - 1, 1)
    directions *= _SIGNAL / np.sqrt(apart)
    scores = factors @ directions + np.log(shares)
    for _ in range(_STEPS):
        scores += np.log(shares / softmax(scores, axis=1).mean(axis=0))
    label = (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)
    return CodedTable(codes=codes, label=label.astype(np.uint16))


def _coded(
    frame: pd.DataFrame, schema: TableSchema, n_rows: int, rng: np.random.Generator
) -> CodedTable:
    chunk = encode_chunk(frame, schema)
    order = rng.permutation(np.flatnonzero(chunk.valid))[: n_rows + TESTED]
    if chunk.violations or len(order) <= n_rows:
        raise refusal("SIMULATION_ROWS number", n_rows=n_rows)
    return CodedTable(codes=chunk.codes[order], label=chunk.label[order])


def _part(rows: CodedTable, part: slice) -> CodedTable:
    return CodedTable(codes=rows.codes[part], label=rows.label[part])


def _one_way(first: CodedTable, second: CodedTable, domain: EncodingDomain) -> float:
    n_codes, n_labels = domain.n_codes, domain.n_labels
    both = (shares_by_label(rows, n_codes=n_codes, n_labels=n_labels) for rows in (first, second))
    columns = zip(*both, strict=True)
    return float(np.mean([total_variation(a.sum(axis=0), b.sum(axis=0)) for a, b in columns]))
