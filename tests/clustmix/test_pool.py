import re
import runpy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import clustmix
from clustmix import DPCDA, ClustMix, NaiveBayes, Synthesizer
from privacy.errors import ConfigurationError

SETTINGS = {"epsilon": 1.0, "delta": 1e-6, "patient_column": "patient", "max_rows_per_patient": 2}


def halves(make, schema, frame):
    return [
        make(schema, **SETTINGS, patients=500, parts=2).fit(part)
        for part in (frame[:1000], frame[1000:])
    ]


@pytest.mark.parametrize("make", [ClustMix, NaiveBayes])
def test_a_pool_has_the_guarantee_of_its_largest_part_only_on_a_stated_assumption(
    schema, frame, make
):
    first, second = halves(make, schema, frame)
    summed, disjoint = (clustmix.pool([first, second], disjoint=given) for given in (False, True))
    assert summed.guarantee_.mu == pytest.approx(np.sqrt(2.0) * first.guarantee_.mu)
    assert "assumption that no patient is in two" not in str(summed.guarantee_)
    assert disjoint.guarantee_.mu == pytest.approx(first.guarantee_.mu)
    assert "assumption that no patient is in two" in str(disjoint.guarantee_)
    assert len(disjoint.sample()) == 1_000  # the declared patients of both
    for refused in (lambda: disjoint.save("x"), lambda: clustmix.pool([first, disjoint])):
        with pytest.raises(ConfigurationError, match=r"POOL_NOT_SAVED|PARTS_POOLED"):
            refused()


def test_a_loaded_model_is_pooled_and_drawn_again_as_the_one_that_was_saved(
    schema, frame, tmp_path
):
    model = ClustMix(schema, **{**SETTINGS, "epsilon": 4.0}).fit(frame)
    model.save(tmp_path / "a.clustmix")
    loaded = Synthesizer.load(tmp_path / "a.clustmix")
    assert loaded.released_.keys() == model.released_.keys()
    same = clustmix.pool([loaded])
    assert same.guarantee_ == model.guarantee_
    for name, values in same.released_.items():
        np.testing.assert_allclose(values, model.released_[name], atol=1e-3, err_msg=name)
    found, same_found = (
        clustmix.contrast(one, "odds_ratio", "died=yes", by="ward=A") for one in (model, loaded)
    )
    assert found == same_found
    assert 0.0 < found.low < found.estimate < found.high
    draws = loaded.draws(3)
    shares = np.array([one.released_["label_shares"] for one in draws])
    assert (shares.std(axis=0) > 0).all()
    assert np.abs(shares - model.released_["label_shares"]).max() < 0.2
    interval = clustmix.combine([model.released_["label_shares"][1], *shares[:, 1]], [1e-4] * 4)
    assert interval.low < interval.estimate < interval.high
    pd.testing.assert_index_equal(draws[0].sample(5).columns, model.sample(5).columns)


def test_what_differs_is_named_and_nothing_else_is_pooled(schema, frame):
    model = NaiveBayes(schema, **SETTINGS).fit(frame)
    other = schema.model_dump(mode="json")
    other["columns"][0]["upper"] = 120
    with pytest.raises(
        ConfigurationError, match=r"schema\.columns\[age\]\.upper differs: 99.0 and 120"
    ):
        clustmix.pool([model, NaiveBayes(clustmix.Schema(**other), **SETTINGS).fit(frame)])
    with pytest.raises(ConfigurationError, match="delta differs"):
        clustmix.pool([model, NaiveBayes(schema, **{**SETTINGS, "delta": 1e-7}).fit(frame)])
    with pytest.raises(ConfigurationError, match="PARTS_TWICE"):
        clustmix.pool([model, model])
    with pytest.raises(ConfigurationError, match="PARTS_TWICE"):
        clustmix.pool([])
    with pytest.raises(ConfigurationError, match="NOT_POOLABLE"):
        DPCDA(schema, **SETTINGS, declared_patients=1_000).fit(frame).draws()


def test_the_example_finds_what_is_true_within_its_intervals(capsys):
    runpy.run_path(str(Path(clustmix.__file__).parents[1] / "examples" / "conclusions.py"))
    printed = capsys.readouterr().out
    assert "assumption that no patient is in two" in printed
    found = re.findall(r"(\S+) \(95 % interval (\S+) to (\S+)\)", printed)
    ratios, age = [[float(v) for v in one] for one in found[:2]], [float(v) for v in found[2]]
    for estimate, low, high in ratios:
        assert low < estimate < high
        assert low / 1.3 < 2.0 < high * 1.3
    assert age[1] < age[0] < age[2]
    assert age[0] == pytest.approx(58.5, abs=4.0)
    assert ratios[1][2] / ratios[1][1] < ratios[0][2] / ratios[0][1]
