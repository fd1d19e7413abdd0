"""Coverage of 95 % intervals in simulated releases of 4,000 patients, naive intervals beside them.

Patients are drawn from a large table, made up or Adult's, whose figures are the truth. Contrasts
are read from sealed tables; the coefficient of the second column in a logistic model is that of
rows, with `clustmix.combine` of ten draws. A naive interval takes rows for patients. No seed.

``python -m benchmarks.suites.intervals --dataset T --epsilon E --quantity contrasts | coefficient``
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from sklearn.linear_model import LogisticRegression

import clustmix
from benchmarks.jobs import run
from benchmarks.results import ResultRow
from benchmarks.suites.pool import as_part, drawn_from, made_row, mu_of, tables
from privacy.errors import ConfigurationError
from tasks.ingest.encoding import domain_of, encode_chunk
from tasks.measurement.encoded import EncodedRows
from tasks.measurement.pooled_sums import draws_of, noisy_of
from tasks.methods.clustmix.table_clustmix import TableClustMix
from tasks.methods.clustmix.tables.mixture import Effort
from tasks.reporting.conclusions import Interval, combine, contrast

PATIENTS, ROWS, DRAWS, EXACT = 4_000, 20_000, 10, 50.0
RELEASES = {"contrasts": 200, "coefficient": 40}
ASKED = {
    "made-up": ("mean age", "share ward=b", "risk_difference y=yes smoker=y",
                "odds_ratio y=yes smoker=y", "odds_ratio smoker=y sex=m"),
    "adult": ("mean age", "share sex=Female", "risk_difference income=>50K sex=Male",
              "odds_ratio income=>50K sex=Male", "risk_difference sex=Female workclass=Private"),
}  # fmt: skip
COLUMNS = {"made-up": [2, 0, 1], "adult": [9, 0, 12]}
"""Columns of the logistic model, the one of the coefficient first."""


def population(table: str) -> tuple[clustmix.Schema, Any, Any]:
    """Return the schema, the codes and the labels of the patients who are drawn from."""
    if table == "adult":
        schema, _, *both = tables("adult", 0)
        coded = [encode_chunk(rows.reset_index(drop=True), schema) for rows in both]
        codes, known = ([getattr(one, of) for one in coded] for of in ("codes", "label"))
        return schema, np.concatenate(codes), np.concatenate(known)
    levels = {"sex": ["f", "m"], "smoker": ["n", "y"], "ward": list("abcde")}
    columns: list[Any] = [{"name": "age", "kind": "integer", "lower": 0, "upper": 99, "bins": 10}]
    columns += [{"name": n, "kind": "categorical", "levels": own} for n, own in levels.items()]
    label = {"name": "y", "levels": {"no": ("0",), "yes": ("1",)}}
    rng, n = np.random.default_rng(1), 1_000_000
    age, sex = np.minimum(rng.poisson(4, n), 9), rng.integers(0, 2, n)
    smoker, ward = rng.random(n) < 0.2 + 0.25 * sex, rng.choice(5, n, p=[0.4, 0.3, 0.15, 0.1, 0.05])
    y = rng.random(n) < 1.0 / (1.0 + np.exp(2.0 - 0.2 * age - 0.7 * smoker))
    return clustmix.Schema(columns=columns, label=label), np.stack([age, sex, smoker, ward], 1), y


def coefficient(table: str, codes: Any, label: Any) -> tuple[float, float]:
    """Coefficient of the first column in a logistic model, and its variance among the rows."""
    x = codes[:, COLUMNS[table]].astype(float)
    model = LogisticRegression(C=np.inf, max_iter=1_000).fit(x, label)
    p = model.predict_proba(x)[:, 1]
    x = np.column_stack([x, np.ones(len(x))])
    return float(model.coef_[0, 0]), float(np.linalg.inv((x.T * p * (1.0 - p)) @ x)[0, 0])


def encoded(codes: Any, label: Any) -> EncodedRows:
    """Return patients of one row each."""
    own = {"codes": codes.astype(np.uint16), "label": label.astype(np.uint16)}
    return EncodedRows(**own, weight=np.ones(len(label)), fold=np.zeros(len(label), dtype=np.uint8))


def contrasts(table: str, schema: Any, method: Any, measured: Any) -> dict[str, Interval]:
    """Return the contrasts that a release offers, with their intervals."""
    found = {}
    for name in ASKED[table]:
        asked = dict(zip(("kind", "of", "by"), name.split(), strict=False))
        with suppress(ConfigurationError):
            found[name] = contrast(method, schema, measured[1], noisy_of(measured[2]), **asked)  # type: ignore[arg-type]
    return found


def by_draws(table: str, method: Any, codes: Any, label: Any, mu: float) -> dict[str, Interval]:
    """Return the coefficient of a release with the interval of its draws."""
    measured, rng = drawn_from(method, encoded(codes, label), mu=mu), np.random.default_rng()
    part, released = as_part(method, *measured), measured[1]
    each = [released, *(own for own, _ in draws_of(method, part, DRAWS, rng=rng))]
    samples = (method.sample(own, n_rows=ROWS, rng=rng) for own in each)
    found = zip(*(coefficient(table, codes, label) for codes, label in samples), strict=True)
    return {"coefficient": combine(*found, rows=ROWS, patients=float(released["patients"]))}


def coverage(table: str, epsilon: float, quantity: str) -> dict[str, float]:
    """Share of releases in which an interval is offered, and of those in which it has the truth."""
    schema, codes, label = population(table)
    domain, rng = replace(domain_of(schema), patients=PATIENTS), np.random.default_rng()
    quick = TableClustMix(domain, Effort(starts=1, steps=1, fit_rows=200, points=60))
    mu, count = mu_of(epsilon), Counter[str]()
    whole = drawn_from(quick, encoded(codes, label), mu=EXACT)
    truth = {name: one.estimate for name, one in contrasts(table, schema, quick, whole).items()}
    truth["coefficient"] = coefficient(table, codes, label)[0]
    for _ in range(RELEASES[quantity]):
        rows = rng.integers(0, len(label), PATIENTS)
        if quantity == "coefficient":
            found = by_draws(table, TableClustMix(domain), codes[rows], label[rows], mu)
        else:  # which are read from counts and pairs alone
            measured = drawn_from(quick, encoded(codes[rows], label[rows]), mu=mu)
            found = contrasts(table, schema, quick, measured)
        for name, one in found.items():
            scale = np.log if "ratio" in name else float
            missed = abs(scale(one.estimate) - scale(truth[name]))
            count[f"offered {name}"] += 1
            count[f"covered {name}"] += one.low <= truth[name] <= one.high
            count[f"naive {name}"] += bool(missed < 1.96 * one.sampling)
    names = ["coefficient"] if quantity == "coefficient" else ASKED[table]
    of = {name: count[f"offered {name}"] for name in names}
    shares = {f"offered {name}": of[name] / RELEASES[quantity] for name in names}
    kinds = ("covered", "naive")
    return shares | {f"{k} {n}": count[f"{k} {n}"] / max(of[n], 1) for n in names for k in kinds}


def row_of(
    dataset: str, epsilon: float, quantity: Literal["contrasts", "coefficient"] = "contrasts"
) -> ResultRow:
    """Make the row of simulated releases of a table."""
    settings = {"quantity": quantity, "releases": RELEASES[quantity]}
    figures = coverage(dataset, epsilon, quantity)
    return made_row(dataset, epsilon, 0, settings=settings, figures=figures)


if __name__ == "__main__":
    run(row_of)
