"""Counting queries on item data: the relative error of DPGM, MWEM and naive Bayes by epsilon.

Two tables: MNIST in black and white, an item per pixel, and drugs and diagnoses of Diabetes-130,
one encounter of each patient. Two designs of queries, both in five sets of growing length: as in
the paper up to the largest number of items of a record, where nearly all counts are zero, and
up to five items. The queries have a public seed; the noise comes from the operating system.

Source of the comparison: DPGM paper (Acs, Melis, Castelluccia and De Cristofaro 2019), section
6.3. Its MWEM starts from the uniform distribution and takes 50 rounds, as ``mwem_uniform`` and
``mwem_published`` do here; ``mwem`` is the method of the registry, which starts from histograms.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import mean

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.results import (
    CLAIMED,
    PROVEN,
    RESULTS,
    Requirement,
    figure,
    requirement_table,
    table,
)
from benchmarks.tables import SITES
from flows.site import load_site
from privacy.calibration import gdp_mu
from privacy.parameters import PrivacyParameters
from privacy.randomness import OperatingSystemNoise
from storage.cohorts import CohortReader
from tasks import contributions, encoding
from tasks.metrics.counting_queries import QuerySet, draw_query_sets, query_set_errors
from tasks.synthesizers.base import Synthesizer, measure
from tasks.synthesizers.curator import Curator, InProcessCompute
from tasks.synthesizers.dpgm.config import BudgetShares, DpgmConfig
from tasks.synthesizers.dpgm.synthesizer import Dpgm
from tasks.synthesizers.encoded import EncodedRows, EncodingDomain
from tasks.synthesizers.mwem.config import MwemConfig
from tasks.synthesizers.mwem.published import PublishedMwem
from tasks.synthesizers.mwem.synthesizer import Mwem
from tasks.synthesizers.naive_bayes import NaiveBayes

DATASETS = ("mnist-binarised", "diabetes130-items")
EPSILONS = (0.1, 0.2, 0.5, 1.0, 2.0)
DELTA = 1e-6
RUNS = 3
QUERY_SEED = 20_190_627
SHORT_LENGTH = 5
RESULT_FILE = RESULTS / "counting_queries.json"

_PAPER_MWEM = MwemConfig(rounds=50, label_share=0.0, start="uniform")
# Counts of items are asked here: most of the budget is for the means of the clusters, and the
# machine learns more slowly from the noisier gradients.
_SHARES = BudgetShares(clustering=0.05, means=0.70, training=0.25)
_DPGM_RBM = DpgmConfig(network="rbm", shares=_SHARES, learning_rate=0.3)
_DPGM_VAE = DpgmConfig(network="vae", shares=_SHARES)

PROVEN_METHODS: dict[str, Callable[[EncodingDomain], Synthesizer]] = {
    "naive_bayes": NaiveBayes,
    "mwem": lambda domain: Mwem(domain, MwemConfig(label_share=0.0)),
    "mwem_uniform": lambda domain: Mwem(domain, _PAPER_MWEM),
    "dpgm_rbm": lambda domain: Dpgm(domain, _DPGM_RBM),
    "dpgm_vae": lambda domain: Dpgm(domain, _DPGM_VAE),
}
PUBLISHED_MWEM = "mwem_published"
METHODS = (*PROVEN_METHODS, PUBLISHED_MWEM)
RIVALS = ("mwem", "mwem_uniform", PUBLISHED_MWEM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """Records of a site file, each a set of items with a label; one record of each patient."""

    domain: EncodingDomain
    rows: EncodedRows

    @property
    def records(self) -> NDArray[np.bool_]:
        """Whether a record has an item, of shape (n, n_items)."""
        return self.rows.codes.astype(np.bool_)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryRow:
    """Errors of one method at one epsilon.

    Parameters
    ----------
    dataset, method
        Name of the site file, and of the method.
    guarantee
        What epsilon and delta stand for.
    epsilon, delta
        Parameters; the claim of the published form is pure, so its delta is 0.
    design
        ``paper`` or ``short``.
    max_length
        Length of the longest query.
    errors
        Mean relative error of each set of queries, for each run.
    seconds
        Mean wall time of a run, counting not included.
    """

    dataset: str
    method: str
    guarantee: str
    epsilon: float
    delta: float
    design: str
    max_length: int
    errors: list[list[float]]
    seconds: float

    @property
    def error(self) -> float:
        """Mean over all sets and runs."""
        return mean(mean(run) for run in self.errors)


def read_items(dataset: str) -> Items:
    """Read the public item table of a site file."""
    site = load_site(SITES / f"{dataset}.yaml")
    chunks = CohortReader(site.source).chunks(site.columns_to_read)
    frame = pd.concat(list(chunks), ignore_index=True)
    coded = encoding.encode_chunk(frame, site.table_schema)
    keep = np.ones(len(frame), dtype=np.bool_)
    if site.unit.column is not None:
        records = np.column_stack([coded.codes, coded.label])
        keep, _ = contributions.bound_contributions(frame[site.unit.column], records, 1)
    n_rows = int(keep.sum())
    return Items(
        domain=encoding.domain_of(site.table_schema),
        rows=EncodedRows(
            codes=coded.codes[keep],
            label=coded.label[keep],
            weight=np.ones(n_rows),
            fold=np.zeros(n_rows, dtype=np.uint8),
            patient=np.arange(n_rows, dtype=np.uint32),
        ),
    )


def query_designs(records: NDArray[np.bool_]) -> dict[str, tuple[int, tuple[QuerySet, ...]]]:
    """Longest query and query sets of each design."""
    longest = {"paper": int(records.sum(axis=1).max()), "short": SHORT_LENGTH}
    return {
        design: (
            length,
            draw_query_sets(
                n_items=records.shape[1],
                max_length=length,
                rng=np.random.default_rng(QUERY_SEED),
            ),
        )
        for design, length in longest.items()
    }


def synthesize(items: Items, method: str, epsilon: float) -> NDArray[np.bool_]:
    """Make as many synthetic records as there are real ones."""
    rng = np.random.default_rng()
    if method == PUBLISHED_MWEM:
        parameters = PrivacyParameters(epsilon=epsilon, delta=DELTA)
        published = PublishedMwem(items.domain, _PAPER_MWEM, parameters)
        codes, _ = published.synthesize(items.rows.codes, items.rows.label, rng)
        return codes.astype(np.bool_)
    synthesizer = PROVEN_METHODS[method](items.domain)
    mu = gdp_mu(epsilon=epsilon, delta=DELTA)
    curator = Curator(
        plan=synthesizer.plan(mu=mu),
        compute=InProcessCompute([items.rows]),
        noise_source=OperatingSystemNoise(),
    )
    released = measure(synthesizer, curator, mu=mu)
    codes, _ = synthesizer.sample(released, n_rows=len(items.rows), rng=rng)
    return codes.astype(np.bool_)


def run(
    datasets: Sequence[str],
    methods: Sequence[str],
    epsilons: Sequence[float] = EPSILONS,
    *,
    runs: int,
    show: Callable[[str], None],
    keep: Callable[[list[QueryRow]], None],
) -> None:
    """Measure the methods at the epsilons; rows are handed over as they are done."""
    for dataset in datasets:
        items = read_items(dataset)
        records = items.records
        designs = query_designs(records)
        for method in methods:
            for epsilon in epsilons:
                errors: dict[str, list[list[float]]] = {design: [] for design in designs}
                seconds = []
                for _ in range(runs):
                    start = time.perf_counter()
                    synthetic = synthesize(items, method, epsilon)
                    seconds.append(time.perf_counter() - start)
                    for design, (_, sets) in designs.items():
                        found = query_set_errors(records, synthetic, sets)
                        errors[design].append([round(float(error), 6) for error in found])
                published = method == PUBLISHED_MWEM
                rows = [
                    QueryRow(
                        dataset=dataset,
                        method=method,
                        guarantee=CLAIMED if published else PROVEN,
                        epsilon=epsilon,
                        delta=0.0 if published else DELTA,
                        design=design,
                        max_length=length,
                        errors=errors[design],
                        seconds=round(mean(seconds), 1),
                    )
                    for design, (length, _) in designs.items()
                ]
                keep(rows)
                means = ", ".join(f"{row.design} {row.error:.4f}" for row in rows)
                show(f"{dataset} {method} epsilon {epsilon:g}: {means}, {rows[0].seconds:.0f} s")


def read_rows() -> list[QueryRow]:
    """Read the rows of earlier runs; none if there were none."""
    if not RESULT_FILE.is_file():
        return []
    return [QueryRow(**row) for row in json.loads(RESULT_FILE.read_text(encoding="utf-8"))]


def keep_rows(rows: Iterable[QueryRow]) -> None:
    """Put rows into the result file, in place of earlier ones of the same runs."""
    known = {_key(row): row for row in read_rows()}
    known.update({_key(row): row for row in rows})
    ordered = sorted(known.values(), key=_key)
    RESULT_FILE.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps([asdict(row) for row in ordered], indent=1, allow_nan=False)
    RESULT_FILE.write_text(text + "\n", encoding="utf-8")


def _key(row: QueryRow) -> tuple[int, str, int, float]:
    return (DATASETS.index(row.dataset), row.design, METHODS.index(row.method), row.epsilon)


def error_table(rows: Iterable[QueryRow]) -> str:
    """Lay out the mean error of each set of queries, and of all."""
    lines = [
        (
            row.dataset,
            row.design,
            row.method,
            row.guarantee,
            f"{row.epsilon:g}",
            *(f"{mean(run[index] for run in row.errors):.4f}" for index in range(5)),
            figure([mean(run) for run in row.errors], 4),
            f"{row.seconds:.0f}",
        )
        for row in rows
    ]
    header = (
        "dataset", "queries", "method", "guarantee", "epsilon", "20 %", "40 %", "60 %", "80 %",
        "100 %", "all", "seconds",
    )  # fmt: skip
    return table(header, lines, n_left=4)


def requirements(rows: Sequence[QueryRow]) -> list[Requirement]:
    """Hold DPGM against what was asked: falling with epsilon, and below MWEM.

    A comparison of some epsilons alone is shown, and not met.
    """

    def errors_of(*key: str) -> dict[float, float]:
        return {r.epsilon: r.error for r in rows if (r.dataset, r.design, r.method) == key}

    found = []
    for dataset, design in dict.fromkeys((row.dataset, row.design) for row in rows):
        for method in ("dpgm_rbm", "dpgm_vae"):
            own = errors_of(dataset, design, method)
            if len(own) < 2:
                continue
            name = f"{dataset}, {design} queries, {method}"
            low, high = min(own), max(own)
            found.append(
                Requirement(
                    text=f"{name}: error at epsilon {low:g} and {high:g}",
                    asked="falling",
                    measured=f"{own[low]:.4f} to {own[high]:.4f}",
                    met=len(own) == len(EPSILONS) and own[high] < own[low],
                )
            )
            for rival in RIVALS:
                theirs = errors_of(dataset, design, rival)
                shared = own.keys() & theirs.keys()
                below = sum(own[epsilon] < theirs[epsilon] for epsilon in shared)
                if shared:
                    found.append(
                        Requirement(
                            text=f"{name}: below {rival}",
                            asked=f"at {len(EPSILONS)} epsilons",
                            measured=f"at {below} of {len(shared)} that were run",
                            met=below == len(EPSILONS),
                        )
                    )
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.counting_queries", description=__doc__)
    parser.add_argument("--dataset", action="append", choices=DATASETS, help="repeatable")
    parser.add_argument("--method", action="append", choices=METHODS, help="repeatable")
    parser.add_argument("--epsilon", action="append", type=float, choices=EPSILONS)
    parser.add_argument("--runs", type=int, default=RUNS, help="runs of each method and epsilon")
    options = parser.parse_args(arguments)
    run(
        options.dataset or DATASETS,
        options.method or METHODS,
        options.epsilon or EPSILONS,
        runs=options.runs,
        show=lambda text: print(text, file=sys.stderr, flush=True),
        keep=keep_rows,
    )
    rows = read_rows()
    print(error_table(rows))
    print()
    print(requirement_table(requirements(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
