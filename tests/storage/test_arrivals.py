import os
import shutil
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace

import pytest
from failing_disk import no_space
from landed_tables import ROWS, Installation, announce

from privacy.errors import (
    BudgetRefused,
    ClustMixError,
    ConfigurationError,
    InputError,
    IntegrityError,
    LedgerError,
    Withheld,
)
from storage.arrivals import arrival_store as arrivals
from storage.arrivals import landing as arrival_copies
from storage.arrivals.arrival_store import ArrivalState, ArrivalStore, Outcome
from storage.arrivals.landing import LandingFolder
from storage.arrivals.ready_files import parse_ready_file
from storage.arrivals.rows import arrival_transaction
from tests.processes import ROOT, python

R1, R2 = "r-20261121-00000001", "r-20261121-00000002"


@pytest.fixture
def place(tmp_path):
    return Installation(tmp_path / "place")


@pytest.fixture
def store(place):
    return ArrivalStore(place.settings.arrivals)


def accept(place, store, files=None, **changes):
    files = {"a.csv": ROWS} if files is None else files
    for name, content in files.items():
        (place.landing / name).parent.mkdir(parents=True, exist_ok=True)
        (place.landing / name).write_bytes(content)
    ready = parse_ready_file(announce(files, "wards", place.secret, **changes))
    name = f"{next(iter(files)).split('/')[0]}.ready.json"
    with store.scanning():
        return store.accept(ready, LandingFolder(str(place.landing)), name=name, sha256="0" * 64)


def raising(error):
    if error is None:
        return nullcontext()
    return pytest.raises(type(error), check=lambda found: found is error)


def taken(store, arrival_id, error=None, *, dataset="wards", release_id=R1):
    """Take an arrival for a block that raises, and end it; return it as it is then."""
    with raising(error), store.released_as(arrival_id, dataset=dataset, release_id=release_id):
        if error is not None:
            raise error
    return store.find(arrival_id)


def test_an_accepted_table_is_ours_alone(place, store):
    os.umask(0)
    files = {"b/k=1/x.parquet": b"x" * 3_000_000, "b/y.parquet": b""}
    arrival = accept(place, store, files)
    assert arrival.state is ArrivalState.ACCEPTED
    assert (arrival.dataset, arrival.failures, arrival.outcome) == ("wards", 0, None)
    assert abs(arrival.accepted_at - datetime.now(UTC)) < timedelta(minutes=1)
    path = store.path(arrival.arrival_id)
    assert path == place.settings.arrivals / arrival.arrival_id / "table"
    assert (path / "k=1" / "x.parquet").read_bytes() == b"x" * 3_000_000
    for inner in (place.settings.arrivals, *place.settings.arrivals.rglob("*")):
        assert inner.lstat().st_mode & 0o777 == (0o700 if inner.is_dir() else 0o600), inner
    assert store.find(arrival.arrival_id) == arrival
    assert store.waiting() == store.unfinished() == (arrival,)
    # The name that a sender gave is not kept.
    compressed = accept(place, store, {"zebra.CSV.GZ": ROWS}).arrival_id
    assert store.path(compressed) == place.settings.arrivals / compressed / "table.gz"


@pytest.mark.parametrize(
    "found", [ROWS[:-1], ROWS + b"x", ROWS[:-1] + b"x", b"x" * 3_000_000, None]
)
def test_what_is_not_as_announced_is_refused_and_nothing_is_kept(place, store, found):
    ready = parse_ready_file(announce({"a.csv": ROWS}, "wards", place.secret))
    landing, table = LandingFolder(str(place.landing)), place.landing / "a.csv"
    if found is not None:
        table.write_bytes(found)
    with store.scanning(), pytest.raises(InputError, match="ARRIVAL_INCOMPLETE"):
        store.accept(ready, landing, name="a.ready.json", sha256="")
    if found is not None:
        assert table.read_bytes() == found
    assert place.kept() == []
    assert store.unfinished() == ()
    table.write_bytes(ROWS)
    with store.scanning():
        store.accept(ready, landing, name="a.ready.json", sha256="")
    assert len(place.kept()) == 1


