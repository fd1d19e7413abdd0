"""An S3 server on this machine, for as long as a block lasts."""

import subprocess
import sys
from contextlib import contextmanager

from s3fs import S3FileSystem
from waiting import until

from flows.local_server import free_port, web_status


@contextmanager
def s3_server():
    """Start moto's server; give the environment in which a client finds it."""
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    # fsspec keeps a client for each set of arguments, and the address is none of them.
    S3FileSystem.clear_instance_cache()
    try:
        until(lambda: server.poll() is not None or web_status(f"http://127.0.0.1:{port}/"))
        assert server.poll() is None, "the S3 server ended"
        yield {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "sender",
            "AWS_SECRET_ACCESS_KEY": "zebra-secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
    finally:
        S3FileSystem.clear_instance_cache()
        server.kill()
        server.wait()
