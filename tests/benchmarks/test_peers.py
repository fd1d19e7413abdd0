import sys

import numpy as np
import pandas as pd
import pytest

from benchmarks import peer_programs, peers
from benchmarks.jobs import listed
from benchmarks.process_memory import run_measured
from benchmarks.releases import Run
from benchmarks.suites import nist, rivals
from tasks.ingest.encoding import domain_of


def test_a_peer_gets_codes_of_the_schema_and_hands_back_no_others(tmp_path):
    schema = nist.schema_of(10, rules=False)
    cells = {"AGEP": ["2", "99"], "PINCP_DECILE": ["N", "9"]}
    rows = pd.DataFrame({name: cells.get(name, "1") for name in schema.released_columns})
    request, codes = peers.request_of(schema, 1.0, 1e-5, 2), peers.coded(rows, schema)
    assert (codes[:, 0].tolist(), codes[:, -1].tolist()) == ([0, 21], [0, 10])
    assert peers.decoded(codes, schema)["PINCP_DECILE"].tolist() == ["N", "9"]
    peer_programs.write_request(tmp_path, request, codes)
    assert peer_programs.read_request(tmp_path)[0] == request
    peer_programs.write_made(tmp_path, codes, request)
    assert np.array_equal(peer_programs.read_made(tmp_path, request), codes)
    peer_programs.write_made(tmp_path, codes + 1, request)
    with pytest.raises(ValueError, match="declared schema"):
        peer_programs.read_made(tmp_path, request)


@pytest.mark.parametrize("features", [10, 21, 24])
def test_constraints_of_a_part_of_the_columns_are_those_that_a_release_takes(features):
    plain, ruled = (domain_of(nist.schema_of(features, rules=rules)) for rules in (False, True))
    assert len(plain.column_names) + 1 == features
    assert plain.rules is None
    assert ruled.rules.all_listed
    young = np.zeros((1, features - 1), dtype=np.uint16)
    young[0, plain.column_names.index("MSP")] = 1
    assert ruled.rules.broken(young, np.zeros(1, dtype=np.uint16)).all()


def test_an_epsilon_has_a_job_of_every_method_and_no_job_comes_twice():
    words = [job.words for job in listed("nist")]
    assert len(words) == 210
    assert words[0].endswith("--features 10 --method clustmix --epsilon 1 --draw 0")


def test_groups_of_codes_are_a_linear_query():
    class Table:
        def datavector(self, *, flatten):
            return np.arange(6.0).reshape(2, 3)

    joins = np.array([[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    assert peer_programs.Joined((np.eye(2), joins))(Table()).tolist() == [2.0, 1.0, 8.0, 4.0]


def test_a_network_past_its_limit_is_a_row_and_one_that_failed_is_none(monkeypatch):
    def ended(how):
        words = f"import os, signal; os.kill(os.getpid(), signal.{how})"
        return lambda run: run_measured([sys.executable, "-c", words], {})

    monkeypatch.setattr(rivals.resource, "setrlimit", lambda *_: None)
    monkeypatch.setattr(rivals, "table_row", ended("SIGXCPU"))
    row = rivals.row_of(Run(dataset="adult", method="dp_gan", epsilon=1.0))
    assert (row.outcome, row.epsilon, row.auc) == ("did not end", 1.0, None)
    monkeypatch.setattr(rivals, "table_row", ended("SIGKILL"))
    with pytest.raises(RuntimeError, match="found -9"):
        rivals.row_of(Run(dataset="adult", method="dp_gan", epsilon=1.0))
