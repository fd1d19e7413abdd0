"""Value of each step and draw of ClustMix on tables: releases without it.

A draw that gets a millionth of the budget says nothing; what it would have got goes to the others.
Every run is one measurement in this process with the noise of the operating system, on a training
split of a public table; its rows are decoded and scored as a bundle is. This changes no setting of
the product: the rule that splits the budget is replaced for a run.

``python -m benchmarks.suites.parts --dataset D --epsilon E --variant V --split N``
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from benchmarks.jobs import Job
from benchmarks.results import IN_PROCESS, ResultRow, print_row
from benchmarks.score import score
from benchmarks.tables import divided, read_table, site_document, write_site
from clustmix.frames import declared_columns, rows_of
from privacy.calibration import release_mu
from privacy.parameters import Adjacency, PrivacyUnit
from privacy.randomness import OperatingSystemNoise
from tasks.ingest.encoding import decode, domain_of
from tasks.ingest.patient_rows import encoded_shards
from tasks.measurement.curator import Curator
from tasks.measurement.method import measure
from tasks.methods.clustmix.table_clustmix import TableClustMix
from tasks.methods.clustmix.tables import kernel_features
from tasks.methods.clustmix.tables import table_rule as rule
from tasks.methods.clustmix.tables import table_sampler as sampler
from tasks.methods.naive_bayes import NaiveBayes

DATASETS, SPLITS, ROWS_OUT = ("adult", "flchain"), range(4), 100_000
NOTHING = 1e-6

Array = NDArray[np.float64]


SHARES: dict[str, Callable[[rule.Shares], rule.Shares]] = {
    "without-pair-tables": lambda s: replace(
        s, pair_tables=NOTHING, label_counts=s.label_counts + s.pair_tables
    ),
    "without-one-ways": lambda s: replace(s, one_ways=NOTHING),
    "without-counts-by-label": lambda s: replace(
        s,
        label_counts=NOTHING,
        pair_tables=s.pair_tables + s.label_counts / 2.0,
        residuals=s.residuals + s.label_counts / 4.0,
    ),
    "without-kernel-features": lambda s: replace(
        s, kernel=0.0, residuals=s.residuals + s.kernel / 2.0
    ),
    "without-residuals-and-kernel": lambda s: replace(
        s,
        residuals=NOTHING,
        kernel=0.0,
        label_counts=s.label_counts + s.rounds * s.residuals + s.kernel,
    ),
    "two-rounds": lambda s: replace(s, residuals=s.residuals * s.rounds / 2.0, rounds=2),
}
"""Rules that split the budget otherwise."""


def _of_shares(change: Callable[[rule.Shares], rule.Shares]) -> dict[tuple[Any, str], Any]:
    known = rule.shares_of
    return {(rule, "shares_of"): lambda *args, **kwargs: change(known(*args, **kwargs))}


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


VARIANTS: dict[str, dict[tuple[Any, str], Any]] = {
    "whole": {},
    **{name: _of_shares(change) for name, change in SHARES.items()},
    "points-by-pivoted-cholesky": {(kernel_features, "inducing_points"): optimised_points},
    "labels-and-codes-by-chance": {
        (sampler, "sample_codes"): independent_codes,
        (sampler, "systematic_labels"): independent_labels,
    },
    "naive-bayes": {},
}
"""Replacements of parts, by name; naive Bayes is measured beside them."""

KEPT = ("auc", "accuracy", "log_loss", "calibration_error", "tvd_1way", "tvd_2way")


def jobs() -> list[Job]:
    """Return the jobs at an epsilon of one."""
    words = [
        ("--dataset", name, "--epsilon", "1", "--variant", variant, "--split", str(split))
        for split in SPLITS
        for name in DATASETS
        for variant in VARIANTS
    ]
    return [Job(suite="parts", command=("benchmarks.suites.parts", *one)) for one in words]


def measured(name: str, variant: str, split: int, epsilon: float) -> ResultRow:
    """Measure and score one release in this process."""
    with TemporaryDirectory(prefix="clustmix-bench-") as place:
        folder, document = Path(place), site_document(name)
        privacy = {**document["privacy"], "epsilon": epsilon}
        budget = {**document["budget"], "lifetime_epsilon": 10.0}
        document = {**document, "privacy": privacy, "budget": budget}
        document, test, n_rows = divided(document, split, folder)
        site = write_site(document, folder / "site.yaml")
        schema, unit = site.table_schema, site.unit
        frame = declared_columns(read_table(site), schema, unit.column)
        by = PrivacyUnit(column=unit.column, max_rows=unit.max_rows)
        shards = encoded_shards(rows_of(frame), schema, by)
        domain = replace(domain_of(schema), rows_per_patient=unit.max_rows, patients=site.patients)
        own = variant != "naive-bayes"
        method = TableClustMix(domain) if own else NaiveBayes(domain)
        mu = release_mu(site.parameters, adjacency=Adjacency.ADD_REMOVE)
        started, rng = time.process_time(), np.random.default_rng()
        with ExitStack() as patches:
            for (module, attribute), other in VARIANTS[variant].items():
                patches.enter_context(mock.patch.object(module, attribute, other))
            plan, noise = method.plan(mu=mu), OperatingSystemNoise()
            released = measure(method, Curator(plan=plan, shards=shards, noise_source=noise))
            made = method.sample(released, n_rows=ROWS_OUT, rng=rng)
        seconds = time.process_time() - started
        decode(*made, schema, rng=rng).to_parquet(folder / "synthetic.parquet", index=False)
        (folder / "schema.json").write_text(schema.model_dump_json(), encoding="utf-8")
        found = score(folder, test)
        return ResultRow(
            dataset=name,
            method="clustmix" if own else "naive_bayes",
            analysis="proven",
            epsilon=epsilon,
            delta=site.privacy.delta,
            seed=split,
            source=IN_PROCESS,
            rows=n_rows,
            columns=domain.n_columns,
            rows_out=ROWS_OUT,
            **{key: found[key] for key in KEPT},
            settings={"variant": variant},
            cpu_seconds=round(seconds, 2),
        )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.suites.parts", description=__doc__)
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--variant", choices=VARIANTS, required=True)
    parser.add_argument("--split", type=int, default=0)
    options = parser.parse_args(arguments)
    row = measured(options.dataset, options.variant, options.split, options.epsilon)
    return print_row(row)


if __name__ == "__main__":
    sys.exit(main())
