from pathlib import Path
from unittest import mock

import made_up_release as made
import pandas as pd
import pytest

from flows.installation import Installation
from privacy.errors import ConfigurationError, Withheld
from storage.settings import load_settings
from tasks.steps import publish_steps

STAY = {"name": "stay", "kind": "integer", "lower": 0, "upper": 100, "bins": 10}
YOUNG = {"when": {"age": ["0..10", "10..20", "20..30"]}, "then": {"smoker": None}}
ORDER = {"holds": "stay < age"}
MENDED = [ORDER, YOUNG | {"mend": {"smoker": None}}]


@pytest.fixture
def desk(desk):
    frame = made.made_up_cohort()
    desk.declare_cohort(frame.assign(stay=frame["age"] // 3))
    return desk


def declare(desk, constraints, **site):
    columns = [*made.SCHEMA["columns"], STAY]
    desk.site["schema"] = {**made.SCHEMA, "columns": columns, "constraints": constraints}
    desk.site |= site


def is_kept(rows):
    young = rows["age"] < 30
    return bool((rows["stay"] < rows["age"]).all() and (rows["smoker"][young] == "?").all())


def test_a_row_that_breaks_a_constraint_fails_the_check_and_the_release_for_free(desk):
    declare(desk, [ORDER, YOUNG])
    assert desk.run("check") == 2
    *broken, said = desk.diagnostics
    rule = f"the constraint {'age=0..10 or 10..20 or 20..30 implies smoker=null'!r}"
    assert {(record["column"], record["rule"]) for record in broken} == {
        ("age", rule),
        ("smoker", rule),
    }
    assert f"column age: expected {rule}; column smoker: expected {rule}; " in said["rule"]
    assert desk.release() == 2
    assert desk.line.startswith(f"INPUT_REFUSED: column age: expected {rule}")
    assert desk.states == ["void", "void"]


def test_every_published_row_keeps_the_constraints_and_so_do_tables_and_resampled_rows(desk, quick):
    declare(desk, MENDED, method={"kind": "clustmix"}, rows=4_000)
    assert desk.release() == 0, desk.line
    assert is_kept(pd.read_csv(desk.bundle / "synthetic.csv"))
    report = (desk.bundle / "manifest.json").read_text("utf-8")
    assert "the constraint 'stay < age'" in report
    tables = pd.read_csv(desk.bundle / "tables.csv", dtype=str, keep_default_na=False)
    pair = tables[(tables["column"] == "age") & (tables["by"] == "stay")]
    impossible = pair[(pair["level"] == "[0, 10)") & (pair["by_level"] == "[90, 100]")]
    assert impossible["share"].astype(float).tolist() == [0.0]
    asked = {"smoker": "y", "stay": "0..10"}
    publisher, released = Installation.open(load_settings()).publisher, desk.bundle.name
    outcome = publisher.resample(released, rows=500, conditions=asked)
    rows = pd.read_parquet(Path(outcome.bundle) / "synthetic.parquet")
    assert is_kept(rows)
    assert set(rows["smoker"]) == {"y"}
    with pytest.raises(ConfigurationError, match="CONSTRAINTS_RARE"):
        publisher.resample(released, conditions={"smoker": "y", "age": "0..10"})


def test_the_output_gate_holds_the_file_against_the_constraints(desk):
    # Naive Bayes knows none: what it samples is thrown away where it breaks one.
    declare(desk, MENDED, rows=500)
    decode = publish_steps.decode

    def with_one_breach(*arguments, **options):
        frame = decode(*arguments, **options)
        frame.loc[7, "stay"] = frame.loc[7, "age"]
        return frame

    with mock.patch.object(publish_steps, "decode", with_one_breach):
        assert desk.release() == Withheld.exit_code
    assert "the synthetic rows break these rules: the constraint 'stay < age'" in desk.line
    assert desk.release() == 0
    assert is_kept(pd.read_csv(desk.bundle / "synthetic.csv"))
