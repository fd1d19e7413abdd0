"""The published analysis: marked in every file and row, public data only, no way to a release."""

import json
from pathlib import Path

import desks
import pandas as pd
import pytest
import yaml

from flows.cli import main
from privacy.errors import Withheld
from storage.files.refs import ReleaseRef
from storage.keys.keys import SigningKey
from storage.releases.manifest import Manifest
from storage.releases.release_store import ReleaseStore
from tasks.reporting.guarantee import PAPER_MARKER

pytestmark = pytest.mark.integration

SITE = Path(__file__).parents[2] / "deployments" / "sites" / "breast-cancer.yaml"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("benchmark")
    with pytest.MonkeyPatch.context() as patch:
        desks.set_environment(patch, folder / "releases")
        patch.setenv("CLUSTMIX_DASK_WORKERS", "1")
        site = yaml.safe_load(SITE.read_text(encoding="utf-8"))
        # Clusters of the default size would leave 357 and 212 records in none or one.
        site["method"] = {"kind": "clustmix", "published": {"sigma_max": 1.0}}
        path = folder / "site.yaml"
        path.write_text(yaml.safe_dump(site), encoding="utf-8")
        assert main(["benchmark", str(path), "--output", str(folder / "out")]) == 0
    (bundle,) = (folder / "out" / "breast-cancer").iterdir()
    return folder, bundle


def test_every_file_and_every_row_says_that_nothing_is_proven(run):
    _, bundle = run
    assert {path.name for path in bundle.iterdir()} == {
        "synthetic.parquet", "synthetic.csv", "schema.json", "manifest.json", "data_card.md",
        "report.html",
    }  # fmt: skip
    for table in (
        pd.read_parquet(bundle / "synthetic.parquet"),
        pd.read_csv(bundle / "synthetic.csv"),
    ):
        assert set(table["not_proven"]) == {PAPER_MARKER}
    schema = json.loads((bundle / "schema.json").read_text(encoding="utf-8"))
    assert schema["not_proven"] == PAPER_MARKER
    for name in ("data_card.md", "report.html"):
        assert "epsilon claimed by the paper, not proven" in (bundle / name).read_text("utf-8")
    manifest = Manifest.from_bytes((bundle / "manifest.json").read_bytes())
    assert manifest.analysis == "published"
    assert manifest.ledger_entry == "none: not a release"
    assert "claimed by the paper, not proven" in str(manifest.events[0]["statistic"])


def test_nothing_is_published_and_the_store_refuses_it(run):
    folder, bundle = run
    assert not (folder / "releases").exists()
    manifest = Manifest.from_bytes((bundle / "manifest.json").read_bytes())
    files = {path.name: path for path in bundle.iterdir() if path.name != "manifest.json"}
    signer = SigningKey.create(folder / "any.key")
    store = ReleaseStore(folder / "store")
    ref = ReleaseRef(dataset=manifest.dataset, release_id=manifest.release_id)
    with pytest.raises(Withheld, match="proven"):
        store.publish(ref, files, manifest, signer=signer)
    assert main(["verify", str(bundle), "--key", str(folder / "any.pub")]) == 1


def test_private_data_and_other_methods_are_refused(run, capsys, monkeypatch):
    folder, _ = run
    monkeypatch.setenv("CLUSTMIX_HOME", str(desks.HOME))
    site = yaml.safe_load(SITE.read_text(encoding="utf-8"))
    private = folder / "private.yaml"
    private.write_text(yaml.safe_dump({**site, "public_benchmark_data": False}), encoding="utf-8")
    assert main(["benchmark", str(private)]) == 2
    assert (
        "clustmix: NOT_PUBLIC_DATA: expected public_benchmark_data: true, found a private table; "
        "the published analysis has no guarantee that holds and reads public data only"
    ) in capsys.readouterr().err
    other = folder / "other.yaml"
    other.write_text(yaml.safe_dump({**site, "method": {"kind": "naive_bayes"}}), encoding="utf-8")
    assert main(["benchmark", str(other)]) == 2
    assert (
        "clustmix: NO_PUBLISHED_FORM: expected a method with a published form (clustmix methods "
        "lists them), found 'naive_bayes'"
    ) in capsys.readouterr().err
