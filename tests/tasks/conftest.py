import pytest

from tasks.execution.cluster_certificates import make_certificates


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    """The certificates of a cluster over several hosts."""
    folder = tmp_path_factory.mktemp("certificates") / "set"
    make_certificates(folder)
    return folder
