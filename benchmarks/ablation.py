"""What each step and each draw of ClustMix on tables is worth: releases without it.

A draw that gets a millionth of the budget says nothing; what it would have got goes to the others.
Every run is one measurement in this process with the noise of the operating system, on a training
split of a public table; rows are scored as codes, by LightGBM and by distances to held-out rows.
This changes no setting of the product: the rule that splits the budget is replaced for a run.

``python -m benchmarks.ablation [--dataset SITE] [--epsilon E] [--variant V] [--runs N]`` measures
what `RESULT_FILE` lacks; ``docs/figures.py`` writes its tables into ``docs/results.md``.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from benchmarks.bundle_rows import View
from benchmarks.results import IN_PROCESS, RESULTS, ResultRow, read_rows, write_rows
from benchmarks.score import calibration_error, distances, predicted
from benchmarks.tables import read_table, site_document, split, write_site
from clustmix.frames import declared_columns, rows_of
from privacy.calibration import release_mu
from privacy.parameters import Adjacency, PrivacyParameters, PrivacyUnit
from privacy.randomness import OperatingSystemNoise
from tasks.ingest.encoding import domain_of
from tasks.ingest.patient_rows import encoded_shards
from tasks.measurement.curator import Curator
from tasks.measurement.encoded import EncodedRows, EncodingDomain
from tasks.measurement.method import measure
from tasks.methods.clustmix.table_clustmix import TableClustMix
from tasks.methods.clustmix.tables import kernel_features
from tasks.methods.clustmix.tables import table_rule as rule
from tasks.methods.clustmix.tables import table_sampler as sampler
from tasks.methods.naive_bayes import NaiveBayes

RESULT_FILE = RESULTS / "ablation.json"
DATASETS = ("adult", "flchain")
EPSILONS = (0.2, 1.0, 10.0)
RUNS, ROWS_OUT = 4, 100_000
NOTHING = 1e-6

Array = NDArray[np.float64]
Split = Callable[[rule.Shares], rule.Shares]


def _without_pairs(shares: rule.Shares) -> rule.Shares:
    given = shares.pair_tables - NOTHING
    return replace(shares, pair_tables=NOTHING, label_counts=shares.label_counts + given)


def _without_one_ways(shares: rule.Shares) -> rule.Shares:
    return replace(shares, one_ways=NOTHING)


def _without_rounds(shares: rule.Shares) -> rule.Shares:
    given = shares.rounds * (shares.residuals - NOTHING) + shares.kernel
    return replace(shares, residuals=NOTHING, kernel=0.0, label_counts=shares.label_counts + given)


def _in_two_rounds(shares: rule.Shares) -> rule.Shares:
    return replace(shares, residuals=shares.residuals * shares.rounds / 2.0, rounds=2)


def _without_kernel(shares: rule.Shares) -> rule.Shares:
    return replace(shares, kernel=0.0, residuals=shares.residuals + shares.kernel / 2.0)


def _without_counts(shares: rule.Shares) -> rule.Shares:
    given = shares.label_counts - NOTHING
    return replace(
        shares,
        label_counts=NOTHING,
        pair_tables=shares.pair_tables + given / 2.0,
        residuals=shares.residuals + given / 4.0,
    )


def optimised_points(embedded: Array, n_points: int) -> Array:
    """Choose records that explain the kernel best, one by one: a pivoted Cholesky factorisation.

    Source: Fine and Scheinberg, "Efficient SVM training using low-rank kernel representations",
    Journal of Machine Learning Research 2 (2001).
    """
    reach = kernel_features.typical_distance(embedded)
    left, chosen = np.ones(len(embedded)), []
    factor = np.zeros((len(embedded), n_points))
    for step in range(n_points):
        best = int(left.argmax())
        chosen.append(best)
        column = np.exp(-((embedded - embedded[best]) ** 2).sum(axis=1) / reach)
        column -= factor[:, :step] @ factor[best, :step]
        factor[:, step] = column / np.sqrt(max(left[best], 1e-12))
        left = np.maximum(left - factor[:, step] ** 2, 0.0)
    return embedded[chosen]


def independent_codes(
    mixture: Any, layout: Any, *, n_rows: int, rng: np.random.Generator
) -> NDArray[np.uint16]:
    """Draw records without quotas: components and codes each by chance."""
    component = rng.choice(len(mixture.weights), n_rows, p=mixture.weights)
    codes = np.empty((n_rows, layout.n_columns), dtype=np.uint16)
    for column in range(layout.n_columns):
        upto = mixture.components[:, layout.block(column)].cumsum(axis=1)[component]
        codes[:, column] = (rng.random((n_rows, 1)) > upto[:, :-1]).sum(axis=1)
    return codes


def independent_labels(probabilities: Array, rng: np.random.Generator) -> NDArray[np.uint16]:
    """Draw every label by itself."""
    upto = probabilities.cumsum(axis=1)[:, :-1]
    return (rng.random((len(upto), 1)) > upto).sum(axis=1).astype(np.uint16)


def _of_shares(change: Split) -> dict[tuple[Any, str], Any]:
    known = rule.shares_of
    return {(rule, "shares_of"): lambda *args, **kwargs: change(known(*args, **kwargs))}


VARIANTS: dict[str, dict[tuple[Any, str], Any]] = {
    "whole": {},
    "approximate: without pair tables": _of_shares(_without_pairs),
    "approximate: without one-ways beside the pair tables": _of_shares(_without_one_ways),
    "approximate: without counts by label": _of_shares(_without_counts),
    "adapt: without kernel features": _of_shares(_without_kernel),
    "adapt: inducing points by pivoted Cholesky": {
        (kernel_features, "inducing_points"): optimised_points
    },
    "anonymise: without residuals and kernel features": _of_shares(_without_rounds),
    "anonymise: two rounds, also of a wide table": _of_shares(_in_two_rounds),
    "mixing: labels and codes by chance": {
        (sampler, "sample_codes"): independent_codes,
        (sampler, "systematic_labels"): independent_labels,
    },
}
"""What stands in the place of what, by name; naive Bayes is measured beside them."""

YARDSTICK = "naive Bayes"


@dataclass(frozen=True, slots=True)
class Case:
    """A split of a public table in codes: shards to measure, and held-out rows."""

    domain: EncodingDomain
    shards: tuple[EncodedRows, ...]
    held_out: View
    delta: float


@cache
def case_of(name: str, seed: int) -> Case:
    """Split and encode a table."""
    with TemporaryDirectory() as folder:
        site = write_site(site_document(name), Path(folder) / "site.yaml")
    schema, unit = (
        site.table_schema,
        PrivacyUnit(column=site.unit.column, max_rows=site.unit.max_rows),
    )
    known = {*schema.released_columns, *schema.ignore, unit.column}
    parts = []
    for frame, by in zip(
        split(read_table(site), site, seed),
        (unit, PrivacyUnit(column=None, max_rows=1)),
        strict=True,
    ):
        kept = frame[[column for column in frame.columns if column in known]].reset_index(drop=True)
        if by.column is None and unit.column is not None:
            kept = kept.drop(columns=unit.column)
        parts.append(encoded_shards(rows_of(declared_columns(kept, schema, by.column)), schema, by))
    domain = replace(domain_of(schema), rows_per_patient=unit.max_rows, patients=site.patients)
    held_out = view_of(
        np.concatenate([rows.codes for rows in parts[1]]),
        np.concatenate([rows.label for rows in parts[1]]),
        domain,
    )
    return Case(domain, tuple(parts[0]), held_out, site.parameters.delta)


def view_of(codes: NDArray[Any], label: NDArray[Any], domain: EncodingDomain) -> View:
    """Return coded rows as the scorer reads rows: categories as such, bins as numbers."""
    features = pd.DataFrame(codes.astype(np.int64))
    for column, numeric in enumerate(domain.numeric):
        if not numeric:
            features[column] = features[column].astype(
                pd.CategoricalDtype(list(range(domain.n_codes[column])))
            )
    return View(
        features=features,
        codes=codes.astype(np.int64),
        widths=domain.n_codes,
        label=label.astype(np.int64),
    )


def measured(name: str, variant: str, seed: int, epsilon: float) -> ResultRow:
    """Measure and score one release in this process."""
    case = case_of(name, seed)
    mu = release_mu(
        PrivacyParameters(epsilon=epsilon, delta=case.delta), adjacency=Adjacency.ADD_REMOVE
    )
    method = NaiveBayes(case.domain) if variant == YARDSTICK else TableClustMix(case.domain)
    started = time.process_time()
    patches = [
        mock.patch.object(module, attribute, other)
        for (module, attribute), other in VARIANTS.get(variant, {}).items()
    ]
    for patch in patches:
        patch.start()
    try:
        curator = Curator(
            plan=method.plan(mu=mu),
            shards=case.shards,
            noise_source=OperatingSystemNoise(),
        )
        released = measure(method, curator)
        made = method.sample(released, n_rows=ROWS_OUT, rng=np.random.default_rng())
    finally:
        for patch in patches:
            patch.stop()
    seconds = time.process_time() - started
    synthetic, real, n_labels = view_of(*made, case.domain), case.held_out, case.domain.n_labels
    probability = predicted(synthetic, real, n_labels, images=False, trees=200)
    distance = distances(synthetic, real, n_labels)
    present = [c for c in range(n_labels) if (real.label == c).any()]
    aucs = [roc_auc_score(real.label == c, probability[:, c]) for c in present]
    of_truth = probability[np.arange(len(real.label)), real.label]
    return ResultRow(
        dataset=name,
        method="clustmix" if variant != YARDSTICK else "naive_bayes",
        analysis="proven",
        epsilon=epsilon,
        delta=case.delta,
        seed=seed,
        source=IN_PROCESS,
        rows=sum(map(len, case.shards)),
        columns=case.domain.n_columns,
        rows_out=ROWS_OUT,
        auc=round(float(np.mean(aucs)), 5),
        accuracy=round(float((probability.argmax(axis=1) == real.label).mean()), 5),
        log_loss=round(float(-np.log(of_truth).mean()), 5),
        calibration_error=round(calibration_error(probability, real.label), 5),
        tvd_1way=round(distance.one_way, 5),
        tvd_2way=round(distance.two_way, 5),
        settings={"variant": variant},
        cpu_seconds=round(seconds, 2),
    )


def _runs(
    datasets: Iterable[str], n_runs: int, epsilons: Iterable[float], variants: Iterable[str]
) -> Iterator[tuple[str, str, int, float]]:
    return (
        (dataset, variant, seed, epsilon)
        for seed in range(n_runs)
        for dataset in datasets
        for epsilon in epsilons
        for variant in variants
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.ablation", description=__doc__)
    parser.add_argument("--dataset", action="append", help="repeatable")
    parser.add_argument("--epsilon", action="append", type=float, help="repeatable")
    parser.add_argument("--variant", action="append", choices=(*VARIANTS, YARDSTICK))
    parser.add_argument("--runs", type=int, default=RUNS, help="splits")
    options = parser.parse_args(arguments)
    asked = options.epsilon or EPSILONS, options.variant or (*VARIANTS, YARDSTICK)
    rows = read_rows(RESULT_FILE) if RESULT_FILE.exists() else []
    known = {(row.dataset, row.settings["variant"], row.seed, row.epsilon) for row in rows}
    for run in _runs(options.dataset or DATASETS, options.runs, *asked):
        if run not in known:
            print(*run, file=sys.stderr, flush=True)
            rows.append(measured(*run))
            write_rows(RESULT_FILE, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
