"""Label levels keep their order from the site file to the bundle, also of an earlier program."""

import json
import random
from contextlib import contextmanager
from unittest import mock

import made_up_release as made
import pandas as pd
import pytest
import yaml
from stores import Stores

from flows.cli import main
from flows.declared_order import publish_in_order
from flows.publication import Publisher, job_of_measurement
from flows.revocation import revoke
from flows.site.request import job_of
from flows.site.site_file import SiteFile, load_site
from privacy.errors import ClustMixError, ConfigurationError, IntegrityError, Withheld
from storage.files.documents import canonical_json
from storage.releases.manifest import Manifest
from storage.releases.measurements import Measurement, MeasurementRecord
from storage.schema.vocabulary import Vocabulary
from storage.settings import load_settings
from tasks.steps import bundle, measure_steps, publish_steps, request_key
from tasks.steps.entries import Entries

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


def alphabetical(settings):
    """A site file as the earlier program kept it: levels in a mapping, in canonical JSON."""
    levels = {entry["name"]: entry["values"] for entry in settings["schema"]["label"]["levels"]}
    label = {**settings["schema"]["label"], "levels": dict(sorted(levels.items()))}
    return {**settings, "schema": {**settings["schema"], "label": label}}


@contextmanager
def earlier_program():
    """Seal and publish as the program did that kept no vocabulary."""
    key = request_key.request_key

    def record(**fields):
        fields = {**fields, "format_version": 1, "vocabulary": None}
        return MeasurementRecord(**{**fields, "site": alphabetical(fields["site"])})

    def key_of(secret, *, content_sha256, settings, code=None):
        return key(
            secret, content_sha256=content_sha256, settings=alphabetical(settings), code=code
        )

    def manifest(**fields):
        return Manifest(**{**fields, "format_version": 1})

    with (
        mock.patch.object(measure_steps, "MeasurementRecord", record),
        mock.patch("flows.repeated.request_key", key_of),
        mock.patch.object(bundle, "Manifest", manifest),
        mock.patch.object(Measurement, "vocabulary", mock.Mock(require=lambda schema: None)),
        mock.patch.object(Manifest, "is_suspect", new=False),
        mock.patch.object(publish_steps, "agreement_gate", return_value=mock.Mock(checks=())),
    ):
        yield


@pytest.fixture
def earlier(site_file):
    """A release of the earlier program: sealed in one order, published in the other."""
    with earlier_program():
        outcome = made.release_without_engine(site_file)
        # It publishes by the site file that it has sealed, as soon as another process does.
        turned = Publisher(load_settings()).resample(outcome.release_id)
    assert abs(share_of_deaths(turned.bundle) - (1 - SHARE_OF_DEATHS)) < 0.06
    return outcome


@pytest.fixture
def key(installation, person):
    return person("person")


def test_the_declared_order_is_published_from_the_sealed_measurement(site_file, installation, key):
    outcome = made.release_without_engine(site_file)
    assert abs(share_of_deaths(outcome.bundle) - SHARE_OF_DEATHS) < 0.06
    assert made.release_without_engine(site_file).release_id == outcome.release_id
    with pytest.raises(IntegrityError, match="ORDER_KNOWN"):
        publish_in_order(load_settings(), outcome.release_id, load_site(site_file), key=key)
    entry = site().ledger.entries()[0]
    measurement = Entries(load_settings()).measurement(entry)
    assert measurement.vocabulary.label.codes == ("survived", "died")
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
        kept = job_of_measurement(mock.Mock(site=again.site, record=again), first.release_id)
        again.vocabulary.require(kept.table_schema)
        read = type(schema).model_validate(shuffled(published, rng))
        for one in (job.table_schema, kept.table_schema, read):
            assert one.model_dump_json() == schema.model_dump_json()


