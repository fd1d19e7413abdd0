"""Rows of a published bundle and of a real table, read alike from their files.

Imports nothing of the pipeline: declared levels, bins and labels are applied to raw cells anew, by
what ``schema.json`` says. Order is that of its lists; of a mapping, that of its keys.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

MISSING, UNDECLARED = "(missing)", "(undeclared)"

Document = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Rows as a classifier and a distance see them, synthetic and real ones alike.

    Parameters
    ----------
    features
        DataFrame or array of shape (n, d).
    codes : int64 array of shape (n, d)
        Declared level or bin of each cell; of an image black or white.
    widths
        Number of codes of each column.
    label : int64 array of shape (n,)
        Position in the declared order of levels; -1 where a row has no declared label.
    shape
        Height, width and channels of images, whose features are flat.
    """

    features: Any
    codes: NDArray[np.int64]
    widths: tuple[int, ...]
    label: NDArray[np.int64]
    shape: tuple[int, ...] = ()

    def labelled(self) -> View:
        """Leave out the rows without a label."""
        keep = self.label >= 0
        return replace(
            self, features=self.features[keep], codes=self.codes[keep], label=self.label[keep]
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
    """Read a number; NaN where there is none."""
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
    """Return the declared level of a raw cell of a categorical column."""
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
    """Names of the label levels in their declared order."""
    if label.get("levels"):
        return [name for name, _ in pairs_of(label["levels"])]
    return list(label["buckets"]["levels"])


def _value_of(text: str, column: Document) -> float:
    return np.nan if is_missing(text, column) else number_of(text)


def label_of(text: str, label: Document) -> str:
    """Return the declared level of a raw label."""
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
    place, values = pd.factorize(cells)
    found = [rule(text_of(value)) for value in values]
    if (place < 0).any():  # empty cells
        place, found = place % (len(found) + 1), [*found, rule("")]
    return pd.Series(found).take(place).set_axis(cells.index)


def positions(cells: pd.Series, rule: Callable[[str], str], names: Sequence[str]) -> pd.Series:
    """Position of each cell's level among the names; -1 for any other."""
    places = {name: place for place, name in enumerate(names)}
    return mapped(cells, lambda text: places.get(rule(text), -1)).astype(np.int64)


def bin_starts(column: Document) -> NDArray[np.float64]:
    """Lower ends of the bins of a number; a number of bins divides the values on its grid."""
    if not isinstance(column["bins"], int):
        return np.asarray(column["bins"][:-1], float)
    scale = 10 ** decimals_of(column)
    first, last = round(column["lower"] * scale), round(column["upper"] * scale)
    n_bins = column["bins"]
    return np.array([(first + k * (last - first + 1) // n_bins) / scale for k in range(n_bins)])


def decimals_of(column: Document) -> int:
    """Decimals that a number is released with."""
    decimals = 0 if column["kind"] == "integer" else column.get("decimals")
    return 2 if decimals is None else int(decimals)


def table_view(frame: pd.DataFrame, schema: Document) -> View:
    """View of rows with declared columns, or of sets of items."""
    features: dict[str, Any] = {}
    codes, widths = [], []
    items = [{"name": name, "kind": "item"} for name in schema.get("items") or ()]
    for number, column in enumerate(schema.get("columns") or items):
        cells, name = frame[column["name"]], f"f{number}"
        if column["kind"] == "item":
            features[name] = mapped(cells, lambda text: int(text in ("1", "True", "true")))
            codes.append(features[name].to_numpy())
            widths.append(2)
        elif column["kind"] == "categorical":
            levels = [*column["levels"], MISSING]
            code = positions(cells, partial(level_of, column=column), levels)
            features[name] = pd.Categorical.from_codes(code.to_numpy(), categories=pd.Index(levels))
            codes.append(code.to_numpy() % (len(levels) + 1))
            widths.append(len(levels) + 1)
        else:
            value = mapped(
                cells,
                partial(_value_of, column=column),
            )
            value = value.astype(float).clip(column["lower"], column["upper"])
            features[name] = value.round(decimals_of(column)).to_numpy()
            starts = bin_starts(column)
            place = np.searchsorted(starts, features[name], side="right")
            codes.append(np.where(np.isnan(features[name]), 0, place))
            widths.append(len(starts) + 1)
    label = schema["label"]
    return View(
        features=pd.DataFrame(features),
        codes=np.column_stack(codes).astype(np.int64),
        widths=tuple(widths),
        label=positions(
            frame[label["name"]], lambda text: label_of(text, label), label_levels(label)
        ).to_numpy(),
    )


def image_view(pixels: NDArray[Any], labels: pd.Series, schema: Document) -> View:
    """View of images of shape (n, pixels); white from the threshold or the middle gray on."""
    white = pixels >= (schema["image"].get("threshold") or 128)
    label = schema["label"]
    return View(
        features=(pixels / 255.0).astype(np.float32),
        codes=white.astype(np.int64),
        widths=(2,) * pixels.shape[1],
        label=positions(labels, lambda text: label_of(text, label), label_levels(label)).to_numpy(),
        shape=image_shape(schema["image"]),
    )


def image_shape(image: Document) -> tuple[int, int, int]:
    """Height, width and channels of declared images."""
    return image["height"], image["width"], image.get("channels") or 1


def views(bundle: Path, table: Path, label: int = 0) -> tuple[View, View, Document]:
    """Synthetic rows, real rows and schema, where one of several labels is the label."""
    schema = json.loads((bundle / "schema.json").read_text(encoding="utf-8"))
    schema["label"] = (schema["label"], *schema.get("more_labels", ()))[label]
    synthetic = pd.read_parquet(bundle / "synthetic.parquet")
    if schema.get("image"):
        name, n_pixels = schema["label"]["name"], math.prod(image_shape(schema["image"]))
        pixels = synthetic.drop(columns=name).iloc[:, :n_pixels].to_numpy()
        # The reader of the pipeline is not used to judge it.
        images = pd.read_parquet(table)
        digits = images.pop("label")
        real = image_view(images.to_numpy(), digits, schema)
        return image_view(pixels, synthetic[name], schema), real.labelled(), schema
    real = table_view(read_rows(table), schema)
    return table_view(synthetic, schema), real.labelled(), schema


def read_rows(table: Path) -> pd.DataFrame:
    """Read real rows, cells as they are."""
    if table.suffix == ".parquet":
        return pd.read_parquet(table, dtype_backend="pyarrow")
    return pd.read_csv(table, dtype=str, keep_default_na=False)
