import io
import json
import re

import numpy as np
import pandas as pd
import pytest
from image_bytes import png
from PIL import Image

from flows.cli import main
from flows.site.site_file import load_site
from storage.schema.column_blocks import pixel_names
from storage.sources.images.image_files import FileRule
from tasks.methods.clustmix.images import image_rule as rule
from tests.processes import ROOT

HEIGHT, WIDTH, N = 10, 8, 80
NAMES = [*pixel_names(HEIGHT, WIDTH, 3)]
TINTS = {"sun": (250, 200, 40), "sea": (20, 90, 220)}


def film(number):
    """A disc in the colour of its class, on black, at a place of its own."""
    rng, rows, columns = np.random.default_rng(number), *np.mgrid[:HEIGHT, :WIDTH]
    row, column = rng.uniform(3, 6, 2)
    inside = (rows - row) ** 2 + (columns - column) ** 2 < 6
    return (inside[..., None] * np.array([*TINTS.values()][number % 2])).astype(np.uint8)


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


@pytest.fixture
def desk(desk):
    desk.listed = ["file,patient,kind"]
    for number in range(N):
        write(desk.folder / "films" / f"{number}.png", png(film(number)))
        desk.listed.append(f"{number}.png,p{number // 2},{[*TINTS][number % 2]}")
    write(desk.folder / "films.csv", "\n".join([*desk.listed, ""]).encode())
    size = [HEIGHT, WIDTH]
    desk.site |= {
        "source": {
            "kind": "png", "folder": str(desk.folder / "films"), "size": size, "colour": True,
            "table": str(desk.folder / "films.csv"),
        },
        "privacy_unit": {"column": "patient", "max_rows_per_patient": 2},
        "privacy": {"epsilon": 100.0, "delta": 1e-6},
        "budget": {"lifetime_epsilon": 200.0},
        "schema": {
            "image": {"height": HEIGHT, "width": WIDTH, "channels": 3},
            "label": {"name": "kind", "levels": {name: [] for name in TINTS}},
        },
        "method": {"kind": "clustmix"},
        "patients": N // 2,
    }  # fmt: skip
    return desk


@pytest.mark.integration
def test_colour_images_are_released_as_images_rows_and_a_sheet(desk, monkeypatch):
    monkeypatch.setattr(rule, "INDUCING_POINTS", 100)
    assert desk.release() == 0
    rows = pd.read_parquet(desk.bundle / "synthetic.parquet")
    assert list(rows.columns) == [*NAMES, "kind"]
    pixels = rows[NAMES].to_numpy().reshape(-1, HEIGHT, WIDTH, 3)
    images = pd.read_parquet(desk.bundle / "images.parquet")
    assert images["kind"].tolist() == rows["kind"].tolist()
    for image, expected in zip(images["image"], pixels, strict=True):
        decoded = Image.open(io.BytesIO(image["bytes"]))
        assert (decoded.mode, decoded.format) == ("RGB", "PNG")
        assert np.array_equal(np.asarray(decoded), expected)
    # With hardly any noise images have the two colours, on black.
    sums = pixels.sum(axis=(1, 2), dtype=int)
    is_warm = sums[:, 0] > sums[:, 2]
    for warm, tint in zip((is_warm, ~is_warm), TINTS.values(), strict=True):
        assert np.corrcoef(sums[warm].sum(axis=0), tint)[0, 1] > 0.9
    assert pixels[:, 0].mean() < pixels.mean() / 3
    with Image.open(desk.bundle / "contact_sheet.png") as sheet:
        drawn = np.asarray(sheet.convert("RGB")).astype(int)
    assert (np.ptp(drawn, axis=2) > 60).any()
    report = (desk.bundle / "report.html").read_text("utf-8")
    assert "pixel_00_00_red to pixel_09_07_blue" in report
    assert json.loads((desk.bundle / "schema.json").read_text())["image"]["channels"] == 3
    assert main(["verify", str(desk.bundle)]) == 0
    # The same films elsewhere are the same request, whose noise is drawn.
    (desk.folder / "films").rename(desk.folder / "moved")
    desk.site["source"]["folder"] = str(desk.folder / "moved")
    assert desk.release() == 0
    assert desk.states == ["published"]


def test_broken_files_are_in_the_restricted_file_and_cost_nothing(desk):
    whole = png(film(0))
    write(desk.folder / "films" / "3.png", whole[:-20])
    write(desk.folder / "films" / "41.png", png(film(1)[:-1]))
    write(desk.folder / "films" / "70.png", png(film(1)[..., 0]))
    rules = [
        "expected gray or colour images as declared, without an alpha channel",
        "expected images of the declared rows and columns of pixels",
        "expected whole files of the declared kind, none damaged or truncated",
    ]
    assert desk.release() == 2
    listed = "; ".join(f"column file: {rule}" for rule in rules)
    assert desk.line.startswith(f"INPUT_REFUSED: {listed}; correct the source or the schema")
    found = {row["value"] for record in desk.diagnostics for row in record["rows"]}
    assert found == {"3.png", "41.png", "70.png"}
    assert desk.run("check") == 2
    assert desk.line.startswith("CHECK_FAILED: ")
    assert set(desk.states) == {"void"}


def test_a_dicom_folder_names_its_patients(desk, before_the_flow):
    desk.site["source"] = {
        "kind": "dicom", "folder": str(desk.folder / "scans"), "size": [HEIGHT, WIDTH],
        "window": {"center": 100, "width": 300}, "burned_in": "refuse",
    }  # fmt: skip
    desk.site["schema"] = {
        "image": {"height": HEIGHT, "width": WIDTH},
        "label": {"name": "label", "levels": {name: [] for name in TINTS}},
    }
    desk.site["privacy_unit"] = {"column": None, "max_rows_per_patient": 1}
    assert desk.release() == 2
    assert "privacy_unit.column: expected PatientID for a source of this" in desk.line


def test_the_page_of_images_has_an_example_and_the_lines_of_the_program(desk):
    page = (ROOT / "docs" / "images.md").read_text("utf-8")
    desk.path.write_text(re.search(r"```yaml\n(.*?)```", page, re.DOTALL)[1], "utf-8")
    assert load_site(desk.path).source.shape == (64, 64, 3)
    for kept in FileRule:
        assert f"column file: expected {str(kept).partition(', as')[0]}`" in page


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"colour": False}, "source.size: expected the height, width and channels of schema.image"),
        ({"size": [20, 16], "shrink": 3}, "source: size: expected multiples of shrink"),
        ({"size": [10]}, "source.size: "),
    ],
)
def test_a_folder_that_is_declared_wrong(desk, before_the_flow, change, line):
    desk.site["source"] |= change
    assert desk.release() == 2
    assert re.match(rf"SITE_INVALID: site.yaml: line \d+, column \d+: {line}", desk.line)
