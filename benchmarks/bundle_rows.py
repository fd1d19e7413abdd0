"""Rows of a published bundle and of a real table, read alike from their files.

Imports nothing of the pipeline: declared levels, bins and labels are applied to raw cells anew, by
what ``schema.json`` says. Order is that of its lists; of a mapping, that of its keys.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

MISSING, UNDECLARED = "(missing)", "(undeclared)"

Document = dict[str, Any]


class View(NamedTuple):
    """Rows as a classifier and a distance see them, synthetic and real ones alike.

    ``codes`` (n, d) are declared levels or bins, of an image black or white, and ``widths`` the
    numbers of codes. ``label`` (n,) is the place in the declared order of levels, -1 where a row
    has none. ``shape`` is that of images, whose features are flat.
    """

    features: Any
    codes: NDArray[np.int64]
    widths: tuple[int, ...]
    label: NDArray[np.int64]
    shape: tuple[int, ...] = ()

    def labelled(self) -> View:
        """Leave out the rows without a label."""
        keep = self.label >= 0
        return self._replace(
            features=self.features[keep], codes=self.codes[keep], label=self.label[keep]
        )


def text_of(value: object) -> str:
    """Write a cell one way: no outer blanks, whole numbers without decimals, nothing if empty."""
    if value is None or value is pd.NA or (isinstance(value, float) and np.isnan(value)):
        return ""
    if isinstance(value, str):
        return value.strip()
    number = number_of(str(value))
    return str(int(number)) if number.is_integer() and abs(number) < 2**53 else str(value)


def number_of(text: str) -> float:
    try:
        return np.nan if "_" in text else float(text)
    except ValueError:
        return np.nan


def pairs_of(named: Any) -> list[tuple[str, Any]]:
    """Names and values in their order, of a mapping or of a list of ``{name, values}``."""
    if isinstance(named, dict):
        return list(named.items())
    return [(one["name"], one["values"]) if isinstance(one, dict) else tuple(one) for one in named]


def is_missing(text: str, column: Document) -> bool:
    """Whether a cell is empty or one of the declared codes for "not known"."""
    codes = [text_of(code) for code in column.get("missing") or ()]
    number = number_of(text)
    return text in ("", *codes) or any(number == number_of(code) for code in codes)


def level_of(text: str, column: Document) -> str:
    if is_missing(text, column):
        return MISSING
    if text in column["levels"]:
        return text
    number = number_of(text)
    for key, holds in (
        ("groups", lambda values: text in values),
        ("prefixes", lambda values: text.startswith(tuple(values))),
        ("numeric_ranges", lambda values: any(low <= number < high for low, high in values)),
    ):
        for level, values in pairs_of(column.get(key) or ()):
            if holds(values):
                return str(level)
    return column.get("other") or UNDECLARED


def label_levels(label: Document) -> list[str]:
    if label.get("levels"):
        return [name for name, _ in pairs_of(label["levels"])]
    return list(label["buckets"]["levels"])


def label_of(text: str, label: Document) -> str:
    if is_missing(text, label):
        return MISSING
    for level, values in pairs_of(label.get("levels") or ()):
        if text == level or text in map(text_of, values):
            return level
    buckets, number = label.get("buckets"), number_of(text)
    if buckets and not np.isnan(number):
        return str(buckets["levels"][int(np.searchsorted(buckets["edges"], number, side="right"))])
    return text if buckets and text in buckets["levels"] else UNDECLARED


def mapped(cells: pd.Series, rule: Callable[[str], Any]) -> pd.Series:
    """Apply a rule to the text of each different cell of a column."""
    place, values = pd.factorize(cells, use_na_sentinel=False)
    return pd.Series([rule(text_of(value)) for value in values]).take(place).set_axis(cells.index)


def positions(
    cells: pd.Series, rule: Callable[[str], str], names: Sequence[str]
) -> NDArray[np.int64]:
    places = {name: place for place, name in enumerate(names)}
    return mapped(cells, lambda text: places.get(rule(text), -1)).to_numpy(np.int64)


def bin_starts(column: Document, decimals: int) -> NDArray[np.float64]:
    """Lower ends of the bins of a number; a number of bins divides the values on its grid."""
    if not isinstance(column["bins"], int):
        return np.asarray(column["bins"][:-1], float)
    scale, n_bins = 10**decimals, column["bins"]
    first, last = round(column["lower"] * scale), round(column["upper"] * scale)
    return np.array([(first + k * (last - first + 1) // n_bins) / scale for k in range(n_bins)])


def column_view(cells: pd.Series, column: Document) -> tuple[Any, NDArray[np.int64], int]:
    if column["kind"] == "item":
        held = mapped(cells, lambda text: int(text in ("1", "True", "true"))).to_numpy()
        return held, held, 2
    if column["kind"] == "categorical":
        levels = [*column["levels"], MISSING]
        code = positions(cells, partial(level_of, column=column), levels)
        known = pd.Categorical.from_codes(code, categories=pd.Index(levels))
        return known, code % (len(levels) + 1), len(levels) + 1

    def number(text: str) -> float:
        return np.nan if is_missing(text, column) else number_of(text)

    decimals = 0 if column["kind"] == "integer" else column.get("decimals")
    decimals = 2 if decimals is None else int(decimals)
    clipped = mapped(cells, number).astype(float).clip(column["lower"], column["upper"])
    value = clipped.round(decimals).to_numpy()
    starts = bin_starts(column, decimals)
    place = np.searchsorted(starts, value, side="right")
    return value, np.where(np.isnan(value), 0, place), len(starts) + 1


def labels_of(cells: pd.Series, schema: Document) -> NDArray[np.int64]:
    label = schema["label"]
    return positions(cells, partial(label_of, label=label), label_levels(label))


def table_view(frame: pd.DataFrame, schema: Document) -> View:
    items = [{"name": name, "kind": "item"} for name in schema.get("items") or ()]
    declared = schema.get("columns") or items
    features, codes, widths = zip(
        *(column_view(frame[column["name"]], column) for column in declared), strict=True
    )
    named = pd.DataFrame({f"f{number}": one for number, one in enumerate(features)})
    label = labels_of(frame[schema["label"]["name"]], schema)
    return View(named, np.column_stack(codes).astype(np.int64), widths, label)


def image_view(pixels: NDArray[Any], labels: pd.Series, schema: Document) -> View:
    white = pixels >= (schema["image"].get("threshold") or 128)
    gray, widths = (pixels / 255.0).astype(np.float32), (2,) * pixels.shape[1]
    shape = image_shape(schema["image"])
    return View(gray, white.astype(np.int64), widths, labels_of(labels, schema), shape)


def image_shape(image: Document) -> tuple[int, int, int]:
    return image["height"], image["width"], image.get("channels") or 1


def views(bundle: Path, table: Path, label: int = 0) -> tuple[View, View, Document]:
    """Synthetic rows, real rows and schema, where one of several labels is the label."""
    schema = json.loads((bundle / "schema.json").read_text(encoding="utf-8"))
    schema["label"] = (schema["label"], *schema.get("more_labels", ()))[label]
    synthetic, rows = pd.read_parquet(bundle / "synthetic.parquet"), read_rows(table)
    if schema.get("image"):
        digits, made = rows.pop("label"), synthetic.pop(schema["label"]["name"])
        n_pixels = math.prod(image_shape(schema["image"]))
        pixels = synthetic.iloc[:, :n_pixels].to_numpy()
        real = image_view(rows.to_numpy(np.uint8), digits, schema).labelled()
        return image_view(pixels, made, schema), real, schema
    return table_view(synthetic, schema), table_view(rows, schema).labelled(), schema


def read_rows(table: Path) -> pd.DataFrame:
    if table.suffix == ".parquet":
        return pd.read_parquet(table, dtype_backend="pyarrow")
    return pd.read_csv(table, dtype=str, keep_default_na=False)
