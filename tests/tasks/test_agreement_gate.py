from dataclasses import replace

import numpy as np
import pytest
from measuring import curator_of

from benchmarks.in_process import SeededNoise
from privacy.errors import Withheld
from storage.schema.table import TableSchema
from tasks.gates import agreement
from tasks.gates.agreement_gate import NoisyCounts, agreement_gate
from tasks.ingest.encoding import decode, domain_of
from tasks.measurement.centred import label_counts
from tasks.measurement.encoded import N_FOLDS, EncodedRows
from tasks.measurement.method import measure
from tasks.measurement.statistics import SUM_SCALE
from tasks.methods.clustmix.records.table_layout import LABEL_COUNTS
from tasks.methods.clustmix.table_clustmix import Effort, TableClustMix
from tasks.methods.naive_bayes import HISTOGRAMS, NaiveBayes
from tasks.reporting.tables import table_files
from tasks.steps.publish_steps import output_gate

N_ROWS = 20_000
MU = 0.27  # about epsilon 1 at delta 1e-5
WARDS = ["icu", "surgery", "medicine", "elsewhere"]
LABEL = {
    "name": "outcome",
    "levels": [{"name": name, "values": []} for name in ("well", "ill", "dead")],
}
KINDS = {
    "table": {
        "columns": [
            {"name": "age", "kind": "integer", "lower": 0, "upper": 99, "bins": 10},
            {"name": "ward", "kind": "categorical", "levels": WARDS},
            {"name": "before", "kind": "categorical", "levels": WARDS},
            {"name": "smoker", "kind": "categorical", "levels": ["y", "n"], "missing": ["?"]},
        ],
        "label": LABEL,
    },
    "image": {"image": {"height": 3, "width": 3, "gray_levels": 4}, "label": LABEL},
}


def schema_of(kind):
    return TableSchema.model_validate(KINDS[kind])


def rows_of(domain, n, rng):
    """Records whose columns differ from each other and go with the label."""
    label = rng.choice(3, n, p=[0.6, 0.3, 0.1])
    tilt = 0.15 + 0.6 * np.arange(domain.n_columns) / domain.n_columns
    codes = np.stack(
        [
            np.minimum(rng.binomial(w - 1, np.clip(tilt[j] + 0.1 * label, 0, 1)), w - 1)
            for j, w in enumerate(domain.n_codes)
        ],
        axis=1,
    )
    return codes.astype(np.uint16), label.astype(np.uint16)


class Sealed:
    def __init__(self, kind, *, n_patients=N_ROWS, rows_each=1, seed=0, method=NaiveBayes):
        rng = np.random.default_rng(seed)
        self.schema = schema_of(kind)
        self.domain = domain_of(self.schema)
        codes, label = rows_of(self.domain, n_patients, rng)
        self.rows = EncodedRows(
            codes=codes.repeat(rows_each, axis=0),
            label=label.repeat(rows_each),
            weight=np.full(n_patients * rows_each, 1.0 / rows_each),
            fold=(np.arange(n_patients) % N_FOLDS).astype(np.uint8).repeat(rows_each),
        )
        self.method = method(replace(self.domain, rows_per_patient=rows_each, patients=n_patients))

    def measured(self, seed):
        kept = {}
        curator = curator_of(
            self.method, [self.rows], SeededNoise(seed), mu=MU, seal=kept.__setitem__
        )
        released = measure(self.method, curator)
        (name,) = kept.keys() & {HISTOGRAMS, LABEL_COUNTS}
        noisy = NoisyCounts.of_draw(
            kept[name].values,
            noise_stddev=curator.plan[name].noise_stddev,
            domain=self.domain,
            released=released,
        )
        return released, noisy

    def sample(self, released, n_rows, rng):
        codes, label = self.method.sample(released, n_rows=n_rows, rng=rng)
        return agreement.CodedTable(codes=codes, label=label)


def quick_clustmix(domain):
    return TableClustMix(domain, Effort(starts=1, steps=60, fit_rows=2_000))


def gate_of(tables, sealed, noisy):
    published, reference, guide = tables
    named = {"guide": guide, "label_name": "outcome", "noisy": noisy}
    return agreement_gate(published, reference, sealed.domain, **named)


