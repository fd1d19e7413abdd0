from unittest import mock

import made_up_release as made
import pandas as pd
import pytest

from flows.publication import job_of_measurement
from flows.site.site_file import SiteFile
from privacy.errors import IntegrityError, Withheld
from storage.schema.vocabulary import Vocabulary
from tasks.steps import publish_steps

# Against the alphabet, and more survive than die.
LEVELS = [{"name": "survived", "values": ["n"]}, {"name": "died", "values": ["y"]}]
SCHEMA = {**made.SCHEMA, "label": {"name": "died", "levels": LEVELS, "positive": "died"}}
TURNED = {**SCHEMA, "label": {**SCHEMA["label"], "levels": LEVELS[::-1]}}


@pytest.fixture
def site_file(installation, monkeypatch):
    monkeypatch.chdir(installation)
    return made.write_site(installation, schema=SCHEMA, rows=4_000)


def test_the_declared_order_is_published_from_the_sealed_measurement(site_file, installation, site):
    outcome = made.release_without_engine(site_file)
    died = pd.read_parquet(f"{outcome.bundle}/synthetic.parquet")["died"] == "died"
    assert abs(float(died.mean()) - made.N_POSITIVE / made.N_ROWS) < 0.06
    assert made.release_without_engine(site_file).release_id == outcome.release_id
    entry = site.ledger.entries()[0]
    measurement = site.entries.measurement(entry)
    assert measurement.record.vocabulary.label.codes == ("survived", "died")
    job = job_of_measurement(measurement, outcome.release_id)
    assert job.table_schema.label.level_names == ("survived", "died")
    other = made.write_site(installation, schema=TURNED, rows=4_000)
    assert made.release_without_engine(other).release_id != outcome.release_id


def test_a_schema_that_differs_from_the_vocabulary_is_refused_by_name():
    schema = SiteFile.model_fields["table_schema"].annotation.model_validate(SCHEMA)
    vocabulary = Vocabulary.of(schema)
    vocabulary.require(schema)
    for change, name in (
        ({"label": TURNED["label"]}, "died"),
        ({"columns": SCHEMA["columns"][::-1]}, "age"),
        ({"columns": SCHEMA["columns"][:-1]}, "smoker"),
        ({"columns": [{**SCHEMA["columns"][0], "bins": 5}, *SCHEMA["columns"][1:]]}, "age"),
    ):
        other = type(schema).model_validate({**SCHEMA, **change})
        with pytest.raises(IntegrityError, match=f"VOCABULARY_MISMATCH: {name}: "):
            vocabulary.require(other)


def test_a_fault_between_measurement_and_file_is_withheld_and_costs_nothing_more(
    site_file, installation
):
    def turned(codes, label, schema, *, rng):
        frame = decode(codes, label, schema, rng=rng)
        return frame.assign(died=frame["died"].replace({"died": "survived", "survived": "died"}))

    decode = publish_steps.decode
    with (
        mock.patch.object(publish_steps, "decode", turned),
        pytest.raises(Withheld, match="label shares: died"),
    ):
        made.release_without_engine(site_file)
    assert not list((installation / "releases").glob("*/*/manifest.json"))
    outcome = made.release_without_engine(site_file)
    assert outcome.charged_rho == "0"
