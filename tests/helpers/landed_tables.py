"""An installation with a landing place, and a sender that puts tables into it."""

import hashlib
import hmac
import json
import os
import sys
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import yaml
from failing_disk import no_space
from made_up_release import site_of

from storage.settings import Settings

ROWS = b"patient,age\nP00001,64\n"


class Installation:
    """Its dataset ``wards`` expects CSV files, ``parts`` Parquet; ``quiet`` expects nothing."""

    def __init__(self, folder, landing=None):
        self.landing = folder / "landing"
        (folder / "sites").mkdir(parents=True)
        (folder / "releases").mkdir()
        self.settings = Settings(
            home=folder / "home",
            releases=folder / "releases",
            sites=folder / "sites",
            landing=landing or str(self.landing),
        )
        write_site(folder / "sites", "wards", "csv", arrival={"max_age_hours": 24})
        write_site(folder / "sites", "parts", "parquet", arrival={"max_age_hours": 24})
        write_site(folder / "sites", "quiet", "csv")
        if landing is None:
            self.landing.mkdir(mode=0o700)

    @property
    def secret(self):
        from storage.keys.key_store import KeyStore

        return KeyStore(self.settings.key_folder).landing_secret()

    def deliver(self, name="wards.csv", content=ROWS, dataset="wards", **changes):
        return self._deliver(name, {name: content}, dataset, changes)

    def deliver_folder(self, name, files, dataset="parts", **changes):
        named = {f"{name}/{inner}": content for inner, content in files.items()}
        return self._deliver(name, named, dataset, changes)

    def _deliver(self, name, files, dataset, changes):
        for file, content in files.items():
            (self.landing / file).parent.mkdir(parents=True, exist_ok=True)
            (self.landing / file).write_bytes(content)
        path = self.landing / f"{name}.ready.json"
        path.write_bytes(announce(files, dataset, self.secret, **changes))
        return path

    def refusals(self):
        log = self.settings.arrivals / "refused.log"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    def kept(self):
        """Return the folders of arrivals, half-written ones too."""
        return sorted(path for path in self.settings.arrivals.iterdir() if path.is_dir())


def scan(settings):
    from flows.watching import arrivals
    from storage.keys.key_store import KeyStore

    secret = KeyStore(settings.key_folder).landing_secret()
    events, problems = arrivals.scan(
        settings.landing, settings.arrivals, sites=settings.sites, secret=secret
    )
    accepted = [event.payload for event in events if event.name == "cohort.arrived"]
    refused = [event.payload for event in events if event.name == "arrival.refused"]
    return SimpleNamespace(events=events, accepted=accepted, refused=refused, problems=problems)


def write_site(folder, dataset, kind, **more):
    source = {"kind": kind, "path": "nowhere"}
    site = site_of(dataset, source, lifetime_epsilon=5.0, **more)
    (folder / f"{dataset}.yaml").write_text(yaml.safe_dump(site))


def announce(files, dataset, secret, *, age=timedelta(), mac=None, **changes):
    """Write a ready file by hand, independently of the code under test."""
    body = {
        "format_version": 1,
        "dataset": dataset,
        "files": {
            name: {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
            for name, content in files.items()
        },
        "signed_at": (datetime.now(UTC) - age).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "nonce": os.urandom(16).hex(),
        **changes,
    }
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    signed = hmac.new(secret, b"clustmix-arrival-v1\0" + text.encode(), "sha256").hexdigest()
    return json.dumps({**body, "mac": mac or signed}).encode()


# --- scans that stop in the middle

STEPS = ("fsync", "rename", "unlink", "rmdir", "mkdir", "execute")
"""Calls that change the disk, those of SQLite among them."""

STOPS = {"kill": lambda: os._exit(9), "disk full": no_space}


def scan_and_stop(settings, step, how):
    """Body of a process: scan, and stop before the step of this number; 0 if it never comes."""
    count = 0

    def before(_frame, event, function):
        nonlocal count
        if event == "c_call" and function.__name__ in STEPS:
            count += 1
            if count == step + 1:
                STOPS[how]()

    try:
        sys.setprofile(before)
        report = scan(settings)
        os._exit(8 if report.problems or count > step else 0)
    except BaseException:
        os._exit(7)
