import json
from pathlib import Path
from unittest import mock

import made_up_release as made
import pandas as pd
import pytest
from stores import Stores

from flows.cli import main
from privacy.errors import ConfigurationError, LedgerError, Withheld
from storage.releases.bundles import verify_bundle
from storage.schema.table import TableSchema
from tasks.ingest.conditional_rows import allowed_codes
from tasks.measurement import curator
from tasks.steps import publish_steps


@pytest.fixture
def site(after_a_release):
    (after_a_release / "cohort.csv").unlink()  # none of this reads the table
    return Stores()


def rows_of(outcome):
    return pd.read_parquet(Path(outcome.bundle) / "synthetic.parquet")


def manifest_of(site, outcome):
    path = site.releases.path(site.releases.find(outcome.release_id))
    return verify_bundle(path, trusted=site.keys.pipeline_public()).manifest


def test_more_rows_cost_nothing_and_draw_nothing(released, site):
    history = site.ledger.history()
    with mock.patch.object(curator, "discrete_gaussian_mechanism", side_effect=AssertionError):
        outcome = site.publisher.resample(released.release_id, rows=700)
        again = site.publisher.resample(released.release_id, rows=700)
    assert len(rows_of(outcome)) == len(rows_of(again)) == 700
    assert not rows_of(outcome).equals(rows_of(again))
    assert outcome.charged_rho == "0"
    assert site.ledger.history() == history
    first, second = manifest_of(site, released), manifest_of(site, outcome)
    for name in ("events", "epsilon", "mu", "ledger_entry", "measurement_sha256", "guarantee"):
        assert getattr(first, name) == getattr(second, name)
    assert second.resampled_from == released.release_id
    assert list((site.settings.pending).iterdir()) == []
    assert [path.name for path in site.private_root.iterdir()] == [".lock"]


def test_conditions_hold_in_every_row(released, site):
    outcome = site.publisher.resample(
        released.release_id, rows=120, conditions={"ward": "icu", "died": "yes", "age": "20..100"}
    )
    rows = rows_of(outcome)
    assert len(rows) == 120
    assert rows["age"].between(20, 100).all()
    assert set(rows["ward"]) == {"icu"}
    assert set(rows["died"]) == {"yes"}
    assert manifest_of(site, outcome).conditions["ward"] == "icu"
    card = (Path(outcome.bundle) / "data_card.md").read_text()
    assert "ward = icu" in card


@pytest.mark.parametrize(
    ("column", "level", "expected"),
    [
        ("ward", "attic", "a declared level of ward (icu, surgery, medicine, elsewhere)"),
        *((name, "30", "a column (age, lactate, ward, smoker, died)") for name in ("patient", "x")),
        *(
            (
                "age",
                asked,
                "LOW..HIGH of age, each of them the start of a bin or the upper bound "
                "(0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100)",
            )
            for asked in ("30", "30..35", "30..30", "40..30", "100..100", "nan..40", "..")
        ),
    ],
)
def test_condition_on_no_declared_level(released, site, column, level, expected):
    with pytest.raises(ConfigurationError) as caught:
        site.publisher.resample(released.release_id, conditions={column: level})
    assert str(caught.value) == (f"CONDITION_UNKNOWN: expected {expected}, found {column}={level}")


def test_rare_condition_ends(released, site, monkeypatch):
    monkeypatch.setattr("tasks.ingest.conditional_rows.MAX_OVERSAMPLING", 2)
    decode = publish_steps.decode
    without_icu = mock.Mock(side_effect=lambda *a, **o: decode(*a, **o).assign(ward="surgery"))
    monkeypatch.setattr(publish_steps, "decode", without_icu)
    with pytest.raises(
        ConfigurationError, match=r"CONDITION_RARE: .* 2 sampled rows to meet ward="
    ):
        site.publisher.resample(released.release_id, conditions={"ward": "icu"})
    assert [path.name for path in site.private_root.iterdir()] == [".lock"]


def test_only_what_paid_and_was_published_is_sampled_again(released, site):
    again = site.publisher.resample(released.release_id)
    for unknown in ("r-20250101-00000000", again.release_id):
        with pytest.raises(LedgerError, match=f"RELEASE_UNKNOWN: .* found no '{unknown}' in the"):
            site.publisher.resample(unknown)


def test_measurement_of_no_release_is_not_sampled(installation):
    gate = Withheld("OUTPUT_GATE", "made up")
    with mock.patch.object(publish_steps, "output_gate", side_effect=gate), pytest.raises(Withheld):
        made.release_without_engine(made.write_site(installation))
    site = Stores()
    (entry,) = site.ledger.entries()
    with pytest.raises(Withheld, match=f"NOT_PUBLISHED: .* found {entry.release_id} sealed; only"):
        site.publisher.resample(entry.release_id)


def test_the_gate_holds_for_a_resample(released, site):
    gate = Withheld("OUTPUT_GATE", "made up")
    with mock.patch.object(publish_steps, "output_gate", side_effect=gate), pytest.raises(Withheld):
        site.publisher.resample(released.release_id)
    assert [entry.state.value for entry in site.ledger.entries()] == ["published"]
    assert len(list((site.settings.releases / "made-up").iterdir())) == 1


def test_command_line(released, site, capsys):
    assert main(["publish", released.release_id, "--rows", "40", "--where", "ward=icu"]) == 0
    shown = capsys.readouterr().out
    assert "nothing charged" in shown
    assert main(["publish", released.release_id, "--rows", "40", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["reused"], answer["charged_rho"]) == (True, "0")
    assert main(["publish", released.release_id, "--where", "ward"]) == 2
    assert "CONDITION_INVALID" in capsys.readouterr().err


def test_the_upper_bound_belongs_to_the_last_bin_also_where_that_begins_with_it():
    age = {"name": "age", "kind": "integer", "lower": 0, "upper": 99, "bins": [0, 18, 99, 100]}
    schema = TableSchema.model_validate({**made.SCHEMA, "columns": [age]})
    asked = {"0..18": [1, 0, 0], "18..99": [0, 1, 1], "99..99": [0, 0, 1], "0..99": [1, 1, 1]}
    asked |= {"99": [0, 0, 1], "18..100": [0, 1, 1]}
    for text, allowed in asked.items():
        found = allowed_codes(schema, {"age": text})
        assert found[0].tolist() == [bool(code) for code in allowed]
    one = TableSchema.model_validate({**made.SCHEMA, "columns": [{**age, "bins": [0, 97, 98, 99]}]})
    assert allowed_codes(one, {"age": "97"})[0].tolist() == [False, True, False]
