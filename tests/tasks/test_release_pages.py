import asyncio
import re

import httpx
import pytest

from flows.pages import CONTENT_POLICY, own_content_only, release_pages


@pytest.fixture
def store(tmp_path):
    bundle = tmp_path / "releases" / "cohort" / "r-20260131-0a1b2c3d"
    bundle.mkdir(parents=True)
    (bundle / "report.html").write_text("<p>a report</p>")
    (tmp_path / "releases" / ".ledger-head").write_text("CANARY")
    (tmp_path / "releases" / ".staging-x").mkdir()
    (tmp_path / "releases" / ".staging-x" / "report.html").write_text("CANARY")
    (tmp_path / "secret.html").write_text("CANARY")
    (bundle / "link.html").symlink_to(bundle / "report.html")
    (bundle / "outside.html").symlink_to(tmp_path / "secret.html")
    (tmp_path / "releases" / "other").symlink_to(tmp_path)
    return tmp_path / "releases"


def ask(app, path, *, host="127.0.0.1", method="GET"):
    async def answer():
        transport = httpx.ASGITransport(app=app)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as client:
            return await client.request(method, path)

    return asyncio.run(answer())


def test_a_report_is_shown_and_loads_nothing_else(store):
    answer = ask(release_pages(store), "/cohort/r-20260131-0a1b2c3d/report.html")
    assert (answer.status_code, answer.text) == (200, "<p>a report</p>")
    assert answer.headers["content-type"].startswith("text/html")
    assert answer.headers["content-security-policy"].startswith("default-src 'none'; ")
    assert "script-src" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "path",
    [
        "/.ledger-head", "/cohort/nothing", "/.staging-x/", "/other", "/other/",
        "/.staging-x/report.html", "/%2eledger-head", "/cohort/r-20260131-0a1b2c3d/link.html",
        "/cohort/r-20260131-0a1b2c3d/outside.html", "/other/secret.html",
        "/cohort/%2e%2e/%2e%2e/secret.html", "/..%2fsecret.html", "//etc/passwd",
        "/%2fetc/passwd", "/cohort/%00",
    ],
)  # fmt: skip
def test_hidden_files_links_and_other_folders_are_not_there(store, path):
    answer = ask(release_pages(store), path)
    assert answer.status_code == 404
    assert "CANARY" not in answer.text


def test_every_folder_has_a_list_that_leads_to_the_report(store):
    newer = store / "cohort" / "r-20260201-<b>"
    newer.mkdir()
    pages, found = ["/"], []
    while pages:
        page = pages.pop()
        answer = ask(release_pages(store), page)
        assert answer.status_code == 200, page
        assert answer.headers["content-security-policy"].startswith("default-src 'none'; ")
        assert "CANARY" not in answer.text
        found.append(page)
        pages += [page + link for link in re.findall('href="(.*?)"', answer.text)]
    bundle = "/cohort/r-20260131-0a1b2c3d"
    expected = {
        "/",
        "/cohort/",
        "/cohort/r-20260201-%3Cb%3E/",
        f"{bundle}/",
        f"{bundle}/report.html",
    }
    assert set(found) == expected
    text = ask(release_pages(store), "/cohort/").text
    assert text.index("r-20260201-&lt;b&gt;") < text.index("r-20260131-0a1b2c3d")
    answer = ask(release_pages(store), bundle)
    assert (answer.status_code, answer.headers["location"]) == (307, "r-20260131-0a1b2c3d/")


def test_a_store_without_a_release_says_so(tmp_path):
    answer = ask(release_pages(tmp_path / "none"), "/")
    assert (answer.status_code, "none yet" in answer.text) == (200, True)


def test_nothing_can_be_written(store):
    for method in ("PUT", "POST", "DELETE"):
        path = "/cohort/r-20260131-0a1b2c3d/report.html"
        assert ask(release_pages(store), path, method=method).status_code == 405


def test_a_strange_name_for_this_machine_is_refused(store):
    path = "/cohort/r-20260131-0a1b2c3d/report.html"
    assert ask(release_pages(store), path, host="attacker.example").status_code == 400
    assert ask(release_pages(store), path, host="localhost:8080").status_code == 200


def test_the_page_of_the_orchestrator_may_call_its_own_server_alone(store):
    answer = ask(own_content_only(release_pages(store)), "/nothing")
    policies = answer.headers.get_list("content-security-policy")
    assert policies[-1] == CONTENT_POLICY
    directives = dict(part.split(" ", 1) for part in CONTENT_POLICY.split("; "))
    assert directives["connect-src"] == directives["default-src"] == "'self'"
    assert not any("http" in sources or "*" in sources for sources in directives.values())
