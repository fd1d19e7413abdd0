"""The table of DP-CDA on images: what is stored, and what it has to meet."""

from dataclasses import replace

from benchmarks.dp_cda_table import ORDERS, PAPER, Case, requirements, result_table, row_of


def result_of(case, found):
    return row_of(case, images=100, accuracy=found, wall=1.0, cpu=1.0)


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
