"""A whole local server: started, looked at, disturbed and stopped, by the commands of an operator.

The tests run in this order, on one server; a second one stands beside it for a while.
"""

import contextlib
import os
import signal
import stat
import subprocess
import sys

import httpx
import psutil
import pytest
from served_installation import ServedInstallation
from waiting import until

from flows.local_server import PASSWORD_FILE, connection, kept_secret, read_addresses
from storage.settings import Settings
from tasks.execution.runtime import safe_environment

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


class LocalServer(ServedInstallation):
    """An installation of which nothing but the server is asked."""

    @property
    def settings(self):
        return Settings(home=self.home, releases=self.releases)

    @property
    def folder_of_server(self):
        return self.settings.server_home

    def run(self, action, *options):
        wanted = ("--port", str(self.port), "--workers", "1") if action == "start" else ()
        return self.try_command("server", action, *wanted, *options)

    def status(self, path="/api/flows/count", **options):
        return httpx.get(f"{self.address}{path}", **options).status_code


@contextlib.contextmanager
def installation(folder, **settings):
    made = LocalServer(folder, **settings)
    made.write_deployments()
    try:
        yield made
    finally:
        made.run("stop")
        made.end_everything()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with installation(tmp_path_factory.mktemp("first")) as made:
        done = made.run("start")
        assert done.returncode == 0, done.stderr
        (made.folder / "said").write_text(done.stdout + done.stderr)
        yield made


def test_start_says_where_everything_is(served):
    said = (served.folder / "said").read_text()
    addresses, parts = read_addresses(served.folder_of_server), served.parts
    assert addresses.ready
    usual = {"cpu-workers", "orchestrator", "pages", "scheduler", "watcher"}
    assert set(parts) == usual | {"private-worker", "public-worker"}
    for address in (addresses.orchestrator, addresses.scheduler, addresses.pages):
        assert address in said
    assert kept_secret(served.folder_of_server, PASSWORD_FILE) not in said


def test_what_is_kept_is_private_and_no_password_is_shown(served):
    home = served.folder_of_server
    for path in (home, *home.rglob("*")):
        with contextlib.suppress(FileNotFoundError):
            assert stat.S_IMODE(path.lstat().st_mode) & 0o077 == 0, path
    secret = kept_secret(home, PASSWORD_FILE).split(":")[1]
    shown = str([process.cmdline() for process in served.processes()])
    logs = "".join(path.read_text(errors="replace") for path in home.glob("*.log"))
    assert secret not in shown + logs


def test_the_api_asks_for_the_password_and_a_token(served):
    auth = tuple(kept_secret(served.folder_of_server, PASSWORD_FILE).split(":"))
    assert served.status("/api/health") == 200  # says nothing
    assert served.status("/api/work_pools/private") == 401
    assert served.status("/api/work_pools/private", auth=auth) == 200
    url = f"{served.address}/api/flows/filter"
    assert httpx.post(url, json={}).status_code == 403
    assert httpx.post(url, json={}, auth=auth).status_code == 403
    page = httpx.get(f"{served.address}/", follow_redirects=True)
    assert page.status_code == 200
    assert "connect-src 'self'" in page.headers["content-security-policy"]
    shown = httpx.get(f"{served.address}/ui-settings").json()
    assert (shown["api_url"], shown["csrf_enabled"], shown["auth"]) == ("/api", True, "BASIC")


def test_workers_keep_no_results(served):
    for pool in ("private", "public"):
        part = served.parts[f"{pool}-worker"]
        environment = psutil.Process(part.pid).environ()
        assert safe_environment().items() <= environment.items()
        assert environment["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"] == "30"
        code = "from flows.orchestrator import refuse_unsafe_orchestrator as look; look()"
        looked = subprocess.run([sys.executable, "-c", code], env=environment, check=False)
        assert looked.returncode == 0


def test_every_part_that_is_killed_comes_back_and_status_says_so(served):
    before = served.parts
    for part in before.values():
        psutil.Process(part.pid).kill()
    served.wait_until_answers()
    until(
        lambda: (
            (now := served.parts).keys() == before.keys()
            and all(p.runs and p.pid not in (0, before[name].pid) for name, p in now.items())
        ),
        what=lambda: served.parts,
        seconds=120,
    )
    # The cluster and the workers are at work again, by the same addresses.
    until(lambda: served.status("/api/health") == 200, seconds=60)
    until(lambda: len(served.processes("spawn_main")) > 0, seconds=60)
    done = served.try_command("server", "status")
    assert done.returncode == 0, done.stdout
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines()[1:]}
    assert rows.keys() == before.keys()
    assert all(int(row[3]) >= 1 for row in rows.values()), rows
    said = served.try_command("status").stdout
    assert all(f"{name:<16}" in said for name in before)
    assert "started again" in said


def test_another_installation_runs_beside_it_and_survives_a_crash(served, tmp_path_factory):
    with installation(tmp_path_factory.mktemp("second")) as second:
        done = second.run("start")
        assert done.returncode == 0, done.stderr
        database = second.folder_of_server / "prefect" / "prefect.db"
        assert stat.S_IMODE(database.stat().st_mode) == 0o600
        assert second.address != served.address
        assert second.status("/api/health") == served.status("/api/health") == 200
        # The supervisor first: nobody starts again what ends.
        os.kill(int((second.folder_of_server / "supervisord.pid").read_text()), signal.SIGKILL)
        until(lambda: connection(second.folder_of_server) == {})
        assert "SERVER_UNSUPERVISED" in second.try_command("server", "status").stderr
        done = second.run("start")
        assert done.returncode == 0, done.stderr
        done = second.run("stop")
        assert done.stdout.startswith("stopped: cpu-workers, orchestrator, pages, private-worker")
        assert second.processes() == []
    assert served.status("/api/health") == 200


def test_stop_leaves_nothing(served):
    assert len(served.processes()) >= 8
    done = served.run("stop")
    assert done.returncode == 0, done.stderr
    assert "orchestrator" in done.stdout
    assert served.processes() == []
    assert not (served.folder_of_server / "addresses.json").exists()
    assert connection(served.folder_of_server) == {}
    assert served.run("stop").stdout == "no part of the server was running\n"
