import numpy as np
import pytest
from measuring import rows_with, transcript_of

from clustmix import Schema
from privacy.errors import ConfigurationError
from tasks.ingest.encoding import domain_of
from tasks.measurement.record_rules import LABEL
from tasks.methods.clustmix.table_clustmix import Effort, TableClustMix
from tasks.methods.naive_bayes import NaiveBayes
from tasks.reporting.conclusions import combine, contrast

SCHEMA = Schema(
    columns=[
        {"name": "age", "kind": "integer", "lower": 0, "upper": 99, "bins": 5, "nullable": True},
        {"name": "sex", "kind": "categorical", "levels": ["f", "m"]},
        {"name": "ward", "kind": "categorical", "levels": ["a", "b", "c"]},
    ],
    label={"name": "y", "levels": {"no": ("0",), "yes": ("1",)}},
)
N = 3_000
METHOD = TableClustMix(domain_of(SCHEMA), Effort(starts=1, steps=2, fit_rows=500, points=60))


def rows():
    rng = np.random.default_rng(3)
    sex, ward = rng.integers(0, 2, N), rng.choice(3, N, p=[0.6, 0.3, 0.1])
    y = rng.random(N) < 0.2 + 0.2 * sex + 0.1 * (ward == 1)
    age = np.where(rng.random(N) < 0.1, 5, rng.integers(0, 5, N))
    return rows_with(np.column_stack([age, sex, ward]), y)


@pytest.fixture(scope="module")
def measured():
    mu = 2.0
    drawn, released = transcript_of(METHOD, rows(), mu=mu)
    plan = METHOD.plan(mu=mu)
    values = {
        one.event.statistic: one.values / plan[one.event.statistic].scale for one, *_ in drawn
    }
    return released, values, plan


def asked(measured, kind, of, **more):
    released, values, plan = measured
    return contrast(
        METHOD,
        SCHEMA,
        released,
        lambda name: (values[name], plan[name].unit_noise_stddev),
        kind=kind,
        of=of,
        **more,
    )


def test_quantities_are_those_of_the_table_within_their_intervals(measured):
    table = rows()
    age, sex, ward = table.codes.T
    risk = [table.label[sex == s].mean() for s in (0, 1)]
    known = age < 5
    true = {
        ("share", "ward=b"): (ward == 1).mean(),
        ("share", "y=yes"): table.label.mean(),
        ("mean", "age"): (9.5 + 20.0 * age[known]).mean(),
        ("risk_difference", "y=yes", "sex=m"): risk[1] - risk[0],
        ("risk_ratio", "y=yes", "sex=m", "f"): risk[1] / risk[0],
        ("odds_ratio", "sex=m", "y=yes"): risk[1] * (1 - risk[0]) / risk[0] / (1 - risk[1]),
        ("risk_difference", "ward=b", "sex=m"):
            (ward[sex == 1] == 1).mean() - (ward[sex == 0] == 1).mean(),
        ("risk_difference", "sex=m", "ward=b", "a"): sex[ward == 1].mean() - sex[ward == 0].mean(),
    }  # fmt: skip
    for (kind, of, *groups), value in true.items():
        found = asked(measured, kind, of, **dict(zip(("by", "against"), groups, strict=False)))
        error = np.log(found.estimate / value) if "ratio" in kind else found.estimate - value
        assert abs(error) < 4.5 * found.noise, (kind, of)
        assert found.low < found.estimate < found.high
        assert found.sampling > 0.0
        assert "95 % interval" in str(found)


@pytest.mark.parametrize(
    "columns", [(LABEL,), (0,), (1, LABEL), (0, LABEL), (2, 1), (1, 2), (0, 2)]
)
def test_the_noise_of_a_weighted_sum_of_cells_is_that_of_its_draws(measured, columns):
    released, values, plan = measured
    rng, sums = np.random.default_rng(5), []

    def cells(noise):
        def noisy(name):
            stddev = plan[name].unit_noise_stddev
            return values[name] + noise * rng.normal(0.0, stddev, values[name].shape), stddev

        return METHOD.cells(released, noisy, *columns)

    weights = rng.normal(size=cells(0.0).counts.shape)
    sums = [float((cells(1.0).counts * weights).sum()) for _ in range(1_500)]
    assert np.std(sums) == pytest.approx(np.sqrt(cells(0.0).noise(weights)), rel=0.08)


