import os
import stat
from pathlib import Path

import pytest

from privacy.errors import ConfigurationError
from storage.files.private import ensure_private_directory
from storage.settings import load_settings


@pytest.fixture(autouse=True)
def without_settings(monkeypatch):
    for name in os.environ:
        if name.startswith("CLUSTMIX_"):
            monkeypatch.delenv(name)


def test_defaults_are_absolute_paths_under_the_current_directory(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    settings = load_settings()
    assert settings.home == tmp_path / ".clustmix"
    assert settings.releases == tmp_path / "releases"
    assert settings.data_dir is None
    assert settings.dask_workers is None
    assert settings.dask_address is None
    assert not settings.offline
    monkeypatch.setenv("CLUSTMIX_HOME", "~/x")
    assert load_settings().home == Path.home() / "x"


def test_wrong_value_is_named_and_not_repeated(monkeypatch):
    monkeypatch.setenv("CLUSTMIX_DASK_WORKERS", "secret")
    with pytest.raises(ConfigurationError) as caught:
        load_settings()
    assert caught.value.code == "INVALID_SETTING"
    assert "CLUSTMIX_DASK_WORKERS" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert caught.value.__context__ is None


def test_open_directory_is_refused_and_left_as_it_is(tmp_path):
    os.umask(0)
    path = ensure_private_directory(tmp_path / "a" / "b")
    for folder in (path, path.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert ensure_private_directory(path) == path
    for mode in (0o750, 0o701, 0o707):
        path.chmod(mode)
        message = f"must have mode 0700, found {mode:04o}; run: ch"
        with pytest.raises(ConfigurationError, match=message):
            ensure_private_directory(path)
        assert stat.S_IMODE(path.stat().st_mode) == mode


def test_links_files_and_folders_of_others_are_refused(tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "file").touch()
    for name in ("link", "file"):
        with pytest.raises(ConfigurationError, match="NOT_A_DIRECTORY: expected a directory at"):
            ensure_private_directory(tmp_path / name)
    path = ensure_private_directory(tmp_path / "mine")
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    with pytest.raises(ConfigurationError, match=r"DIRECTORY_OWNER: directory .* another user"):
        ensure_private_directory(path)
