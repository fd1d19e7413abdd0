"""Label levels keep their order from the site file to the bundle."""

import json
import random
from unittest import mock

import made_up_release as made
import pandas as pd
import pytest
import yaml
from stores import Stores

from flows.publication import job_of_measurement
from flows.site.request import job_of
from flows.site.site_file import SiteFile, load_site
from privacy.errors import IntegrityError, Withheld
from storage.files.documents import canonical_json
from storage.releases.measurements import MeasurementRecord
from storage.schema.vocabulary import Vocabulary
from storage.settings import load_settings
from tasks.steps import publish_steps

# Against the alphabet, and more survive than die.
LEVELS = [{"name": "survived", "values": ["n"]}, {"name": "died", "values": ["y"]}]
SCHEMA = {**made.SCHEMA, "label": {"name": "died", "levels": LEVELS, "positive": "died"}}
TURNED = {**SCHEMA, "label": {**SCHEMA["label"], "levels": LEVELS[::-1]}}
SHARE_OF_DEATHS = made.N_POSITIVE / made.N_ROWS


@pytest.fixture
def site_file(installation, monkeypatch):
    monkeypatch.chdir(installation)
    return made.write_site(installation, schema=SCHEMA, rows=4_000)


def site():
    return Stores(load_settings())


def share_of_deaths(folder):
    return float((pd.read_parquet(f"{folder}/synthetic.parquet")["died"] == "died").mean())


def test_the_declared_order_is_published_from_the_sealed_measurement(site_file, installation):
    outcome = made.release_without_engine(site_file)
    assert abs(share_of_deaths(outcome.bundle) - SHARE_OF_DEATHS) < 0.06
    assert made.release_without_engine(site_file).release_id == outcome.release_id
    entry = site().ledger.entries()[0]
    measurement = site().entries.measurement(entry)
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


def shuffled(value, rng):
    """The same document with the keys of every mapping in another order."""
    if isinstance(value, dict):
        items = [(name, shuffled(inner, rng)) for name, inner in value.items()]
        rng.shuffle(items)
        return dict(items)
    return [shuffled(inner, rng) for inner in value] if isinstance(value, list) else value


def test_the_order_of_keys_in_a_stored_document_means_nothing(site_file, installation):
    first = made.release_without_engine(site_file)
    declared, schema = yaml.safe_load(site_file.read_text()), load_site(site_file).table_schema
    stored = site().measurements.open(first.release_id)
    settings = canonical_json(job_of_measurement(stored, first.release_id).measurement_settings)
    record = stored.record.model_dump(mode="json")
    published = json.loads((installation / first.bundle / "schema.json").read_text())
    for seed in range(20):
        rng = random.Random(seed)  # noqa: S311
        site_file.write_text(yaml.safe_dump(shuffled(declared, rng), sort_keys=False))
        job = job_of(load_site(site_file), first.release_id)
        assert canonical_json(job.measurement_settings) == settings
        again = MeasurementRecord.model_validate_json(json.dumps(shuffled(record, rng)))
        assert again == stored.record
        kept = job_of_measurement(mock.Mock(record=again), first.release_id)
        again.vocabulary.require(kept.table_schema)
        read = type(schema).model_validate(shuffled(published, rng))
        for one in (job.table_schema, kept.table_schema, read):
            assert one.model_dump_json() == schema.model_dump_json()


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
