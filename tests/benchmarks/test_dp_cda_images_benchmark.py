"""The network that scores released images, and the table of DP-CDA."""

import json
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.convolutional import SIDE, initial, scores
from benchmarks.dp_cda_images import run
from benchmarks.dp_cda_table import (
    ORDERS,
    PAPER,
    Case,
    case_of,
    requirements,
    result_table,
    row_of,
)

pytestmark = pytest.mark.integration  # of what a benchmark scores with, not of a release

CASE = Case(dataset="mnist", form="published", order=4, epsilon=10.0, seed=0)


def result_of(case, found=0.75):
    return row_of(case, images=100, accuracy=found, wall=1.0, cpu=1.0)


# --- the network ----------------------------------------------------------------------------------


def slow_scores(network, image):
    """Scores of one image when the network is tested, pixel by pixel."""
    parameters, moments = network.parameters, network.moments
    hidden = image.reshape(SIDE, SIDE, 1).astype(np.float64)
    for block, margin in (("1", 2), ("2", 1)):
        layer = parameters[f"convolution{block}"]
        weights = np.asarray(layer["weights"], dtype=np.float64)
        padded = np.pad(hidden, ((margin, margin), (margin, margin), (0, 0)))
        size, side = 2 * margin + 1, len(hidden)
        convolved = np.empty((side, side, weights.shape[-1]))
        for row in range(side):
            for column in range(side):
                window = padded[row : row + size, column : column + size]
                convolved[row, column] = np.tensordot(window, weights, axes=3)
        activated = np.maximum(convolved + np.asarray(layer["biases"]), 0.0)
        norm, name = parameters[f"norm{block}"], f"norm{block}"
        deviation = np.sqrt(np.asarray(moments[f"{name}_variance"]) + 1e-5)
        scaled = (activated - np.asarray(moments[f"{name}_mean"])) / deviation
        scaled = scaled * np.asarray(norm["gain"]) + np.asarray(norm["shift"])
        hidden = scaled.reshape(side // 2, 2, side // 2, 2, -1).max(axis=(1, 3))
    flat = hidden.reshape(-1)
    for name in ("dense1", "dense2"):
        layer = parameters[name]
        flat = np.maximum(flat @ np.asarray(layer["weights"]) + np.asarray(layer["biases"]), 0.0)
    output = parameters["output"]
    return flat @ np.asarray(output["weights"]) + np.asarray(output["biases"])


def test_scores_equal_a_slow_reference():
    network = initial(1, n_labels=3)
    rng = np.random.default_rng(1)
    moments = {
        name: np.asarray(rng.uniform(0.2, 1.0, value.shape), np.float32)
        for name, value in network.moments.items()
    }
    network = replace(network, moments=moments)
    image = rng.random((1, SIDE, SIDE, 1)).astype(np.float32)
    found, after = scores(network.parameters, network.moments, image, None)
    np.testing.assert_allclose(found[0], slow_scores(network, image[0]), rtol=2e-4, atol=2e-4)
    assert after == network.moments


# --- the table ------------------------------------------------------------------------------------


def test_a_run_keeps_every_result_and_goes_on_where_it_stopped(tmp_path):
    path, asked = tmp_path / "results.json", []

    def measured(case):
        asked.append(case)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return result_of(case)

    cases = [replace(CASE, seed=seed) for seed in range(4)]
    with pytest.raises(KeyboardInterrupt):
        run(cases, path=path, show=lambda text: None, measured=measured)
    assert len(json.loads(path.read_text())) == 2
    shown = []
    results = run(cases, path=path, show=shown.append, measured=measured)
    assert [case_of(result) for result in results] == cases
    assert asked == [*cases[:3], *cases[2:]]
    assert shown[0] == "mnist published l=4 epsilon=10 seed 2: accuracy 0.7500, 1 s"


def test_requirements_hold_results_against_the_paper():
    near = [
        result_of(
            Case(dataset=dataset, form="published", order=order, epsilon=epsilon, seed=seed), value
        )
        for (dataset, epsilon), values in PAPER.items()
        for order, value in zip(ORDERS, values, strict=True)
        for seed in (0, 1)
    ]
    assert all(requirement.met for requirement in requirements(near))
    far = [replace(result, cnn_accuracy=result.cnn_accuracy - 0.05) for result in near]
    assert not any(requirement.met for requirement in requirements(far))
    assert not any(requirement.met for requirement in requirements(near[:3]))
    text = result_table(near)
    assert "0.7808" in text
    assert "published (claimed, not proven)" in text
