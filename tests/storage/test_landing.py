import errno
import hashlib
import os
import socket

import pytest

from privacy.errors import ConfigurationError, InputError
from storage.arrivals.landing import LandingFolder


def read(landing, name):
    return b"".join(landing.place.chunks(name))


@pytest.fixture(params=["local", "s3"])
def place(request, tmp_path):
    if request.param == "local":
        root = tmp_path / "landing"
        landing = LandingFolder(str(root))
        assert landing.ready_names() == []  # makes the folder

        def put(name, content):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(content)

        def names():
            return sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file())

        return landing, put, names
    store, prefix = request.getfixturevalue("s3"), f"hospital/{tmp_path.name}"

    def put_object(name, content):
        store.pipe_file(f"{prefix}/{name}", content)

    def object_names():
        found = store.find(prefix) if store.exists(prefix) else []
        return sorted(name.removeprefix(f"{prefix}/") for name in found)

    return LandingFolder(f"s3://{prefix}"), put_object, object_names


def test_ready_files_are_found_in_order(place):
    landing, put, _ = place
    assert landing.ready_names() == []
    for name in ("b.ready.json", "a.csv.ready.json", "a.csv", "c.ready.json.refused", "c/d"):
        put(name, b"x")
    put("c/e.ready.json", b"x")
    put("d.ready.json.part", b"x")
    put("aa.ready.json", b"x")
    assert landing.ready_names() == ["a.csv.ready.json", "aa.ready.json", "b.ready.json"]


def test_content_is_read_and_removed_as_long_as_it_is_what_was_read(place):
    landing, put, names = place
    content = os.urandom(3 * 2**20 + 17)
    put("a/k=1/x.parquet", content)
    put("a/y.parquet", b"y")
    version = landing.place.version("a/k=1/x.parquet")
    assert landing.place.version("a/k=1/x.parquet") == version is not None
    assert landing.place.version("a/none") is None
    assert landing.place.version("none/none") is None
    assert read(landing, "a/k=1/x.parquet") == content
    put("a/k=1/x.parquet", b"new")
    landing.remove("a/k=1/x.parquet", version)
    assert names() == ["a/k=1/x.parquet", "a/y.parquet"]
    landing.remove("a/k=1/x.parquet", None)
    landing.remove("a/none", None)
    landing.remove("a/k=1/x.parquet", landing.place.version("a/k=1/x.parquet"))
    assert names() == ["a/y.parquet"]
    landing.remove("a/k=1/x.parquet", version)


def test_a_ready_file_is_removed_as_long_as_it_is_what_was_read(place):
    landing, put, names = place
    put("a/k=2/_SUCCESS", b"not announced")
    put("a.ready.json", b"first")
    digest = hashlib.sha256(b"first").hexdigest()
    assert landing.read_ready("a.ready.json") == b"first"
    landing.remove_ready("a.ready.json", "0" * 64)
    assert names() == ["a.ready.json", "a/k=2/_SUCCESS"]
    landing.remove_ready("a.ready.json", digest)
    assert names() == ["a/k=2/_SUCCESS"]
    landing.remove_ready("a.ready.json", digest)


def test_a_refused_ready_file_is_put_aside_and_never_replaced(place):
    landing, put, names = place
    put("a.csv", b"content")
    for n in range(3):
        put("a.csv.ready.json", b"%d" % n)
        landing.refuse("a.csv.ready.json")
        assert landing.ready_names() == []
    assert len(names()) == 4
    assert {"a.csv", "a.csv.ready.json.refused"} < set(names())
    assert read(landing, "a.csv.ready.json.refused") == b"0"


def test_an_absent_file_is_an_incomplete_arrival(place):
    landing, put, _ = place
    put("a.csv", b"content")
    for name in ("b.csv", "none/b.csv"):
        with pytest.raises(InputError) as caught:
            read(landing, name)
        assert caught.value.code == "ARRIVAL_INCOMPLETE"
        assert "found one" in str(caught.value)
        assert "b.csv" not in str(caught.value)


def test_of_a_large_ready_file_only_enough_is_read(place):
    landing, put, _ = place
    put("a.ready.json", b" " * 30_000_000)
    assert 2_000_000 < len(landing.read_ready("a.ready.json")) < 12_000_000


