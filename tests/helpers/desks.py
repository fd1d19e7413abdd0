"""A desk: a folder with a source and a site file, and `clustmix release` run on them.

The releases run in this process, against the orchestrator of the test session, in the home that
`tests/conftest.py` made for it; every desk has a dataset of its own in the shared ledger.
"""

import itertools
import json
import os
import re
import stat
from pathlib import Path

import made_up_release as made
import yaml

from flows.cli import main
from storage.ledger.ledger_db import LedgerDatabase

HOME = Path(os.environ["PREFECT_HOME"]).parent
CANARY = "zq7143"
"""A cell of a source, or a word of an address: never printed."""
_NUMBERS = itertools.count()


def set_environment(monkeypatch, releases):
    for name in [name for name in os.environ if name.startswith("CLUSTMIX_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CLUSTMIX_HOME", str(HOME))
    monkeypatch.setenv("CLUSTMIX_RELEASES", str(releases))
    monkeypatch.setenv("CLUSTMIX_DASK_WORKERS", "0")
    monkeypatch.setenv("CLUSTMIX_OFFLINE", "true")


class Desk:
    """A folder, the site file in it as a mapping, and what the last release printed."""

    def __init__(self, folder, capsys):
        self.folder = folder
        self.path = folder / "site.yaml"
        self.site = {
            "dataset": f"desk-{next(_NUMBERS)}",
            "title": "Wards",
            "privacy": {"epsilon": 1.0, "delta": 1.0e-6},
            "budget": {"lifetime_epsilon": 5.0},
            "method": {"kind": "naive_bayes"},
            "rows": 40,
        }
        self.errors = self.output = ""
        self._capsys = capsys

    def declare_cohort(self, frame=None):
        """Declare the made-up cohort; write the rows given to its file `table`."""
        self.table = self.folder / "cohort.csv"
        if frame is not None:
            frame.replace({"note": {"-": self.site["dataset"]}}).to_csv(self.table, index=False)
        self.site |= {
            "source": {"kind": "csv", "path": str(self.table)},
            "privacy_unit": {"column": "patient", "max_rows_per_patient": 3},
            "schema": made.SCHEMA,
        }

    def release(self, *options):
        return self.run("release", *options)

    def run(self, command, *options):
        if isinstance(self.site, dict):
            self.path.write_text(yaml.safe_dump(self.site))
        self._capsys.readouterr()
        code = main([command, str(self.path), *options])
        self.output, self.errors = self._capsys.readouterr()
        assert "Traceback" not in self.errors + self.output
        assert CANARY not in self.errors + self.output
        return code

    @property
    def line(self):
        """The one line of a failure, with the name of the diagnostics file made constant.

        Faults of a file, a line each, follow it.
        """
        first, *faults = re.search(r"^clustmix: .*\n(  line \d+.*\n)*\Z", self.errors, re.M)[
            0
        ].splitlines()
        line = " ".join((first, *faults))
        return re.sub(r"r-\d{8}-[0-9a-f]{8}", "ID", line.removeprefix("clustmix: "))

    @property
    def states(self):
        if not (HOME / "ledger.sqlite").exists():
            return []
        ledger = LedgerDatabase(HOME / "ledger.sqlite")
        return [str(entry.state.value) for entry in ledger.entries(self.site["dataset"])]

    @property
    def bundle(self):
        (path,) = (self.folder / "releases" / self.site["dataset"]).glob("r-*")
        return path

    @property
    def diagnostics(self):
        """The records of the diagnostics file that the line points to, without the summary."""
        (name,) = re.findall(r"r-\d{8}-[0-9a-f]{8}\.jsonl", self.errors)
        path = HOME / "diagnostics" / name
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        records = [json.loads(record) for record in path.read_text().splitlines()]
        return [record for record in records if "rule" in record]
