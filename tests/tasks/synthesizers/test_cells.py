import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.measurement.cells import Cells


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**16), n_clusters=st.integers(1, 4), n_slices=st.integers(1, 4))
def test_a_records_cell_does_not_change_when_any_other_record_does(
    seed, n_clusters, n_slices, small
):
    cells = small.cells(seed, n_slices=n_slices, n_clusters=n_clusters)
    rows = small.rows(small.patients(12, seed))
    together = cells.assign(rows.codes, rows.label)
    assert together.min() >= 0
    assert together.max() < cells.n_cells
    for i in range(len(rows)):
        alone = cells.assign(rows.codes[i : i + 1], rows.label[i : i + 1])
        assert alone[0] == together[i]
        # Every other record replaced by another one, in another memory layout.
        other = np.asfortranarray((rows.codes + 1) % np.array(small.domain.n_codes, np.uint16))
        other[i] = rows.codes[i]
        label = 1 - rows.label
        label[i] = rows.label[i]
        assert cells.assign(other, label)[i] == together[i]


def test_projection_of_a_record_has_the_same_bits_in_any_shard_and_layout():
    # Ten columns: a whole-shard sum would round pairwise in one layout, in sequence in another.
    rng = np.random.default_rng(0)
    scores, codes = rng.standard_normal(50), rng.integers(0, 5, (400, 10)).astype(np.uint16)
    offsets = np.arange(0, 51, 5)
    in_sequence = []
    for record in codes:
        total = 0.0
        for column, code in enumerate(record.tolist()):
            total += scores[offsets[column] + code]
        in_sequence.append(total / np.sqrt(10))
    # A cut-off exactly at each projection tells the last bit: at or below counts, above does not.
    cells = Cells(
        offsets=offsets,
        code_scores=scores,
        cut_offs=np.sort(in_sequence),
        centres=np.zeros((2, 401, 1, 50)),
        alive=np.ones((2, 401, 1), dtype=np.bool_),
    )
    expected = np.searchsorted(cells.cut_offs, in_sequence, side="right")
    np.testing.assert_array_equal(cells.slices(codes), expected)
    np.testing.assert_array_equal(cells.slices(np.asfortranarray(codes)), expected)
    np.testing.assert_array_equal(cells.slices(codes[:1]), expected[:1])


def test_clusters_that_are_not_alive_take_no_records(small):
    cells = small.cells(3)
    rows = small.rows(small.patients(200, 3))
    clusters = cells.assign(rows.codes, rows.label) % 3
    assert set(clusters.tolist()) == {0, 1}
