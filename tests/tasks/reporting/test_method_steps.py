from types import SimpleNamespace

import pytest

from privacy.events import Gaussian, Repeated, event_to_dict
from tasks.methods.registry import METHODS
from tasks.reporting import facts
from tasks.reporting.facts import steps


def manifest_of(kind):
    return SimpleNamespace(method=SimpleNamespace(name=kind), events=())


@pytest.mark.parametrize("kind", [entry.kind for entry in METHODS])
def test_every_method_has_steps_of_its_own(kind):
    first, *own, last = steps(manifest_of(kind)).items()
    assert (first[0], last[0]) == ("Encode", "Decode and check")
    others = [steps(manifest_of(entry.kind)) for entry in METHODS if entry.kind != kind]
    assert own
    assert steps(manifest_of(kind)) not in others
    for title, text in own:
        assert title[0].isupper()
        assert text.endswith(".")


def test_a_repeated_draw_is_one_row_of_the_table_of_noise():
    draw = Gaussian(statistic="gradients", l2_sensitivity=2.0, noise_stddev=60.0, n_values=1000)
    events = (event_to_dict(Repeated(event=draw, count=30)),)
    [row] = facts.noise_table(SimpleNamespace(events=events)).rows
    assert row == ("gradients", "discrete Gaussian, 30 times", "1,000", "2", "60", "30.00")