@pytest.fixture(scope="module", params=list(KINDS))
def honest(request):
    sealed, rng = Sealed(request.param), np.random.default_rng(1)
    released, noisy = sealed.measured(2)
    reference, guide = (sealed.sample(released, N_ROWS, rng) for _ in range(2))
    rows = sealed.sample(released, N_ROWS, rng)
    frame = decode(rows.codes, rows.label, sealed.schema, rng=rng)

    def gate(changed):
        files = table_files(changed, sealed.schema)
        return output_gate(
            sealed.schema, files, reference=reference, guide=guide, noisy=noisy, rows=N_ROWS
        )

    return request.param, gate, frame


def exchanged(series, first, second):
    return series.replace({first: second, second: first})


def independent(frame):
    return frame.assign(outcome=frame["outcome"].sample(frac=1, random_state=0).to_numpy())


def columns_exchanged(first, second):
    return lambda frame: frame.assign(**{first: frame[second], second: frame[first]})


FAULTS = {
    "all": {
        "two label levels": lambda f: f.assign(outcome=exchanged(f["outcome"], "well", "ill")),
        "two of three": lambda f: f.assign(outcome=exchanged(f["outcome"], "ill", "dead")),
        "independent labels": independent,
    },
    "table": {
        "levels permuted": lambda f: f.assign(
            ward=f["ward"].replace(dict(zip(WARDS, WARDS[1:] + WARDS[:1], strict=True)))
        ),
        "bins shifted": lambda f: f.assign(age=(f["age"] + 10).clip(upper=99)),
        "columns exchanged": columns_exchanged("ward", "before"),
        "constant column": lambda f: f.assign(smoker="n"),
        "missing as a level": lambda f: f.assign(smoker=f["smoker"].replace("?", "y")),
    },
    "image": {
        "grays shifted": lambda f: f.assign(
            **{n: (f[n].astype(int) + 85).clip(upper=255).astype("uint8") for n in ["pixel_01_01"]}
        ),
        "pixels exchanged": columns_exchanged("pixel_00_00", "pixel_02_02"),
        "constant pixel": lambda f: f.assign(pixel_01_01=f["pixel_01_01"].dtype.type(0)),
    },
}


def test_an_honest_file_passes_and_each_planted_fault_is_withheld_by_name(honest):
    kind, gate, frame = honest
    compared = [check for check in gate(frame) if check.bound is not None]
    assert len(compared) > 5
    assert all(check.distance <= check.bound for check in compared)
    for name, plant in {**FAULTS["all"], **FAULTS[kind]}.items():
        changed = plant(frame)
        assert not changed.equals(frame), name
        with pytest.raises(Withheld, match="OUTPUT_GATE") as caught:
            gate(changed)
        touched = [c for c in frame if not changed[c].equals(frame[c])]
        assert any(column in str(caught.value) for column in touched), name


def test_a_csv_file_that_differs_from_the_parquet_file_is_withheld(honest):
    kind, _, frame = honest
    schema = schema_of(kind)
    changed = frame.assign(outcome=exchanged(frame["outcome"], "well", "ill"))
    files = table_files(frame, schema)
    files["synthetic.csv"] = table_files(changed, schema)["synthetic.csv"]
    sealed = {"reference": None, "guide": None, "noisy": None}
    with pytest.raises(Withheld, match="files"):
        output_gate(schema, files, **sealed, rows=N_ROWS)


def test_a_sampler_that_forgets_the_label_is_seen_in_the_noisy_counts():
    # File and reference come from the same wrong sampler: only what was sealed tells.
    sealed, rng = Sealed("table"), np.random.default_rng(5)
    released, noisy = sealed.measured(6)
    right = (sealed.sample(released, N_ROWS, rng) for _ in range(3))
    wrong = [agreement.CodedTable(codes=t.codes, label=rng.permutation(t.label)) for t in right]
    [failed] = [one.check for one in gate_of(wrong, sealed, noisy) if not one.passed]
    assert failed.startswith("columns by label, together, noisy counts (part that is missing)")


def test_a_fault_that_does_not_show_is_named():
    sealed, rng = Sealed("table"), np.random.default_rng(7)
    released, noisy = sealed.measured(8)
    few = [sealed.sample(released, 60, rng) for _ in range(3)]
    unseen = {one.check: one.unseen for one in gate_of(few, sealed, noisy)}
    assert "bins shifted by one" in unseen["marginal: age"]
    expected = {"its two largest levels exchanged", "an exchange with before"}
    assert expected <= set(unseen["marginal: ward"])
    many = [sealed.sample(released, N_ROWS, rng) for _ in range(3)]
    checks = gate_of(many, sealed, noisy)
    assert all(one.unseen == () for one in checks if one.check.endswith((": age", ": ward")))


