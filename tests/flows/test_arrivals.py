import json
import os
import re
import sys
from datetime import timedelta

import pytest
from forced_installation import processes
from landed_tables import ROWS, Installation, announce, scan, scan_and_stop, write_site

from flows import cli
from flows.watching.arrivals import arrived
from storage.arrivals.arrival_store import ArrivalStore
from storage.sources.cohorts import CohortReader
from storage.sources.declared import CsvSource
from tests.processes import at_once


@pytest.fixture
def place(tmp_path):
    return Installation(tmp_path / "place")


def names(folder):
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def contents(place):
    store = ArrivalStore(place.settings.arrivals)
    return sorted(store.path(arrival.arrival_id).read_bytes() for arrival in store.waiting())


def test_an_announced_table_is_accepted_and_leaves_the_landing_folder(place):
    place.deliver(age=-timedelta(minutes=4))  # clocks may differ
    report = scan(place.settings)
    (arrival,) = report.accepted
    assert (report.refused, report.problems) == ([], [])
    assert re.fullmatch(r"a-[0-9]{8}-[0-9a-f]{8}", arrival["arrival"])
    assert list(place.landing.iterdir()) == []
    (event,) = report.events
    assert event.name == "cohort.arrived"
    assert event.resource_id == f"clustmix.arrival.{arrival['arrival']}"
    assert event.payload == {"dataset": "wards", "arrival": arrival["arrival"]}
    (waiting,) = ArrivalStore(place.settings.arrivals).waiting()
    assert event.event_id == arrived(waiting).event_id
    again = scan(place.settings)
    assert (again.events, again.problems) == ([], [])
    path = ArrivalStore(place.settings.arrivals).path(waiting.arrival_id)
    reader = CohortReader(CsvSource(kind="csv", path=path), places=place.settings.data_places)
    assert reader.header() == ("patient", "age")


def reaching_out(place):
    (place.landing.parent / "outside").write_bytes(ROWS)
    content = announce({"../outside": ROWS}, "wards", place.secret)
    (place.landing / "wards.csv.ready.json").write_bytes(content)


def linked_ready_file(place):
    ready = place.deliver()
    ready.rename(place.landing.parent / "elsewhere")
    ready.symlink_to(place.landing.parent / "elsewhere")


def site_of_another_dataset(place):
    write_site(place.settings.sites, "other", "csv", arrival={})
    (place.settings.sites / "other.yaml").rename(place.settings.sites / "wards.yaml")
    place.deliver()


def delivered(**changes):
    return lambda place: place.deliver(**changes)


STALE = timedelta(hours=24, minutes=1)
REFUSALS = {
    "forged": (delivered(mac="0" * 64), "ARRIVAL_FORGED", "wards"),
    "stale": (delivered(age=STALE), "ARRIVAL_STALE", "wards"),
    "ahead": (delivered(age=-timedelta(minutes=6)), "ARRIVAL_STALE", "wards"),
    "absent": (
        lambda place: place.deliver().with_name("wards.csv").unlink(),
        "ARRIVAL_INCOMPLETE",
        "wards",
    ),
    "no section": (delivered(dataset="quiet"), "ARRIVAL_NOT_EXPECTED", "quiet"),
    "no site": (delivered(dataset="zebra"), "ARRIVAL_NOT_EXPECTED", "zebra"),
    "site of another dataset": (site_of_another_dataset, "ARRIVAL_NOT_EXPECTED", "wards"),
    "folder for a file": (
        lambda place: place.deliver_folder("b", {"x.csv": ROWS}, dataset="wards"),
        "ARRIVAL_NOT_EXPECTED",
        "wards",
    ),
    "reaching out": (reaching_out, "ARRIVAL_NAME", "wards"),
    "linked ready file": (linked_ready_file, "ARRIVAL_NAME", None),
}


