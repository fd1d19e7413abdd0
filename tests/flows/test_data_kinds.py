"""Images, items, awkward labels and columns that say nothing, through the whole release."""

import gzip
import itertools
import json
import os
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from flows.cli import main
from storage.ledger.ledger_db import LedgerDatabase
from tasks.execution import runtime

HOME = Path(os.environ["PREFECT_HOME"]).parent
NUMBERS = itertools.count()
HEIGHT, WIDTH, N = 5, 4, 90
LABEL = {"name": "label", "levels": {"one": [1], "two": [2], "three": [3]}}


def idx_bytes(values):
    axes = b"".join(length.to_bytes(4, "big") for length in values.shape)
    return bytes([0, 0, 8, values.ndim]) + axes + values.tobytes()


class Desk:
    """A folder with a source and a site file, and a way to run the command on them."""

    def __init__(self, folder, capsys):
        self.folder, self._capsys = folder, capsys
        self.dataset = f"kinds-{next(NUMBERS)}"
        rng = np.random.default_rng(6)
        self.pixels = rng.integers(0, 256, (N, HEIGHT, WIDTH)).astype(np.uint8)
        self.pixels[:, 0, :] = 0  # a range of zero, as the borders of real images have
        self.classes = (1 + np.arange(N) % 3).astype(np.uint8)
        self.schema = {"image": {"height": HEIGHT, "width": WIDTH, "gray_levels": 4}}
        self.schema["label"] = LABEL
        self.source = {"kind": "idx", "images": "images.gz", "labels": "labels"}
        self.lines = []

    def write_images(self):
        (self.folder / "images.gz").write_bytes(gzip.compress(idx_bytes(self.pixels)))
        (self.folder / "labels").write_bytes(idx_bytes(self.classes))

    def write_table(self, frame, schema):
        frame.to_csv(self.folder / "table.csv", index=False)
        self.source, self.schema = {"kind": "csv", "path": "table.csv"}, schema

    def release(self):
        site = {
            "dataset": self.dataset,
            "title": "A kind of data",
            "source": self.source,
            "privacy_unit": {"column": None, "max_rows_per_patient": 1},
            "privacy": {"epsilon": 1.0, "delta": 1.0e-6},
            "budget": {"lifetime_epsilon": 5.0},
            "method": {"kind": "naive_bayes"},
            "rows": 40,
            "schema": self.schema,
        }
        (self.folder / "site.yaml").write_text(yaml.safe_dump(site))
        self._capsys.readouterr()
        code = main(["release", "site.yaml"])
        _, errors = self._capsys.readouterr()
        self.lines = [line for line in errors.splitlines() if line.startswith("clustmix: ")]
        return code

    @property
    def bundle(self):
        (path,) = (self.folder / "releases" / self.dataset).glob("r-*")
        return path

    @property
    def states(self):
        entries = LedgerDatabase(HOME / "ledger.sqlite").entries(self.dataset)
        return [str(entry.state.value) for entry in entries]


