import numpy as np
import pytest
from scipy.stats import norm

from tasks.papers.clustmix.scaling import ScalingKind, fit_scaling


@pytest.mark.parametrize("kind", list(ScalingKind))
def test_scaling_reaches_the_unit_box_and_back(kind):
    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.exponential(size=500), rng.uniform(2, 3, 500), np.full(500, 0.7)])
    scaling = fit_scaling(kind, rows)
    scaled = scaling.scale(rows)
    assert scaled.min() == 0.0
    assert scaled.max() == 1.0
    np.testing.assert_allclose(scaling.restore(scaled), rows, atol=1e-6)
    # Rows from outside the fitted range stay inside the box.
    outside = scaling.restore(np.array([[-3.0, 0.5, 9.0]]))
    assert outside[0, 0] == pytest.approx(rows[:, 0].min())
    assert outside[0, 2] == pytest.approx(0.7)


def test_normal_quantile_scaling_is_the_normal_score_of_the_rank():
    rows = np.linspace(0.0, 1.0, 101)[:, None] ** 3
    scaled = fit_scaling(ScalingKind.NORMAL_QUANTILE, rows).scale(rows)
    edge = 1e-7
    scores = norm.ppf(np.clip(np.linspace(0, 1, 101), edge, 1 - edge))
    expected = (scores - scores[0]) / (scores[-1] - scores[0])
    np.testing.assert_allclose(scaled[:, 0], expected, atol=1e-6)


def test_flaw_c1_one_record_moves_the_scaled_value_of_every_other():
    rows = np.array([0.0] + [50.0] * 19 + [100.0])[:, None]
    neighbour = rows.copy()
    neighbour[-1] = 1000.0
    first = fit_scaling(ScalingKind.MIN_MAX, rows).scale(rows)
    second = fit_scaling(ScalingKind.MIN_MAX, neighbour).scale(neighbour)
    np.testing.assert_allclose(first[1:-1] - second[1:-1], 0.45)
