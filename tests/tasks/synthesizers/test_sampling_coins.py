"""Secret coins: independent, at the planned rate, one per patient, the same when asked again."""

import hashlib
import re
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from tasks.measurement.encoded import EncodedRows
from tasks.measurement.sampling import PoissonCoins, arguments_of_shard

KEY = bytes(range(32))


def coins(**changes):
    fields = {"key": KEY, "probability": 0.25, "first_draw": 0, "n_draws": 3, "shard": "a"}
    return PoissonCoins(**{**fields, **changes})


def rows_of(patients):
    n = len(patients)
    return EncodedRows(
        codes=np.zeros((n, 1), dtype=np.uint16),
        label=np.zeros(n, dtype=np.uint16),
        weight=np.ones(n),
        fold=np.zeros(n, dtype=np.uint8),
        patient=np.array(patients, dtype=np.uint32),
    )


def test_coins_are_the_documented_stream():
    # The slow reference: one patient, one draw, from the definition.
    stem = KEY + hashlib.sha256(b"a").digest()
    found = coins(first_draw=5, n_draws=2).included(4)
    for row, draw in enumerate((5, 6)):
        stream = hashlib.shake_256(stem + draw.to_bytes(8, "big")).digest(32)
        for patient in range(4):
            number = int.from_bytes(stream[8 * patient : 8 * patient + 8], "big")
            assert found[row, patient] == (number < 2**62)


def test_the_same_coins_are_found_again_and_no_others():
    first = coins().included(1000)
    assert (coins().included(1000) == first).all()
    assert (coins(first_draw=1, n_draws=2).included(1000) == first[1:]).all()
    for other in (coins(shard="b"), coins(key=KEY[::-1]), coins(first_draw=3)):
        agree = (other.included(1000) == first).mean()
        # 0.625 is expected of independent coins; 10 standard deviations on either side.
        assert abs(agree - 0.625) < 10 * np.sqrt(0.625 * 0.375 / 3000)


@pytest.mark.parametrize("probability", [0.001, 0.25, 0.9])
def test_rate_and_independence(probability):
    shown = coins(probability=probability, n_draws=40).included(5000)
    # Two-sided at 1e-6; a rate off by 10 % at 0.25 is found with probability above 0.999.
    assert stats.binomtest(int(shown.sum()), shown.size, probability).pvalue > 1e-6
    both = int((shown[:-1] & shown[1:]).sum())
    assert stats.binomtest(both, shown[1:].size, probability**2).pvalue > 1e-6
    neighbours = int((shown[:, :-1] & shown[:, 1:]).sum())
    assert stats.binomtest(neighbours, shown[:, 1:].size, probability**2).pvalue > 1e-6


def test_all_rows_of_a_patient_share_the_coin():
    rows = rows_of([0, 1, 1, 2, 0, 3, 3, 3])
    drawn = coins(n_draws=50)
    members = drawn.included(4)
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
        ({"probability": 0.0}, "expected a probability above 0 and at most 1, found 0.0"),
        ({"probability": 1.1}, "expected a probability above 0 and at most 1, found 1.1"),
        ({"probability": float("nan")}, "expected a probability above 0 and at most 1, found nan"),
    ],
)
def test_bad_coins_are_refused(changes, text):
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        coins(**changes)


def test_coins_without_a_shard_or_patients_are_refused():
    text = "^expected coins of a named shard; two shards may not share coins$"
    with pytest.raises(ValueError, match=text):
        coins(shard=None).included(3)
    rows = replace(rows_of([0]), patient=None)
    text = "^expected the patient of every row, so that a patient has one coin$"
    with pytest.raises(ValueError, match=text):
        list(coins().rows(rows))
