import hashlib
import os

import pytest
from pydantic import ValidationError

from privacy.errors import IntegrityError
from storage.files.digests import FileDigest, digest_of


@pytest.mark.parametrize("content", [b"", b"abc", b"\x00" * 600_000], ids=len)
def test_digest_of_a_content_and_of_its_file(content, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(content)
    expected = FileDigest(sha256=hashlib.sha256(content).hexdigest(), size=len(content))
    assert digest_of(content) == digest_of(path) == expected


def test_only_regular_files_are_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "file").write_bytes(b"abc")
    for name in ("pipe", "link", "missing", "."):
        with pytest.raises(IntegrityError):
            digest_of(tmp_path / name)


@pytest.mark.parametrize("change", [{"size": -1}, {"sha256": "AB" * 32}, {"sha256": "0"}])
def test_a_malformed_digest_is_refused(change):
    with pytest.raises(ValidationError):
        FileDigest(**{"sha256": "0" * 64, "size": 0, **change})
