"""A browser without a screen, to see what an operator sees.

Chromium is driven through its DevTools protocol. It has a profile of its own, resolves no name and
ends with the block that started it. ``start()`` skips the test, with the reason, where there is
none.
"""

import json
import os
import shutil
import subprocess
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import psutil
import pytest
from made_up_release import family_of
from waiting import until
from websockets.sync.client import connect

NAMES = ("chromium", "chromium-browser", "google-chrome")

SECONDS = 60.0
"""For a start, an answer, or a page of a server that is busy with something else."""

TAKEN_SECONDS = 1.0
"""Until a form has taken what was written: it waits whether more is to come."""

FIND = """
(wanted, selector) => {
  const seen = [...document.querySelectorAll(selector)].filter(e => e.getClientRects().length);
  const text = e => (e.innerText || e.value || e.getAttribute("aria-label") || "").trim();
  const found = seen.find(e => text(e) === wanted)
    || seen.filter(e => text(e).includes(wanted)).pop();
  if (!found) return null;
  found.scrollIntoView({block: "center"});
  const box = found.getBoundingClientRect();
  return [box.x + box.width / 2, box.y + box.height / 2];
}
"""
"""The middle of the element that shows a text: exactly, or the innermost that holds it."""


class Browser:
    """One page of a browser that runs; ``asked`` has the addresses that it has asked for."""

    def __init__(self, connection):
        self._connection, self._last_id = connection, 0
        self.asked = []
        for domain in ("Page", "Network", "Runtime"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        self._last_id += 1
        self._connection.send(
            json.dumps({"id": self._last_id, "method": method, "params": parameters})
        )
        while True:
            message = json.loads(self._connection.recv(timeout=SECONDS))
            if message.get("id") == self._last_id:
                break
            self._hear(message.get("method"), message.get("params", {}))
        assert "error" not in message, f"{method}: {message}"
        return message["result"]

    def _hear(self, event, parameters):
        if event == "Network.requestWillBeSent":
            self.asked.append(parameters["request"]["url"])
        elif event == "Network.webSocketCreated":
            self.asked.append(parameters["url"])

    def hosts(self):
        return {host for url in self.asked if (host := urlsplit(url).hostname)}

    def evaluate(self, expression):
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def open(self, url):
        answer = self.call("Page.navigate", url=url)
        assert "errorText" not in answer, f"{url}: {answer['errorText']}"
        self._until(lambda: self.evaluate("document.readyState") == "complete", f"{url} loaded")

    def text(self):
        """Return the text that is visible now, and what the fields hold."""
        return str(
            self.evaluate(
                "document.body.innerText + '\\n' + [...document.querySelectorAll("
                "'input, textarea')].map(e => e.value).join('\\n')"
            )
        )

    def address(self):
        return str(self.evaluate("location.href"))

    def wait_for(self, *texts):
        """Wait until all texts are visible; return everything that is then."""
        self._until(lambda: all(text in self.text() for text in texts), f"{texts} visible")
        return self.text()

    def click(self, text, selector="a, button, li, label"):
        """Press the mouse button on the element that shows a text."""
        expression = f"({FIND})({json.dumps(text)}, {json.dumps(selector)})"
        self._until(lambda: self.evaluate(expression) is not None, f"{text!r} to click on")
        x, y = self.evaluate(expression)
        for event in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=event, x=x, y=y, button="left", clickCount=1)

    def log_in(self, address, auth_string):
        self.open(f"{address}/login")
        field = "document.querySelector('input[type=password]')"
        self._until(lambda: self.evaluate(f"!!{field}"), "field of the password")
        self.evaluate(f"{field}.focus(), true")
        self.call("Input.insertText", text=auth_string)
        time.sleep(TAKEN_SECONDS)
        self.click("Login", "button")
        # The page keeps it here, and leaves the form when the server has taken it.
        self._until(
            lambda: (
                self.evaluate("localStorage.getItem('prefect-password')") is not None
                and not self.address().endswith("/login")
            ),
            "logged in",
        )

    def _until(self, holds, what):
        def seen(look):
            # A page that is being replaced answers nothing.
            with suppress(AssertionError):
                return look()

        def shown():
            page = seen(lambda: f"{self.address()}: {self.text()}") or ""
            return f"expected {what}, found {page[:4_000]}"

        until(lambda: seen(holds), seconds=SECONDS, every=0.2, what=shown)


def reason_to_skip():
    if not any(map(shutil.which, NAMES)):
        return f"no browser here: expected one of {', '.join(NAMES)} on the PATH"
    return None


@contextmanager
def start():
    if reason := reason_to_skip():
        pytest.skip(reason)
    program = next(path for name in NAMES if (path := shutil.which(name)))
    profile = Path(tempfile.mkdtemp(prefix="browser-"))
    flags = [
        "--headless=new",
        "--remote-debugging-address=127.0.0.1",
        "--remote-debugging-port=0",
        f"--user-data-dir={profile}",
        "--window-size=1400,1100",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
        "--no-proxy-server",
        "--no-first-run",
        "--no-default-browser-check",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-extensions",
        "--disable-breakpad",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--force-prefers-reduced-motion",
    ]
    if os.geteuid() == 0:
        flags.append("--no-sandbox")  # root has none
    with (profile / "log").open("wb") as log:
        process = psutil.Popen(
            [program, *flags, "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=profile,
            env={**os.environ, "HOME": str(profile), "DBUS_SESSION_BUS_ADDRESS": "disabled:"},
        )
    try:
        with connect(_page(process, profile), max_size=None, proxy=None) as connection:
            yield Browser(connection)
    finally:
        family = family_of(process)
        for one in family:
            with suppress(psutil.Error):
                one.kill()
        psutil.wait_procs(family, timeout=SECONDS)
        shutil.rmtree(profile, ignore_errors=True)


def _page(process, profile):
    """Return the address at which a new page can be driven, once the browser is up."""
    active = profile / "DevToolsActivePort"

    def said():
        return (profile / "log").read_text(errors="replace")

    def first_of_two_lines():
        assert process.poll() is None, f"the browser ended: {said()}"
        lines = active.read_text().splitlines() if active.exists() else []
        return lines[0] if len(lines) > 1 else None

    port = until(first_of_two_lines, seconds=SECONDS, what=said)
    request = Request(f"http://127.0.0.1:{port}/json/new?about:blank", method="PUT")
    with urlopen(request, timeout=SECONDS) as answer:  # noqa: S310
        return str(json.load(answer)["webSocketDebuggerUrl"])
