import os
import stat

import pytest

from privacy.errors import ConfigurationError, IntegrityError
from storage.files.private import (
    ensure_private_directory,
    open_private,
    read_bounded,
    replace_durably,
    write_durably,
)


def test_files_have_their_mode_whatever_the_umask_and_are_written_once(tmp_path):
    for mask in (0, 0o077):
        os.umask(mask)
        write_durably(tmp_path / f"a{mask}", b"12345")
        replace_durably(tmp_path / f"b{mask}", b"1", mode=0o644)
        open_private(tmp_path / f"c{mask}", "a").close()
        modes = [(tmp_path / f"{name}{mask}").stat().st_mode & 0o777 for name in "abc"]
        assert modes == [0o600, 0o644, 0o600]
    with pytest.raises(IntegrityError, match="ALREADY_WRITTEN: file a0 is already written"):
        write_durably(tmp_path / "a0", b"2")
    assert read_bounded(tmp_path / "a0", 5) == b"12345"
    assert read_bounded(tmp_path / "a0", 3) == b"1234"  # enough to see that it is too large


def test_a_planted_link_is_not_followed(tmp_path):
    (tmp_path / "target").write_bytes(b"before")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(FileExistsError):
        open_private(tmp_path / "link", "x")
    with pytest.raises(OSError, match="symbolic links"):
        open_private(tmp_path / "link", "a")
    with pytest.raises(IntegrityError, match="FILE_NOT_REGULAR"):
        read_bounded(tmp_path / "link", 9)
    replace_durably(tmp_path / "link", b"after")
    assert not (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"before"


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
