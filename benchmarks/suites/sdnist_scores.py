"""Scores of synthetic rows by NIST's own program: ``python -m benchmarks.suites.sdnist_scores ROWS``.

Runs with the packages of ``peers-sdnist.txt`` and imports nothing of ours. The metrics are classes
of ``sdnist``, called as its report calls them, without its plots; real rows and dictionaries come
from ``CLUSTMIX_DATA_DIR``. Prints one JSON object.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from statistics import mean

LAYOUT = {"national2019.csv": "national", "national2019.json": "national"}
"""Files that `sdnist` looks for in a folder below that of the others."""


def laid_out(source: Path, folder: Path) -> Path:
    """Link the files of the excerpts into a folder as `sdnist` has them."""
    for path in source.iterdir():
        place = folder / LAYOUT.get(path.name, "") / path.name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(path)
    return folder


def regression_error(dataset: object, folder: Path) -> float:
    """Return the mean error of the slope of PINCP_DECILE on EDU, over all and eight groups."""
    from sdnist.metrics.regression import LinearRegressionMetric
    from sdnist.report.score.utility.linear_regression import LinearRegressionReport
    from sdnist.utils import df_filter, to_num

    class Slopes(LinearRegressionReport):
        """The groups of the report; computes nothing by itself."""

        def _create(self) -> None:
            return

    groups = Slopes(dataset, None, None)
    errors = []
    for name, filters in groups.labels.values():
        real, made = df_filter(groups.t, filters), df_filter(groups.s, filters)
        metric = LinearRegressionMetric(real, made, groups.d_dict, folder)
        metric.compute()
        if metric.t_reg is None:
            raise ValueError(f"expected real rows of {name}")
        errors.append(abs(metric.t_reg.slope - (metric.s_reg.slope if metric.s_reg else 0.0)))
    return mean(errors)


def scores(rows: Path, source: Path) -> dict[str, float]:
    """Return the scores of a CSV file of synthetic rows, by name."""
    import sdnist.report  # first: its parts import each other
    from sdnist.load import TestDatasetName
    from sdnist.metrics.inconsistency import Inconsistencies
    from sdnist.metrics.kmarginal import KMarginal
    from sdnist.metrics.propensity import PropensityMSE
    from sdnist.utils import SimpleLogger

    with tempfile.TemporaryDirectory(prefix="clustmix-nist-") as name:
        folder = Path(name)
        root = laid_out(source, folder / "data")
        dataset = sdnist.report.Dataset(
            rows, SimpleLogger(), TestDatasetName.national2019, data_root=root, download=False
        )
        if dataset.validation_log.get("nans") or dataset.validation_log["values_out_of_bound"]:
            raise ValueError("expected values of the dictionary alone")
        groups = dataset.config["k_marginal"]["group_features"]
        marginals = KMarginal(dataset.d_target_data, dataset.d_synthetic_data, list(groups))
        propensity = PropensityMSE(dataset.t_target_data, dataset.t_synthetic_data, folder)
        rules = Inconsistencies(dataset.c_synthetic_data, folder / "rules")
        (folder / "rules").mkdir()
        rules.compute()
        found = [one for part in ("age", "work", "housing")
                 for one in rules.report_data[part]["inconsistencies"]]  # fmt: skip
        broken = {row for one in found for row in one["inconsistent_data_indexes"]}
        return {
            "k_marginal": float(marginals.compute_score()),
            "propensity_mse": float(propensity.compute_score()),
            "inconsistent_records": float(len(broken)),
            "regression_error": regression_error(dataset, folder),
        }


if __name__ == "__main__":
    os.environ.setdefault("MPLBACKEND", "agg")
    print(json.dumps(scores(Path(sys.argv[1]), Path(sys.argv[2]))))