def honest_releases(sealed, seeds):
    rng = np.random.default_rng(9)
    for seed in seeds:
        released, noisy = sealed.measured(seed)
        checks = gate_of([sealed.sample(released, 1_000, rng) for _ in range(3)], sealed, noisy)
        yield all(check.passed for check in checks)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "n_releases", [60, pytest.param(2_000, marks=pytest.mark.integration)], ids=["few", "many"]
)
def test_honest_releases_pass(kind, n_releases):
    # One alarm in 2,000 has a probability of at most 0.18 at the stated rate, two of 0.02.
    sealed = Sealed(kind, n_patients=2_000)
    assert sum(not passed for passed in honest_releases(sealed, range(n_releases))) <= 1


MANY = [
    pytest.param(range(i, i + 250), marks=pytest.mark.integration) for i in range(0, 1_000, 250)
]


@pytest.mark.parametrize("seeds", [range(30), *MANY], ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_honest_releases_of_few_patients_with_several_rows_pass(seeds):
    # The noise is as large as the rarest label: its noisy number is below zero in many of them.
    sealed = Sealed("table", n_patients=150, rows_each=3, method=quick_clustmix)
    assert all(honest_releases(sealed, seeds))


def test_a_share_that_rounds_above_one_has_bounds():
    # Shares of one code pooled over two samples: (n + m) / (n + m) in another order.
    sizes = {"n_first": 120, "n_second": 1000, "alarm": 1e-6}
    exact, rounded = np.array([0.0, 1.0]), np.array([0.0, 1.0 + 2**-52])
    assert agreement.sampling_bound(rounded, **sizes) == agreement.sampling_bound(exact, **sizes)
    assert (agreement.cell_bounds(rounded, **sizes) == agreement.cell_bounds(exact, **sizes)).all()


def test_the_bounds_hold_and_are_not_far_from_what_they_bound():
    rng, shares, alarm = np.random.default_rng(10), np.array([0.5, 0.3, 0.15, 0.05]), 0.01
    n, m, repetitions = 400, 900, 2_000
    first = rng.multinomial(n, shares, repetitions) / n
    second = rng.multinomial(m, shares, repetitions) / m
    distances = [agreement.total_variation(a, b) for a, b in zip(first, second, strict=True)]
    bound = agreement.sampling_bound(shares, n_first=n, n_second=m, alarm=alarm)
    assert np.mean(np.array(distances) > bound) <= alarm
    assert np.quantile(distances, 1 - alarm) > bound / 2
    rare = np.array([0.98, 0.015, 0.005])
    beyond = 0
    for _ in range(repetitions):
        a, b = rng.multinomial(n, rare) / n, rng.multinomial(m, rare) / m
        bounds = agreement.cell_bounds(
            (n * a + m * b) / (n + m), n_first=n, n_second=m, alarm=alarm
        )
        beyond += (np.abs(a - b) > bounds).any()
    assert beyond / repetitions <= alarm
    noise = np.abs(rng.normal(0, 0.02, (repetitions, 30))).sum(axis=1) / 2
    bound = agreement.noise_bound(30, noise_stddev=0.02, alarm=alarm)
    assert np.mean(noise > bound) <= alarm
    assert np.quantile(noise, 1 - alarm) > bound / 2


def test_counts_by_cluster_are_summed():
    sealed = Sealed("table", n_patients=300)
    domain, rows = sealed.domain, sealed.rows
    clusters = {"n_clusters": 2, "assign": lambda codes, _: codes[:, 0] % 2}
    values = label_counts(rows, n_codes=domain.n_codes, n_labels=3, **clusters)
    plain = np.zeros((3, domain.one_hot_width))
    for start, codes in zip(domain.one_hot_offsets, rows.codes.T, strict=False):
        np.add.at(plain, (rows.label, start + codes), 1.0)
    found = NoisyCounts.of_draw(values, noise_stddev=SUM_SCALE, domain=domain, released={})
    np.testing.assert_allclose(found.by_label, plain, atol=1e-3)
    # Two clusters; centred, one count and shorter columns.
    assert found.noise_stddev == pytest.approx(np.sqrt((1 + 0.9 + 3 / 4 + 3 / 4 + 2 / 3) * 2))
