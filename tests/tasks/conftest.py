import os
import sys

import pytest


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    from tasks.execution.cluster import make_certificates

    folder = tmp_path_factory.mktemp("certificates") / "set"
    make_certificates(folder)
    return folder


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    from tasks.execution.cluster import local_cluster  # Dask takes a second, which few tests need

    with local_cluster(2, tmp_path_factory.mktemp("cluster") / "scratch") as client:
        yield client


@pytest.fixture(params=["local", "dask"])
def executor(request):
    from tasks.execution.dask_executor import DaskExecutor
    from tasks.execution.executor import InProcessExecutor

    if request.param == "local":
        return InProcessExecutor(guarded=True)
    return DaskExecutor(request.getfixturevalue("cluster"), "r-1")


@pytest.fixture
def without_prefect(monkeypatch):
    environment = {}
    monkeypatch.setattr(os, "environ", environment)
    monkeypatch.delitem(sys.modules, "prefect", raising=False)
    return environment
