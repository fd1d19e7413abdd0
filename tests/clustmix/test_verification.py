import shutil

import pandas as pd
import pytest

import clustmix
from privacy.errors import ConfigurationError, IntegrityError


def test_a_bundle_is_checked_and_read(published):
    bundle = clustmix.verify(published / "bundle", keys=[str(published / "pipeline.pub")])
    manifest = bundle.verified.manifest
    assert bundle.guarantee.epsilon == pytest.approx(manifest.epsilon)
    assert str(bundle.guarantee).startswith(manifest.guarantee)
    assert bundle.guarantee.charged.entry == manifest.ledger_entry
    assert not bundle.revocations_checked
    written = pd.read_csv(published / "bundle" / "synthetic.csv")
    assert len(bundle.rows()) == len(written) == manifest.rows
    assert list(bundle.rows().columns) == list(written.columns)
    with pytest.raises(ConfigurationError, match="NO_TEACHER: expected a release of ClustMix on"):
        bundle.teacher()


def test_a_bundle_that_was_changed_or_has_no_key_is_refused(published, tmp_path):
    copy = shutil.copytree(published / "bundle", tmp_path / "bundle")
    content = bytearray((copy / "synthetic.csv").read_bytes())
    content[100] ^= 1
    (copy / "synthetic.csv").write_bytes(content)
    with pytest.raises(IntegrityError, match=r"FILE_CHANGED: file synthetic\.csv differs"):
        clustmix.verify(copy, keys=[published / "pipeline.pub"])
    with pytest.raises(ConfigurationError, match="NO_PUBLIC_KEY"):
        clustmix.verify(published / "bundle", keys=[])
    given = {"keys": [published / "pipeline.pub"], "revoked": tmp_path / "none"}
    with pytest.raises(IntegrityError):
        clustmix.verify(published / "bundle", **given)
