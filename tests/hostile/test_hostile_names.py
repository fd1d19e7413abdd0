"""Names that would lead out of a folder, onto another name or onto a terminal's control."""

# ruff: noqa: PT017 -- whether a case is refused is up to the case

import os
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from privacy.errors import ConfigurationError, IntegrityError
from storage.files.refs import ReleaseRef, check_file_name, check_name
from storage.files.workspace import PrivateWorkspace, store_arrays
from storage.releases.release_store import ReleaseStore

RELEASE_ID = "r-20250131-0f3a9c21"
PARTS = [
    "..", ".", "/", "\\", "\0", "~", "-", "_", "a", "A", "z9", "con", "nul", ".git", ".lock", ":",
    "\u2215", "\u2024", "\uff0e", "\uff0f", "\u0430", "\u212a", "\u0131", "ß", "e\u0301",
    "\u202e", "\n", "\r", "\x1b[2J", " ", "%2e%2e", "%00", "$HOME", "`id`", "*", "?", ";",
    "a" * 63, "a" * 64, "r-20250131-0f3a9c21", "manifest.json", ".csv", ".npz", "\u0661",
    "\ud800",
]  # fmt: skip
hostile = st.one_of(
    st.text(max_size=80),
    st.lists(st.sampled_from(PARTS), max_size=5).map("".join),
    st.from_regex(r"\A[a-z0-9-]{1,70}\Z"),
)


def said(error):
    """Return the message of a refusal, once it is one short printable line."""
    assert error.message.isprintable()
    assert len(error.message) < 500
    return error.message


@settings(max_examples=1_500)
@given(hostile)
def test_name_is_plain_or_refused(name):
    plain = (
        name.isascii()
        and len(name) in range(1, 64)
        and name[0] != "-"
        and not (set(name) - set("abcdefghijklmnopqrstuvwxyz0123456789-"))
    )
    if plain:
        assert check_name(name) == name
    else:
        with pytest.raises(ConfigurationError, match="INVALID_NAME: a name has 1 to 63") as caught:
            check_name(name)
        said(caught.value)


@settings(max_examples=1_500)
@given(hostile | st.from_regex(r"\A[A-Za-z_-]{1,3}(\.[a-zC0-9]{0,9}){0,3}\n?\Z"))
def test_file_name_is_plain_and_stays_in_its_folder(name):
    folder, (stem, *suffixes) = Path("/folder"), name.split(".")
    plain = (
        name.isascii()
        and len(stem) in range(1, 64)
        and stem[0] not in "-_"
        and stem.replace("-", "").replace("_", "").isalnum()
        and len(suffixes) <= 2
        and all(len(s) in range(1, 9) and s.isalnum() and s == s.lower() for s in suffixes)
    )
    try:
        check_file_name(name)
    except ConfigurationError as error:
        assert not plain
        assert "INVALID_FILE_NAME: a file name has letters" in str(error)
        said(error)
        return
    assert plain
    assert os.path.normpath(folder / name) == f"/folder/{name}"
    assert (folder / name).parent == folder
    assert len(os.fsencode(name)) <= 255


@settings(max_examples=700)
@given(
    dataset=hostile | st.just("adult"),
    release_id=hostile | st.from_regex(r"\A[rR]-[0-9]{7,8}-[0-9a-fA-F]{8}\n?\Z"),
)
@example("adult", RELEASE_ID)
def test_release_is_below_its_store(dataset, release_id):
    store = ReleaseStore(Path("/nowhere/store"))
    try:
        path = store.path(ReleaseRef(dataset=dataset, release_id=release_id))
    except ConfigurationError as error:
        said(error)
        assert (dataset, release_id) != ("adult", RELEASE_ID)
        return
    assert [len(part) for part in release_id.split("-")] == [1, 8, 8]
    assert release_id == release_id.lower().strip()
    assert path.relative_to("/nowhere/store").parts == (dataset, release_id)
    assert os.path.normpath(path) == str(path)


def test_link_in_place_of_a_workspace_is_refused(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    (private / "r-1").symlink_to(elsewhere)
    with pytest.raises(IntegrityError, match="WORKSPACE_EXISTS: run r-1 already has a workspace"):
        PrivateWorkspace.create(private, "r-1")
    with pytest.raises(ConfigurationError, match="NOT_A_DIRECTORY"):
        PrivateWorkspace.create(private / "r-1", "r-2")
    assert list(elsewhere.iterdir()) == []


def test_planted_link_in_a_workspace_is_not_written_through(tmp_path):
    target = tmp_path / "target"
    target.write_bytes(b"before")
    with PrivateWorkspace.create(tmp_path / "private", "r-1") as workspace:
        workspace.path("a.json").symlink_to(target)
        with pytest.raises(IntegrityError, match="ALREADY_WRITTEN"):
            workspace.write_once("a.json", b"after")
        store_arrays(workspace.path("a.json"))
        assert not workspace.path("a.json").is_symlink()
    assert target.read_bytes() == b"before"
