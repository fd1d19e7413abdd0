import pytest

from privacy.errors import ConfigurationError
from storage.files.refs import ReleaseRef, check_file_name


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


@pytest.mark.parametrize(
    "release_id",
    ["r-2025-01", "r-20250131-0F3A9C21", "r-20250131-0f3a9c21\n", "../r-20250131-00000000"],
)
def test_release_ref_refuses_an_id_that_was_not_given(release_id):
    with pytest.raises(ConfigurationError, match="INVALID_RELEASE_ID: a release id looks like"):
        ReleaseRef(dataset="adult", release_id=release_id)
