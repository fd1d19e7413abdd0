import json
import os
import threading
import time

import made_up_release as made
import numpy as np
import psutil
import pytest
from waiting import kill_spawned

from flows.site.request import job_of
from flows.site.site_file import load_site
from privacy.errors import ClustMixError, InputError
from storage.files.diagnostics import DiagnosticsFile
from storage.files.workspace import PrivateWorkspace
from storage.sources.cohorts import CohortReader
from storage.sources.tables import parquet_files
from tasks.execution.cluster import local_cluster
from tasks.execution.dask_executor import DaskExecutor
from tasks.execution.executor import IN_PROCESS
from tasks.ingest.shards import ShardFile
from tasks.steps.ingest_steps import ingest

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def small_fragments(monkeypatch):
    monkeypatch.setattr(parquet_files, "ROWS_WORTH_A_FRAGMENT", 400)


def write_parquet(folder, cohort):
    for number, rows in enumerate(np.array_split(np.arange(len(cohort)), 4)):
        part = folder / "cohort" / f"month={number:02d}" / "part-0.parquet"
        part.parent.mkdir(parents=True)
        cohort.iloc[rows].to_parquet(part, index=False, row_group_size=100)
    return folder / "cohort"


class Run:
    def __init__(self, folder, cohort, **changes):
        self.folder, self.number = folder, 0
        self.table = write_parquet(folder, cohort)
        source = {"kind": "parquet", "path": str(self.table)}
        self.site = made.write_site(folder, **{"source": source, **changes})

    @property
    def job(self):
        return job_of(load_site(self.site), "r-20260101-00000000")

    @property
    def diagnostics(self):
        return self.folder / f"private-{self.number}" / "d.jsonl"

    def reader(self):
        return CohortReader(self.job.source)

    def ingest(self, executor, reader=None):
        self.number += 1
        root = self.diagnostics.parent
        with PrivateWorkspace.create(root, "r-1") as workspace:
            diagnostics = DiagnosticsFile(self.diagnostics)
            job, reader = self.job, reader or self.reader()
            places = {"workspace": workspace, "diagnostics": diagnostics}
            paths = ingest(job.columns_to_read, job.rules, reader, executor=executor, **places)
            # What a worker was writing when it was killed goes with the workspace.
            left = {p.name for p in workspace.folder.iterdir() if not p.name.startswith(".staged-")}
            assert left == {".alive", *(path.name for path in paths)}
            assert {path.stat().st_mode & 0o777 for path in paths} == {0o600}
            self.rows = [ShardFile(path).load() for path in paths]
            return [path.read_bytes() for path in paths]

    def refusal(self, executor, reader=None):
        with pytest.raises(ClustMixError) as caught:
            self.ingest(executor, reader)
        assert caught.value.__context__ is None
        assert caught.value.__cause__ is None
        return str(caught.value)

    def broken(self):
        assert self.diagnostics.stat().st_mode & 0o777 == 0o600
        return [json.loads(line) for line in self.diagnostics.read_text().splitlines()]


def whole(cohort):
    return cohort.drop(index=1_234)  # the row with the canaries


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path, whole(made.made_up_cohort()))


def test_shards_are_the_bytes_of_the_serial_reader(run, executor):
    """Which rows of a patient are kept depends on no order, and the shards on no worker."""
    shards = run.ingest(executor)
    codes = np.concatenate([rows.codes for rows in run.rows])
    assert 1_500 < len(codes) < len(made.made_up_cohort())  # some patients have more than three
    # The same rows as text, read from the first to the last in this process.
    (run.folder / "csv").mkdir()
    run.site = made.write_site(run.folder / "csv", cohort=whole(made.made_up_cohort()))
    assert run.ingest(IN_PROCESS) == shards


@pytest.mark.parametrize("n_fragments", [1, 3, 1_000])
def test_fragments_leave_the_shards_as_they_are(run, monkeypatch, n_fragments):
    expected = run.ingest(IN_PROCESS)
    monkeypatch.setattr("tasks.steps.ingest_steps.N_FRAGMENTS", n_fragments)
    assert run.ingest(IN_PROCESS) == expected


