"""The same request from eight processes at once: one measures, the others get its release."""

from collections import Counter

import forced_release as forced


def test_eight_identical_requests_draw_each_statistic_once(tmp_path):
    installation = forced.Installation(tmp_path / "installation")
    site = forced.Tables(tmp_path)(0)
    runs = [installation.start(site) for _ in range(8)]
    answers = [run.answer() for run in runs]
    assert [answer.get("state") for answer in answers] == ["published"] * 8, answers
    assert len({answer["release_id"] for answer in answers}) == 1
    assert len({answer["bundle"] for answer in answers}) == 1
    assert sorted(answer["reused"] for answer in answers) == [False] + [True] * 7

    [(measured, drawn)] = installation.drawn().items()
    assert drawn == Counter({"feature_by_label_histograms": 1})
    [entry] = installation.entries().values()
    assert (entry.release_id, entry.state.value) == (measured, "published")
    assert measured == answers[0]["release_id"]
    charged = {answer["charged_rho"] for answer in answers}
    assert charged == {"0", f"{entry.rho:f}"}
    assert installation.ledger.balance(entry.cohort).spent_rho == entry.rho
    assert installation.damages() == []
    assert installation.leftovers() == []
