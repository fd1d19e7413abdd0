"""Announce a table without ClustMix: ``python announce.py TABLE DATASET KEY_FILE``, Python 3.11."""

import hashlib
import hmac
import json
import secrets
import sys
import time
from pathlib import Path


def announce(path: Path, dataset: str, key: bytes) -> None:
    """Write the ready file of a table beside it: sizes, digests, time, and the HMAC of the key."""
    inside = [p for p in path.rglob("*") if p.is_file() and not p.name.startswith(".")]
    files = {}
    for part in inside if path.is_dir() else [path]:
        with part.open("rb") as handle:
            sha256 = hashlib.file_digest(handle, "sha256").hexdigest()
            size = handle.tell()
        files[part.relative_to(path.parent).as_posix()] = {"sha256": sha256, "size": size}
    body = {"format_version": 1, "dataset": dataset, "files": files}
    body["signed_at"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    body["nonce"] = secrets.token_hex(16)
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    body["mac"] = hmac.new(key, b"clustmix-arrival-v1\0" + text, "sha256").hexdigest()
    beside = path.with_name(path.name + ".ready.part")
    beside.write_text(json.dumps(body), encoding="utf-8")
    beside.replace(path.with_name(path.name + ".ready.json"))


if __name__ == "__main__":
    announce(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]).read_bytes())
