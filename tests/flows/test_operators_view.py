import json
import os
import ssl
import urllib.error
import urllib.request
from base64 import b64encode
from datetime import UTC, datetime
from functools import partial

import made_up_release as made
import pytest
import webhook_receiver
from made_up_entries import enter, move
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr
from served_prefect import free_port
from stores import Stores

from flows.local_server import METRICS_PASSWORD_FILE
from flows.supervisor import PartState
from flows.watching import metrics, status
from flows.watching import watcher as watcher_module
from flows.watching.metrics import Readings
from flows.watching.status import collect
from flows.watching.watcher import Watcher
from privacy.errors import ConfigurationError
from privacy.ledger import EntryState
from storage.settings import load_settings
from tasks.execution.cluster import make_certificates


@pytest.fixture
def site(installation, monkeypatch):
    for name in ("sites", "landing"):
        (installation / name).mkdir(mode=0o700)
        monkeypatch.setenv(f"CLUSTMIX_{name.upper()}", str(installation / name))
    monkeypatch.setenv("CLUSTMIX_METRICS", f"127.0.0.1:{free_port()}")
    return Stores()


def answering(settings):
    readings = Readings(partial(collect, settings), settings.landing)
    folder, tls = settings.server_home, settings.metrics_tls
    return metrics.answering(settings.metrics, readings, password_folder=folder, tls=tls)


