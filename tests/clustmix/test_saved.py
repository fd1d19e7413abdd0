"""A measurement as a file: nothing is lost, nothing is trusted, nothing is replaced."""

import io
import json
import zipfile

import numpy as np
import pandas as pd
import pytest
from fixed_runs import fixed_randomness

import clustmix
from clustmix import DPCDA, ClustMix, NaiveBayes, Synthesizer
from privacy.errors import ConfigurationError, IntegrityError

BY_PATIENT = {"epsilon": 1.0, "delta": 1e-6, "patient_column": "patient", "max_rows_per_patient": 2}


@pytest.fixture
def model(schema, frame):
    return NaiveBayes(schema, **BY_PATIENT).fit(frame)


@pytest.mark.parametrize(
    "make",
    [
        lambda schema: NaiveBayes(schema, **BY_PATIENT, patients=1_000),
        lambda schema: ClustMix(schema, **BY_PATIENT, adjacency="replace_one"),
        lambda schema: DPCDA(schema, **BY_PATIENT, class_sizes=(600, 400), order_of_mixture=50),
    ],
    ids=["naive_bayes", "clustmix", "dp_cda"],
)
def test_a_model_that_is_loaded_is_the_one_that_was_saved(schema, frame, seeded, tmp_path, make):
    model = make(schema).fit(frame)
    model.save(tmp_path / "a.clustmix")
    loaded = Synthesizer.load(tmp_path / "a.clustmix")
    assert loaded.__class__ is model.__class__
    assert repr(loaded) == repr(model)
    assert loaded.guarantee_ == model.guarantee_
    assert loaded.get_params() == model.get_params()
    samples = []
    for one in (model, loaded):
        with fixed_randomness(seeded()):
            samples.append(one.sample(50))
    pd.testing.assert_frame_equal(*samples)
    with pytest.raises(ConfigurationError, match="FITTED"):
        loaded.fit(frame)
    loaded.save(tmp_path / "b.clustmix")
    assert (tmp_path / "a.clustmix").read_bytes() == (tmp_path / "b.clustmix").read_bytes()


def test_the_file_says_that_nothing_was_charged_and_holds_no_row(model, tmp_path):
    model.save(tmp_path / "a.clustmix")
    with zipfile.ZipFile(tmp_path / "a.clustmix") as archive:
        assert archive.namelist() == ["model.json", "released.npz"]
        record = json.loads(archive.read("model.json"))
        arrays = np.load(io.BytesIO(archive.read("released.npz")))
        assert set(arrays.files) == {"label_frequencies", "marginals"}
    assert record["notice"] == str(model.guarantee_)
    assert "Nothing was charged" in record["notice"]
    assert record["charged"] is None
    assert "2000" not in json.dumps(record)


def test_a_file_is_never_replaced_and_loaded_by_its_own_class(model, tmp_path):
    path = tmp_path / "a.clustmix"
    model.save(path)
    content = path.read_bytes()
    with pytest.raises(ConfigurationError, match="FILE_EXISTS"):
        model.save(path)
    assert path.read_bytes() == content
    assert isinstance(NaiveBayes.load(str(path)), NaiveBayes)
    with pytest.raises(ConfigurationError, match="OTHER_METHOD: expected a model of DPCDA"):
        DPCDA.load(path)


def test_an_unfitted_model_has_nothing_to_save(schema, tmp_path):
    with pytest.raises(clustmix.NotFittedError):
        NaiveBayes(schema, **BY_PATIENT).save(tmp_path / "a.clustmix")


def rewritten(path, change, *, also=None):
    """Write the file again with a record that was changed."""
    with zipfile.ZipFile(path) as archive:
        record = json.loads(archive.read("model.json"))
        arrays = archive.read("released.npz")
    change(record)
    with zipfile.ZipFile(path, "w") as archive:
        text = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        archive.writestr("model.json", text)
        archive.writestr("released.npz", arrays)
        if also is not None:
            archive.writestr(also, b"")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda record: record.update(released="0" * 64), "a damaged one"),
        (lambda record: record["method"].update(name="gan"), "expected a registered method"),
        (lambda record: record["method"]["settings"].update(rounds=1), "Extra inputs"),
        (lambda record: record["table_schema"]["columns"].pop(), "expected the codes"),
        (lambda record: record["events"][0].update(kind="none"), "expected the kind of an event"),
        (lambda record: record.update(unknown=1), "Extra inputs"),
        (lambda record: record.pop("notice"), "Field required"),
    ],
)
def test_a_file_that_was_changed_is_refused(model, tmp_path, change, message):
    path = tmp_path / "a.clustmix"
    model.save(path)
    rewritten(path, change)
    with pytest.raises(IntegrityError, match=f"MODEL_INVALID: .*{message}"):
        Synthesizer.load(path)


def recompressed(path):
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"PK\3\4"),
        lambda path: path.write_bytes(b"\0" * 100),
        recompressed,
        lambda path: rewritten(path, lambda record: None, also="more.pkl"),
    ],
)
def test_a_file_that_is_none_is_refused(model, tmp_path, spoil):
    model.save(tmp_path / "a.clustmix")
    spoil(tmp_path / "a.clustmix")
    with pytest.raises(IntegrityError, match="MODEL_INVALID"):
        Synthesizer.load(tmp_path / "a.clustmix")


def test_the_guarantee_of_a_file_is_that_of_its_events(model, tmp_path):
    path = tmp_path / "a.clustmix"
    model.save(path)
    rewritten(path, lambda record: record["events"][0].update(noise_stddev=1e9))
    assert Synthesizer.load(path).guarantee_.epsilon < model.guarantee_.epsilon
