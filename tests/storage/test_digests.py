import hashlib
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from privacy.errors import IntegrityError
from storage.files import digests
from storage.files.digests import PRIME, FileDigest, changed_byte, digest_of
from storage.files.private import open_regular

ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
CHUNK = digests._CHUNK_BYTES


def slow_digest(content):
    return FileDigest(
        sha256=hashlib.sha256(content).hexdigest(),
        size=len(content),
        byte_sum=sum(content) % PRIME,
        position_sum=sum(i * byte for i, byte in enumerate(content)) % PRIME,
    )


def slow_words(before, after):
    changes = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    if not changes:
        return "no byte changed"
    if len(changes) > 1:
        return "more than one byte changed"
    (i,) = changes
    return f"byte {i} is 0x{after[i]:02x}, expected 0x{before[i]:02x}"


def with_byte(content, position, byte):
    return content[:position] + bytes([byte]) + content[position + 1 :]


def test_digest_over_several_chunks_and_from_a_file(tmp_path):
    for size in (0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 17):
        content = hashlib.shake_256(b"chunks").digest(size)
        (tmp_path / "file").write_bytes(content)
        assert digest_of(tmp_path / "file") == digest_of(content) == slow_digest(content)


def test_sums_beyond_64_bits_are_exact(monkeypatch):
    # 512 MiB of 0xff: the sum of positions times bytes is above 2**64 before it is reduced.
    chunk, count = b"\xff" * CHUNK, 2048
    monkeypatch.setattr(digests, "_chunks", lambda _: (chunk for _ in range(count)))
    size = CHUNK * count
    found = digest_of(b"")
    assert (found.size, found.byte_sum) == (size, 255 * size)
    assert 255 * size * (size - 1) // 2 > 2**64
    assert found.position_sum == 255 * size * (size - 1) // 2 % PRIME


@given(st.binary(min_size=1, max_size=300), st.data())
def test_a_substituted_byte_is_named_and_several_are_not(before, data):
    position = data.draw(st.sampled_from([0, len(before) - 1, len(before) // 2]))
    substituted = st.integers(0, 255).map(lambda byte: with_byte(before, position, byte))
    after = data.draw(substituted | st.binary(min_size=len(before), max_size=len(before)))
    assert changed_byte(digest_of(before), after) == slow_words(before, after)


@pytest.mark.parametrize("position", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 16])
def test_a_substituted_byte_of_a_file_is_named(tmp_path, position):
    before = hashlib.shake_256(b"file").digest(2 * CHUNK + 17)
    for byte in (before[position] ^ 1, before[position] ^ 0xFF):
        after = with_byte(before, position, byte)
        (tmp_path / "file").write_bytes(after)
        assert changed_byte(digest_of(before), tmp_path / "file") == slow_words(before, after)


def test_changes_with_the_sums_of_a_single_one_are_not_taken_for_it():
    # Bytes 0 and 2 grow by one: both sums change as if byte 1 had grown by two.
    assert changed_byte(digest_of(b"aaa"), b"bab") == "more than one byte changed"
    one = digest_of(b"aca")
    two = digest_of(b"bab")
    assert (one.byte_sum, one.position_sum) == (two.byte_sum, two.position_sum)
    # A swap leaves the sum of the bytes.
    assert changed_byte(digest_of(b"abc"), b"acb") == "more than one byte changed"
    # The byte that the sums point at would have to be above 0xff, or behind the end.
    assert changed_byte(digest_of(b"\xff\x00\xff"), b"\xfe\xff\xfe") == "more than one byte changed"
    far = digest_of(b"aaa").model_copy(update={"byte_sum": 3 * 97 - 1, "sha256": "0" * 64})
    assert changed_byte(far.model_copy(update={"position_sum": 0}), b"aaa") == (
        "more than one byte changed"
    )


def test_words():
    for before, after, words in (
        (b"", b"", "no byte changed"),
        (b"", b"a", "it is 1 byte longer than expected"),
        (b"a", b"", "it is 1 byte shorter than expected"),
        (b"abc", b"abcde", "it is 2 bytes longer than expected"),
        (b"abcde", b"ab", "it is 3 bytes shorter than expected"),
        (b"\x00", b"\x00\x00", "it is 1 byte longer than expected"),
        (b"A", b"B", "byte 0 is 0x42, expected 0x41"),
    ):
        assert changed_byte(digest_of(before), after) == words
    wrong_sums = digest_of(b"abc").model_copy(update={"byte_sum": 0})
    assert changed_byte(wrong_sums, b"abc") == (
        "no byte changed, the size or the sums of its digest are wrong"
    )


@given(
    st.binary(max_size=20), st.integers(0, PRIME - 1), st.integers(0, PRIME - 1), st.integers(0, 30)
)
def test_a_made_up_digest_names_no_byte(content, byte_sum, position_sum, size):
    expected = FileDigest(sha256="0" * 64, size=size, byte_sum=byte_sum, position_sum=position_sum)
    words = changed_byte(expected, content)
    assert words.startswith("it is ") if size != len(content) else words.startswith("more than")


def test_digest_refuses():
    fields = {"sha256": ABC, "size": 3, "byte_sum": 0, "position_sum": 0}
    for field, value in (
        ("sha256", ABC.upper()),
        ("sha256", ABC + "\n"),
        ("size", -1),
        ("byte_sum", PRIME),
        ("position_sum", PRIME),
        ("position_sum", -1),
        ("crc", 0),
    ):
        with pytest.raises(ValidationError, match=field):
            FileDigest(**{**fields, field: value})


def test_only_regular_files_are_opened(tmp_path):
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    os.close(open_regular(tmp_path / "file"))
    for name in ("link", "pipe", "folder"):
        with pytest.raises(
            IntegrityError,
            match=f"FILE_NOT_REGULAR: file {name} is a symbolic link or not a regular file; remove",
        ):
            digest_of(tmp_path / name)
    with pytest.raises(IntegrityError, match="FILE_MISSING: file gone is missing or unreadable"):
        changed_byte(digest_of(b""), tmp_path / "gone")
