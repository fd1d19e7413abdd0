"""Utility of each method: LightGBM trained on the release alone, tested on real records.

Every run has a process of its own, so that its peak memory and its compilation times are its own.
The privacy noise comes from the operating system and has no seed; a seed here picks the split.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.results import (
    CLAIMED,
    NO_GUARANTEE,
    PROVEN,
    RESULTS,
    Requirement,
    ResultRow,
    figure,
    read_rows,
    requirement_table,
    table,
    write_rows,
)
from benchmarks.tables import SITES, Design, Split, design, split
from privacy.calibration import gdp_mu
from privacy.randomness import OperatingSystemNoise
from tasks import encoding
from tasks.metrics.marginal_distance import marginal_distance
from tasks.metrics.utility import Utility, train_on_synthetic_test_on_real
from tasks.synthesizers.clustmix.published.clustmix import PublishedClustMix
from tasks.synthesizers.clustmix.published.config import PublishedConfig
from tasks.synthesizers.curator import Curator, InProcessCompute
from tasks.synthesizers.naive_bayes import NaiveBayesConfig
from tasks.synthesizers.registry import build

DATASETS = ("adult", "diabetes130-readmission", "physionet2012-mortality")
SEEDS = (0, 1, 2)
METHODS = (("real", "none"), ("naive_bayes", "proven"), ("clustmix", "proven"))
PUBLISHED = ("clustmix", "published")
WITH_PUBLISHED = ("adult",)
"""Datasets on which the published analysis is run by default: it takes minutes on wide tables."""

ASKED_AUC = {"adult": 0.900, "physionet2012-mortality": 0.78}
RESULT_FILE = RESULTS / "utility.json"


class Clock:
    """Wall time of named stages, and the processor time of them all."""

    def __init__(self) -> None:
        self.stage_seconds: dict[str, float] = {}
        self.cpu_seconds = 0.0

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time the block."""
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.stage_seconds[name] = round(time.perf_counter() - wall, 3)
        self.cpu_seconds += time.process_time() - cpu


def peak_rss_mib() -> float:
    """Peak resident memory of this process since it started, in MiB."""
    # Not getrusage: its maximum survives exec and may be that of the parent.
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return round(int(line.split()[1]) / 1024, 1)
    raise RuntimeError("expected VmHWM in /proc/self/status; the benchmark needs Linux")


def train_and_test(synthetic: Design, real: Design, *, n_labels: int) -> Utility:
    """Score a table by a LightGBM classifier of 200 trees with default settings."""
    import lightgbm

    classifier = lightgbm.LGBMClassifier(n_estimators=200, random_state=0, n_jobs=2, verbose=-1)
    return train_on_synthetic_test_on_real(
        classifier,
        synthetic.features,
        synthetic.labels,
        real.features,
        real.labels,
        n_labels=n_labels,
    )


def measure_proven(part: Split, method: str, clock: Clock) -> Design:
    """Release synthetic records as the site file asks, by one of the proven methods."""
    site = part.site
    config = site.method if site.method.kind == method else NaiveBayesConfig()
    synthesizer = build(config, encoding.domain_of(site.table_schema))
    rng = np.random.default_rng()
    with clock.stage("plan"):
        mu = gdp_mu(epsilon=site.privacy.epsilon, delta=site.privacy.delta)
        plan = synthesizer.plan(mu=mu)
    curator = Curator(
        plan=plan, compute=InProcessCompute([part.rows]), noise_source=OperatingSystemNoise()
    )
    released: dict[str, NDArray[Any]] = {}
    for stage in synthesizer.stages(mu=mu):
        with clock.stage(stage.name):
            released.update(stage.run(curator, released))
    with clock.stage("decode"):
        codes, label = synthesizer.sample(released, n_rows=site.rows, rng=rng)
        frame = encoding.decode(codes, label, site.table_schema, rng=rng)
    return design(frame, site.table_schema)


