"""Secret coins: independent, at the planned rate, one per patient, the same when asked again."""

import hashlib
import re
from dataclasses import replace
from fractions import Fraction

import pytest

from tasks.measurement.sampling import PoissonCoins, arguments_of_shard

KEY = bytes(range(32))


def coins(**changes):
    fields = {"key": KEY, "probability": 0.25, "first_draw": 0, "n_draws": 3, "shard": "a"}
    return PoissonCoins(**{**fields, **changes})


@pytest.mark.parametrize("probability", [0.001, 0.25, 0.9, 1.0])
@pytest.mark.parametrize("other", [{}, {"shard": "b"}, {"key": KEY[::-1]}, {"first_draw": 5}])
def test_coins_are_the_documented_stream(probability, other):
    # The slow reference: one patient, one draw, from the definition.
    drawn = coins(probability=probability, **other)
    stem = drawn.key + hashlib.sha256(drawn.shard.encode()).digest()
    for draw, found in enumerate(drawn.included(2_000), drawn.first_draw):
        stream = hashlib.shake_256(stem + draw.to_bytes(8, "big")).digest(16_000)
        expected = [
            Fraction(int.from_bytes(stream[at : at + 8], "big"), 2**64) < Fraction(probability)
            for at in range(0, 16_000, 8)
        ]
        assert found.tolist() == expected


def test_all_rows_of_a_patient_share_the_coin(small):
    rows = small.rows(small.patients(20, 0))
    drawn = coins(n_draws=50)
    members = drawn.included(20)
    for draw, index in enumerate(drawn.rows(rows)):
        expected = [i for i, patient in enumerate(rows.patient) if members[draw, patient]]
        assert index.tolist() == expected


def test_arguments_are_bound_to_their_shard():
    public = {"coins": coins(shard=None), "other": 1}
    bound = arguments_of_shard(public, "a")
    assert bound == {"coins": coins(), "other": 1}
    assert public["coins"].shard is None
    assert arguments_of_shard({"other": 1}, "a") == {"other": 1}


def test_key_is_not_shown():
    assert KEY.hex() not in repr(coins())
    assert repr(KEY) not in repr(coins())


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"key": b"short"}, "expected a key of 32 bytes, found 5"),
        *(
            ({"probability": wrong}, f"expected a probability above 0 and at most 1, found {wrong}")
            for wrong in (0.0, 1.1, float("nan"))
        ),
        ({"shard": None}, "expected coins of a named shard; two shards may not share coins"),
    ],
)
def test_bad_coins_are_refused(changes, text):
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        coins(**changes).included(3)


def test_rows_without_patients_are_refused(small):
    text = "^expected the patient of every row, so that a patient has one coin$"
    with pytest.raises(ValueError, match=text):
        list(coins().rows(replace(small.rows([]), patient=None)))
