import io
import json
import shutil
import zipfile

import numpy as np
import pandas as pd
import pytest
from fixed_runs import fixed_randomness

from clustmix import DPCDA, ClustMix, NaiveBayes, NotFittedError, Synthesizer
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
        sums = (f"{of}_feature_by_label_histograms" for of in ("sum", "stddev"))
        assert set(arrays.files) == {"label_frequencies", "marginals", *sums}
    assert record["notice"] == str(model.guarantee_)
    assert "Nothing was charged" in record["notice"]
    assert record["charged"] is None
    assert "2000" not in json.dumps(record)


def test_a_file_is_never_replaced_and_loaded_by_its_own_class(model, tmp_path):
    path = tmp_path / "a.clustmix"
    with pytest.raises(NotFittedError):
        NaiveBayes(model.schema, **BY_PATIENT).save(path)
    model.save(path)
    content = path.read_bytes()
    with pytest.raises(ConfigurationError, match=r"FILE_NOT_MADE.* File exists"):
        model.save(path)
    assert path.read_bytes() == content
    assert isinstance(NaiveBayes.load(str(path)), NaiveBayes)
    with pytest.raises(ConfigurationError, match="OTHER_METHOD: expected a model of DPCDA"):
        DPCDA.load(path)


def rewritten(path, change, *, also=None):
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


def recompressed(path):
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)


CHANGES = [
    (lambda record: record.update(released="0" * 64), "a damaged one"),
    (lambda record: record["method"].update(name="gan"), "expected a registered method"),
    (lambda record: record["method"]["settings"].update(rounds=1), "Extra inputs"),
    (lambda record: record["table_schema"]["columns"].pop(), "expected the codes"),
    (lambda record: record["events"][0].update(kind="none"), "expected an object whose kind"),
    (lambda record: record.update(unknown=1), "Extra inputs"),
    (lambda record: record.pop("notice"), "Field required"),
]
SPOILS = [
    lambda path: path.unlink(),
    *(lambda path, made=made: path.write_bytes(made) for made in (b"", b"PK\3\4", b"\0" * 100)),
    recompressed,
    lambda path: rewritten(path, lambda record: None, also="more.pkl"),
]


def test_a_file_that_was_changed_or_is_none_is_refused(model, tmp_path):
    path, good = tmp_path / "a.clustmix", tmp_path / "good.clustmix"
    model.save(good)
    changes = [(lambda path, change=change: rewritten(path, change), m) for change, m in CHANGES]
    for spoil, message in (*changes, *((spoil, "") for spoil in SPOILS)):
        shutil.copy(good, path)
        spoil(path)
        with pytest.raises(IntegrityError, match=f"MODEL_INVALID: .*{message}"):
            Synthesizer.load(path)
    # The guarantee of a file is that of its events.
    rewritten(good, lambda record: record["events"][0].update(noise_stddev=1e9))
    assert Synthesizer.load(good).guarantee_.epsilon < model.guarantee_.epsilon
