import resource
from contextlib import contextmanager
from unittest import mock

import made_up_release as made
import pytest

from flows.cli import main
from privacy.errors import ClustMixError, Withheld
from storage.releases.measurements import MeasurementStore
from tasks.steps import ingest_steps


@contextmanager
def files_up_to(n_bytes):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def unsealed():
    failing = mock.Mock(side_effect=OSError(27, "File too large"))
    return mock.patch.object(MeasurementStore, "seal", failing)


def states(site):
    return [entry.state.value for entry in site.ledger.entries()]


def test_a_limit_of_files_is_found_before_the_charge(installation, site):
    site_file = made.write_site(installation, method=made.SMALL_CLUSTMIX)
    with files_up_to(190_000), pytest.raises(ClustMixError, match="File too large") as refused:
        made.release_without_engine(site_file)
    assert refused.value.code == "SEAL_UNWRITABLE"
    assert "nothing is charged" in str(refused.value)
    assert states(site) == []
    assert list((installation / "home" / "measurements").iterdir()) == []
    assert made.release_without_engine(site_file).state == "published"


def test_a_limit_that_comes_while_rows_are_read_is_given_back(installation, site, monkeypatch):
    ingest, before = ingest_steps.bound, resource.getrlimit(resource.RLIMIT_FSIZE)

    def bound(*arguments):
        shards = ingest(*arguments)
        resource.setrlimit(resource.RLIMIT_FSIZE, (190_000, before[1]))
        return shards

    monkeypatch.setattr(ingest_steps, "bound", bound)
    try:
        with pytest.raises(ClustMixError, match="SEAL_UNWRITABLE"):
            made.release_without_engine(made.write_site(installation))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert states(site) == ["void"]


@pytest.mark.parametrize("change", [{}, {"cohort": made.made_up_cohort().head(-1)}])
@pytest.mark.parametrize("new_draw", [False, True])
def test_a_burned_charge_is_not_followed_by_another(installation, site, change, new_draw):
    site_file = made.write_site(installation)
    with unsealed(), pytest.raises(ClustMixError, match="seal:OSError") as failed:
        made.release_without_engine(site_file)
    [burned] = site.ledger.entries()
    assert failed.value.message.endswith("; the charge of epsilon 1 stands")
    # A check, which is given back, is no charge between.
    assert main(["check", str(site_file)]) == 0
    site_file = made.write_site(installation, **change)
    for _ in range(2):
        with pytest.raises(Withheld, match="BURNED_BEFORE") as withheld:
            made.release_without_engine(site_file, new_draw=new_draw)
        assert burned.release_id in str(withheld.value)
        assert "--again" in str(withheld.value)
    assert states(site) == ["burned", "void"]
    assert made.release_without_engine(site_file, again=True).state == "published"
    assert made.release_without_engine(site_file, new_draw=True).state == "published"


def test_another_dataset_or_part_is_not_held_up(installation):
    def part(number):
        split = {"scheme": "by-hash", "parts": 2, "part": number}
        return {"privacy_unit": {"partition": split}}

    with unsealed(), pytest.raises(ClustMixError, match="seal:OSError"):
        made.release_without_engine(made.write_site(installation, **part(0)))
    with pytest.raises(Withheld, match="BURNED_BEFORE"):
        made.release_without_engine(made.write_site(installation, **part(0)))
    assert made.release_without_engine(made.write_site(installation, **part(1))).state
    other = made.write_site(installation, dataset="second")
    assert made.release_without_engine(other).state == "published"


def test_a_sealed_measurement_is_gone_on_with_whatever_burned_since(after_a_release, site):
    site_file = after_a_release / "site.yaml"
    with unsealed(), pytest.raises(ClustMixError, match="seal:OSError"):
        made.release_without_engine(site_file, new_draw=True)
    assert made.release_without_engine(site_file).reused
    assert states(site) == ["published", "burned"]
