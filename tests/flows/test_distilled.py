"""Distilled points of a whole release, read by the recipe of the documentation."""

import re
import sys
from pathlib import Path

import made_up_release as made
import pandas as pd
import pytest

from storage.releases.manifest import MANIFEST_FILE, Manifest
from storage.schema.table import TableSchema
from tasks.distillation.distilled_rows import DISTILLED_FILE, distilled
from tasks.distillation.tangent_kernels import _stax
from tasks.reporting.tables import coded
from tests.processes import ROOT

OPERATE = (ROOT / "docs" / "operate.md").read_text("utf-8")


@pytest.fixture
def desk(desk):
    desk.declare_cohort(made.made_up_cohort())
    desk.site |= {"distill": {"points": 20}, "rows": 300}
    return desk


def test_points_are_a_function_of_the_published_rows(desk, monkeypatch):
    assert desk.release() == 0
    schema = TableSchema.model_validate(made.SCHEMA)
    released = pd.read_parquet(desk.bundle / "synthetic.parquet")
    rows, _ = coded(released, schema)
    points = pd.read_parquet(desk.bundle / DISTILLED_FILE)
    pd.testing.assert_frame_equal(points, distilled(rows, schema, 20), check_exact=True)
    manifest = Manifest.from_bytes((desk.bundle / MANIFEST_FILE).read_bytes())
    assert manifest.request["distilled_points"] == len(points) == 20
    for name in ("data_card.md", "croissant.json", "datapackage.json"):
        assert DISTILLED_FILE in (desk.bundle / name).read_text("utf-8")
    recipe = re.search(r"```py\n(from sklearn.kernel_ridge.*?)```", OPERATE, re.S)[1]
    found = {"pandas": pd, "rows": released}
    exec(recipe.replace("BUNDLE", Path(desk.bundle).as_posix()), found)  # noqa: S102
    assert set(found["likely"]) <= {"`died` == 'no'", "`died` == 'yes'"}
    # Asked for in another number, it is published again and charged to nobody.
    first = desk.bundle
    desk.site |= {"distill": {"points": 30}}
    assert desk.release() == 0
    [other] = set(first.parent.glob("r-*")) - {first}
    assert len(pd.read_parquet(other / DISTILLED_FILE)) == 30
    assert len(desk.states) == 1


def test_a_missing_package_is_named_before_the_charge(desk, monkeypatch):
    _stax.cache_clear()
    monkeypatch.setitem(sys.modules, "neural_tangents", None)
    assert desk.release() == 2
    assert "expected the packages of the extra distill, found no neural_tangents" in desk.line
    assert desk.states == []
