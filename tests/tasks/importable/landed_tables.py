"""An installation with a landing place, and a sender that puts tables into it.

Run as a program it kills scans: ``python landed_tables.py FOLDER`` writes its findings as JSON.
"""

import hashlib
import hmac
import json
import os
import shutil
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import yaml
from failing_disk import no_space
from made_up_release import site_of

from storage.settings import Settings

ROWS = b"patient,age\nP00001,64\n"


class Installation:
    """A home, a folder of site files and a landing folder of its own.

    Dataset ``wards`` expects CSV files, ``parts`` Parquet; ``quiet`` expects nothing.
    """

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
    """Look once, as the watcher does."""
    from flows.watching import arrivals
    from storage.keys.key_store import KeyStore

    secret = KeyStore(settings.key_folder).landing_secret()
    return arrivals.scan(settings.landing, settings.arrivals, sites=settings.sites, secret=secret)


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

STEPS = ("fsync", "rename", "unlink", "rmdir", "mkdir", "COMMIT")


def stop_at(step, stop):
    """Call `stop` before the step of this number; return what counts the steps.

    A step is a call that changes the disk, or a commit.
    """
    import sqlite3

    count = 0

    def counted(function):
        def call(*arguments, **options):
            nonlocal count
            if count == step:
                count += 1
                stop()
            count += 1
            return function(*arguments, **options)

        return call

    class Connection(sqlite3.Connection):
        def execute(self, sql, *arguments):
            run = super().execute
            return (counted(run) if sql == "COMMIT" else run)(sql, *arguments)

    for name in STEPS[:-1]:
        setattr(os, name, counted(getattr(os, name)))
    connect = sqlite3.connect
    sqlite3.connect = lambda *a, **o: connect(*a, **{"factory": Connection, **o})  # type: ignore[assignment,misc]
    return lambda: count


def stopped_scan(settings, step, how):
    """Scan in a child that stops at a step; return its exit status, 0 if it never came to it."""
    child = os.fork()
    if child == 0:
        try:
            steps = stop_at(step, STOPS[how])
            report = scan(settings)
            os._exit(8 if report.problems or steps() > step else 0)
        except BaseException:
            os._exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


STOPS = {"kill": lambda: os._exit(9), "disk full": no_space}


def main(folder):
    """Stop a scan of two tables and a forgery at every step, then look once more."""
    from storage.arrivals.arrival_store import ArrivalStore

    findings = []
    for how in STOPS:
        for step in range(1_000):
            place = Installation(folder / f"{how}-{step}".replace(" ", "-"))
            place.deliver("a.csv", ROWS + b"a")
            place.deliver_folder("b", {"x.parquet": b"b1", "k=1/y.parquet": b"b2"})
            place.deliver("c.csv", ROWS, mac="0" * 64)
            status = stopped_scan(place.settings, step, how)
            for _ in range(2):
                report = scan(place.settings)
            store = ArrivalStore(place.settings.arrivals)
            waiting = store.waiting()
            paths = {arrival.dataset: store.path(arrival.arrival_id) for arrival in waiting}
            findings.append(
                {
                    "how": how,
                    "step": step,
                    "status": status,
                    "accepted": sorted(arrival.dataset for arrival in waiting),
                    "contents": [
                        paths["wards"].read_bytes() == ROWS + b"a",
                        (paths["parts"] / "k=1/y.parquet").read_bytes() == b"b2",
                        (paths["parts"] / "x.parquet").read_bytes() == b"b1",
                    ],
                    "folders": len(place.kept()),
                    "left": sorted(path.name for path in place.landing.iterdir()),
                    "again": len(report.accepted) + len(report.refused) + len(report.problems),
                    "codes": sorted({entry["code"] for entry in place.refusals()}),
                }
            )
            shutil.rmtree(place.settings.home.parent)
            if status == 0:
                break
    sys.stdout.write(json.dumps(findings))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
