import ledger_backends
import pytest
from moto.moto_server.threaded_moto_server import ThreadedMotoServer

from storage.settings import Settings


@pytest.fixture(params=ledger_backends.BOTH)
def backend(request, tmp_path):
    return ledger_backends.backend(request.param, tmp_path)


@pytest.fixture
def settings(tmp_path):
    return Settings(home=tmp_path / "home", data_dir=tmp_path / "data", offline=True)


@pytest.fixture(scope="module")
def s3():
    from s3fs import S3FileSystem

    server = ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    host, port = server.get_host_and_port()
    # fsspec keeps a client for each set of arguments, and the address is none of them.
    S3FileSystem.clear_instance_cache()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patched.setenv("AWS_ACCESS_KEY_ID", "sender")
        patched.setenv("AWS_SECRET_ACCESS_KEY", "zebra-secret")
        patched.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patched.setenv("AWS_EC2_METADATA_DISABLED", "true")
        store = S3FileSystem(use_listings_cache=False)
        if not store.exists("hospital"):  # a server of another module has the same memory
            store.mkdir("hospital")
        yield store
    S3FileSystem.clear_instance_cache()
    server.stop()
