import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.stats import chi2_contingency, entropy
from sklearn.metrics import roc_auc_score

from tasks.reporting.associations import association, found_again, information

tables = arrays.arrays(
    np.float64,
    arrays.array_shapes(min_dims=2, max_dims=2, min_side=2, max_side=6),
    elements=st.integers(0, 50).map(float),
).filter(lambda counts: counts.sum() > 1)


@given(tables)
def test_both_are_parts_and_independent_of_the_order_of_codes(counts):
    for found in (information, association):
        value = found(counts)
        assert 0.0 <= value <= 1.0
        assert found(counts[::-1, ::-1]) == pytest.approx(value, abs=1e-7)
    assert association(counts.T) == pytest.approx(association(counts), abs=1e-7)


def test_many_rows_give_the_textbook_values():
    counts = 1e7 * np.array([[0.2, 0.1], [0.1, 0.3], [0.2, 0.1]])
    chi = chi2_contingency(counts, correction=False).statistic
    assert association(counts) == pytest.approx(np.sqrt(chi / counts.sum()), rel=1e-4)
    rows, columns = counts.sum(axis=1), counts.sum(axis=0)
    mutual = entropy(rows) + entropy(columns) - entropy(counts.ravel())
    assert information(counts) == pytest.approx(mutual / entropy(columns), rel=1e-4)


def test_few_rows_of_many_codes_say_nothing():
    rng = np.random.default_rng(3)
    drawn = [rng.multinomial(500, np.full(40, 1 / 40)).reshape(20, 2) * 1.0 for _ in range(200)]
    assert np.mean([information(one) for one in drawn]) < 0.01  # 0.027 with its bias
    assert np.mean([association(one) for one in drawn]) < 0.06  # 0.19 with its bias


def test_labels_are_found_again_in_the_other_half():
    rng = np.random.default_rng(4)
    wanted = rng.random(4_000) < 0.3
    codes = np.stack([rng.integers(0, 5, 4_000), wanted ^ (rng.random(4_000) < 0.2)])
    best, all_columns = found_again(codes, wanted, [5, 2])
    other = np.arange(4_000) % 2 == 1
    assert best == pytest.approx(roc_auc_score(wanted[other], codes[1][other]))
    assert all_columns == pytest.approx(best, abs=0.02)
    assert found_again(codes[:1], wanted, [5])[1] == pytest.approx(0.5, abs=0.04)
    assert found_again(codes, np.zeros(4_000, dtype=bool), [5, 2]) is None
