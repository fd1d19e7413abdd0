import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.measurement.cells import Cells
from tasks.measurement.encoded import EncodingDomain
from tasks.synthesizers.clustmix.earlier.constrained_gmm import fit_round
from tasks.synthesizers.clustmix.earlier.partition import partition


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


def test_partition_reads_no_data_and_follows_its_public_seed():
    domain = EncodingDomain(
        column_names=("a", "b"),
        n_codes=(2, 5),
        has_missing=(False, True),
        numeric=(False, True),
        label_levels=("no", "yes", "maybe"),
    )
    one, same, other = (
        partition(domain, n_slices=4, n_clusters=2, public_seed=seed) for seed in (1, 1, 2)
    )
    assert one.centres.shape == (3, 4, 2, 7)
    assert len(one.cut_offs) == 3
    assert (np.diff(one.cut_offs) > 0).all()
    assert one.alive.all()
    np.testing.assert_array_equal(one.centres, same.centres)
    np.testing.assert_array_equal(one.cut_offs, same.cut_offs)
    assert (one.centres != other.centres).any()


def histograms_of(sizes, domain):
    """Noiseless histograms in which every code of a column is equally frequent."""
    uniform = np.concatenate([np.full(n, 1.0 / n) for n in domain.n_codes])
    return np.asarray(sizes, dtype=float)[..., None] * uniform


def test_size_prior_drops_small_clusters_and_keeps_the_largest_of_a_slice(small):
    cells = partition(small.domain, n_slices=2, n_clusters=2, public_seed=0)
    # Two labels, four cells each: slice 0 clusters 0 and 1, slice 1 clusters 0 and 1.
    histograms = histograms_of([[300, 100, 250, 201], [30, 40, 199, 198]], small.domain)
    fitted = fit_round(cells, histograms, min_cluster_size=200, noise_stddev=0.0)
    np.testing.assert_array_equal(
        fitted.alive, [[[True, False], [True, True]], [[False, True], [True, False]]]
    )
    uniform = histograms_of(1.0, small.domain)
    np.testing.assert_allclose(fitted.centres[fitted.alive], np.tile(uniform, (5, 1)))
    np.testing.assert_array_equal(fitted.centres[~fitted.alive], cells.centres[~fitted.alive])


def test_noise_does_not_bring_back_a_cluster_that_took_no_records(small):
    cells = partition(small.domain, n_slices=1, n_clusters=2, public_seed=0)
    first = fit_round(
        cells,
        histograms_of([[500, 10], [10, 20]], small.domain),
        min_cluster_size=100,
        noise_stddev=0.0,
    )
    np.testing.assert_array_equal(first.alive, [[[True, False]], [[False, True]]])
    # In the next round the dead clusters hold noise alone, here above the minimum size.
    again = fit_round(
        first,
        histograms_of([[500, 150], [900, 30]], small.domain),
        min_cluster_size=100,
        noise_stddev=0.0,
    )
    np.testing.assert_array_equal(again.alive, first.alive)