def get(settings, path="/metrics", *, password=None, scheme="http", context=None):
    if password is None:
        password = (settings.server_home / METRICS_PASSWORD_FILE).read_text().strip()
    headers = {"Authorization": f"Basic {b64encode(password.encode()).decode()}"}
    url = f"{scheme}://{settings.metrics}{path}"
    asked = urllib.request.Request(url, headers=headers)  # noqa: S310 - of this test
    try:
        with urllib.request.urlopen(asked, timeout=10, context=context) as answer:  # noqa: S310
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def numbers(settings, **how):
    status, text = get(settings, **how)
    assert status == 200
    return {
        (one.name, *one.labels.values()): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def test_numbers_are_those_of_the_ledger_and_the_landing_place(site, installation):
    made.write_site(installation).rename(installation / "sites" / "made-up.yaml")
    enter(site, EntryState.RESERVED)
    enter(site, EntryState.EXECUTING)
    enter(site, EntryState.SEALED, needs_approval=True, cohort="y", dataset="births")
    enter(site, EntryState.PUBLISHED)
    with answering(site.settings):
        found = numbers(site.settings)
        table = installation / "landing" / "table.csv"
        table.write_text("a\n")
        os.utime(table, (0, 0))
        (installation / "landing" / "later.csv").touch()
        later = numbers(site.settings)
        (installation / "landing").chmod(0o777)  # what the landing place refuses is said
        assert numbers(site.settings)["clustmix_up", "landing"] == 0
    assert found["clustmix_reservations_open",] == 2
    assert found["clustmix_approvals_waiting",] == 1
    assert found["clustmix_budget_left_ratio", "made-up"] == 1
    assert found["clustmix_arrival_oldest_seconds",] == 0
    assert later["clustmix_arrival_oldest_seconds",] > 1e9
    known = {"up", "budget_left_ratio", "releases_left", "reservations_open", "approvals_waiting"}
    known |= {"arrival_oldest_seconds"}
    assert {name for name, *_ in found} == {f"clustmix_{name}" for name in known}
    up = {labels[0]: value for (name, *labels), value in found.items() if name == "clustmix_up"}
    assert up == {"ledger": 1, "arrivals": 1, "landing": 1}


def test_a_metric_says_of_each_part_whether_it_works(site, monkeypatch):
    monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{free_port()}/api")
    monkeypatch.setenv("CLUSTMIX_DASK_ADDRESS", f"tls://127.0.0.1:{free_port()}")
    since = datetime(2026, 11, 21, tzinfo=UTC)
    states = [
        PartState(name=name, state=state, pid=9, since=since, restarts=0, log="/a.log")
        for name, state in (("pages", "RUNNING"), ("private-worker", "BACKOFF"))
    ]
    monkeypatch.setattr(status, "part_states", lambda folder: states)
    site.settings.home.mkdir(mode=0o700, exist_ok=True)
    site.settings.ledger_path.write_bytes(b"damaged")
    with answering(load_settings()):
        found = numbers(site.settings)
    up = {labels[0]: value for (name, *labels), value in found.items() if name == "clustmix_up"}
    good = {name for name, value in up.items() if value}
    assert good == {"pages", "arrivals", "landing"}
    dead = {"orchestrator", "database", "private-worker", "watcher", "cluster", "ledger"}
    assert set(up) - good == dead


def test_the_page_is_for_the_operator_alone(site):
    with answering(site.settings):
        place = site.settings.server_home / METRICS_PASSWORD_FILE
        assert place.stat().st_mode & 0o777 == 0o600
        for password in ("clustmix:guess", "", "é"):
            assert get(site.settings, password=password) == (401, "")
    with pytest.raises(urllib.error.URLError):
        get(site.settings)


def test_beyond_this_machine_it_speaks_tls(site, installation, monkeypatch):
    monkeypatch.setenv("CLUSTMIX_METRICS", f"0.0.0.0:{free_port()}")
    with pytest.raises(ConfigurationError, match="METRICS_OPEN"), answering(load_settings()):
        pass
    monkeypatch.setenv("CLUSTMIX_METRICS_TLS", str(installation / "pair.pem"))
    with pytest.raises(ConfigurationError, match="METRICS_TLS"), answering(load_settings()):
        pass
    make_certificates(installation / "made")
    made_for = installation / "made" / "scheduler"
    pair = [(made_for / name).read_text() for name in ("key.pem", "cert.pem")]
    (installation / "pair.pem").write_text("".join(pair))
    monkeypatch.setenv("CLUSTMIX_METRICS", f"127.0.0.1:{free_port()}")
    context = ssl.create_default_context(cafile=made_for / "ca.pem")
    context.check_hostname = False
    with answering(load_settings()):
        assert numbers(load_settings(), scheme="https", context=context)
        with pytest.raises(OSError, match=r"closed|reset|disconnected"):
            get(load_settings())
        with pytest.raises(ConfigurationError, match="METRICS_ADDRESS"):
            answering(load_settings()).__enter__()


def test_off_by_default(site, monkeypatch):
    monkeypatch.delenv("CLUSTMIX_METRICS")
    with answering(load_settings()):
        assert not (site.settings.server_home / METRICS_PASSWORD_FILE).exists()
    assert "lineage" not in {part.name for part in Watcher(load_settings())._parts}


def test_runs_are_told_once_in_order_without_a_number(site, monkeypatch):
    with webhook_receiver.listening() as receiver:
        monkeypatch.setenv("CLUSTMIX_LINEAGE_URL", receiver.url)
        watcher = Watcher(load_settings())
        monkeypatch.setattr(watcher_module, "emit", lambda events: None)
        entry = enter(site, EntryState.SEALED, dataset="births")
        enter(site, EntryState.VOID, dataset="wards", cohort="x")
        enter(site, EntryState.BURNED, owner="0" * 32, cohort="y")
        watcher._send_lineage(SecretStr(receiver.url))
        entry = move(site, entry, EntryState.APPROVED)
        move(site, entry, EntryState.PUBLISHED)
        watcher._send_lineage(SecretStr(receiver.url))
        watcher._send_lineage(SecretStr(receiver.url))
        told = [json.loads(body) for body in receiver.bodies]
    assert [(one["eventType"], one["job"]["name"]) for one in told] == [
        ("START", "release.births"),
        ("RUNNING", "release.births"),
        ("START", "release.wards"),
        ("ABORT", "release.wards"),
        ("COMPLETE", "release.births"),
    ]
    runs = [one["run"]["runId"] for one in told]
    assert len(set(runs)) == 2
    assert runs[0] == runs[1] == runs[4]
    last = told[-1]
    assert last["inputs"] == [{"namespace": "clustmix", "name": "births"}]
    assert last["outputs"][0]["name"] == f"births/{entry.release_id}"
    assert not [v for one in told for v in one.values() if isinstance(v, int | float)]


def test_a_receiver_that_is_away_is_told_later_and_not_named(site, monkeypatch):
    url = f"http://127.0.0.1:{free_port()}/CANARY-token"
    monkeypatch.setenv("CLUSTMIX_LINEAGE_URL", url)
    watcher = Watcher(load_settings())
    enter(site, EntryState.RESERVED)
    [part] = [part for part in watcher._parts if part.name == "lineage"]
    error = part.attempt(site.settings.diagnostics)
    assert error.code == "LINEAGE_UNREACHABLE"
    assert "CANARY" not in str(error)
    assert watcher._cursor().lineage == 0


@pytest.mark.parametrize(
    "url", ["http://hospital.example/lineage", "http://127.0.0.1:x@other.example/"]
)
def test_an_open_address_of_a_receiver_is_refused(site, monkeypatch, url):
    monkeypatch.setenv("CLUSTMIX_LINEAGE_URL", url)
    with pytest.raises(ConfigurationError, match=r"CLUSTMIX_LINEAGE_URL: .*https") as e:
        load_settings()
    assert url not in str(e.value)
