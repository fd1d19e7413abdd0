import json
from datetime import UTC, datetime

import pytest
from failing_disk import no_space
from landed_tables import announce

from privacy.errors import ConfigurationError, InputError
from storage.arrivals import ready_files
from storage.arrivals.ready_files import (
    MAX_READY_BYTES,
    build_ready_file,
    parse_ready_file,
    write_ready_file,
)
from tests.processes import ROOT, python

SECRET = bytes(range(32))
FILES = {"a.csv": b"abc"}
JSON = "the documented fields, in JSON in UTF-8 that names every key once"


def changed(**changes):
    body = json.loads(announce(FILES, "wards", SECRET))
    body.update(changes)
    return json.dumps(body).encode()


def file_of(**changes):
    return {"a.csv": {"sha256": "0" * 64, "size": 3, **changes}}


def test_the_program_for_senders_writes_a_ready_file(tmp_path):
    program = ROOT / "examples" / "announce.py"
    (tmp_path / "key").write_bytes(SECRET)
    (tmp_path / "wards.csv").write_bytes(b"rows")
    (tmp_path / "parts" / "k=1").mkdir(parents=True)
    (tmp_path / "parts" / "k=1" / "x.parquet").write_bytes(b"x")
    (tmp_path / "parts" / "._SUCCESS.crc").write_bytes(b"")
    for name, files in (("wards.csv", {"wards.csv"}), ("parts", {"parts/k=1/x.parquet"})):
        given = (tmp_path / name, "wards", tmp_path / "key")
        assert python("-I", program, *given, cwd="/").returncode == 0
        ready = parse_ready_file((tmp_path / f"{name}.ready.json").read_bytes())
        ready.verify(SECRET)
        ready.check_names(f"{name}.ready.json")
        assert set(ready.files) == files
    assert not list(tmp_path.glob("*.part"))


def test_a_change_of_anything_is_a_forgery():
    good = announce(FILES, "wards", SECRET)
    changes = {
        "dataset": "parts",
        "nonce": "0" * 32,
        "signed_at": "2026-11-21T17:00:00Z",
        "files": file_of(),
        "mac": "0" * 64,
    }
    forged = [changed(**{field: value}) for field, value in changes.items()]
    for content, key in ((good, bytes(32)), *((content, SECRET) for content in forged)):
        with pytest.raises(InputError, match="ARRIVAL_FORGED: expected a ready file signed with t"):
            parse_ready_file(content).verify(key)


OUT_OF_RANGE = {
    "format_version": [2],
    "dataset": ["Zebra", "../x", "x\n"],
    "nonce": ["0"],
    "mac": ["A" * 64],
    "signed_at": ["2026-02-31T00:00:00Z", "2026-11-21T17:00:00+00:00", 1],
    "files": [
        {}, ["a.csv"], *(file_of(size=size) for size in (-1, "3", 3.0, 2**53)), file_of(zebra=1),
        {"\ud800": {"sha256": "0" * 64, "size": 1}},
        {str(n): {"sha256": "0" * 64, "size": 1} for n in range(10_001)},
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", JSON),
        (b"\xff\xfe", JSON),
        (b"[" * 100_000, JSON),
        (changed()[:-30], JSON),
        (changed()[:-1] + b', "nonce": "0"}', JSON),
        (b"1" * 5_000, JSON),
        (b" " * (MAX_READY_BYTES + 1), "at most 2,000,000 bytes"),
        (b'"zebra"', JSON),
        (changed(zebra=1), JSON),
        *(
            (changed(**{field: value}), f"the documented fields, '{field}' in its range")
            for field, values in OUT_OF_RANGE.items()
            for value in values
        ),
    ],
    ids=lambda value: "file" if isinstance(value, bytes) else value,  # nonces differ each time
)
def test_what_is_not_a_ready_file_is_refused_and_not_repeated(content, what):
    with pytest.raises(InputError) as caught:
        parse_ready_file(content)
    assert str(caught.value) == (
        f"ARRIVAL_MALFORMED: expected a ready file with {what}, found another; write it with "
        "clustmix ready, or with examples/announce.py"
    )


@pytest.mark.parametrize(
    "name",
    [
        "../a.csv", "/etc/passwd", "a/../../b", "a//b", "a/./b", "a/.hidden", ".a.csv", "a b.csv",
        "a\n.csv", "a\\b.csv", "a\0.csv", "é.csv", "a.csv.part", "a.csv.ready.json",
        "a.csv.refused", "a/" * 8 + "a", "a" * 129,
    ],
)  # fmt: skip
def test_names_that_reach_out_are_refused_and_not_repeated(name):
    for table in (name, "a"):
        ready = parse_ready_file(announce({name: b"x"}, "wards", SECRET))
        ready.verify(SECRET)
        with pytest.raises(InputError, match=r"^ARRIVAL_NAME: expected ") as caught:
            ready.check_names(f"{table}.ready.json")
        assert "passwd" not in str(caught.value)
        assert "hidden" not in str(caught.value)


def test_a_ready_file_that_a_sender_wrote_by_hand_announces_the_table_of_its_name():
    ready = parse_ready_file(announce(FILES, "wards", SECRET, signed_at="2026-11-21T17:00:00Z"))
    ready.verify(SECRET)
    ready.check_names("a.csv.ready.json")
    assert (ready.dataset, ready.size_bytes, ready.is_folder) == ("wards", 3, False)
    assert ready.signed == datetime(2026, 11, 21, 17, tzinfo=UTC)
    of_the_table, distinct = r"NAME\.ready\.json to announce t", "every name to be a file or a fo"
    for names, expected in (
        (["b.csv"], of_the_table),
        (["a.csv", "b.csv"], of_the_table),
        (["a.csv/x", "b/x"], of_the_table),
        (["a.csv", "a.csv/x"], of_the_table),
        (["a.csvx/y"], of_the_table),
        (["a.csv/x", "a.csv/x/y"], distinct),
    ):
        ready = parse_ready_file(announce(dict.fromkeys(names, b""), "wards", SECRET))
        with pytest.raises(InputError, match=f"ARRIVAL_NAME: expected {expected}"):
            ready.check_names("a.csv.ready.json")


def test_a_table_that_cannot_be_announced_is_refused(tmp_path):
    (tmp_path / "a.csv.part").write_bytes(b"x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "x").symlink_to(tmp_path / "a.csv.part")
    for name, problem in (
        ("gone.csv", "expected regular files that can be read"),
        ("linked", "expected regular files that can be read"),
        ("empty", "expected 1 to 10,000 files"),
        ("a.csv.part", "expected no name that ends in .part, .ready.json or .refused"),
    ):
        refused = f"TABLE_NOT_READY: {tmp_path / name}: {problem}, found "
        with pytest.raises(ConfigurationError, match=refused):
            build_ready_file(tmp_path / name, dataset="wards", secret=SECRET)


def test_a_ready_file_appears_at_once_and_is_not_for_everybody(tmp_path, monkeypatch):
    target = write_ready_file(tmp_path / "a.csv", b"first")
    assert target == tmp_path / "a.csv.ready.json"
    assert target.stat().st_mode & 0o777 == 0o640
    with monkeypatch.context() as patched:
        patched.setattr(ready_files.os, "fsync", no_space)
        with pytest.raises(
            ConfigurationError, match=f"READY_UNWRITABLE: .* {target}, found: No sp"
        ):
            write_ready_file(tmp_path / "a.csv", b"second")
    assert target.read_bytes() == b"first"
    assert write_ready_file(tmp_path / "a.csv", b"third").read_bytes() == b"third"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv.ready.json"]
