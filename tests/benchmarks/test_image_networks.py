"""What judges released images: the small network, and the views of images it is given."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from benchmarks import small_network
from benchmarks.bundle_rows import views
from benchmarks.score import network_figures
from storage.public_data.public_tables import images_parquet

RNG, LEVELS = np.random.default_rng(5), ["red", "green", "blue"]


@pytest.fixture
def colours(tmp_path):
    """Bundle and table of images in colour, whose label is the channel that is bright."""

    def drawn(n):
        label = RNG.integers(3, size=n)
        bright = 120 * np.eye(3, dtype=int)[label][:, None, None]
        return (RNG.integers(100, size=(n, 8, 6, 3)) + bright).astype(np.uint8), label

    (made, label), (real, answers) = drawn(400), drawn(300)
    frame = pd.DataFrame(made.reshape(400, -1), columns=[f"pixel_{n}" for n in range(144)])
    frame.assign(channel=np.array(LEVELS)[label]).to_parquet(tmp_path / "synthetic.parquet")
    levels = {name: [number] for number, name in enumerate(LEVELS)}
    image = {"height": 8, "width": 6, "channels": 3}
    schema = {"label": {"name": "channel", "levels": levels}, "image": image}
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    (tmp_path / "real.parquet").write_bytes(images_parquet(real, answers))
    return tmp_path


@pytest.mark.integration
def test_networks_judge_a_bundle_in_colour_by_a_table(colours, monkeypatch):
    synthetic, real, _ = views(colours, colours / "real.parquet")
    assert synthetic.shape == real.shape == (8, 6, 3)
    monkeypatch.setattr(small_network.fit, "__kwdefaults__", {"seed": 0, "steps": 60})
    found = network_figures(colours, synthetic, real, LEVELS)
    assert found["paper_cnn_accuracy"] is found["teacher_accuracy"] is None
    assert min(found["cnn_accuracy"], found["read_as_class"]) > 0.97
    turned = replace(real, label=(real.label + 1) % 3)
    assert network_figures(colours, synthetic, turned, LEVELS)["cnn_accuracy"] < 0.1
