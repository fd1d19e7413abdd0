from dataclasses import replace

import numpy as np
import pytest
from measuring import domain_with, drawn_by, norm_of

from audits.pairs import AuditPatient, encode
from tasks.measurement.statistics import SECOND_MOMENT_SCALE, SUM_SCALE
from tasks.methods.clustmix.images import image_draws as draws
from tasks.methods.clustmix.images.image_clustmix import ImageClustMix
from tasks.methods.clustmix.images.image_layout import ImageLayout, basis_of
from tasks.methods.clustmix.images.image_rule import MOMENT_NORM
from tasks.methods.clustmix.images.scattering import feature_bound, scatter
from tasks.methods.clustmix.images.teacher import (
    FEATURE_NORM,
    FEATURE_ZERO,
    Whitening,
    whitening_of,
)

HEIGHT, WIDTH, LEVELS, LABELS = 4, 5, 6, 3


def domain_of(height=HEIGHT, width=WIDTH, channels=1, levels=LEVELS):
    n = height * width * channels
    return domain_with(
        *(levels,) * n,
        numeric=range(n),
        labels=("a", "b", "c"),
        rows_per_patient=3,
        patients=400,
        image=(height, width, channels),
    )


DOMAIN = domain_of()
LAYOUT = ImageLayout.of(DOMAIN)
N_PIXELS = HEIGHT * WIDTH
METHOD = ImageClustMix(DOMAIN, points=300)
RNG = np.random.default_rng(0)


def rows_of(patients):
    n_columns = len(patients[0][0][0])
    return encode([AuditPatient(records=tuple(p), fold=0) for p in patients], n_columns=n_columns)


def made_up(n, seed, n_columns=N_PIXELS):
    rng = np.random.default_rng(seed)
    images = lambda: rng.integers(0, LEVELS, n_columns)  # noqa: E731
    return [
        [(images(), int(rng.integers(LABELS))) for _ in range(rng.integers(1, 4))] for _ in range(n)
    ]


