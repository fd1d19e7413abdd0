import json
from pathlib import Path

import made_up_release as made
import pandas as pd
import pytest
import yaml
from stores import Stores

from flows.cli import main, progress
from flows.site.request import job_of
from flows.site.site_file import load_site
from flows.watching import simulation
from flows.watching.planning import Planning
from flows.watching.simulation import Simulation
from privacy.errors import ConfigurationError

IMAGES = {"image": {"height": 2, "width": 2}, "label": made.SCHEMA["label"]}


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.setattr(simulation, "TESTED", 2_000)

    def written(**changes):
        usual = {"privacy": {"delta": 1e-6}, "lifetime_epsilon": 5.0, "patients": 3_000}
        path = made.write_site(tmp_path, **usual)
        (tmp_path / "cohort.csv").unlink()
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | changes))
        return path

    return written


def planning(path):
    return Planning(job_of(load_site(path), "r-20260101-00000000"))


def test_noise_is_what_a_release_loses_by(site):
    tried = Simulation(planning(site()))
    loud, quiet = tried.utility(0.02), tried.utility(50.0)
    assert loud.auc_of_rows == quiet.auc_of_rows > 0.6
    assert quiet.one_way < 0.03 < loud.one_way
    assert quiet.auc > quiet.auc_of_rows - 0.05
    assert quiet.auc > loud.auc


def test_rows_of_an_earlier_release_stand_in(after_a_release, released, monkeypatch, capsys):
    monkeypatch.setattr(simulation, "TESTED", 100)
    path, store = after_a_release / "site.yaml", Stores().releases
    bundle = store.path(store.find(released.release_id))
    document = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump(document | {"patients": 150}))
    asked = ["plan", str(path), "--epsilon", "5", "--json", "--like"]
    monkeypatch.setattr(progress, "_EVERY", 0.01)
    assert main([*asked[:-2], "--plot", "auc.svg", "--like", str(bundle)]) == 0
    assert "<!-- the rows themselves -->" in Path("auc.svg").read_text()
    shown, lines = capsys.readouterr()
    assert "an AUC of" in shown
    assert "%" in lines
    assert "trying epsilon 5" in lines
    assert main([*asked, str(bundle)]) == 0
    found = json.loads(capsys.readouterr().out)["simulated"]["5.0"]
    assert found["rows"] == 150
    assert 0.0 < found["auc"] < 1.0
    for change, said in (
        ({"dataset": "others"}, "expected a release of others"),
        ({"patients": 10_000}, "expected more than 10,000 rows"),
    ):
        path.write_text(yaml.safe_dump(document | change))
        assert main([*asked, str(bundle)]) == 2
        assert said in capsys.readouterr().err
    # A table of the hospital's own, under the name of one in a bundle, is none.
    private = after_a_release / "private"
    private.mkdir()
    pd.read_parquet(bundle / "synthetic.parquet").to_parquet(private / "synthetic.parquet")
    assert main([*asked, str(private)]) != 0
    assert "simulated" not in capsys.readouterr().out


def test_images_are_not_made_up(site):
    with pytest.raises(ConfigurationError, match="SIMULATION_IMAGES"):
        Simulation(planning(site(schema=IMAGES)))