@pytest.mark.parametrize(("deliver", "code", "dataset"), REFUSALS.values(), ids=REFUSALS)
def test_what_is_wrong_is_refused_logged_and_put_aside(place, deliver, code, dataset):
    deliver(place)
    before = names(place.landing.parent)
    report = scan(place.settings)
    assert report.accepted == []
    public = dataset if dataset not in (None, "zebra") else "unknown"
    assert report.refused == [{"dataset": public, "reason": code}]
    (event,) = report.events
    assert (event.name, event.resource_id) == ("arrival.refused", f"clustmix.dataset.{public}")
    (entry,) = place.refusals()
    assert (entry["code"], entry["dataset"]) == (code, dataset)
    assert entry["ready_file"].endswith(".ready.json")
    log = place.settings.arrivals / "refused.log"
    assert log.stat().st_mode & 0o777 == 0o600
    # Nothing is lost but the name of the ready file.
    after = [name for name in names(place.landing.parent) if "arrivals/" not in name]
    renamed = [re.sub(r"(landing/.*\.ready\.json)$", r"\1.refused", name) for name in before]
    assert after == sorted({*renamed, "home/keys/landing.key"})
    assert place.kept() == []
    again = scan(place.settings)
    assert (again.events, again.problems) == ([], [])
    assert len(place.refusals()) == 1


def test_what_a_refused_ready_file_says_is_escaped_in_the_log(place):
    name = 'x\n{"code": "zebra"}\udcff.ready.json'
    with open(os.path.join(os.fsencode(place.landing), os.fsencode(name)), "wb"):
        pass
    scan(place.settings)
    (entry,) = place.refusals()
    assert (entry["code"], entry["dataset"]) == ("ARRIVAL_MALFORMED", None)
    assert entry["ready_file"] == name


def test_one_bad_arrival_keeps_no_other_back(place):
    place.deliver("a.csv", mac="0" * 64)
    (place.landing / "b.csv.ready.json").mkdir()
    place.deliver("c.csv")
    os.mkfifo(place.landing / "d.csv.ready.json")
    report = scan(place.settings)
    assert len(report.accepted) == 1
    assert len(report.refused) == 3


def test_a_broken_site_file_is_a_problem_and_not_a_refusal(place):
    place.deliver("a.csv")
    place.deliver_folder("b", {"x": b"x"})
    (place.settings.sites / "wards.yaml").write_text("zebra: 1\n")
    report = scan(place.settings)
    assert [arrival["dataset"] for arrival in report.accepted] == ["parts"]
    assert [problem.code for problem in report.problems] == ["SITE_INVALID"]
    assert report.refused == []
    write_site(place.settings.sites, "wards", "csv", arrival={})
    assert len(scan(place.settings).accepted) == 1


def test_a_log_that_cannot_be_written_refuses_nothing(place):
    place.deliver(mac="0" * 64)
    place.settings.arrivals.mkdir(mode=0o700)
    (place.settings.arrivals / "refused.log").symlink_to(place.landing.parent / "elsewhere")
    report = scan(place.settings)
    assert [problem.code for problem in report.problems] == ["ARRIVALS_UNWRITABLE"]
    assert (place.landing / "wards.csv.ready.json").exists()
    assert not (place.landing.parent / "elsewhere").exists()


def test_two_watchers_accept_each_table_once(place):
    for n in range(20):
        place.deliver(f"t{n:03d}.csv", ROWS + b"%d" % n)
    program = (
        "import sys; from storage.settings import load_settings\n"
        "from landed_tables import scan\n"
        "sys.stdout.write('ready\\n'); sys.stdout.flush(); sys.stdin.read()\n"
        "report = scan(load_settings())\n"
        "sys.stdout.write(f'{len(report.accepted)} {len(report.refused)} {len(report.problems)}')\n"
    )
    path = os.pathsep.join(sys.path)
    said = at_once(program, n=2, PYTHONPATH=path, **environment_of(place.settings))
    found = [map(int, numbers.split()) for numbers in said]
    assert [sum(numbers) for numbers in zip(*found, strict=True)] == [20, 0, 0]
    assert len(contents(place)) == 20


