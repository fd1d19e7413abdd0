import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.measurement.encoded import EncodedRows, EncodingDomain
from tasks.measurement.features import build_feature_map


def wide_domain(n_columns, n_codes):
    return EncodingDomain(
        column_names=tuple(f"c{i}" for i in range(n_columns)),
        n_codes=(n_codes,) * n_columns,
        has_missing=(False,) * n_columns,
        numeric=(True,) * n_columns,
        label_levels=("no", "yes"),
    )


@pytest.mark.parametrize("kind", ["one_hot", "ordinal"])
def test_norm_is_at_most_one_for_every_record_of_the_domain(kind, small):
    codes = np.array(list(itertools.product(*map(range, small.domain.n_codes))), dtype=np.uint16)
    for seed in range(20):
        feature_map = small.feature_map(seed, kind)
        assert (np.linalg.norm(feature_map.raw(codes), axis=1) <= 1 + 1e-15).all()
        norms = np.linalg.norm(feature_map.phi(codes), axis=1)
        assert (norms <= 1.0).all()
        assert norms.max() > 0.8


@pytest.mark.parametrize("kind", ["one_hot", "ordinal"])
def test_features_are_those_of_the_tangent_kernel_map(kind, small):
    rows = small.rows(small.patients(30, 0))
    feature_map = small.feature_map(4, kind)
    np.testing.assert_allclose(
        feature_map.phi(rows.codes), feature_map.hidden(feature_map.raw(rows.codes)), atol=1e-14
    )


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**16), n=st.integers(1, 300))
def test_features_of_a_record_have_the_same_bits_whatever_the_other_records(seed, n):
    # A matrix product of all rows fails here: its kernels round the last rows in another order.
    feature_map = build_feature_map(
        wide_domain(10, 5), n_random=32, skip_weight=0.9, public_seed=seed
    )
    codes = np.random.default_rng(seed).integers(0, 5, (300, 10)).astype(np.uint16)
    together = feature_map.phi(codes)
    assert feature_map.phi(codes[:n]).tobytes() == together[:n].tobytes()
    reverse = feature_map.phi(np.asfortranarray(codes[::-1]))
    assert np.ascontiguousarray(reverse[::-1]).tobytes() == together.tobytes()


def test_ordinal_scores_are_centred_bins_and_a_missing_indicator(small):
    table = small.feature_map(0, "ordinal").tables[0] * np.sqrt(3)
    np.testing.assert_allclose(table, [[-2 / 3, 0], [0, 0], [2 / 3, 0], [0, 1]])
    np.testing.assert_allclose(
        small.feature_map(0, "ordinal").tables[2] * np.sqrt(3), [[-2 / 3], [0], [2 / 3]]
    )


@pytest.mark.parametrize("kind", ["one_hot", "ordinal"])
def test_mean_features_of_marginals_equal_the_mean_over_records(kind, small):
    rng = np.random.default_rng(0)
    marginals = np.concatenate([rng.dirichlet(np.ones(n)) for n in small.domain.n_codes])
    feature_map, expected = small.feature_map(0, kind), 0.0
    offsets = small.domain.one_hot_offsets
    for record in itertools.product(*map(range, small.domain.n_codes)):
        probability = np.prod([marginals[offsets[j] + code] for j, code in enumerate(record)])
        expected = expected + probability * feature_map.raw(np.array([record], np.uint16))[0]
    np.testing.assert_allclose(feature_map.raw_of_marginals(marginals), expected, atol=1e-14)


@pytest.mark.parametrize("weight", [0.0, -1.0, 1.0 + 2**-52, np.nan, np.inf])
def test_rows_refuse_a_weight_that_would_break_the_sensitivity(weight):
    with pytest.raises(ValueError, match=r"every weight in \(0, 1\], found one outside"):
        EncodedRows(
            codes=np.zeros((1, 1), np.uint16),
            label=np.zeros(1, np.uint16),
            weight=np.array([weight]),
            fold=np.zeros(1, np.uint8),
        )
