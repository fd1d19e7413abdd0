import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from measuring import domain_with, every_record, random_records

from tasks.measurement.vectors import VectorMap, one_hot_numbers

DOMAIN = domain_with(
    *(5, 4, 2, 3, 3, 1), numeric=(0, 1, 5), missing=(1, 4), labels=("no", "yes", "maybe")
)
MAP = VectorMap(DOMAIN, with_label=True)


def test_vector_of_one_record_by_hand():
    codes = np.array([[1, 3, 1, 2, 0, 0]], dtype=np.uint16)
    vector = MAP.vectors(codes, np.array([2], dtype=np.uint16))[0]
    # age in fifths; lab missing: the middle and a flag; sex; ward; flag; one; label.
    expected = [0.25, 0.5, 1.0, 1.0, 0, 0, 1.0, 1.0, 0, 0, 0, 0, 0, 1.0]
    assert vector.tolist() == expected


def test_numbers_of_few_codes_become_levels():
    assert one_hot_numbers(DOMAIN, most_codes=4).numeric == (True, *(False,) * 5)
    assert one_hot_numbers(DOMAIN, most_codes=3).numeric == (True, True, *(False,) * 4)
    assert one_hot_numbers(DOMAIN, most_codes=0) == DOMAIN
    domain = one_hot_numbers(DOMAIN, most_codes=1_024)
    assert (domain.numeric, domain.n_codes) == ((False,) * 6, DOMAIN.n_codes)
    # One coordinate for each code, but for two.
    assert VectorMap(domain).width == 5 + 4 + 1 + 3 + 3 + 1


def test_every_record_comes_back():
    codes, labels = random_records(DOMAIN, 500, 1)
    found, found_labels = MAP.codes(MAP.vectors(codes, labels))
    assert (found == codes).all()
    assert found.dtype == found_labels.dtype == np.uint16
    assert (found_labels == labels).all()
    found, no_labels = VectorMap(DOMAIN).codes(VectorMap(DOMAIN).vectors(codes))
    assert (found == codes).all()
    assert no_labels is None


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=14, max_size=14))
def test_any_numbers_become_the_nearest_valid_record(numbers):
    vector = np.array([numbers])
    codes, labels = MAP.codes(vector)
    assert (codes < np.array(DOMAIN.n_codes)).all()
    assert (labels < DOMAIN.n_labels).all()
    # The slow reference: no other code of a column is nearer by more than rounding.
    start, columns = 0, [*codes[0], labels[0]]
    for (_, table), code in zip(MAP._tables(), columns, strict=True):
        block = vector[0, start : start + table.shape[1]]
        distances = ((block - table) ** 2).sum(axis=1)
        assert distances[code] <= distances.min() + 1e-6 * (1.0 + (block**2).sum())
        start += table.shape[1]


def test_no_record_is_farther_than_the_radius_and_one_is_as_far():
    vectors = VectorMap(DOMAIN)
    records = vectors.vectors(every_record(DOMAIN))
    for centre in (0.0, 0.25, vectors.middle):
        farthest = np.linalg.norm(records - centre, axis=1).max()
        assert vectors.radius(centre) == pytest.approx(farthest, rel=1e-12)
    # A missing lab is the longest, the middle and the flag; from the middle the ends are.
    assert vectors.radius() ** 2 == pytest.approx(1 + 1.25 + 1 + 1 + 1)
    assert vectors.radius(vectors.middle) ** 2 == pytest.approx(5 / 4 + 2 / 3 + 2 / 3)
    assert VectorMap(domain_with(1)).radius(1.0) == 1.0
