import json

import desks
import numpy as np
import pandas as pd
import pytest
from scipy.special import softmax

import clustmix
from clustmix import Schema
from flows.cli import main
from privacy.errors import InputError
from storage.public_data.public_tables import images_parquet
from storage.releases.measurements import MeasurementStore
from storage.schema.vocabulary import Vocabulary
from storage.settings import load_settings
from tasks.ingest.encoding import encode_chunk
from tasks.methods.clustmix.images.scattering import scatter

HEIGHT, WIDTH, N = 5, 4, 90
LABEL = {"name": "label", "levels": {"one": [1], "two": [2], "three": [3]}}


@pytest.fixture
def desk(desk):
    rng = np.random.default_rng(6)
    desk.pixels = rng.integers(0, 256, (N, HEIGHT, WIDTH)).astype(np.uint8)
    desk.pixels[:, 0, :] = 0  # a range of zero, as the borders of real images have
    desk.classes = (1 + np.arange(N) % 3).astype(np.uint8)
    image = {"height": HEIGHT, "width": WIDTH, "gray_levels": 4}
    desk.site |= {
        "source": {"kind": "parquet", "path": "images.parquet"},
        "privacy_unit": {"column": None, "max_rows_per_patient": 1},
        "schema": {"image": image, "label": LABEL},
    }
    return desk


def write_images(desk):
    content = images_parquet(desk.pixels, desk.classes)
    (desk.folder / "images.parquet").write_bytes(content)


def write_table(desk, frame, schema):
    frame.to_csv(desk.folder / "table.csv", index=False)
    desk.site |= {"source": {"kind": "csv", "path": "table.csv"}, "schema": schema}


def test_images_are_released_as_a_table_and_as_a_picture(desk):
    write_images(desk)
    assert desk.release() == 0
    files = {path.name for path in desk.bundle.iterdir()}
    assert {"synthetic.parquet", "synthetic.csv", "contact_sheet.png"} <= files
    table = pd.read_parquet(desk.bundle / "synthetic.parquet")
    assert table.shape == (40, HEIGHT * WIDTH + 1)
    assert set(table.dtypes[:-1]) == {np.dtype(np.uint8)}
    assert set(np.unique(table.iloc[:, :-1])) <= {0, 85, 170, 255}
    assert table["label"].isin(["one", "two", "three"]).all()
    written = pd.read_csv(desk.bundle / "synthetic.csv")
    assert written.to_numpy().tolist() == table.to_numpy().tolist()
    schema = json.loads((desk.bundle / "schema.json").read_text())
    assert schema["image"]["gray_levels"] == 4
    assert not {"columns", "measured_bins"} & schema.keys()
    manifest = json.loads((desk.bundle / "manifest.json").read_text())
    assert "contact_sheet.png" in manifest["files"]
    asked = [check["check"] for check in manifest["gate"]]
    assert asked[:6] == [
        "columns", "row_count", "pixels", "label: label", "files", "label shares: label",
    ]  # fmt: skip
    assert {f"marginal by label: {name}" for name in table.columns[:-1]} <= set(asked)
    assert main(["verify", str(desk.bundle)]) == 0
    assert desk.release() == 0
    assert desk.states == ["published"]


