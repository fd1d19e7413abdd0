"""Releases of rows that stand in for the table: what they are, and what noise takes from them."""

import json

import made_up_release as made
import numpy as np
import pandas as pd
import pytest
import yaml

from flows.cli import main
from flows.operations import simulation
from flows.operations.planning import Planning
from flows.operations.simulation import Simulation, made_up
from flows.site.request import job_of
from flows.site.site_file import load_site
from privacy.errors import ConfigurationError, InputError
from tasks.ingest.encoding import domain_of

IMAGES = {"image": {"height": 2, "width": 2}, "label": made.SCHEMA["label"]}


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Write a site file whose table is nowhere, and return what makes its job."""
    monkeypatch.setattr(simulation, "TESTED", 2_000)

    def written(**changes):
        document = {
            "dataset": "wards", "title": "Wards", "patients": 3_000, "schema": made.SCHEMA,
            "privacy": {"epsilon": 1.0, "delta": 1e-6}, "budget": {"lifetime_epsilon": 5.0},
            "source": {"kind": "csv", "path": str(tmp_path / "no-such-table.csv")},
            "privacy_unit": {"column": "patient", "max_rows_per_patient": 3},
            "method": {"kind": "naive_bayes"},
        }  # fmt: skip
        path = tmp_path / "site.yaml"
        path.write_text(yaml.safe_dump(document | changes))
        return path

    return written


def planning(path):
    return Planning(job_of(load_site(path), "r-20260101-00000000"))


def test_made_up_rows_fill_the_domain_and_tell_their_label(site):
    domain = domain_of(planning(site()).schema)
    rows = made_up(domain, 20_000, np.random.default_rng(1))
    assert np.bincount(rows.label) / 20_000 == pytest.approx([0.85, 0.15], abs=0.1)
    for column, size in enumerate(domain.n_codes):
        shares = np.bincount(rows.codes[:, column], minlength=size) / 20_000
        assert len(shares) == size
        assert shares.min() > 0.2 / size
    told = [np.bincount(of, weights=rows.label) / np.bincount(of) for of in rows.codes.T]
    assert max(map(np.ptp, told)) > 0.1


def test_noise_is_what_a_release_loses_by(site):
    tried = Simulation(planning(site()))
    loud, quiet = tried.utility(0.02), tried.utility(50.0)
    assert loud.auc_of_rows == quiet.auc_of_rows > 0.6
    assert quiet.one_way < 0.03 < loud.one_way
    assert quiet.auc > quiet.auc_of_rows - 0.05
    assert quiet.auc > loud.auc


def test_rows_of_an_earlier_release_stand_in(site, tmp_path, capsys, monkeypatch):
    rng = np.random.default_rng(2)
    frame = pd.DataFrame({
        "age": rng.integers(18, 95, 6_000), "lactate": np.round(rng.gamma(2.0, 1.0, 6_000), 1),
        "ward": rng.choice(["icu", "surgery", "medicine"], 6_000), "smoker": "?",
    })  # fmt: skip
    died = np.where(frame["age"] + rng.normal(0, 5, 6_000) > 70, "yes", "no")
    frame.assign(died=died).to_parquet(tmp_path / "synthetic.parquet")
    path = site()
    monkeypatch.setenv("CLUSTMIX_HOME", str(tmp_path))
    assert main(["plan", str(path), "--epsilon", "5", "--like", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["simulated"]
    assert found["5.0"]["auc"] > 0.9
    assert found["5.0"]["auc_of_rows"] > 0.95
    with pytest.raises(InputError, match="SIMULATION_ROWS"):
        Simulation(planning(site(patients=6_000)), frame.assign(died=died))
    with pytest.raises(InputError, match="SIMULATION_ROWS"):
        Simulation(planning(path), frame.assign(died="maybe"))


def test_images_are_not_made_up(site):
    with pytest.raises(ConfigurationError, match="SIMULATION_IMAGES"):
        Simulation(planning(site(schema=IMAGES)))


def test_visits_and_constraints_are_not_made_up(site):
    kept = {**made.SCHEMA, "constraints": [{"holds": "lactate <= age"}]}
    tried = Simulation(planning(site(schema=kept)))
    assert tried.utility(5.0).one_way < 0.1