def test_part_and_selection_by_a_partition_key(run, executor):
    source = {"kind": "parquet", "path": str(run.table), "select": {"month": "02"}}
    split = {"partition": {"scheme": "half", "parts": 2, "part": 1}}
    schema = {"ignore": ["note", "month"]}
    run.site = made.write_site(run.folder, source=source, privacy_unit=split, schema=schema)
    expected = run.ingest(IN_PROCESS)
    assert 100 < sum(len(rows.label) for rows in run.rows) < 400  # about half of a quarter
    assert run.ingest(executor) == expected


def test_broken_rows_have_the_numbers_of_the_whole_source(tmp_path, executor):
    cohort = whole(made.made_up_cohort()).reset_index(drop=True)
    rows = [3, 700, 701, 1_500, 1_985]
    cohort.loc[rows, "smoker"] = made.CANARY_CATEGORY
    cohort.loc[[900], "patient"] = " "
    run = Run(tmp_path, cohort)
    assert run.refusal(executor) == (
        "INPUT_REFUSED: column patient: expected a value in every cell; column smoker: expected "
        "declared levels only, as no level is declared for other values; correct the source or "
        "the schema; the rows are in d.jsonl (restricted; folder diagnostics of "
        "CLUSTMIX_HOME); nothing is charged"
    )
    found = [row for line in run.broken() if line["column"] == "smoker" for row in line["rows"]]
    assert found == [{"row": row, "value": made.CANARY_CATEGORY} for row in rows]
    (line,) = (line for line in run.broken() if line["column"] == "patient")
    assert line["rows"] == [{"row": 900, "value": " "}]


def test_column_and_file_that_cannot_be_read(run, executor):
    reader = run.reader()
    with pytest.raises(InputError, match="COLUMN_MISSING: column 'absent' is declared"):
        reader.fragments(["age", "absent"], 4)
    (file, *_) = sorted(run.table.rglob("*.parquet"))
    content = bytearray(file.read_bytes())
    content[200:3_000] = os.urandom(2_800)  # pages, and not the footer
    file.write_bytes(content)
    assert run.refusal(executor).startswith(
        "SOURCE_UNREADABLE: every file must be Parquet with the same columns and types; write it"
    )


@pytest.mark.parametrize("when", ["after the key was made", "while it was read"])
def test_bytes_that_changed_are_refused_though_all_times_are_the_same(
    run, executor, monkeypatch, when
):
    reader = run.reader()
    key = reader.content_sha256(map=executor.map)
    assert key == run.reader().content_sha256()

    def change():
        (file, *_) = sorted(run.table.rglob("*.parquet"))
        status, content = file.stat(), bytearray(file.read_bytes())
        content[content.rindex(b"parquet-cpp")] ^= 1  # the name of the program that wrote it
        with file.open("r+b") as handle:
            handle.write(content)
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))

    if when.startswith("after"):
        change()
    else:
        fragments = CohortReader.fragments

        def meanwhile(*arguments, **named):
            found = fragments(*arguments, **named)
            change()
            return found

        monkeypatch.setattr(CohortReader, "fragments", meanwhile)
    assert run.refusal(executor, reader).startswith("SOURCE_CHANGED: the source changed while it")


def test_worker_in_another_directory_reads_a_relative_path(run, cluster, monkeypatch):
    expected = run.ingest(IN_PROCESS)
    monkeypatch.chdir(run.folder)
    run.site = made.write_site(run.folder, source={"kind": "parquet", "path": "cohort"})
    assert run.ingest(DaskExecutor(cluster, "r-3")) == expected


@pytest.mark.parametrize(
    "waits",
    [pytest.param([0.2], id="once"), pytest.param([0.2, 1.5], marks=pytest.mark.soak, id="again")],
)
def test_killed_workers_leave_the_shards_as_they_are(tmp_path, waits):
    cohort = whole(made.made_up_cohort()).reset_index(drop=True)
    run = Run(tmp_path, cohort)
    expected = run.ingest(IN_PROCESS)
    others = set(psutil.Process().children(recursive=True))
    with local_cluster(2, tmp_path / "scratch") as client:
        killed = threading.Event()

        def kill_all():
            # As soon as pieces are there.
            for wait in waits:
                while not list(tmp_path.glob("private-*/r-1/piece-*")) and not killed.is_set():
                    time.sleep(0.01)
                time.sleep(wait)
                kill_spawned(others)
            killed.set()

        thread = threading.Thread(target=kill_all)
        thread.start()
        shards = run.ingest(DaskExecutor(client, "r-4"))
        killed.set()
        thread.join()
    assert shards == expected
