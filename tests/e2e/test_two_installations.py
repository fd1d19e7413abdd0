"""Two installations on one machine do not meet."""

import pytest
from hospital import WARD

from privacy.ledger import EntryState

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def test_two_installations_release_at_once(hospital):
    both = [hospital("sqlite"), hospital("postgres")]
    before = [set(one.entries()) for one in both]
    for one in both:
        one.change_source(WARD, 500)
    runs = [one.request("measure", "on-demand", dataset=WARD) for one in both]
    for one, run in zip(both, runs, strict=True):
        assert one.wait_for_run(run).state == "COMPLETED"
        one.wait_until_quiet()
    new = [set(one.entries()) - known for one, known in zip(both, before, strict=True)]
    assert [len(ids) for ids in new] == [1, 1]
    assert new[0] != new[1]
    for one, other, (release_id,) in zip(both, reversed(both), new, strict=True):
        assert one.entries()[release_id].state is EntryState.PUBLISHED
        one.verify(release_id)
        bundle = one.releases / WARD / release_id
        assert other.try_command("verify", str(bundle)).returncode != 0
        assert not other.runs_of(f"{WARD}/{release_id}")
        assert one.damages() + one.leftovers() == []
