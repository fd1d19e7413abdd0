"""The table of DP-CDA on images: what is stored, and what it has to meet."""

import json
from dataclasses import replace

import pytest

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

CASE = Case(dataset="mnist", form="published", order=4, epsilon=10.0, seed=0)


def result_of(case, found=0.75):
    return row_of(case, images=100, accuracy=found, wall=1.0, cpu=1.0)


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
