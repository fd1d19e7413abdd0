import ledger_backends
import pytest

from storage.settings import Settings


@pytest.fixture(params=ledger_backends.BOTH)
def backend(request, tmp_path):
    return ledger_backends.backend(request.param, tmp_path)


@pytest.fixture
def settings(tmp_path):
    """Settings of an installation with a data folder of its own."""
    return Settings(home=tmp_path / "home", data_dir=tmp_path / "data", offline=True)
