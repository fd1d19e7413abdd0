import numpy as np
import pandas as pd
import pytest

from benchmarks import peer_exchange, peers
from benchmarks.tables import site_document, write_site


def test_a_peer_gets_codes_of_the_schema_and_hands_back_no_others(tmp_path):
    site = write_site(site_document("rotterdam"), tmp_path / "site.yaml")
    schema = site.table_schema
    cells = {"year": ["1990", "2400"], "age": "60", "size": "<=20", "death": ["1", "0"]}
    rows = pd.DataFrame({name: cells.get(name, "1") for name in site.columns_to_read})
    codes = peers.coded(rows, schema)
    assert (codes[:, 0].tolist(), codes[:, -1].tolist()) == ([6, 7], [0, 1])
    request = peer_exchange.Request(
        n_codes=peers.n_codes_of(schema), epsilon=1.0, delta=1e-6, rows_out=4
    )
    peer_exchange.write_request(tmp_path, request, codes)
    assert peer_exchange.read_request(tmp_path)[0] == request
    made = np.ones((request.rows_out, codes.shape[1]), dtype=np.uint16)
    peer_exchange.write_made(tmp_path, made, request)
    assert np.array_equal(peer_exchange.read_made(tmp_path, request), made)
    peer_exchange.write_made(tmp_path, made + 1, request)
    with pytest.raises(ValueError, match="declared schema"):
        peer_exchange.read_made(tmp_path, request)