def test_a_nonce_is_seen_for_good(place, store):
    nonce = "0" * 32
    arrival = accept(place, store, nonce=nonce, signed_at="2001-01-01T00:00:00Z")
    assert taken(store, arrival.arrival_id).outcome is Outcome.SEALED
    for again in (store, ArrivalStore(place.settings.arrivals)):
        with pytest.raises(InputError, match="ARRIVAL_REPLAYED: expected a new announcement, fou"):
            accept(place, again, {"b.csv": b"other"}, nonce=nonce)
    assert (place.landing / "b.csv").read_bytes() == b"other"
    assert place.kept() == []


def test_a_disk_that_is_full_or_fails_keeps_nothing(place, store, monkeypatch):
    def little(_folder):
        return SimpleNamespace(free=256 * 2**20)

    for owner, name, fails, said in (
        (arrival_copies.shutil, "disk_usage", little, "FULL: expected room below CLUSTMIX_HO"),
        (arrival_copies, "fsync_directory", no_space, "UNWRITABLE: .* No space left on d"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, fails)
            with pytest.raises(ConfigurationError, match=f"ARRIVALS_{said}"):
                accept(place, store)
        assert place.kept() == []
    assert accept(place, store).state is ArrivalState.ACCEPTED


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, "sealed"),
        (BudgetRefused("X", "x"), "refused"),
        (InputError("X", "x"), "refused"),
        (Withheld("X", "x"), "withheld"),
    ],
    ids=str,
)
def test_an_arrival_is_taken_once_and_deleted_at_its_end(place, store, error, outcome):
    arrival_id = accept(place, store).arrival_id
    other = ArrivalStore(place.settings.arrivals)
    with raising(error), store.released_as(arrival_id, dataset="wards", release_id=R1) as path:
        (found,) = store.unfinished()
        assert (found.state, found.release_id) == (ArrivalState.TAKEN, R1)
        assert store.waiting() == ()
        # Nor does a run that may not take it end what another has taken.
        for dataset, code in (("parts", "OTHER_DATASET"), ("wards", "TAKEN: expected an arrival")):
            with pytest.raises(ConfigurationError, match=f"ARRIVAL_{code}"):
                taken(other, arrival_id, dataset=dataset, release_id=R2)
        assert store.unfinished() == (found,)
        assert path == store.path(arrival_id)
        assert path.read_bytes() == ROWS
        if error is not None:
            raise error
    assert place.kept() == []
    done = store.find(arrival_id)
    assert (done.state, done.outcome, done.release_id) == (ArrivalState.DONE, outcome, R1)
    for use in (lambda: taken(other, arrival_id), lambda: other.path(arrival_id)):
        ended = rf"ARRIVAL_ENDED: .* found {arrival_id}, which has ended \({outcome}\)"
        with pytest.raises(ConfigurationError, match=ended):
            use()
    assert store.waiting() == store.unfinished() == ()


def test_what_is_not_an_arrival_is_refused(place, store):
    arrival_id = accept(place, store).arrival_id
    for unknown in ("a-20261121-00000000", "../..", ""):
        assert store.find(unknown) is None
        for use in (partial(taken, store), store.path):
            with pytest.raises(ConfigurationError, match="ARRIVAL_UNKNOWN: expected the id of a"):
                use(unknown)
    with pytest.raises(ConfigurationError, match="ARRIVAL_OTHER_DATASET: expected an arrival of"):
        taken(store, arrival_id, dataset="parts")
    shutil.rmtree(place.settings.arrivals / arrival_id)
    with pytest.raises(ConfigurationError, match=f"ARRIVAL_LOST: .* of arrival {arrival_id}, f"):
        taken(store, arrival_id)


@pytest.mark.parametrize("error", [ClustMixError("x:ValueError", "x"), KeyboardInterrupt()])
def test_a_failed_arrival_is_tried_again_later_and_not_for_ever(place, store, monkeypatch, error):
    arrival_id = accept(place, store).arrival_id
    now = began = datetime.now(UTC)
    monkeypatch.setattr(arrivals, "datetime", SimpleNamespace(now=lambda _zone: now))
    for failures, delay in ((1, timedelta(minutes=10)), (2, timedelta(hours=1))):
        # At once, as a person may.
        failed = taken(store, arrival_id, error)
        assert (failed.state, failed.outcome) == (ArrivalState.ACCEPTED, Outcome.FAILED)
        assert (failed.failures, failed.release_id) == (failures, R1)
        assert store.unfinished() == (failed,)
        assert store.waiting() == ()
        now = began + delay - timedelta(seconds=1)
        assert store.waiting() == ()
        now = began + delay + timedelta(seconds=1)
        assert store.waiting() == (failed,)
        now = began
        assert store.path(arrival_id).read_bytes() == ROWS
    done = taken(store, arrival_id, error)
    assert (done.state, done.failures) == (ArrivalState.DONE, 3)
    assert place.kept() == []
    with pytest.raises(ConfigurationError, match=r"ARRIVAL_ENDED: .* has ended \(failed\)"):
        taken(store, arrival_id)


