import json
import os
from contextlib import ExitStack
from types import SimpleNamespace
from unittest import mock

import made_up_release as made
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fixed_runs import Randomness, fixed_randomness
from forced_release import DyingShard
from waiting import kill_spawned

from benchmarks.in_process import SeededNoise
from flows.site.request import SiteRequest, load_job
from privacy.errors import Withheld
from storage.keys.key_store import KeyStore
from storage.ledger import ledger_db
from storage.ledger.ledger_db import LedgerDatabase
from storage.releases.manifest import MANIFEST_FILE
from storage.releases.measurements import MeasurementStore
from storage.releases.release_store import ReleaseStore
from tasks.execution.runtime import listen_to_stages
from tasks.ingest.shards import ShardFile
from tasks.measurement import curator
from tasks.measurement.curator import Curator
from tasks.measurement.method import measure
from tasks.steps import ingest_steps

pytestmark = pytest.mark.integration

RELEASE_ID = "r-20250101-00c0ffee"
METHOD = made.SMALL_CLUSTMIX

# For a ledger whose entry ids do not differ from run to run.
FIXED_ENTRY_IDS = SimpleNamespace(**{**vars(os), "urandom": bytes})


def randomness(seed):
    return Randomness(noise_source=SeededNoise(seed), sampling=np.random.default_rng([seed, 2]))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return made.write_site(tmp_path_factory.mktemp("site"), method=METHOD)


@pytest.fixture(scope="module")
def run_with(tmp_path_factory, site):
    runs = {}

    def run(*, dask_workers, seed=1, site=site, killing=None):
        key = (dask_workers, seed, site, killing)
        if key in runs:
            return runs[key]
        kept = SimpleNamespace(folder=tmp_path_factory.mktemp("run"))
        bound = ingest_steps.bound

        def keep_shards(*arguments):
            paths = bound(*arguments)
            kept.shards = [ShardFile(path).load() for path in paths]
            return paths

        def keep_files(store, files, manifest, **signatures):
            kept.files = {**files, MANIFEST_FILE: manifest.to_bytes()}
            raise Withheld("KEPT", "kept by the test")

        with (
            pytest.MonkeyPatch.context() as patch,
            fixed_randomness(randomness(seed)),
            ExitStack() as disturbances,
        ):
            if killing is not None:
                kill_workers(disturbances, killing)
            made.install(patch, kept.folder, dask_workers=dask_workers)
            patch.setattr(ledger_db, "os", FIXED_ENTRY_IDS)
            patch.setattr(KeyStore, "ledger_secret", lambda store: bytes(32))
            patch.setattr(ingest_steps, "bound", keep_shards)
            patch.setattr(ReleaseStore, "publish", keep_files)
            with pytest.raises(Withheld, match="KEPT"):
                made.release_without_engine(site, release_id=RELEASE_ID)
        measurements = MeasurementStore(kept.folder / "home" / "measurements")
        kept.released = measurements.open(RELEASE_ID).released
        runs[key] = kept
        return kept

    return run


def kill_workers(stack, folder):
    """Kill the worker of the first item of each statistic, and all where a stage begins."""

    def kill_all(name, seconds):
        if (name, seconds) == ("constrained-gmm", None) and kill_spawned(set()):
            (folder / "all").touch()

    dying = DyingShard(str(folder))
    stack.enter_context(mock.patch.object(curator, "contribution_of_shard", dying))
    stack.enter_context(listen_to_stages(kill_all))


@pytest.fixture(scope="module")
def parquet_site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parquet")
    table = folder / "cohort"
    table.mkdir()
    cohort = pa.Table.from_pandas(made.made_up_cohort(), preserve_index=False)
    for number in range(3):
        rows = cohort.slice(700 * number, 700)
        pq.write_table(rows, table / f"{number}.parquet", row_group_size=150)
    source = {"kind": "parquet", "path": str(table)}
    return made.write_site(folder, method=METHOD, source=source)


@pytest.mark.parametrize(
    "dask_workers", [2, *(pytest.param(n, marks=pytest.mark.soak) for n in (1, 4))]
)
def test_files_are_the_same_bytes_where_workers_were_killed(
    run_with, parquet_site, tmp_path, dask_workers
):
    """A second draw would fail, as a seal is written once, and change all noise after it."""
    killed = run_with(dask_workers=dask_workers, site=parquet_site, killing=tmp_path)
    died = {path.name for path in tmp_path.iterdir()}
    assert died == {"all", *made.CONTRIBUTIONS}
    local = run_with(dask_workers=0, site=parquet_site)
    assert local.files.keys() == killed.files.keys()
    assert len(local.files) == 13
    assert [name for name in local.files if local.files[name] != killed.files[name]] == []


def test_other_randomness_gives_other_files(run_with):
    # Otherwise the comparison above could hold for want of noise.
    one, other = run_with(dask_workers=0), run_with(dask_workers=0, seed=2)
    assert json.loads(one.files[MANIFEST_FILE])["tainted"] is True
    assert one.files["synthetic.csv"] != other.files["synthetic.csv"]
    assert one.files["schema.json"] == other.files["schema.json"]


@pytest.mark.parametrize("dask_workers", [0, 2])
def test_released_arrays_are_those_of_the_serial_reference(run_with, site, dask_workers):
    kept = run_with(dask_workers=dask_workers)
    job = load_job(
        SiteRequest(site_file=str(site), dataset="made-up"), sites=site.parent, requester=None
    )
    curator = Curator(
        plan=job.synthesizer.plan(mu=job.mu), shards=kept.shards, noise_source=SeededNoise(1)
    )
    reference = measure(job.synthesizer, curator)
    assert reference.keys() == kept.released.keys()
    for name, array in reference.items():
        np.testing.assert_array_equal(kept.released[name], array, err_msg=name)


def test_run_with_fixed_randomness_is_never_published(site, tmp_path, monkeypatch):
    made.install(monkeypatch, tmp_path)
    with (
        fixed_randomness(randomness(1)),
        pytest.raises(Withheld, match="TAINTED: the noise came from a source for tests"),
    ):
        made.release_without_engine(site)
    (entry,) = LedgerDatabase(tmp_path / "home" / "ledger.sqlite").entries()
    assert (entry.state.value, entry.counts) == ("withheld", True)
    assert list((tmp_path / "releases").glob("*/*")) == []
