import forced_installation as forced
import pytest


@pytest.fixture
def installation(tmp_path):
    return forced.Installation(tmp_path / "installation")