REFUSED = {
    "NOT_OFFERED": [("coefficient", "y=yes", {}), ("median", "age", {})],
    "QUESTION_INVALID": [
        ("mean", "sex", {}), ("mean", "zip", {}), ("odds_ratio", "y=yes", {}),
        ("share", "sex=m", {"by": "ward=a"}), ("odds_ratio", "sex=m", {"by": "sex=f"}),
        ("odds_ratio", "y=yes", {"by": "ward=a", "against": "a"}),
    ],
    "CONDITION_UNKNOWN": [("share", "sex=x", {}), ("share", "zip=1", {}), ("share", "sex", {})],
}  # fmt: skip


@pytest.mark.parametrize("code", REFUSED)
def test_what_no_interval_covers_is_refused_by_name(measured, code):
    for kind, of, more in REFUSED[code]:
        with pytest.raises(ConfigurationError, match=code):
            asked(measured, kind, of, **more)


def test_pairs_from_the_model_joined_levels_and_numbers_in_noise_are_refused(measured):
    released, values, plan = measured
    unused = {**released, "pair_used": np.zeros((3, 3), dtype=bool)}
    with pytest.raises(ConfigurationError, match=r"PAIR_NOT_MEASURED.*ward=a by sex=m.*shrinks"):
        asked((unused, values, plan), "odds_ratio", "ward=a", by="sex=m")
    joined = released["code_groups"].copy()
    joined[-3:] = [0, 0, 1]
    with pytest.raises(ConfigurationError, match="LEVELS_JOINED"):
        asked(
            ({**released, "code_groups": joined}, values, plan), "odds_ratio", "ward=a", by="sex=m"
        )
    drowned = {name: own * 1e-3 for name, own in values.items()}
    with pytest.raises(ConfigurationError, match="LOST_IN_NOISE"):
        asked((released, drowned, plan), "share", "ward=a")
    seen = {"name": "seen", "kind": "date", "lower": "2020-01-01", "upper": "2020-12-31"}
    dated = Schema(columns=[{**seen, "bins": "month"}], label=SCHEMA.label)
    with pytest.raises(
        ConfigurationError, match=r"QUESTION_INVALID.*seen, of no numbers or of days"
    ):
        contrast(METHOD, dated, {}, None, kind="mean", of="seen")
    with pytest.raises(ConfigurationError, match="NOT_OFFERED"):
        contrast(NaiveBayes(METHOD.domain), SCHEMA, {}, None, kind="share", of="sex=m")


def test_draws_widen_an_interval_that_is_centred_on_the_release():
    rng = np.random.default_rng(1)
    found = combine([1.0, *(2.0 + rng.normal(0.0, 0.3, 400))], [0.04] * 401)
    assert found.estimate == 1.0
    assert found.noise == pytest.approx(0.3, rel=0.1)
    assert found.high - found.low == pytest.approx(2 * 1.96 * np.hypot(0.2, 0.3), rel=0.1)
    scaled = combine([1.0, 1.1, 0.9], [0.04] * 3, rows=1_000, patients=4_000)
    assert scaled.sampling == pytest.approx(0.1)
    few = combine([1.0, 1.1, 0.9], [0.0] * 3)
    assert few.high - few.low == pytest.approx(2 * 12.706 * few.noise, rel=1e-3)
    for wrong in (([1.0, 1.1], [0.1, 0.1]), ([1.0, 1.1, 0.9], [0.1])):
        with pytest.raises(ConfigurationError, match="DRAWS_FEW"):
            combine(*wrong)
