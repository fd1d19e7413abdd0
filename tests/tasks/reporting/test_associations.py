import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.stats import chi2_contingency, entropy

from tasks.reporting.associations import association, information

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
