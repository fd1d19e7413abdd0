"""A whole local server: started, looked at, disturbed and stopped, by the commands of an operator.

The tests run in this order, on one server; a second one stands beside it for a while.
"""

import contextlib
import json
import stat
import subprocess
import sys
import time

import httpx
import process_patches
import psutil
import pytest
from hospital import no_postgres
from served_installation import ServedInstallation

from flows.server import environment as server_environment
from flows.server.parts import connection
from flows.server.record import read_record
from storage.settings import Settings
from tasks.execution.runtime import safe_environment

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


class LocalServer(ServedInstallation):
    """An installation of which nothing but the server is asked."""

    @property
    def settings(self):
        return Settings(home=self.home, releases=self.releases)

    @property
    def record(self):
        return read_record(self.settings.server_home)

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
    record = served.record
    assert record.ready
    names = [part.name for part in record.parts]
    assert names[:3] == ["scheduler", "cpu-workers", "pages"]
    assert names[-4:] == ["orchestrator", "private-worker", "public-worker", "watcher"]
    for part in record.parts:
        assert f"{part.name:<16}{part.pid:>8}" in said
        assert part.address in said
    home = served.settings.server_home
    assert f"Page:       {served.address}\n" in said
    assert f"Password:   {home / 'page-password'} (all of its one line)\n" in said
    assert server_environment.page_password(home) not in said
    assert ("database" in names) == (no_postgres() is None)


def test_what_is_kept_is_private_and_no_password_is_shown(served):
    home = served.settings.server_home
    for path in (home, *home.rglob("*")):
        with contextlib.suppress(FileNotFoundError):
            assert stat.S_IMODE(path.lstat().st_mode) & 0o077 == 0, path
    secrets = (
        server_environment.page_password(home).split(":")[1],
        server_environment.database_password(home),
    )
    shown = str([process.cmdline() for process in served.processes()])
    logs = "".join(path.read_text(errors="replace") for path in home.glob("*.log"))
    assert not any(secret in shown + logs for secret in secrets)


def test_the_api_asks_for_the_password_and_a_token(served):
    auth = tuple(server_environment.page_password(served.settings.server_home).split(":"))
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
        part = served.record.part(f"{pool}-worker")
        environment = psutil.Process(part.pid).environ()
        assert safe_environment().items() <= environment.items()
        assert environment["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"] == "30"
        code = "from flows.orchestrator import refuse_unsafe_orchestrator as look; look()"
        looked = subprocess.run([sys.executable, "-c", code], env=environment, check=False)
        assert looked.returncode == 0


def test_a_second_start_changes_nothing(served):
    before = served.record
    done = served.run("start", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["started"] is False
    assert served.record == before


def test_another_installation_runs_beside_it_and_survives_a_crash(served, tmp_path_factory):
    with installation(
        tmp_path_factory.mktemp("second"), **{process_patches.NO_POSTGRES: "1"}
    ) as second:
        done = second.run("start")
        assert done.returncode == 0, done.stderr
        assert "keeps its runs in SQLite: PostgreSQL is hidden" in done.stderr
        database = second.settings.server_home / "prefect" / "prefect.db"
        assert stat.S_IMODE(database.stat().st_mode) == 0o600
        record = second.record
        assert second.address != served.address
        assert second.status("/api/health") == served.status("/api/health") == 200
        # As after a crash of the machine: what is written down is gone.
        for process in second.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        while second.processes() or connection(second.settings) is not None:
            time.sleep(0.1)
        done = second.run("start")
        assert done.returncode == 0, done.stderr
        assert second.record.mark != record.mark
        done = second.run("stop")
        assert done.stdout.startswith("stopped: scheduler, cpu-workers, pages, orchestrator")
        assert second.processes() == []
    assert served.status("/api/health") == 200


def test_a_part_that_died_is_told(served):
    psutil.Process(served.record.part("watcher").pid).kill()
    time.sleep(1)
    done = served.run("start")
    assert done.returncode == 1
    assert "SERVER_INCOMPLETE" in done.stderr
    assert "watcher ended" in done.stderr


def test_stop_leaves_nothing(served):
    assert len(served.processes()) >= 8
    done = served.run("stop")
    assert done.returncode == 0, done.stderr
    assert "orchestrator" in done.stdout
    assert "watcher" not in done.stdout
    assert served.processes() == []
    assert not (served.settings.server_home / "parts.json").exists()
    assert connection(served.settings) is None
    assert served.run("stop").stdout == "no part of the server was running\n"
