"""Distilled points of a whole release, read by the recipe of the documentation."""

import made_up_release as made
import pandas as pd

from storage.schema.table import TableSchema
from tasks.distillation.distilled_rows import DISTILLED_FILE, distilled
from tasks.reporting.tables import coded


def test_points_are_a_function_of_the_published_rows(desk):
    desk.declare_cohort()
    made.write_cohort(desk.table)
    desk.site |= {"rows": 300}
    assert desk.release() == 0
    first = desk.bundle
    assert not (first / DISTILLED_FILE).exists()
    desk.site |= {"distill": {"points": 20}}
    assert desk.release() == 0
    assert "0 charged" in desk.output or "nothing" in desk.output.lower()
    [bundle] = set(first.parent.glob("r-*")) - {first}
    schema = TableSchema.model_validate(made.SCHEMA)
    rows, _ = coded(pd.read_parquet(bundle / "synthetic.parquet"), schema)
    points = pd.read_parquet(bundle / DISTILLED_FILE)
    pd.testing.assert_frame_equal(points, distilled(rows, schema, 20), check_exact=True)