def scaled(codes: NDArray[np.uint16], n_codes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Scale ordinal codes to [0, 1] by their declared number."""
    return codes / np.maximum(n_codes - 1, 1)


def measure_published(part: Split, clock: Clock) -> Design:
    """Run Algorithm 2 of the paper on ordinal codes; its epsilon is claimed, not proven."""
    privacy = part.site.privacy
    n_codes = np.array(encoding.domain_of(part.site.table_schema).n_codes)
    method = PublishedClustMix(
        config=PublishedConfig(epsilon=privacy.epsilon, delta=privacy.delta), clock=time.monotonic
    )
    with clock.stage("synthesize"):
        features, labels = method.synthesize(
            scaled(part.rows.codes, n_codes),
            part.rows.label.astype(np.int64),
            np.random.default_rng(),
        )
    # The points lie between the codes: a classifier sees them as they are, a marginal the nearest.
    codes = np.rint(features * (n_codes - 1)).astype(np.uint16)
    label = labels.astype(np.uint16)
    return Design(
        features=pd.DataFrame(features), labels=label, codes=np.column_stack([codes, label])
    )


def run_one(dataset: str, method: str, analysis: str, seed: int) -> ResultRow:
    """Measure one method on one split; runs in a process of its own."""
    part = split(dataset, seed)
    schema = part.site.table_schema
    test = design(part.test, schema)
    clock = Clock()
    if method == "real":
        release = design(part.train, schema)
    elif analysis == "published":
        release = measure_published(part, clock)
        n_codes = np.array(encoding.domain_of(schema).n_codes)
        test = Design(
            features=pd.DataFrame(scaled(test.codes[:, :-1], n_codes)),
            labels=test.labels,
            codes=test.codes,
        )
    else:
        release = measure_proven(part, method, clock)
    peak = peak_rss_mib()
    n_labels = len(schema.label.level_names)
    scored = train_and_test(release, test, n_labels=n_labels)
    n_codes_all = (*encoding.domain_of(schema).n_codes, n_labels)
    distance = marginal_distance(release.codes, test.codes, n_codes_all)
    private, seconds = method != "real", clock.stage_seconds
    return ResultRow(
        dataset=dataset,
        method=method,
        analysis=analysis,
        guarantee={"none": NO_GUARANTEE, "proven": PROVEN, "published": CLAIMED}[analysis],
        epsilon=part.site.privacy.epsilon if private else None,
        delta=part.site.privacy.delta if private else None,
        seed=seed,
        rows=len(part.train) + len(part.test),
        columns=len(part.site.columns_to_read),
        auc=round(scored.auc, 5),
        accuracy=round(scored.accuracy, 5),
        tvd_1way=round(distance.one_way, 5),
        tvd_2way=round(distance.two_way, 5),
        wall_seconds=round(sum(seconds.values()), 3),
        cpu_seconds=round(clock.cpu_seconds, 3),
        method_seconds=round(sum(seconds.values()) - seconds.get("plan", 0.0), 3),
        stage_seconds=seconds,
        peak_rss_mib=peak,
    )


def run(datasets: Sequence[str], *, show: Callable[[str], None]) -> list[ResultRow]:
    """Measure every method on every split of the datasets, one after the other."""
    jobs = [
        (dataset, method, analysis, seed)
        for dataset in datasets
        for method, analysis in (*METHODS, *([PUBLISHED] if dataset in WITH_PUBLISHED else []))
        for seed in SEEDS
    ]
    rows = []
    with ProcessPoolExecutor(
        max_workers=1, max_tasks_per_child=1, mp_context=multiprocessing.get_context("spawn")
    ) as pool:
        for job in jobs:
            row = pool.submit(run_one, *job).result()
            rows.append(row)
            show(
                f"{row.dataset} {row.method} ({row.analysis}) split {row.seed}: AUC {row.auc:.4f}, "
                f"{row.wall_seconds:.1f} s, {row.peak_rss_mib:.0f} MiB"
            )
    return rows


def keep_others(rows: Iterable[ResultRow], datasets: Sequence[str]) -> list[ResultRow]:
    """Join new rows with the earlier ones of the datasets that were not run."""
    return [row for row in read_rows(RESULT_FILE) if row.dataset not in datasets] + list(rows)


def grouped(rows: Iterable[ResultRow]) -> dict[tuple[str, str, str], list[ResultRow]]:
    """Rows of the splits of one dataset, method and guarantee together."""
    groups: dict[tuple[str, str, str], list[ResultRow]] = {}
    for row in rows:
        groups.setdefault((row.dataset, row.method, row.guarantee), []).append(row)
    return groups


def utility_table(rows: Iterable[ResultRow]) -> str:
    """Lay out means over the splits, with their standard deviations."""
    lines = [
        (
            dataset,
            method,
            guarantee,
            "-" if group[0].epsilon is None else f"{group[0].epsilon:g}",
            figure([row.auc for row in group], 4),
            figure([row.accuracy for row in group]),
            figure([mean([row.tvd_1way or 0.0 for row in group])]),
            figure([mean([row.tvd_2way or 0.0 for row in group])]),
            figure([mean([row.wall_seconds for row in group])], 1),
            f"{max(row.peak_rss_mib for row in group):.0f}",
        )
        for (dataset, method, guarantee), group in grouped(rows).items()
    ]
    header = (
        "dataset", "method", "guarantee", "epsilon", "AUC", "accuracy", "TVD 1-way", "TVD 2-way",
        "seconds", "peak MiB",
    )  # fmt: skip
    return table(header, lines, n_left=3)


def requirements(rows: Iterable[ResultRow]) -> list[Requirement]:
    """Compare the AUC of ClustMix with what was asked, and with naive Bayes and the real rows."""
    aucs = {key: [row.auc or 0.0 for row in group] for key, group in grouped(rows).items()}
    found = []
    for dataset, asked in ASKED_AUC.items():
        group = aucs.get((dataset, "clustmix", PROVEN))
        if group is None:
            continue
        beside = ", ".join(
            f"{name} {mean(aucs[key]):.4f}"
            for name, key in (
                ("naive Bayes", (dataset, "naive_bayes", PROVEN)),
                ("real rows", (dataset, "real", NO_GUARANTEE)),
            )
            if key in aucs
        )
        found.append(
            Requirement(
                text=f"{dataset}: AUC of clustmix, epsilon 1, mean of {len(group)} splits",
                asked=f">= {asked:.3f}",
                measured=f"{mean(group):.4f} (beside {beside})",
                met=mean(group) >= asked,
            )
        )
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.utility", description=__doc__)
    known = sorted(path.stem for path in SITES.glob("*.yaml"))
    parser.add_argument("--dataset", action="append", choices=known, help="may be given repeatedly")
    options = parser.parse_args(arguments)
    datasets = tuple(options.dataset or DATASETS)
    rows = run(datasets, show=lambda text: print(text, file=sys.stderr, flush=True))
    write_rows(RESULT_FILE, keep_others(rows, datasets))
    print(utility_table(rows))
    print()
    print(requirement_table(requirements(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