def test_an_open_or_unusable_landing_folder_is_one_clear_error(tmp_path, monkeypatch):
    os.umask(0)
    folder = tmp_path / "landing"
    assert LandingFolder(f"file://{folder}").ready_names() == []
    assert folder.stat().st_mode & 0o777 == 0o700
    for mode in (0o701, 0o702, 0o704):
        folder.chmod(mode)
        wide = f"LANDING_OPEN: .* found mode {mode:04o}; run: c"
        with pytest.raises(ConfigurationError, match=wide):
            LandingFolder(str(folder)).ready_names()
    folder.chmod(0o770)
    assert LandingFolder(str(folder)).ready_names() == []
    (tmp_path / "link").symlink_to(tmp_path)
    for name, reason in (("none/x", "No such file or directory"), ("link", "Not a directory")):
        with pytest.raises(ConfigurationError, match=f"LANDING_UNREADABLE: .* found: {reason}"):
            LandingFolder(str(tmp_path / name)).ready_names()
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ConfigurationError, match="LANDING_UNWRITABLE: expected to read, rename a"):
        LandingFolder(str(folder)).ready_names()


@pytest.fixture
def landing(tmp_path):
    tmp_path.chmod(0o700)
    return LandingFolder(str(tmp_path))


def test_no_link_is_followed_and_nothing_waits_for_a_pipe(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"zebra")
    root = tmp_path / "landing"
    root.mkdir(mode=0o700)
    (root / "link").symlink_to(outside / "secret")
    (root / "folder").symlink_to(outside)
    (root / "inner").mkdir()
    (root / "inner" / "up").symlink_to("../../outside")
    os.mkfifo(root / "pipe")
    (root / "plain").write_bytes(b"x")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "socket"))
        landing = LandingFolder(str(root))
        for name in "link folder/secret inner/up/secret pipe inner plain/x socket".split():
            with pytest.raises(InputError, match="ARRIVAL_NAME: expected regular files in folders"):
                read(landing, name)
        landing.remove("folder/secret", "anything")
        assert landing.place.version("folder/secret") is None
        assert (outside / "secret").exists()


def test_a_ready_file_of_any_name_can_be_put_aside(landing, tmp_path):
    long = "a" * 244 + ".ready.json"
    for name in (os.fsencode(long), b"\xff\n.ready.json", b"taken.ready.json"):
        with open(os.path.join(os.fsencode(tmp_path), name), "wb"):
            pass
    (tmp_path / "taken.ready.json.refused").mkdir()
    (tmp_path / "folder.ready.json").mkdir()
    (tmp_path / "link.ready.json").symlink_to("/etc/passwd")
    found = landing.ready_names()
    assert len(found) == 5
    for name in (*found, "gone.ready.json"):
        landing.refuse(name)
    assert landing.ready_names() == []
    assert len(list(tmp_path.iterdir())) == 6


def test_a_place_of_another_kind_is_refused(monkeypatch):
    import fsspec.core

    def absent(_protocol):
        raise ImportError("Install s3fs to access S3")

    kinds = ["zebra://user:zebra-password@host/x", "filecache::s3://bucket", "s3::memory://x"]
    for place in (*kinds, "s3://hospital/x"):
        if place not in kinds:  # of a kind whose package is absent
            monkeypatch.setattr(fsspec.core, "get_filesystem_class", absent)
        with pytest.raises(ConfigurationError, match=r"LANDING_UNSUPPORTED: .* install s3fs") as e:
            LandingFolder(place)
        assert "zebra-password" not in str(e.value)


def test_a_store_without_an_answer_or_the_bucket_is_one_clear_error(s3, monkeypatch):
    with pytest.raises(ConfigurationError, match="LANDING_UNREADABLE: expected to list, read and"):
        LandingFolder("s3://none/x").ready_names()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{taken.getsockname()[1]}")
        s3.clear_instance_cache()
        landing = LandingFolder("s3://hospital/zebra")
        for call in (
            landing.ready_names,
            lambda: landing.refuse("a.ready.json"),
            lambda: landing.place.version("a"),
        ):
            with pytest.raises(ConfigurationError, match=r"LANDING_UNREADABLE: .* no an") as caught:
                call()
            assert "zebra" not in str(caught.value)
            assert caught.value.__suppress_context__
    s3.clear_instance_cache()


@pytest.mark.parametrize("fault", [errno.EROFS, errno.EACCES, errno.EPERM])
def test_a_place_where_nothing_can_be_renamed_is_refused(tmp_path, monkeypatch, fault):
    landing = LandingFolder(str(tmp_path / "landing"))
    assert landing.ready_names() == []
    (tmp_path / "landing" / "a.ready.json").touch()

    def rename(*_, **__):
        raise OSError(fault, os.strerror(fault))

    monkeypatch.setattr("os.rename", rename)
    with pytest.raises(ConfigurationError, match=r"LANDING_UNWRITABLE: .* rename .*right to write"):
        landing.refuse("a.ready.json")