@pytest.mark.parametrize(
    "error",
    [
        LedgerError("LEDGER_UNAVAILABLE", "x"),
        IntegrityError("LEDGER_ROLLED_BACK", "x"),
        ConfigurationError("SCHEDULER_UNREACHABLE", "x"),
        ClustMixError("sum:WorkerLost", "x"),
        ClustMixError("ingest:FileNotFoundError", "x"),
        OSError(28, "full"),
    ],
    ids=repr,
)
def test_a_fault_of_the_installation_is_no_try_of_an_arrival(place, store, monkeypatch, error):
    arrival_id = accept(place, store).arrival_id
    now = datetime.now(UTC)
    monkeypatch.setattr(arrivals, "datetime", SimpleNamespace(now=lambda _zone: now))
    for minutes in (10, 60, 60, 60):
        failed = taken(store, arrival_id, error)
        assert (failed.state, failed.failures) == (ArrivalState.ACCEPTED, 0)
        now += timedelta(minutes=minutes, seconds=-1)
        assert store.waiting() == ()
        now += timedelta(seconds=1)
        assert store.waiting() == (failed,)
    assert taken(store, arrival_id).outcome is Outcome.SEALED


def dead_run(place, *arrival_ids):
    program = (
        "import contextlib, os, sys; from pathlib import Path\n"
        "from storage.arrivals.arrival_store import ArrivalStore\n"
        "taken, store = contextlib.ExitStack(), ArrivalStore(Path(sys.argv[1]))\n"
        "for arrival in sys.argv[2:]:\n"
        f"    taken.enter_context(store.released_as(arrival, dataset='wards', release_id='{R1}'))\n"
        "os._exit(9)\n"
    )
    done = python("-c", program, place.settings.arrivals, *arrival_ids, cwd=ROOT)
    assert done.returncode == 9


def test_an_arrival_whose_run_died_waits_again_at_once_and_ends_at_the_third(place, store):
    one, two = (accept(place, store, {name: ROWS}).arrival_id for name in ("a.csv", "b.csv"))
    dead_run(place, one, two)
    assert store.find(one).state is ArrivalState.TAKEN
    assert {(found.state, found.failures) for found in store.waiting()} == {("accepted", 1)}
    dead_run(place, one, two)
    assert taken(store, one, ClustMixError("x:ValueError", "x"), release_id=R2).failures == 3
    dead_run(place, two)
    with pytest.raises(ConfigurationError, match="ARRIVAL_ENDED"):
        taken(store, one)
    assert store.waiting() == ()
    assert {store.find(i).outcome for i in (one, two)} == {Outcome.FAILED}
    assert place.kept() == []


def test_a_list_that_is_damaged_or_open_is_refused(place, store):
    accept(place, store)
    folder = place.settings.arrivals
    folder.chmod(0o750)
    for use in (store.waiting, store.unfinished, lambda: store.find("x")):
        with pytest.raises(ConfigurationError, match="DIRECTORY_MODE"):
            use()
    folder.chmod(0o700)
    path = folder / "arrivals.sqlite"
    path.unlink()
    with pytest.raises(IntegrityError, match=r"ARRIVALS_DAMAGED: .* found none"), store.scanning():
        raise AssertionError
    assert len(place.kept()) == 1  # tables without their list are not deleted
    path.write_bytes(b"zebra" * 1_000)
    with pytest.raises(IntegrityError, match=r"ARRIVALS_DAMAGED: the list of arrivals \(arrivals"):
        store.waiting()


def test_a_transaction_of_the_list_is_on_the_disk_when_it_ends(tmp_path):
    (tmp_path / "arrivals").mkdir(mode=0o700)
    with arrival_transaction(tmp_path / "arrivals" / "arrivals.sqlite") as transaction:
        extra = transaction._execute("PRAGMA synchronous").fetchone()
    assert extra == (3,)  # FULL is 2, and a journal that comes back would undo a commit