def environment_of(settings):
    return {
        "CLUSTMIX_HOME": str(settings.home),
        "CLUSTMIX_SITES": str(settings.sites),
        "CLUSTMIX_RELEASES": str(settings.releases),
        "CLUSTMIX_LANDING": settings.landing,
    }


@pytest.mark.integration
@pytest.mark.parametrize(("how", "statuses"), [("kill", {0, 9}), ("disk full", {0, 7, 8})])
def test_a_scan_that_stops_anywhere_loses_nothing_and_accepts_nothing_twice(
    tmp_path, how, statuses
):
    """A scan of two tables and a forgery dies, or finds the disk full, before each of its steps."""
    found = []
    while found[-1:] != [0]:
        place = Installation(tmp_path / str(len(found)))
        place.deliver("a.csv", ROWS + b"a")
        place.deliver_folder("b", {"x.parquet": b"b1", "k=1/y.parquet": b"b2"})
        place.deliver("c.csv", ROWS, mac="0" * 64)
        arguments = (place.settings, len(found), how)
        process = processes().Process(target=scan_and_stop, args=arguments)
        process.start()
        process.join(60)
        found.append(process.exitcode)

        for _ in range(2):
            again = scan(place.settings)
        assert (again.events, again.problems) == ([], [])
        store = ArrivalStore(place.settings.arrivals)
        paths = {arrival.dataset: store.path(arrival.arrival_id) for arrival in store.waiting()}
        assert len(place.kept()) == len(store.waiting()) == len(paths) == 2
        assert paths["wards"].read_bytes() == ROWS + b"a"
        assert (paths["parts"] / "k=1/y.parquet").read_bytes() == b"b2"
        assert (paths["parts"] / "x.parquet").read_bytes() == b"b1"
        # A folder that could not be removed when it was empty stays.
        left = {path.name for path in place.landing.iterdir()}
        left -= {"b"} if how == "disk full" else set()
        assert left == {"c.csv", "c.csv.ready.json.refused"}
        assert {entry["code"] for entry in place.refusals()} == {"ARRIVAL_FORGED"}
    assert len(found) > 25
    assert set(found) == statuses


@pytest.fixture
def commanded(place, monkeypatch):
    for name, value in environment_of(place.settings).items():
        monkeypatch.setenv(name, value)
    return place


def test_ready_announces_a_table_that_is_then_accepted(commanded, capsys):
    table = commanded.landing / "wards.csv"
    table.write_bytes(ROWS)
    assert cli.main(["ready", str(table), "--dataset", "wards"]) == 0
    assert capsys.readouterr().out == (
        f"announced wards.csv for dataset wards: {table}.ready.json\n"
    )
    assert len(scan(commanded.settings).accepted) == 1
    (commanded.landing / "b").mkdir()
    (commanded.landing / "b" / "x.parquet").write_bytes(b"x")
    folder = str(commanded.landing / "b")
    assert cli.main(["ready", folder, "--dataset", "parts", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "dataset": "parts",
        "ready_file": f"{folder}.ready.json",
    }
    assert len(scan(commanded.settings).accepted) == 1


def test_a_sender_has_a_copy_of_the_key_and_no_installation(commanded, monkeypatch):
    key = commanded.landing.parent / "landing.key"
    key.write_bytes(commanded.secret)
    key.chmod(0o600)
    monkeypatch.setenv("CLUSTMIX_HOME", str(commanded.landing.parent / "none"))
    table = commanded.landing / "wards.csv"
    table.write_bytes(ROWS)
    command = ["ready", str(table), "--dataset", "wards", "--key", str(key)]
    assert cli.main(command) == 0
    assert not (commanded.landing.parent / "none").exists()
    assert len(scan(commanded.settings).accepted) == 1
