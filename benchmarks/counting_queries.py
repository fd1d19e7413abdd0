"""Counting queries on item data: the relative error of DPGM, MWEM and naive Bayes by epsilon.

An ablation: parts of the pipeline are called by themselves, in this process.

Two tables: MNIST in black and white, an item per pixel, and drugs and diagnoses of Diabetes-130,
one encounter of each patient. Two designs of queries, both in five sets of growing length: as in
the paper up to the largest number of items of a record, where nearly all counts are zero, and
up to five items. The queries have a public seed; the noise comes from the operating system.

Source of the comparison: DPGM paper (Acs, Melis, Castelluccia and De Cristofaro 2019), section
6.3. Its MWEM starts from the uniform distribution and takes 50 rounds, as ``mwem_uniform`` and
``mwem_published`` do here; ``mwem`` starts from histograms. All three are rivals, not proven.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import mean

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.query_sets import QuerySet, draw_query_sets, query_set_errors
from benchmarks.results import (
    IN_PROCESS,
    RESULTS,
    Requirement,
    ResultRow,
    figure,
    keep_rows,
    read_rows,
    requirement_table,
    table,
)
from benchmarks.rivals.mwem import AccountedMwem, MwemSettings, PrintedMwem
from benchmarks.tables import DEPLOYED
from flows.site.site_file import load_site
from privacy.calibration import gdp_mu
from privacy.parameters import PrivacyParameters
from privacy.randomness import OperatingSystemNoise
from storage.sources.cohorts import CohortReader
from tasks.ingest import contributions, encoding
from tasks.measurement.curator import Curator
from tasks.measurement.encoded import EncodedRows, EncodingDomain
from tasks.measurement.method import Synthesizer, measure
from tasks.methods.dpgm.dpgm import Dpgm
from tasks.methods.dpgm.dpgm_settings import BudgetShares, DpgmConfig
from tasks.methods.naive_bayes import NaiveBayes

DATASETS = ("mnist-binarised", "diabetes130-items")
EPSILONS = (0.1, 0.2, 0.5, 1.0, 2.0)
DELTA = 1e-6
RUNS = 3
QUERY_SEED = 20_190_627
SHORT_LENGTH = 5
RESULT_FILE = RESULTS / "counting_queries.json"

_PAPER_MWEM = MwemSettings(rounds=50, label_share=0.0, start="uniform")
# Counts of items are asked here: most of the budget is for the means of the clusters, and the
# machine learns more slowly from the noisier gradients.
_SHARES = BudgetShares(clustering=0.05, means=0.70, training=0.25)
_DPGM_RBM = DpgmConfig(network="rbm", shares=_SHARES, learning_rate=0.3)
_DPGM_VAE = DpgmConfig(network="vae", shares=_SHARES)

PROVEN_METHODS: dict[str, Callable[[EncodingDomain], Synthesizer]] = {
    "naive_bayes": NaiveBayes,
    "dpgm_rbm": lambda domain: Dpgm(domain, _DPGM_RBM),
    "dpgm_vae": lambda domain: Dpgm(domain, _DPGM_VAE),
}
PUBLISHED_MWEM = "mwem_published"
RIVALS: dict[str, tuple[type[AccountedMwem] | type[PrintedMwem], MwemSettings]] = {
    "mwem": (AccountedMwem, MwemSettings(label_share=0.0)),
    "mwem_uniform": (AccountedMwem, _PAPER_MWEM),
    PUBLISHED_MWEM: (PrintedMwem, _PAPER_MWEM),
}
METHODS = (*PROVEN_METHODS, *RIVALS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """Records of a site file, each a set of items with a label; one record of each patient."""

    domain: EncodingDomain
    rows: EncodedRows

    @property
    def records(self) -> NDArray[np.bool_]:
        """Whether a record has an item, of shape (n, n_items)."""
        return self.rows.codes.astype(np.bool_)


def row_of(
    dataset: str,
    variant: str,
    epsilon: float,
    design: str,
    longest: int,
    *,
    number: int,
    errors: Sequence[float],
    seconds: float,
) -> ResultRow:
    """Return the row of one run: mean relative error of each of the five sets of queries."""
    published = variant == PUBLISHED_MWEM
    analysis = "accounted" if variant in RIVALS else "proven"
    return ResultRow(
        dataset=dataset,
        method="naive_bayes" if variant == "naive_bayes" else variant.split("_", maxsplit=1)[0],
        analysis="published" if published else analysis,
        epsilon=epsilon,
        # The claim of the published form is pure.
        delta=0.0 if published else DELTA,
        seed=number,
        source=IN_PROCESS,
        settings={"variant": variant, "design": design, "longest_query": longest},
        figures={f"error_{20 * (i + 1)}": round(float(e), 6) for i, e in enumerate(errors)},
        wall_seconds=round(seconds, 1),
    )


def error_of(row: ResultRow) -> float:
    """Mean over all sets of queries."""
    return mean(row.figures.values())


def read_items(dataset: str) -> Items:
    """Read the public item table of a site file."""
    site = load_site(DEPLOYED / f"{dataset}.yaml")
    chunks = CohortReader(site.source).chunks(site.columns_to_read)
    frame = pd.concat(list(chunks), ignore_index=True)
    coded = encoding.encode_chunk(frame, site.table_schema)
    keep = np.ones(len(frame), dtype=np.bool_)
    if site.unit.column is not None:
        records = np.column_stack([coded.codes, coded.label])
        named = contributions.named_patients(frame[site.unit.column])
        keep, _ = contributions.bound_contributions(*named, records, 1)
    n_rows = int(keep.sum())
    return Items(
        domain=encoding.domain_of(site.table_schema),
        rows=EncodedRows(
            codes=coded.codes[keep],
            label=coded.label[keep],
            weight=np.ones(n_rows),
            fold=np.zeros(n_rows, dtype=np.uint8),
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
    if method in RIVALS:
        form, settings = RIVALS[method]
        rival = form(items.domain, settings, PrivacyParameters(epsilon=epsilon, delta=DELTA))
        codes, _ = rival.synthesize(items.rows.codes, items.rows.label, rng)
        return codes.astype(np.bool_)
    synthesizer = PROVEN_METHODS[method](items.domain)
    mu = gdp_mu(epsilon=epsilon, delta=DELTA)
    curator = Curator(
        plan=synthesizer.plan(mu=mu),
        shards=[items.rows],
        noise_source=OperatingSystemNoise(),
    )
    released = measure(synthesizer, curator)
    codes, _ = synthesizer.sample(released, n_rows=len(items.rows), rng=rng)
    return codes.astype(np.bool_)


def run(
    datasets: Sequence[str],
    methods: Sequence[str],
    epsilons: Sequence[float] = EPSILONS,
    *,
    runs: int,
    show: Callable[[str], None],
    keep: Callable[[list[ResultRow]], object],
) -> None:
    """Measure the methods at the epsilons; rows are handed over as they are done."""
    for dataset in datasets:
        items = read_items(dataset)
        records = items.records
        designs = query_designs(records)
        for method in methods:
            for epsilon in epsilons:
                rows = []
                for number in range(runs):
                    start = time.perf_counter()
                    synthetic = synthesize(items, method, epsilon)
                    seconds = time.perf_counter() - start
                    rows += [
                        row_of(
                            dataset,
                            method,
                            epsilon,
                            design,
                            longest,
                            number=number,
                            errors=query_set_errors(records, synthetic, sets).tolist(),
                            seconds=seconds,
                        )
                        for design, (longest, sets) in designs.items()
                    ]
                keep(rows)
                means = ", ".join(
                    f"{design} "
                    f"{mean(error_of(r) for r in rows if r.settings['design'] == design):.4f}"
                    for design in designs
                )
                show(f"{dataset} {method} epsilon {epsilon:g}: {means}")


def grouped(rows: Iterable[ResultRow]) -> dict[tuple[str, str, str, float], list[ResultRow]]:
    """Put the runs of one table, design, variant and epsilon together."""
    groups: dict[tuple[str, str, str, float], list[ResultRow]] = {}
    for row in rows:
        settings = row.settings
        key = (row.dataset, settings["design"], settings["variant"], row.epsilon or 0.0)
        groups.setdefault(key, []).append(row)
    return groups


def error_table(rows: Iterable[ResultRow]) -> str:
    """Lay out the mean error of each set of queries, and of all."""
    lines = [
        (
            dataset,
            design,
            variant,
            runs[0].guarantee,
            f"{epsilon:g}",
            *(f"{mean(run.figures[name] for run in runs):.4f}" for name in runs[0].figures),
            figure([error_of(run) for run in runs], 4),
            f"{mean(run.wall_seconds or 0.0 for run in runs):.0f}",
        )
        for (dataset, design, variant, epsilon), runs in grouped(rows).items()
    ]
    header = (
        "dataset", "queries", "method", "guarantee", "epsilon", "20 %", "40 %", "60 %", "80 %",
        "100 %", "all", "seconds",
    )  # fmt: skip
    return table(header, lines, n_left=4)


def requirements(rows: Sequence[ResultRow]) -> list[Requirement]:
    """Hold DPGM against what was asked: falling with epsilon, and below MWEM.

    A comparison of some epsilons alone is shown, and not met.
    """

    def errors_of(*key: str) -> dict[float, float]:
        return {
            group[-1]: mean(error_of(run) for run in runs)
            for group, runs in grouped(rows).items()
            if group[:-1] == key
        }

    found = []
    for dataset, design in dict.fromkeys(key[:2] for key in grouped(rows)):
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
        keep=lambda rows: keep_rows(RESULT_FILE, rows),
    )
    rows = read_rows(RESULT_FILE)
    print(error_table(rows))
    print()
    print(requirement_table(requirements(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
