import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privacy.errors import ConfigurationError
from storage.files.refs import ReleaseRef, check_file_name, check_name, new_release_id

NAME_CHARACTERS = string.ascii_lowercase + string.digits + "-"


def is_name_slowly(text):
    """Reference: the rule in words, one character at a time."""
    return (
        1 <= len(text) <= 63
        and all(character in NAME_CHARACTERS for character in text)
        and not text.startswith("-")
    )


@given(st.one_of(st.text(max_size=70), st.text(alphabet=NAME_CHARACTERS, max_size=70)))
def test_check_name_accepts_exactly_the_rule(text):
    if is_name_slowly(text):
        assert check_name(text) == text
    else:
        with pytest.raises(ConfigurationError) as caught:
            check_name(text)
        assert caught.value.code == "INVALID_NAME"


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../x", "a/b", "a\\b", "a\n", "a\x00", "A", "-a", "a.b", "a b", "é", "a" * 64],
)
def test_check_name_refuses(name):
    with pytest.raises(ConfigurationError, match="INVALID_NAME: a name has 1 to 63 characters"):
        check_name(name)


@given(st.text(max_size=80))
def test_accepted_file_name_stays_in_its_folder(tmp_path_factory, text):
    folder = tmp_path_factory.getbasetemp()
    try:
        name = check_file_name(text)
    except ConfigurationError:
        return
    assert (folder / name).resolve().parent == folder.resolve()
    assert not name.startswith(".")


@pytest.mark.parametrize("name", ["synthetic.csv", "shard-0001.npz", "data_card.md", "x.tar.gz"])
def test_check_file_name_accepts(name):
    assert check_file_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", ".x", "..", "a/b.csv", "a..csv", "x.csv\n", "x.", "a.b.c.d", "/etc/passwd", "x.CSV"],
)
def test_check_file_name_refuses(name):
    with pytest.raises(ConfigurationError, match="INVALID_FILE_NAME: a file name has letters"):
        check_file_name(name)


def test_new_release_ids_are_valid_and_differ():
    ids = {new_release_id() for _ in range(50)}
    assert len(ids) == 50
    for release_id in ids:
        ref = ReleaseRef(dataset="adult", release_id=release_id)
        assert str(ref) == f"adult/{release_id}"
        assert check_name(release_id) == release_id


@pytest.mark.parametrize(
    "release_id",
    ["r-2025-01", "r-20250131-0F3A9C21", "r-20250131-0f3a9c21\n", "../r-20250131-00000000"],
)
def test_release_ref_refuses_an_id_that_was_not_given(release_id):
    with pytest.raises(ConfigurationError, match="INVALID_RELEASE_ID: a release id looks like"):
        ReleaseRef(dataset="adult", release_id=release_id)


def test_refs_refuse_malformed_parts():
    with pytest.raises(ConfigurationError, match="INVALID_NAME"):
        ReleaseRef(dataset="..", release_id="r-20250131-0f3a9c21")
