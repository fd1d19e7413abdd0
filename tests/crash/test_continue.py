"""A training that is killed goes on where it stopped: nothing is drawn twice, one charge."""

from collections import Counter
from dataclasses import replace
from unittest import mock

import forced_installation as forced
import made_up_release as made
import pytest

from privacy.ledger import EntryState
from storage.ledger.ledger_db import LedgerDatabase, Reservation
from tasks.steps.entries import Entries

pytestmark = pytest.mark.integration

STOPPED_ID = "r-20250101-0badcafe"
SMALL_DPGM = {
    "kind": "dpgm", "clusters": 2, "clustering_rounds": 1, "fourier_features": 4,
    "hidden_units": 2, "latent_dimensions": 1, "epochs": 3, "sampling_probability": 0.5,
    "norm_bins": 4, "min_cluster_size": 1,
}  # fmt: skip

# Where the run dies: whether the next run of the same request goes on with it, or what is left.
POINTS = {
    "ingest": "void",
    "clustering": True,
    "train-02-of-03": True,
    "train-03-of-03": True,
    "seal": True,
    "a draw that was not sealed": "burned",
    "the second draw of an epoch": True,
}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return made.write_site(tmp_path_factory.mktemp("sites"), method=SMALL_DPGM)


def draws_in(path):
    return Counter(draw["statistic"] for draw in forced.draws_in(path))


@pytest.mark.parametrize("point", POINTS)
def test_next_run_goes_on_and_draws_the_rest(dies, site, tmp_path, monkeypatch, point):
    environment, draws = made.environment_of(tmp_path), tmp_path / "draws.jsonl"
    dies(made.release_and_die, environment, str(site), STOPPED_ID, point, str(draws))
    first = draws_in(draws)
    made.install(monkeypatch, tmp_path)
    with made.record_draws(draws):
        outcome = made.release_without_engine(site)
    both = draws_in(draws)
    planned = Counter({"kmeans_round_01": 1, "gradients": 6})
    ledger = LedgerDatabase(tmp_path / "home" / "ledger.sqlite")
    states = {entry.release_id: entry.state.value for entry in ledger.entries()}
    if POINTS[point] is True:
        assert states == {STOPPED_ID: "published"}
        assert outcome.release_id == STOPPED_ID
        # Every planned draw once, over both runs together.
        assert {both[name] for name in both if name != "gradients"} == {1}
        assert planned <= both
        assert both["gradients"] == planned["gradients"]
    else:
        assert states == {STOPPED_ID: POINTS[point], outcome.release_id: "published"}
        assert (both - first)["gradients"] == planned["gradients"]
    verified = made.verified(tmp_path, outcome.release_id)
    assert verified.manifest.accountant == "approximate_gaussian"
    home = tmp_path / "home"
    assert [path.name for path in (home / "private").iterdir()] == [".lock"]
    kept = home / "checkpoints"
    assert not kept.exists() or list(kept.iterdir()) == []


def test_a_run_that_comes_too_late_draws_nothing(site, tmp_path, monkeypatch):
    """The entry was seen open; when the lock is held, another run has gone on to the end."""
    made.install(monkeypatch, tmp_path)
    draws = tmp_path / "draws.jsonl"
    made.release_without_engine(site, release_id=STOPPED_ID)
    [entry] = LedgerDatabase(tmp_path / "home" / "ledger.sqlite").entries()
    seen = Reservation(entry=replace(entry, state=EntryState.EXECUTING), created=False)
    with (
        made.record_draws(draws),
        mock.patch.object(LedgerDatabase, "reserve", return_value=seen),
        mock.patch.object(Entries, "can_continue", return_value=True),
    ):
        outcome = made.release_without_engine(site)
    assert outcome.release_id == STOPPED_ID
    assert draws_in(draws) == Counter()
    [entry] = LedgerDatabase(tmp_path / "home" / "ledger.sqlite").entries()
    assert entry.state is EntryState.PUBLISHED
