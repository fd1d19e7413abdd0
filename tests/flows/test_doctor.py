import json
import os
import stat

import pytest

from flows import doctor
from flows.cli import main
from flows.doctor import examine
from privacy.randomness import OperatingSystemNoise
from storage.ledger_db import LedgerDatabase
from storage.settings import Settings, ensure_private_directory

NAMES = [
    "packages",
    "private folder",
    "releases",
    "ledger",
    "noise",
    "orchestrator",
    "data: adult",
    "data: diabetes130",
    "data: physionet2012",
]


@pytest.fixture
def settings(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("CLUSTMIX_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CLUSTMIX_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CLUSTMIX_RELEASES", str(tmp_path / "releases"))
    return Settings()


def found(settings, name):
    return {finding.name: finding for finding in examine(settings)}[name]


def test_a_new_installation_is_well_and_stays_as_it_is(settings, tmp_path):
    findings = examine(settings)
    assert [finding.name for finding in findings] == NAMES
    assert all(finding.good for finding in findings)
    assert found(settings, "private folder").text == "none yet; the first release makes it"
    assert list(tmp_path.iterdir()) == []


def test_a_ledger_is_verified(settings):
    ensure_private_directory(settings.home)
    LedgerDatabase(settings.ledger_path)
    assert found(settings, "ledger").text == "hash chain of 0 rows verified"
    assert found(settings, "private folder").text == f"{settings.home}, closed to others"
    settings.ledger_path.write_bytes(b"no database, but long enough to be read as one")
    finding = found(settings, "ledger")
    assert not finding.good
    assert "file is not a database" in finding.text


def test_an_open_home_is_found(settings, capsys):
    settings.home.mkdir()
    settings.home.chmod(0o750)
    assert main(["doctor"]) == 1
    text = (
        f"directory {settings.home} holds private data and must have mode 0700, found 0750; run: "
        f"chmod 700 {settings.home}"
    )
    assert f"  FAIL private folder       {text}" in capsys.readouterr().out.splitlines()
    assert stat.S_IMODE(settings.home.stat().st_mode) == 0o750


def test_a_home_that_is_a_file_is_found(settings):
    settings.home.touch()
    assert found(settings, "private folder").text == (
        f"expected a directory at {settings.home}, found a file or a symbolic link; remove it or "
        "choose another place"
    )


def test_a_release_folder_that_is_a_file_is_found(settings):
    settings.releases.touch()
    assert found(settings, "releases").text == (
        f"expected a folder for releases at {settings.releases}, found a file; move it away or set "
        "CLUSTMIX_RELEASES to another folder"
    )


def test_a_folder_that_may_not_be_entered_is_found(settings, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    settings.home.mkdir(mode=0o700)
    monkeypatch.setattr(doctor, "ensure_private_directory", refuse)
    finding = found(settings, "private folder")
    assert not finding.good
    assert finding.text.startswith("expected to look at it, found: [Errno 13] Permission denied")


def test_noise_of_the_wrong_size_is_found(settings, monkeypatch):
    sample = OperatingSystemNoise.discrete_gaussian
    monkeypatch.setattr(
        OperatingSystemNoise,
        "discrete_gaussian",
        lambda self, shape, *, noise_stddev: sample(self, shape, noise_stddev=noise_stddev / 2),
    )
    assert found(settings, "noise").text == "expected noise of the asked size, found another"


def test_a_package_of_another_distribution_is_found(settings, monkeypatch):
    owners = {"flows": ["clustmix", "flows-of-others"]}
    monkeypatch.setattr(doctor, "packages_distributions", lambda: owners)
    assert found(settings, "packages").text == (
        "expected package 'flows' of this distribution, found another; use a clean environment"
    )


def test_a_server_is_named_by_its_variable_only(settings, monkeypatch):
    monkeypatch.setenv("PREFECT_API_URL", "http://user:secret@host/api")
    assert found(settings, "orchestrator").text == "the server named by PREFECT_API_URL"


def test_public_data_are_looked_for_and_not_fetched(settings, tmp_path, monkeypatch):
    monkeypatch.setattr(doctor.datasets, "find", lambda name, settings: tmp_path / f"{name}.csv")
    assert found(settings, "data: adult").text == "found adult.csv"


def test_the_answer_for_a_program(settings, capsys):
    assert main(["doctor", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [finding["name"] for finding in answer] == NAMES
    assert all(finding.keys() == {"name", "good", "text"} for finding in answer)
