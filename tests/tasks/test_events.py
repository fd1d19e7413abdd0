import socket
import time
from contextlib import contextmanager, nullcontext

import pytest
from served_prefect import free_port, served_prefect
from webhook_receiver import serving

from flows import events
from flows.events import OrchestratorError, PublicEvent, emit, orchestrator_is_served
from privacy.errors import ConfigurationError

PUBLISHED = PublicEvent(
    name="release.published",
    resource_id="clustmix.release.r-20261121-0a1b2c3d",
    payload={"dataset": "wards", "release_id": "r-20261121-0a1b2c3d", "reason": "PUBLISHED"},
)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with served_prefect(tmp_path_factory.mktemp("prefect")) as environment:
        yield environment


@pytest.fixture
def served(server, monkeypatch):
    for name, value in server.items():
        monkeypatch.setenv(name, value)


@pytest.mark.integration
def test_a_wrong_password_is_a_refusal(served, monkeypatch):
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "operator:wrong")
    with pytest.raises(OrchestratorError) as caught:
        emit([PUBLISHED])
    assert str(caught.value).startswith("ORCHESTRATOR_REFUSED: ")
    assert "found HTTP status 401; compare PREFECT_API_URL" in str(caught.value)


def failing_server(status):
    return serving(lambda request: request.send_error(status))


@contextmanager
def silent_server():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]  # takes a connection, and nobody reads from it


@pytest.mark.parametrize(
    "server",
    [nullcontext(free_port()), failing_server(503), silent_server()],
    ids=["away", "503", "silent"],
)
def test_a_server_that_does_not_answer_is_not_waited_for(monkeypatch, server):
    monkeypatch.setattr(events, "TIMEOUT_SECONDS", 0.5)
    started = time.monotonic()
    with server as port:
        monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{port}/api")
        with pytest.raises(OrchestratorError) as caught:
            emit([PUBLISHED])
    assert str(caught.value).startswith("ORCHESTRATOR_UNREACHABLE: expected an answer of ")
    assert time.monotonic() - started < 30


def test_without_a_server_nothing_is_sent(monkeypatch):
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    assert not orchestrator_is_served()
    with pytest.raises(OrchestratorError) as caught:
        emit([PUBLISHED])
    assert str(caught.value).startswith("ORCHESTRATOR_UNREACHABLE: expected PREFECT_API_URL, ")
    emit([])  # nothing to say needs no server


TEXTS = ["Zebra, Anna", "", "a\nb", "x" * 201, "é", "{{ payload }}"]
ANOTHER_TEXT = "ids, states and codes in an event, found another text in "
ANOTHER_KEY = (
    "a payload of arrival, dataset, deployment, expected_at, percent_left, reason, release_id, "
    "releases_left, found the key 'patients'"
)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        *(({"name": text}, ANOTHER_TEXT + "name or resource_id") for text in TEXTS),
        *(({"resource_id": text}, ANOTHER_TEXT + "name or resource_id") for text in TEXTS),
        *(
            ({"payload": {"reason": value}}, ANOTHER_TEXT + "reason")
            for value in (*TEXTS, 1.5, True, None, ["a"], {"a": 1})
        ),
        ({"payload": {"patients": 3}}, ANOTHER_KEY),
    ],
)
def test_sentences_values_and_other_keys_are_refused(changes, expected):
    fields = {"name": "release.burned", "resource_id": "clustmix.release.x", "payload": {}}
    with pytest.raises(ConfigurationError) as caught:
        PublicEvent(**{**fields, **changes})
    assert str(caught.value) == f"EVENT_REFUSED: expected {expected}"