@pytest.fixture
def desk(tmp_path, capsys, monkeypatch):
    for name in [name for name in os.environ if name.startswith("CLUSTMIX_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CLUSTMIX_HOME", str(HOME))
    monkeypatch.setenv("CLUSTMIX_RELEASES", str(tmp_path / "releases"))
    monkeypatch.setenv("CLUSTMIX_DASK_WORKERS", "0")
    monkeypatch.setenv("CLUSTMIX_OFFLINE", "true")
    monkeypatch.chdir(tmp_path)
    umask = os.umask(0o022)
    yield Desk(tmp_path, capsys)
    os.umask(umask)


@pytest.fixture
def before_the_flow(desk, monkeypatch):
    """Let nothing past the point where the orchestrator would be started."""

    def started(settings):
        raise AssertionError("the orchestrator was started")

    monkeypatch.setattr(runtime, "configure_prefect", started)
    return desk


def refused(desk, line):
    assert desk.release() == 2
    (found,) = desk.lines
    assert re.sub(r"r-\d{8}-[0-9a-f]{8}", "ID", found).startswith(f"clustmix: {line}")


def test_images_are_released_as_a_table_and_as_a_picture(desk):
    desk.write_images()
    assert desk.release() == 0
    files = {path.name for path in desk.bundle.iterdir()}
    assert {"synthetic.parquet", "synthetic.csv", "contact_sheet.png"} <= files
    table = pd.read_parquet(desk.bundle / "synthetic.parquet")
    assert table.shape == (40, HEIGHT * WIDTH + 1)
    assert set(table.dtypes[:-1]) == {np.dtype(np.uint8)}
    assert set(np.unique(table.iloc[:, :-1])) <= {0, 85, 170, 255}
    assert table["label"].isin(["one", "two", "three"]).all()
    assert pd.read_csv(desk.bundle / "synthetic.csv").to_numpy().tolist() == (
        table.to_numpy().tolist()
    )
    schema = json.loads((desk.bundle / "schema.json").read_text())
    assert schema["image"]["gray_levels"] == 4
    assert "columns" not in schema
    manifest = json.loads((desk.bundle / "manifest.json").read_text())
    assert "contact_sheet.png" in manifest["files"]
    asked = [check["check"] for check in manifest["gate"]]
    assert asked[:6] == [
        "columns",
        "row_count",
        "pixels",
        "label: label",
        "files",
        "label shares: label",
    ]
    assert {f"marginal by label: {name}" for name in table.columns[:-1]} <= set(asked)
    assert main(["verify", str(desk.bundle)]) == 0
    # The same images again are not charged.
    assert desk.release() == 0
    assert desk.states == ["published"]


def test_items_and_a_column_that_says_nothing(desk):
    rng = np.random.default_rng(4)
    items = {name: rng.integers(0, 2, N) for name in ("insulin", "anemia")}
    frame = pd.DataFrame({**items, "never": 0, "label": desk.classes})
    desk.write_table(frame, {"items": ["insulin", "anemia", "never"], "label": LABEL})
    assert desk.release() == 0
    table = pd.read_parquet(desk.bundle / "synthetic.parquet")
    assert table[["insulin", "anemia", "never"]].isin(["0", "1"]).all(axis=None)
    assert not (desk.bundle / "contact_sheet.png").exists()


def test_a_number_that_is_always_the_same(desk):
    columns = [{"name": "age", "kind": "integer", "lower": 0, "upper": 110, "bins": 11}]
    frame = pd.DataFrame({"age": 50, "label": desk.classes})
    desk.write_table(frame, {"columns": columns, "label": LABEL})
    assert desk.release() == 0
    assert pd.read_parquet(desk.bundle / "synthetic.parquet")["age"].between(0, 110).all()


def test_a_range_of_zero_cannot_be_declared(before_the_flow):
    columns = [{"name": "age", "kind": "integer", "lower": 5, "upper": 5, "bins": 1}]
    before_the_flow.write_table(pd.DataFrame({"age": [5]}), {"columns": columns, "label": LABEL})
    refused(before_the_flow, "SITE_INVALID: site.yaml: schema.columns[0] (age): expected lower bel")


def test_a_continuous_label(desk):
    frame = pd.DataFrame({"a": np.arange(N) % 2, "label": np.linspace(0.5, 99.5, N)})
    desk.write_table(frame, {"items": ["a"], "label": LABEL})
    refused(desk, "INPUT_REFUSED: column label: expected declared label values only; correct the ")
    assert len(desk.lines[0]) < 300
    assert not re.search(r"\d\.\d", desk.lines[0])
    assert desk.states == ["burned"]


def test_a_class_that_is_not_declared(desk):
    desk.classes[7] = 9
    desk.write_images()
    refused(desk, "INPUT_REFUSED: column label: expected declared label values only; correct the ")


def test_one_class(desk):
    desk.classes[:] = 2
    desk.write_images()
    refused(desk, "ONE_LABEL_LEVEL: column label: expected two or more label levels in the source")


def test_no_images(desk):
    desk.pixels, desk.classes = desk.pixels[:0], desk.classes[:0]
    desk.write_images()
    refused(desk, "EMPTY_TABLE: expected rows in the source, found an empty table")


def test_images_of_another_size(before_the_flow):
    before_the_flow.pixels = before_the_flow.pixels[:, :, :3].copy()
    before_the_flow.write_images()
    refused(
        before_the_flow,
        "HEADER_MISMATCH: expected the declared columns, found none named pixel_00_03",
    )


def test_files_that_do_not_belong_together(before_the_flow):
    before_the_flow.classes = before_the_flow.classes[:-1]
    before_the_flow.write_images()
    refused(before_the_flow, "IDX_LABELS: expected a label for each image; images.gz and labels ")


def test_files_in_the_wrong_order(before_the_flow):
    before_the_flow.write_images()
    before_the_flow.source |= {"images": "labels", "labels": "images.gz"}
    refused(before_the_flow, "IDX_MAGIC: expected an idx file of images, unsigned bytes, at labels")


def test_a_truncated_file(desk):
    desk.write_images()
    path = desk.folder / "labels"
    path.write_bytes(path.read_bytes()[:-1])
    refused(
        desk, f"IDX_TRUNCATED: expected as many bytes in {path} as its header says, found fewer"
    )
    assert desk.states == ["burned"]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"labels": None}, "source: give either 'images' and 'labels', or 'data'"),
        ({"data": "mnist"}, "source: give either 'images' and 'labels', or 'data'"),
        ({"split": "test"}, "source: give 'split' with 'data' only"),
        ({"split": "half"}, "source.split: expected 'train' or 'test'"),
        ({"path": "x"}, "source.path: unknown key"),
    ],
)
def test_a_source_that_is_declared_wrong(before_the_flow, change, line):
    before_the_flow.source |= change
    refused(before_the_flow, f"SITE_INVALID: site.yaml: {line}")


@pytest.mark.parametrize(
    ("image", "line"),
    [
        ({"height": 28}, "schema.image.width: expected this key, found none"),
        ({"height": 28, "width": 99}, "schema.image.width: expected a number less than or equal"),
        ({"height": 28, "width": 9.5}, "schema.image.width: expected a valid integer"),
    ],
)
def test_an_image_that_is_declared_wrong(before_the_flow, image, line):
    before_the_flow.schema["image"] = image
    refused(before_the_flow, f"SITE_INVALID: site.yaml: {line}")


def test_two_kinds_of_columns(before_the_flow):
    before_the_flow.schema["items"] = ["a"]
    refused(
        before_the_flow,
        "SITE_INVALID: site.yaml: schema: expected exactly one of columns, image and items",
    )
