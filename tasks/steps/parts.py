"""Sealed measurements as parts of pools, and rows of other draws of their noise."""

import pandas as pd
from numpy.random import Generator

from privacy.events import event_from_dict
from storage.releases.measurements import Measurement
from storage.schema.table import TableSchema
from tasks.ingest.conditional_rows import sample_rows
from tasks.ingest.encoding import decode
from tasks.measurement.measurement_plan import MeasurementPlan
from tasks.measurement.method import Synthesizer
from tasks.measurement.pooled_sums import Part, draws_of, part_of, sums_of

DRAWS_FILE, DRAW_COLUMN = "draws.parquet", "noise_draw"
MOST_ROWS = 50_000
"""Most rows of each draw."""


def sums_of_measurement(plan: MeasurementPlan, measurement: Measurement) -> Part:
    """Return the sealed sums of a measurement, with their noise."""
    names = measurement.noise_stddevs
    return sums_of(plan, {name: measurement.sealed_values(name) for name in names})


def part_of_measurement(method: Synthesizer, mu: float, measurement: Measurement) -> Part:
    """Return a sealed measurement, drawn with a budget, as a part; its rounds are replayed."""
    plan, events = method.plan(mu=mu), map(event_from_dict, measurement.record.events)
    sums = sums_of_measurement(plan, measurement)
    return part_of(method, plan, measurement.released, sums=sums, events=events)


def drawn_again(
    method: Synthesizer,
    schema: TableSchema,
    measurement: Measurement,
    *,
    mu: float,
    rows: int,
    draws: int,
    rng: Generator,
) -> pd.DataFrame:
    """Return rows of so many other draws of a measurement, numbered from 1 in the first column."""
    part = part_of_measurement(method, mu, measurement)
    frames = []
    for number, (released, _) in enumerate(draws_of(method, part, draws, rng=rng), 1):
        made = sample_rows(method, schema, released, {}, n_rows=min(rows, MOST_ROWS), rng=rng)
        frames.append(decode(made.codes, made.label, schema, rng=rng))
        frames[-1].insert(0, DRAW_COLUMN, number)
    return pd.concat(frames, ignore_index=True)