@pytest.mark.integration
def test_the_teacher_of_a_bundle_gives_its_labels_hard_and_soft(desk):
    write_images(desk)
    desk.site |= {"method": {"kind": "clustmix"}, "patients": N}
    assert desk.release() == 0
    assert not (desk.bundle / "soft_labels.parquet").exists()
    paid, before = desk.states, desk.bundle
    # Soft labels are no part of the measurement: asked for later, they cost nothing.
    desk.site |= {"soft_labels": True}
    assert desk.release() == 0
    assert "nothing charged" in desk.output
    assert desk.states == paid
    [bundle] = {*before.parent.glob("r-*")} - {before}
    for folder in (before, bundle):
        assert main(["verify", str(folder)]) == 0
        assert "`teacher.npz` is the classifier" in (folder / "data_card.md").read_text()
    assert desk.release() == 0
    assert {*before.parent.glob("r-*")} == {before, bundle}
    teacher = clustmix.verify(bundle, keys=[*desks.HOME.rglob("pipeline.pub")]).teacher()
    assert teacher.to_bytes() == (bundle / "teacher.npz").read_bytes()
    table = pd.read_parquet(bundle / "synthetic.parquet")
    images = table.drop(columns="label").to_numpy().reshape(-1, HEIGHT, WIDTH)
    soft = pd.read_parquet(bundle / "soft_labels.parquet")
    assert [*soft] == teacher.classes_.tolist()
    assert {*soft} == {"one", "two", "three"}
    assert soft.columns[soft.to_numpy().argmax(axis=1)].tolist() == table["label"].tolist()
    np.testing.assert_allclose(teacher.predict_proba(images), soft, atol=1e-6)
    # As docs/methods.md writes it for whoever has the arrays alone.
    a, x = teacher.arrays, scatter(images[:, None].astype(float))
    whitened = (x @ a["whitening_matrix"] - a["whitening_shift"]) * a["whitening_scales"]
    whitened /= np.maximum(np.linalg.norm(whitened, axis=1, keepdims=True), 1e-12)
    np.testing.assert_allclose(softmax(whitened @ a["teacher_weights"], axis=1), soft, atol=1e-6)
    assert teacher.predict(table.drop(columns="label")).tolist() == table["label"].tolist()
    # Any gray of a source is one of the four levels, as by the encoding.
    frame = pd.DataFrame(desk.pixels.reshape(N, -1), columns=table.columns[:-1])
    levels = encode_chunk(frame.assign(label="one"), Schema.from_yaml(bundle / "schema.json"))
    np.testing.assert_array_equal(
        teacher.predict_proba(desk.pixels), teacher.predict_proba(levels.codes * 85)
    )
    for wrong in (images[:, :-1], images / 255, images.astype(int) + 256):
        with pytest.raises(InputError, match="expected images of 5 x 4 pixels"):
            teacher.predict_proba(wrong)


def test_soft_labels_need_a_teacher(desk, before_the_flow):
    desk.site |= {"soft_labels": True}
    assert desk.release() == 2
    assert "soft_labels: expected schema.image and method.kind clustmix" in desk.line


def test_items_and_a_column_that_says_nothing(desk):
    rng = np.random.default_rng(4)
    items = {name: rng.integers(0, 2, N) for name in ("insulin", "anemia")} | {"never": 0}
    frame = pd.DataFrame({**items, "label": desk.classes})
    write_table(desk, frame, {"items": [*items], "label": LABEL})
    assert desk.release() == 0
    table = pd.read_parquet(desk.bundle / "synthetic.parquet")
    assert table[[*items]].isin(["0", "1"]).all(axis=None)
    assert not (desk.bundle / "contact_sheet.png").exists()


def test_codes_that_were_measured_as_one_stand_beside_the_declared_bins(desk):
    number = {"name": "age", "kind": "integer", "lower": 0, "upper": 99, "bins": 50}
    ward = {"name": "ward", "kind": "categorical", "levels": ["a", "b"]}
    frame = pd.DataFrame({"age": np.arange(N), "ward": "a", "label": desk.classes})
    write_table(desk, frame, {"columns": [number | {"nullable": True}, ward], "label": LABEL})
    desk.site |= {"method": {"kind": "clustmix"}, "patients": N}
    assert desk.release() == 0
    path = desk.bundle / "schema.json"
    stated = json.loads(path.read_text())
    assert stated["columns"][0]["bins"] == 50
    # Of few patients pairs are measured coarsely; two levels stay two.
    [(name, groups)] = stated["measured_bins"].items()
    assert name == "age"
    codes = Vocabulary.of(Schema.from_yaml(path)).columns[0].codes
    released = MeasurementStore(load_settings().measurements).open(desk.bundle.name).released
    sealed = released["code_groups"][: len(codes)]
    assert 2 <= len(groups) == sealed.max() + 1 < len(codes)
    for group in groups:
        places = [codes.index(code) for code in group]
        np.testing.assert_array_equal(places, np.flatnonzero(sealed == sealed[places[0]]))
    assert main(["verify", str(desk.bundle)]) == 0
