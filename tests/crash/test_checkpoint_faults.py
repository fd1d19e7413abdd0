"""A measurement whose process ends at any write goes on to the same bytes, or is burned."""

from types import SimpleNamespace

import numpy as np
import pytest
from failing_disk import Killed, writes

from privacy.errors import IntegrityError
from privacy.randomness import SeededNoise
from storage.releases.checkpoints import CheckpointStore
from storage.releases.measurements import arrays_to_bytes
from tasks.measurement.curator import Curator
from tasks.measurement.method import Stage
from tasks.measurement.method import measure as measure_stages
from tasks.measurement.plan import SelectionRequest, StatisticRequest, plan_measurement
from tasks.steps.measure_steps import CheckpointSeals

RELEASE_ID = "r-20260101-0badcafe"
MOST_RUNS = 30
N_DRAWS = 7
GRID = {"l2_sensitivity": 1000.0, "scale": 1000, "share": 1.0}
PLAN = plan_measurement(
    [
        StatisticRequest(name="first_sums", shape=(2,), **GRID),
        SelectionRequest(name="best_of", n_candidates=3, score_sensitivity=1000, share=1.0),
        StatisticRequest(name="gradients", shape=(2,), n_draws=4, **GRID),
        StatisticRequest(name="last_sums", shape=(2,), **GRID),
    ],
    mu=1.0,
)


class KilledBetweenDraws(Killed):
    """The process ends while a stage is being kept: no draw is under way."""


def sums(coins=None):
    return np.zeros(2 if coins is None else (1, 2), dtype=np.int64)


class Method:
    """Every kind of draw; three stages that leave their progress, and one that does not."""

    def stages(self, *, mu):
        return (
            Stage(name="start", run=self._start, checkpoint=True),
            Stage(name="train-1", run=self._train, checkpoint=True),
            Stage(name="train-2", run=self._train, checkpoint=True),
            Stage(name="end", run=lambda curator, _: {"end": curator.release("last_sums", sums)}),
        )

    def _start(self, curator, released):
        def scores():
            return np.arange(3, dtype=np.int64)

        weights = curator.release("first_sums", sums)
        chosen = curator.select("best_of", scores, centre=np.zeros(3, dtype=np.int64))
        return {"weights": weights, "chosen": np.array(chosen)}

    def _train(self, curator, released):
        weights = released["weights"]
        for _ in range(2):
            weights = weights / 2 + curator.release_sample("gradients", sums, 1)[0]
        return {"weights": weights}


EXECUTOR = SimpleNamespace(
    sum=lambda function, shards, public: public["contribution"](**public["public"])
)


def measure(store, noise, made):
    """Do what a run does between reading the rows and sealing; note each draw that was made."""
    seals = CheckpointSeals(store.open(RELEASE_ID), PLAN)

    def seal(name, drawn):
        assert name not in made, "a second draw"
        made[name] = drawn.values if hasattr(drawn, "values") else np.array([drawn.index])
        seals(name, drawn)

    curator = Curator(
        plan=PLAN,
        shards=(),
        executor=EXECUTOR,
        noise_source=noise,
        seal=seal,
        announce=seals.announce,
        drawn=seals.progress.drawn,
        sealed=seals.sealed,
    )

    def finished(stage, number, released):
        try:
            seals.finish_stage(stage, number, released, curator)
        except Killed:
            raise KilledBetweenDraws from None

    released = measure_stages(
        Method(),
        curator,
        mu=1.0,
        finished=finished,
        n_finished=seals.progress.stages,
        released=seals.progress.released,
    )
    return arrays_to_bytes(released), dict(sorted(seals.files.items()))


def undisturbed(made):
    """Return what a run makes of the same draws that nobody disturbs."""
    curator = Curator(
        plan=PLAN, shards=(), executor=EXECUTOR, noise_source=SeededNoise(0), sealed=made
    )
    released = {}
    for stage in Method().stages(mu=1.0):
        released = {**released, **stage.run(curator, released)}
    kept = {
        f"sealed-{name.replace('_', '-')}.npz": arrays_to_bytes(
            {"index" if name == "best_of" else "values": values}
        )
        for name, values in made.items()
        if not name.startswith("gradients")
    }
    return arrays_to_bytes(released), dict(sorted(kept.items()))


def end_of(store, *, end_at):
    """Let run after run die at its write of this number; return how the measurement ends."""
    noise, made = SeededNoise(end_at), {}
    for _ in range(MOST_RUNS):
        try:
            with writes(end_at):
                result = measure(store, noise, made)
        except Killed as killed:
            if store.can_continue(RELEASE_ID):
                continue
            ends = killed
        else:
            assert result == undisturbed(made)
            assert len(made) == N_DRAWS
            return "goes on"
        assert not isinstance(ends, KilledBetweenDraws)
        if store.release_ids():
            with pytest.raises(IntegrityError, match=r"DRAW_LOST: .* nothing is drawn twice"):
                measure(store, noise, made)
        return "burned"
    raise AssertionError("the runs came to no end")


def test_a_process_may_end_at_every_write(tmp_path):
    with writes() as whole:
        measure(CheckpointStore(tmp_path / "whole"), SeededNoise(0), {})
    ends = [
        end_of(CheckpointStore(tmp_path / str(end_at)), end_at=end_at)
        for end_at in range(1, whole.n_calls + 1)
    ]
    assert set(ends) == {"goes on", "burned"}
