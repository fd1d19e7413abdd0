from itertools import combinations, product

import numpy as np
import pandas as pd
import pytest

from benchmarks import peer_exchange, peer_pgm, peers
from benchmarks.junction_sampler import CliqueTable, sample_tree
from benchmarks.tables import site_document, write_site

N_CODES, PAIRS = (3, 2, 4), list(combinations(range(3), 2))
CODES = np.random.default_rng(5).integers(N_CODES, size=(40, 3)).astype(np.uint16)


def test_a_peer_gets_codes_of_the_schema_and_hands_back_no_others(tmp_path, monkeypatch):
    site = write_site(site_document("rotterdam"), tmp_path / "site.yaml")
    cells = {"year": ["1990", "2400"], "age": "60", "size": "<=20", "death": ["1", "0"]}
    rows = pd.DataFrame({name: cells.get(name, "1") for name in site.columns_to_read})
    monkeypatch.setattr(peers, "read_table", lambda _: rows)
    request, codes = peers.request_of(site, 4), peers.coded(site)
    assert (codes[:, 0].tolist(), codes[:, -1].tolist()) == ([6, 7], [0, 1])
    peer_exchange.write_request(tmp_path, request, codes)
    assert peer_exchange.read_request(tmp_path)[0] == request
    made = np.ones((request.rows_out, codes.shape[1]), dtype=np.uint16)
    peer_exchange.write_made(tmp_path, made, request)
    assert np.array_equal(peer_exchange.read_made(tmp_path, request), made)
    peer_exchange.write_made(tmp_path, made + 1, request)
    with pytest.raises(ValueError, match="declared schema"):
        peer_exchange.read_made(tmp_path, request)


def test_no_patient_moves_a_draw_by_more_than_its_sensitivity():
    shares = [np.full(n, 1 / n) for n in N_CODES]
    draws = (
        (3, lambda codes: np.concatenate(peer_pgm.one_way_counts(codes, N_CODES))),
        (2, lambda codes: np.concatenate(peer_pgm.pair_counts(codes, N_CODES, PAIRS[:2]))),
        (len(PAIRS), lambda codes: peer_pgm.distances(codes, shares, 31.0)),
    )
    records = np.array(list(product(*map(range, N_CODES))), dtype=np.uint16)
    for squared, draw in draws:
        moves = [np.linalg.norm(draw(np.vstack([CODES, [r]])) - draw(CODES)) for r in records]
        assert 0.8 * np.sqrt(squared) < max(moves) <= np.sqrt(squared) + 1e-9
    shares = (peer_pgm.SHARE_ONE, peer_pgm.SHARE_DISTANCES, peer_pgm.SHARE_PAIRS)
    assert sum(peer_pgm.noise_of(1.0, mu=0.5, share=s) ** -2 for s in shares) == pytest.approx(0.25)


def test_records_have_the_distribution_of_the_tree():
    joint = np.random.default_rng(2).random((3, 2, 4))
    first, second = joint.sum(axis=2), joint.sum(axis=0)
    tables = [CliqueTable(columns=c, weights=w) for c, w in (((0, 1), first), ((2, 1), second.T))]
    made, again = (sample_tree(tables, N_CODES, 400_000, np.random.default_rng(1)) for _ in "12")
    assert np.array_equal(made, again)
    exact = first[:, :, None] * second / first.sum(axis=0)[:, None] / joint.sum()
    pair, whole = (peer_pgm.counts_of(made, N_CODES, c) / 4e5 for c in ([0, 1], [0, 1, 2]))
    assert np.abs(whole - exact.ravel()).max() < 0.0012
    assert np.abs(pair - first.ravel() / first.sum()).max() < 1 / 4e5
