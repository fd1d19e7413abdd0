import pytest
import webhook_receiver
from served_installation import running


@pytest.fixture(scope="session")
def told():
    with webhook_receiver.listening() as receiver:
        yield receiver


@pytest.fixture(scope="session")
def installation(tmp_path_factory, told):
    folder = tmp_path_factory.mktemp("first")
    with running(folder, lambda it: it.add_site("ward"), CLUSTMIX_NOTIFY_URL=told.url) as started:
        yield started