def neighbours(n_columns):
    """Black, white, single pixels and stripes of every label, once and three times; any others."""
    extremes = [
        np.zeros(n_columns),
        np.ones(n_columns),
        *np.eye(n_columns)[[0, 7]],
        np.tile([0, 1], n_columns // 2),
    ]
    for image in extremes:
        codes = (image * (LEVELS - 1)).astype(np.uint16)
        yield from ([(codes, label)] * m for label in range(LABELS) for m in (1, 3))
    yield from made_up(10, 2, n_columns)


@pytest.fixture(scope="module")
def drawn():
    return drawn_by(METHOD, rows_of(made_up(40, 0)), mu=1.0)


@pytest.mark.parametrize("channels", [1, 3], ids=["gray", "colour"])
def test_no_patient_moves_a_draw_by_more_than_planned_and_one_nearly_does(channels):
    domain, n_columns = domain_of(channels=channels), N_PIXELS * channels
    layout, others = ImageLayout.of(domain), made_up(12, 3, n_columns)
    method = ImageClustMix(domain, points=300)
    plan, seen, released = drawn_by(method, rows_of(made_up(40, 0, n_columns)), mu=1.0)
    assert [*seen] == [planned.name for planned in plan.statistics]
    whitening = whitening_of(released)
    last = [name for name in seen if name.startswith("residual_round")][-1]
    for name, (contribution, public) in seen.items():
        if name.startswith("residual_round") and name not in ("residual_round_1", last):
            continue

        def summed(patients, contribution=contribution, public=public):
            rows = rows_of(patients)
            if contribution is draws.residuals:
                rows = draws.with_features(rows, layout=layout, whitening=whitening)
            return contribution(rows, **public)

        without, most = summed(others), 0.0
        for patient in neighbours(n_columns):
            moved = norm_of(summed([*others, patient]) - without)
            assert moved <= plan[name].l2_sensitivity
            most = max(most, moved / plan[name].l2_sensitivity)
        # What the others are, and how many, changes nothing of what a patient adds.
        alone = summed([patient])
        np.testing.assert_array_equal(alone, summed([patient, *others]) - without)
        assert most > 0.99, (name, most)


def coefficients(codes):
    image = np.asarray(codes, float) * 255 / (LEVELS - 1)
    found = basis_of(LAYOUT).images @ image
    return found / max(np.linalg.norm(found), 1e-9)


def each(rows):
    return zip(rows.codes, rows.label, rows.weight, strict=True)


def test_sums_and_cells_are_those_of_their_definition(drawn):
    rows = rows_of(made_up(15, 4))
    contribution, public = drawn[1]["cell_round_2"]
    # Those of so few patients are all but one point, and which is nearest is left to rounding.
    centres = 0.3 * np.random.default_rng(8).standard_normal(public["centres"].shape)
    public = {**public, "centres": centres}
    expected = np.zeros((LABELS, centres.shape[1], 1 + len(basis_of(LAYOUT))))
    for codes, label, weight in each(rows):
        u = coefficients(codes)
        cell = np.linalg.norm(u @ public["directions"] - centres[label], axis=1).argmin()
        expected[label, cell] += weight * np.r_[1.0, u]
    np.testing.assert_allclose(contribution(rows, **public) / SUM_SCALE, expected, atol=1e-4)
    found = draws.class_sums(rows, layout=LAYOUT) / SUM_SCALE
    np.testing.assert_allclose(found, expected.sum(axis=1), atol=1e-4)


def test_moments_are_those_of_their_definition(drawn):
    rows = rows_of(made_up(15, 5))
    contribution, public = drawn[1]["class_moments"]
    d = len(basis_of(LAYOUT))
    expected = np.zeros((LABELS, d, d))
    for codes, label, weight in each(rows):
        z = coefficients(codes) - public["means"][label]
        z *= min(1.0, MOMENT_NORM / np.linalg.norm(z))
        expected[label] += weight * np.outer(z, z)
    expected[:, np.arange(d), np.arange(d)] /= np.sqrt(2.0)
    found = contribution(rows, **public) / SECOND_MOMENT_SCALE
    np.testing.assert_allclose(found, expected[:, *np.triu_indices(d)], atol=5e-3)


def test_residuals_are_those_of_their_definition(drawn):
    contribution, public = drawn[1]["residual_round_2"]
    rows = rows_of(made_up(15, 6))
    coded = draws.with_features(rows, layout=LAYOUT, whitening=whitening_of(drawn[2]))
    expected = 0.0
    for codes, label, weight in each(coded):
        phi = (codes.astype(float) - FEATURE_ZERO) / FEATURE_NORM
        assert np.linalg.norm(phi) <= 1.0
        p = np.exp(phi @ public["weights"])
        residual = p / p.sum() - np.eye(LABELS)[label]
        residual *= min(1.0, public["residual_norm"] / np.linalg.norm(residual))
        expected = expected + weight * np.outer(phi, residual)
    found = contribution(coded, **public) / draws.RESIDUAL_SUM_SCALE
    np.testing.assert_allclose(found, expected, atol=1e-3)


@pytest.mark.parametrize("shape", [(28, 28, 1), (6, 9, 3), (64, 40, 1)])
def test_a_record_has_the_same_features_in_any_batch(shape, drawn):
    domain = domain_of(*shape, levels=256)
    layout, rng = ImageLayout.of(domain), np.random.default_rng(7)
    codes = rng.integers(0, 256, (70, layout.n_columns)).astype(np.uint16)
    codes[:10], codes[10] = 255, rng.choice([0, 255], layout.n_columns)
    together = scatter(layout.pixels(codes))
    assert np.linalg.norm(together, axis=1).max() <= feature_bound(layout.channels)
    whitening = Whitening.fitted(
        together, directions=20, flat=5, bound=feature_bound(layout.channels)
    )
    # Every partial sum of magnitudes is a whole number that float32 has exactly.
    assert (np.abs(together) @ np.abs(whitening.matrix)).max() < 2**24
    alone = np.concatenate([scatter(layout.pixels(line[None])) for line in codes])
    np.testing.assert_array_equal(alone, together)
    np.testing.assert_array_equal(
        np.concatenate([whitening.features(line[None]) for line in alone]),
        whitening.features(together),
    )
    basis = basis_of(layout)
    np.testing.assert_array_equal(
        np.concatenate([basis.vectors(layout.pixels(line[None])) for line in codes]),
        basis.vectors(layout.pixels(codes)),
    )


def test_codes_of_pixels_come_back():
    for channels, levels in ((1, 2), (1, 256), (3, 256), (3, 5)):
        layout = ImageLayout.of(domain_of(channels=channels, levels=levels))
        codes = RNG.integers(0, levels, (40, layout.n_columns)).astype(np.uint16)
        again = layout.codes(layout.pixels(codes))
        # The brightness of a colour is rounded, so that green may be off by two of 255.
        assert np.abs(again.astype(int) - codes).max() <= (
            2 if (channels, levels) == (3, 256) else 0
        )


def test_a_code_or_a_label_outside_the_domain_is_refused():
    rows = rows_of([[(np.full(20, LEVELS), 0)]])
    for wrong in (rows, replace(rows, codes=rows.codes - 1, label=rows.label + LABELS)):
        for contribution in (draws.class_sums, draws.norms, draws.intensity):
            with pytest.raises(ValueError, match="inside the public domain"):
                contribution(wrong, layout=LAYOUT)
