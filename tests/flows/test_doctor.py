import functools
import json
import os
import re

import ledger_requests
import postgres_server
import pytest
from stores import Stores

from flows.cli import main
from flows.watching import doctor
from flows.watching.doctor import examine
from privacy.randomness import OperatingSystemNoise
from storage.keys.key_store import KeyStore
from storage.keys.keys import SigningKey
from storage.ledger.ledger_db import LedgerDatabase
from storage.settings import Settings, load_settings

NAMES = [
    "packages", "private folder", "releases", "keys", "officers", "ledger", "register",
    "charges", "revocations", "noise", "orchestrator", "data: adult", "data: diabetes130",
    "data: physionet2012", "data: fashion_mnist", "data: mnist",
]  # fmt: skip


packages_of_this_run = functools.cache(doctor.packages_distributions)


@pytest.fixture
def settings(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("CLUSTMIX_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CLUSTMIX_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CLUSTMIX_RELEASES", str(tmp_path / "releases"))
    # What takes a second each time: the packages of this environment, digests of public data.
    monkeypatch.setattr(doctor, "packages_distributions", packages_of_this_run)
    return Settings()


def found(settings, name):
    return {finding.name: finding for finding in examine(settings)}[name]


def test_a_new_installation_is_well_and_stays_as_it_is(settings, tmp_path):
    findings = examine(settings)
    assert [finding.name for finding in findings] == NAMES
    assert all(finding.good for finding in findings)
    assert found(settings, "private folder").text == "none yet; the first release makes it"
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def released(after_a_release, settings, person):
    for name in ("ben", "ada"):
        person(name, is_officer=True)
    return settings


def content_of(folder):
    return {
        path: path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
        if not path.name.endswith(("-wal", "-shm"))
    }


def test_an_installation_after_its_first_release(released, tmp_path):
    before = content_of(tmp_path)
    texts = {finding.name: finding.text for finding in examine(released)}
    assert all(finding.good for finding in examine(released))
    key = KeyStore(released.key_folder).pipeline()
    assert texts["keys"] == f"pipeline key {key.key_id}, closed to others"
    assert texts["officers"] == "2: ada, ben"
    assert texts["private folder"].endswith("closed to others; sealed measurements: 1")
    ledger = "in a file; hash chain of 5 rows verified, exported row 5 among them"
    assert texts["ledger"] == ledger
    assert content_of(tmp_path) == before


@pytest.mark.parametrize(
    ("place", "mode", "name"),
    [
        ("keys", 0o755, "keys"),
        ("measurements", 0o755, "private folder"),
        ("keys/pipeline.key", 0o644, "keys"),
    ],
)
def test_what_is_open_to_others_is_found(released, place, mode, name):
    path = released.home / place
    path.chmod(mode)
    assert re.search(f"{path}.* found {mode:04o}; .*chmod", refused(released, name))


def refused(settings, name):
    finding = found(settings, name)
    assert not finding.good
    return finding.text


def test_keys_that_are_lost_or_exchanged_are_found(released):
    folder = released.key_folder
    (folder / "ledger.key").rename(released.home / "kept")
    lost = f"of earlier requests in {folder / 'ledger.key'}, found none; restore"
    assert lost in refused(released, "keys")
    (released.home / "kept").rename(folder / "ledger.key")
    (folder / "pipeline.pub").rename(folder.parent / "kept.pub")
    assert found(released, "keys").good
    assert not (folder / "pipeline.pub").exists()
    (folder / "officers" / "ada.pub").rename(folder / "pipeline.pub")
    assert "found another; restore the one that was replaced" in refused(released, "keys")


def test_a_release_that_is_revoked_in_the_ledger_alone_is_found(released):
    assert found(released, "revocations").text == "none"
    site = Stores(released)
    [entry] = site.ledger.entries()
    key = SigningKey.read(released.home.parent / "people" / "ada.key")
    site.revoke(entry.release_id, key=key, reason="wrong table")
    assert found(released, "revocations").text == "1 listed, signature verified"
    path = released.releases / "revoked.json"
    path.rename(released.home / "kept.json")
    alone = f"expected release {entry.release_id} in {path}, found it revoked in the ledger alone"
    assert refused(released, "revocations").startswith(alone)


def test_a_ledger_that_was_set_back_or_lost_is_found(released):
    released.ledger_head_path.write_text(json.dumps({"sequence": 6, "hash": "0" * 64}) + "\n")
    assert "sequence 6: expected the row of the exported head" in refused(released, "ledger")
    released.ledger_path.rename(released.home / "elsewhere")
    lost = f"expected the ledger whose last row was exported, found none at {released.ledger_path};"
    assert refused(released, "ledger").startswith(lost)
    released.ledger_head_path.unlink()
    assert found(released, "ledger").text == "none yet; the first release makes it"


def test_a_ledger_in_postgresql_is_verified_and_its_address_unsaid(released, monkeypatch, capsys):
    url = postgres_server.database_url()
    monkeypatch.setenv("CLUSTMIX_LEDGER_URL", url)
    shared = load_settings()
    assert "sequence 5: expected the row of the exported head" in refused(shared, "ledger")
    LedgerDatabase(url).reserve(ledger_requests.charge(1))
    assert main(["doctor"]) == 1
    assert "postgresql://" not in capsys.readouterr().out
    assert found(shared, "keys").good
    shared.ledger_head_path.unlink()
    assert found(shared, "ledger").text == "in PostgreSQL; hash chain of 1 rows verified"


def test_an_open_home_is_found(settings, capsys):
    settings.home.mkdir()
    settings.home.chmod(0o750)
    assert main(["doctor"]) == 1
    assert "  FAIL  private folder" in capsys.readouterr().out
    assert main(["doctor", "--json"]) == 1
    assert [finding["name"] for finding in json.loads(capsys.readouterr().out)] == NAMES


def test_what_is_found_of_the_machine(settings, tmp_path, monkeypatch):
    sample = OperatingSystemNoise.discrete_gaussian
    monkeypatch.setattr(
        OperatingSystemNoise,
        "discrete_gaussian",
        lambda self, shape, *, noise_stddev: sample(self, shape, noise_stddev=noise_stddev / 2),
    )
    owners = {"flows": ["clustmix", "flows-of-others"]}
    monkeypatch.setattr(doctor, "packages_distributions", lambda: owners)
    monkeypatch.setattr(doctor.datasets, "find", lambda name, places: tmp_path / f"{name}.csv")
    monkeypatch.setenv("PREFECT_API_URL", "http://user:secret@host/api")
    findings = {finding.name: finding for finding in examine(settings)}
    assert [name for name in NAMES if not findings[name].good] == ["packages", "noise"]
    assert findings["noise"].text.startswith("expected noise of the requested size, found")
    assert "expected package 'flows' of this distribution" in findings["packages"].text
    # Named by its variable, and looked for but not fetched.
    assert findings["orchestrator"].text == "the server named by PREFECT_API_URL"
    assert findings["data: adult"].text == "found adult.csv"