def test_the_measurement_of_an_earlier_program_is_published_in_the_order_of_a_site_file(
    earlier, site_file, key, installation, capsys
):
    before = site().ledger.entries()
    with pytest.raises(IntegrityError, match=r"ORDER_UNKNOWN: .*--site"):
        Publisher(load_settings()).resample(earlier.release_id)
    declared = ["--site", str(site_file), "--key", str(installation / "people" / "person.key")]
    assert main(["publish", earlier.release_id, *declared, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["charged_rho"] == "0"
    assert abs(share_of_deaths(answer["bundle"]) - SHARE_OF_DEATHS) < 0.06
    manifest = json.loads((installation / answer["bundle"] / "manifest.json").read_text())
    assert manifest["order_declared_by"] == key.key_id
    assert manifest["resampled_from"] == earlier.release_id
    assert site().ledger.entries() == before
    # The same request is answered, and the measurement is sampled like any other.
    again = made.release_without_engine(site_file)
    assert (again.release_id, again.charged_rho) == (answer["release_id"], "0")
    sampled = Publisher(load_settings()).resample(earlier.release_id)
    assert abs(share_of_deaths(sampled.bundle) - SHARE_OF_DEATHS) < 0.06


def test_a_sealed_one_is_published_under_its_own_id(site_file, key):
    with earlier_program():
        with (
            mock.patch.object(publish_steps, "sample_rows", side_effect=RuntimeError),
            pytest.raises(ClustMixError),
        ):
            made.release_without_engine(site_file)
    (entry,) = site().ledger.entries()
    with pytest.raises(IntegrityError, match="ORDER_UNKNOWN"):
        Publisher(load_settings()).publish(entry.release_id)
    outcome = publish_in_order(load_settings(), entry.release_id, load_site(site_file), key=key)
    assert outcome.release_id == entry.release_id
    assert abs(share_of_deaths(outcome.bundle) - SHARE_OF_DEATHS) < 0.06


def test_another_site_file_and_a_second_order_are_refused(earlier, site_file, key, installation):
    publish_in_order(load_settings(), earlier.release_id, load_site(site_file), key=key)
    turned = made.write_site(installation, schema=TURNED, rows=4_000)
    with pytest.raises(IntegrityError, match="ORDER_DECLARED"):
        publish_in_order(load_settings(), earlier.release_id, load_site(turned), key=key)
    other = made.write_site(installation, schema=SCHEMA, rows=4_000, privacy={"epsilon": 2.0})
    with pytest.raises(ConfigurationError, match="OTHER_SITE_FILE"):
        publish_in_order(load_settings(), earlier.release_id, load_site(other), key=key)


def test_the_same_table_is_not_charged_again_without_saying_so(earlier, site_file):
    n_entries = len(site().ledger.entries())
    with pytest.raises(
        ConfigurationError, match=f"MEASURED_BEFORE: .*publish {earlier.release_id}"
    ):
        made.release_without_engine(site_file)
    assert len(site().ledger.entries()) == n_entries
    drawn = made.release_without_engine(site_file, new_draw=True)
    assert not drawn.reused
    assert made.release_without_engine(site_file).release_id == drawn.release_id


def test_only_an_officer_says_that_a_release_was_revoked_for_its_order(
    earlier, site_file, key, person
):
    officer = person("officer", is_officer=True)
    revoke(load_settings(), earlier.release_id, key=officer, reason="labels")
    with pytest.raises(ConfigurationError):
        publish_in_order(load_settings(), earlier.release_id, load_site(site_file), key=key)
    good = publish_in_order(load_settings(), earlier.release_id, load_site(site_file), key=officer)
    assert main(["verify", good.bundle]) == 0


def test_bundles_of_an_earlier_program_are_called_suspect(
    earlier, installation, key, person, site_file, capsys
):
    bundle_of = str(installation / earlier.bundle)
    assert main(["verify", bundle_of]) == 1
    assert "Suspect" in capsys.readouterr().out
    assert main(["verify", bundle_of, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["suspect"] is True
    assert main(["doctor", "--json"]) == 1
    findings = {f["name"]: f for f in json.loads(capsys.readouterr().out)}
    assert not findings["label order"]["good"]
    assert earlier.release_id in findings["label order"]["text"]
    assert "clustmix revoke" in findings["label order"]["text"]

    good = publish_in_order(load_settings(), earlier.release_id, load_site(site_file), key=key)
    person("officer", is_officer=True)
    officer = str(installation / "people" / "officer.key")
    assert main(["revoke", earlier.release_id, "--key", officer, "--reason", "labels"]) == 0
    assert main(["verify", str(installation / good.bundle)]) == 0
    assert main(["verify", bundle_of]) == 1
    assert main(["doctor"]) == 0


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
