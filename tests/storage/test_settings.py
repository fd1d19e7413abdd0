import os

import pytest

from privacy.errors import ConfigurationError
from storage.settings import load_settings


@pytest.fixture(autouse=True)
def without_settings(monkeypatch):
    for name in os.environ:
        if name.startswith("CLUSTMIX_"):
            monkeypatch.delenv(name)


def test_wrong_value_is_named_and_not_repeated(monkeypatch):
    monkeypatch.setenv("CLUSTMIX_DASK_WORKERS", "secret")
    with pytest.raises(ConfigurationError) as caught:
        load_settings()
    assert caught.value.code == "INVALID_SETTING"
    assert "CLUSTMIX_DASK_WORKERS" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert caught.value.__context__ is None
