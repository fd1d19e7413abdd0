"""What a published bundle is worth to those who get it, judged from its files alone.

It reads ``schema.json`` and ``synthetic.parquet`` of a bundle and a table of real rows, CSV or
Parquet in the form of the source, which the release should not have seen. Nothing of the pipeline
is imported but the public loader of a released teacher.

``python -m benchmarks.score [--trained ROWS] BUNDLE TABLE`` prints a JSON object.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score

from benchmarks.bundle_rows import Document, View, label_levels, read_rows, table_view, views
from benchmarks.marginal_distance import marginal_distance

TREES, LEAST = 200, 1e-15
SEX = ("sex", "gender", "male")
"""Names of columns of the sex of a patient, in lower case."""

CALIBRATION_BINS, CHANCE_DRAWS, CHANCE_SEED = 10, 200, 20_190_628
PAPER_STEPS, PAPER_SHAPE = 2_500, (28, 28, 1)
"""Batches that the papers' network is trained on, however few the images are, and its images."""


def fitted(rows: View, trees: int) -> Any:
    known = rows.labelled()
    if len(np.unique(known.label)) < 2:
        return None
    model: Any = LogisticRegression(max_iter=100)  # the measure, converged or not
    if not rows.shape:
        model = lightgbm.LGBMClassifier(
            n_estimators=trees, random_state=0, verbose=-1, n_jobs=2, importance_type="gain"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(known.features, known.label)


def predicted(model: Any, synthetic: View, real: View, n_labels: int) -> NDArray[np.float64]:
    probability = np.full((len(real.label), n_labels), LEAST)
    if model is None:
        probability[:, synthetic.labelled().label[:1]] = 1.0
        return probability
    probability[:, model.classes_] = np.clip(model.predict_proba(real.features), LEAST, None)
    return probability / probability.sum(axis=1, keepdims=True)


def groups(real: View, schema: Document) -> dict[str, NDArray[np.bool_]]:
    """Real rows by sex, and by thirds of age, where the schema has columns of these names."""
    found: dict[str, NDArray[np.bool_]] = {}
    for place, column in enumerate(schema.get("columns") or ()):
        codes, name = real.codes[:, place], column["name"].lower()
        if name in SEX and column["kind"] == "categorical":
            levels = enumerate(column["levels"])
            found |= {f"{name} {level}": codes == code for code, level in levels}
        if name == "age":
            thirds = np.digitize(codes, np.quantile(codes, [1 / 3, 2 / 3]), right=True)
            named = enumerate(("lowest", "middle", "highest"))
            found |= {f"age, {third} third": thirds == number for number, third in named}
    return found


def importance_agreement(
    model: Any, trained: Path | None, schema: Document, trees: int
) -> float | None:
    """Spearman's rho of the columns' gains with those of a model of the real rows."""
    other: Any = trained and fitted(table_view(read_rows(trained), schema), trees)
    if model is None or other is None:
        return None
    found = float(spearmanr(model.feature_importances_, other.feature_importances_).statistic)
    return found if np.isfinite(found) else None


def utility(probability: NDArray[np.float64], real: NDArray[np.int64], label: Document) -> Document:
    """Return AUC, by level and together, accuracy and log loss of probabilities of real labels."""
    levels = label_levels(label)
    by_level = {
        name: round(float(roc_auc_score(real == place, probability[:, place])), 5)
        for place, name in enumerate(levels)
        if (real == place).any()
    }
    positive = label.get("positive") or levels[-1]
    auc = by_level[positive] if len(levels) == 2 else float(np.mean(list(by_level.values())))
    return {
        "auc": round(auc, 5),
        "accuracy": round(float(accuracy_score(real, probability.argmax(axis=1))), 5),
        "log_loss": round(log_loss(real, probability, labels=range(len(levels))), 5),
    }


def calibration_error(probability: NDArray[np.float64], label: NDArray[np.int64]) -> float:
    """Return the expected calibration error (Guo et al. 2017, Eq. 3), of ten bins of equal width.

    The event is the last level where there are two levels, and else that the level of the largest
    probability is the true one.
    """
    predicted = np.ones(len(label)) if probability.shape[1] == 2 else probability.argmax(axis=1)
    said = probability[:, 1] if probability.shape[1] == 2 else probability.max(axis=1)
    place = np.minimum((said * CALIBRATION_BINS).astype(np.int64), CALIBRATION_BINS - 1)
    excess = np.bincount(place, weights=said - (label == predicted))
    return float(np.abs(excess).sum() / len(label))


def calibration_by_chance(probability: NDArray[np.float64]) -> float:
    """Mean `calibration_error` of labels that are drawn from these probabilities."""
    rng, above = np.random.default_rng(CHANCE_SEED), probability.cumsum(axis=1)[:, :-1]
    draws = (
        (rng.random((len(above), 1)) > above).sum(axis=1, dtype=np.int64)
        for _ in range(CHANCE_DRAWS)
    )
    return float(np.mean([calibration_error(probability, label) for label in draws]))


def teacher_accuracy(bundle: Path, real: View, levels: Sequence[str]) -> float | None:
    if not (bundle / "teacher.npz").is_file():
        return None
    from tasks.reporting.released_teacher import Teacher

    teacher = Teacher.from_bytes((bundle / "teacher.npz").read_bytes())
    found = teacher.predict(np.rint(real.features * 255).astype(np.uint8))
    return round(float(np.mean(found == np.asarray(levels)[real.label])), 5)


def network_figures(bundle: Path, synthetic: View, real: View, levels: Sequence[str]) -> Document:
    """Accuracies of networks that learned from the images, and of the released classifier."""
    from benchmarks import networks

    made, n = synthetic.labelled(), len(levels)
    pixels, others = (view.features.reshape(-1, *view.shape) for view in (made, real))
    small = networks.fit_small(pixels, made.label, n_labels=n)
    paper = None
    if real.shape == PAPER_SHAPE:
        batch = min(networks.PAPER_BATCH, len(made.label))
        epochs = max(PAPER_STEPS * batch // len(made.label), 1)
        network = networks.fit_paper(
            pixels, made.label, n_labels=n, epochs=epochs, seed=0, batch_size=batch
        )
        network = networks.adapted(network, others)
        paper = networks.accuracy(network, others, real.label)
    return {
        "cnn_accuracy": round(networks.accuracy(small, others, real.label), 5),
        "teacher_accuracy": teacher_accuracy(bundle, real, levels),
        "paper_cnn_accuracy": paper,
    }


def score(
    bundle: Path, table: Path, *, trees: int = TREES, trained: Path | None = None
) -> Document:
    """Judge a bundle by a table of real rows; return fields of a row, and the five worst columns.

    Images are judged by trained networks as well, which takes minutes; `trained` are real rows that
    the release was made of, to compare importances of columns. AUC is that of each level against
    the rest, and of two levels that of the positive one; what does not apply is left out.
    """
    synthetic, real, schema = views(bundle, table)
    levels = label_levels(schema["label"])
    if len(np.unique(real.label)) < 2:
        raise ValueError("expected real rows of two label levels or more, to judge a bundle by")
    model = fitted(synthetic, trees)
    probability = predicted(model, synthetic, real, len(levels))
    # A missing label is a level of its own.
    widths = (*real.widths, len(levels) + 1)
    every = [np.column_stack([v.codes, v.label % widths[-1]]) for v in (synthetic, real)]
    distance = marginal_distance(every[0], every[1], widths)
    columns = [column["name"] for column in schema.get("columns") or ()]
    names = [*(columns or schema.get("items") or range(len(widths) - 1)), "(label)"]
    worst = sorted(zip(distance.by_column, map(str, names), strict=True), reverse=True)[:5]
    figures: dict[str, Any] = {
        "calibration_by_chance": calibration_by_chance(probability),
        "importance_agreement": importance_agreement(model, trained, schema, trees),
    }
    for name, rows in groups(real, schema).items():
        if len(np.unique(real.label[rows])) > 1:
            of_group = utility(probability[rows], real.label[rows], schema["label"])
            figures[f"auc, {name}"] = of_group["auc"]
    for number in range(1, 1 + len(schema.get("more_labels", ()))):
        made, kept, declared = views(bundle, table, number)
        label = declared["label"]
        other = predicted(fitted(made, trees), made, kept, len(label_levels(label)))
        found = utility(other, kept.label, label)
        figures |= {f"{name}, {label['name']}": value for name, value in found.items()}
    of_images = network_figures(bundle, synthetic, real, levels) if real.shape else {}
    figures["paper_cnn_accuracy"] = of_images.pop("paper_cnn_accuracy", None)
    return {
        "rows_out": len(synthetic.label),
        **utility(probability, real.label, schema["label"]),
        "calibration_error": round(calibration_error(probability, real.label), 5),
        "tvd_1way": round(float(distance.by_column.mean()), 5),
        "tvd_2way": round(distance.two_way, 5),
        **of_images,
        "figures": {name: round(float(v), 5) for name, v in figures.items() if v is not None},
        "worst_columns": {name: round(float(value), 5) for value, name in worst},
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="benchmarks.score", description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("table", type=Path)
    parser.add_argument("--trained", type=Path, help="real rows that the bundle was made of")
    print(json.dumps(score(**vars(parser.parse_args()))))
