"""Scores of synthetic rows by NIST's own program.

``python -m benchmarks.suites.sdnist_scores DATA ROWS [MORE]`` runs with the packages of
``peers-sdnist.txt`` and imports nothing of ours. The metrics are classes of ``sdnist``, called as
its report calls them, without its plots; DATA has the real rows and the dictionaries. Of MORE rows
of the same fit it takes the k-marginal alone. Prints one JSON object.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any


def laid_out(source: Path, folder: Path) -> Path:
    for path in source.iterdir():
        place = folder / ("national" if path.stem == "national2019" else "") / path.name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(path)
    return folder


def regression_error(dataset: Any, folder: Path) -> float:
    """Return the mean error of the slope of PINCP_DECILE on EDU, over all and eight groups."""
    from sdnist.metrics.regression import LinearRegressionMetric
    from sdnist.report.score.utility.linear_regression import LinearRegressionReport
    from sdnist.utils import df_filter

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


def dataset_of(rows: Path, root: Path) -> Any:
    import sdnist.report
    from sdnist.load import TestDatasetName
    from sdnist.utils import SimpleLogger

    found = sdnist.report.Dataset(
        rows, SimpleLogger(), TestDatasetName.national2019, data_root=root, download=False
    )
    if found.validation_log.get("nans") or found.validation_log["values_out_of_bound"]:
        raise ValueError("expected values of the dictionary alone")
    return found


def k_marginal(dataset: Any) -> float:
    """Return the mean closeness of pairs of columns, by area if it is among them; 1000 at most."""
    from sdnist.metrics.kmarginal import KMarginal

    groups = list(dataset.config["k_marginal"]["group_features"])
    return float(KMarginal(dataset.d_target_data, dataset.d_synthetic_data, groups).compute_score())


def scores(rows: Path, root: Path, folder: Path) -> dict[str, float]:
    dataset = dataset_of(rows, root)
    from sdnist.metrics.inconsistency import Inconsistencies
    from sdnist.metrics.propensity import PropensityMSE

    propensity = PropensityMSE(dataset.t_target_data, dataset.t_synthetic_data, folder)
    (folder / "rules").mkdir()
    rules = Inconsistencies(dataset.c_synthetic_data, folder / "rules")
    rules.compute()
    found = [one for part in ("age", "work", "housing")
             for one in rules.report_data[part]["inconsistencies"]]  # fmt: skip
    broken = {row for one in found for row in one["inconsistent_data_indexes"]}
    return {
        "k_marginal": k_marginal(dataset),
        "propensity_mse": float(propensity.compute_score()),
        "inconsistent_records": float(len(broken)),
        "regression_error": regression_error(dataset, folder),
    }


if __name__ == "__main__":
    source, *files = map(Path, sys.argv[1:])
    with tempfile.TemporaryDirectory(prefix="clustmix-nist-") as name:
        root = laid_out(source, Path(name) / "data")
        found = scores(files[0], root, Path(name))
        for more in files[1:]:
            found["k_marginal_of_more_rows"] = k_marginal(dataset_of(more, root))
        print(json.dumps(found))
