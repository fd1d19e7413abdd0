import hashlib
import os
from decimal import Decimal
from pathlib import Path

import made_up_release as made
import pandas as pd
import pytest

from flows.release import release_cohort, run_release
from flows.site.request import SiteRequest, load_job
from privacy.errors import BudgetRefused, ClustMixError, ConfigurationError
from privacy.events import Composed, event_to_dict
from privacy.gaussian import GaussianAccountant
from privacy.parameters import Adjacency
from storage.keys.key_store import KeyStore
from storage.ledger.ledger_db import LedgerDatabase
from storage.releases.bundles import verify_bundle
from storage.settings import load_settings
from tasks.ingest.shards import ShardFile
from tasks.reporting.claim import Claim
from tasks.steps import ingest_steps


def stored_by_orchestrator():
    return sorted(Path(os.environ["PREFECT_HOME"], "storage").glob("**/*"))


def ask(site, *, new_draw=False):
    return SiteRequest(site_file=str(site), dataset="made-up", new_draw=new_draw)


def trusted(installation):
    return KeyStore(installation / "home" / "keys").pipeline_public()


def test_release_is_published_and_adds_up(installation):
    site = made.write_site(installation, method=made.SMALL_CLUSTMIX)
    stored, request = stored_by_orchestrator(), ask(site)
    outcome = run_release(request)
    job = load_job(request, sites=load_settings().sites, requester=None)

    assert outcome.release_id == request.release_id
    bundle = installation / "releases" / "made-up" / request.release_id
    assert Path(outcome.bundle) == bundle
    verified = verify_bundle(bundle, trusted=trusted(installation))
    manifest = verified.manifest
    assert outcome.guarantee == manifest.guarantee == Claim(manifest).statement

    # The draws are the planned ones, each once, and cost no more than what was asked for.
    plan = job.synthesizer.plan(mu=job.mu)
    assert manifest.events == tuple(event_to_dict(event) for event in plan.event.events)
    assert len(manifest.events) == 5
    assert 0.99 < manifest.epsilon <= 1.0
    spent = GaussianAccountant(adjacency=Adjacency.ADD_REMOVE).compose(
        Composed(events=plan.event.events)
    )
    assert manifest.mu == pytest.approx(spent.mu, rel=1e-12)
    assert manifest.mu <= job.mu

    ledger = LedgerDatabase(installation / "home" / "ledger.sqlite")
    ledger.verify()
    (entry,) = ledger.entries()
    assert (entry.state, entry.release_id) == ("published", request.release_id)
    assert entry.entry_id == manifest.ledger_entry
    assert entry.digest == verified.manifest_sha256
    assert entry.digest == hashlib.sha256((bundle / "manifest.json").read_bytes()).hexdigest()
    assert entry.rho == Decimal(outcome.charged_rho) == job.charge_rho
    assert entry.rho >= Decimal(manifest.rho)
    states = [row.state.value for row in ledger.history()]
    assert states == ["reserved", "executing", "sealed", "approved", "published"]

    rows = pd.read_parquet(bundle / "synthetic.parquet")
    assert list(rows.columns) == ["age", "lactate", "ward", "smoker", "died"]
    assert len(rows) == 300
    assert set(rows["died"]) == {"no", "yes"}
    assert rows["age"].between(0, 100).all()
    assert set(rows["smoker"]) <= {"y", "n", "?"}

    assert [path.name for path in (installation / "home" / "private").iterdir()] == [".lock"]
    assert stored_by_orchestrator() == stored


def test_refusal_comes_before_a_row_is_read(installation, monkeypatch):
    site = made.write_site(installation, lifetime_epsilon=1.0)
    run_release(ask(site))
    read = []
    monkeypatch.setattr(ingest_steps.CohortReader, "chunks", lambda *_, **__: read.append(1))
    with pytest.raises(BudgetRefused):
        run_release(ask(site, new_draw=True))
    assert read == []


def test_failed_flow_is_a_state_with_public_text(installation):
    site = made.write_site(installation, cohort=made.made_up_cohort().assign(died="zebra-label"))
    stored = stored_by_orchestrator()
    state = release_cohort(ask(site), return_state=True)
    assert state.is_failed()
    assert state.name == "Failed"
    assert "died" in state.message
    assert "zebra" not in state.message
    assert stored_by_orchestrator() == stored
    ledger = LedgerDatabase(installation / "home" / "ledger.sqlite")
    assert [entry.state.value for entry in ledger.entries()] == ["void"]


def test_nothing_escapes_the_flow_before_the_run_begins(installation, monkeypatch):
    site = made.write_site(installation)
    stored, request = stored_by_orchestrator(), ask(site)
    monkeypatch.setenv("CLUSTMIX_DASK_WORKERS", "zebra")
    with pytest.raises(ClustMixError, match=r"INVALID_SETTING: .*_DASK_WORKERS") as caught:
        run_release(request)
    assert "zebra" not in str(caught.value)
    assert isinstance(caught.value, ConfigurationError)
    assert caught.value.__context__ is None
    assert stored_by_orchestrator() == stored


def test_release_id_names_a_folder_and_nothing_else():
    # It is part of a path before the body of the flow has run.
    with pytest.raises(ValueError, match="release_id"):
        SiteRequest(site_file="site.yaml", dataset="made-up", release_id="../../elsewhere")


@pytest.mark.parametrize("spelling", ["same", "mixed"])
def test_patient_spelled_in_two_ways_is_one_patient(installation, monkeypatch, spelling):
    """The weights of a patient sum to one, however the source stores the key."""
    cohort = made.made_up_cohort().head(200)
    cohort["patient"] = [str(number % 50) for number in range(200)]
    if spelling == "mixed":
        cohort["patient"] = [
            name if row % 2 else f" {name} " for row, name in enumerate(cohort["patient"])
        ]
    site = made.write_site(installation, cohort=cohort)
    totals, spread = [], ingest_steps.bound

    def bound(*arguments):
        paths = spread(*arguments)
        totals.append(sum(ShardFile(path).load().weight.sum() for path in paths))
        return paths

    monkeypatch.setattr(ingest_steps, "bound", bound)
    made.release_without_engine(site)
    assert totals == [pytest.approx(50.0)]
