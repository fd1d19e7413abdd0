from dataclasses import replace

import numpy as np
import pytest
from measuring import curator_of, domain_with, in_shards, rows_with
from measuring import sampled as valid_records

from benchmarks.in_process import SeededNoise
from tasks.measurement.method import measure
from tasks.methods.clustmix.clustmix import ClustMixConfig, clustmix
from tasks.methods.clustmix.images import image_rule as rule
from tasks.methods.clustmix.images.image_clustmix import ImageClustMix
from tasks.methods.clustmix.images.image_layout import ImageLayout, basis_of
from tasks.methods.clustmix.images.tone import warped
from tasks.methods.clustmix.table_clustmix import TableClustMix


def domain_of(side=12, channels=1, levels=256, labels=3, patients=2_000):
    n = side * side * channels
    return domain_with(
        *(levels,) * n,
        numeric=range(n) if levels > 2 else (),
        labels=tuple(f"label {i}" for i in range(labels)),
        patients=patients,
        image=(side, side, channels),
    )


def rows_of(domain, n, seed):
    """Images of a bright bar whose direction is the label, at a random place."""
    rng, (side, _, channels) = np.random.default_rng(seed), domain.image
    label = rng.integers(0, domain.n_labels, n)
    place = np.arange(side) - side / 2
    angle = np.pi * label / domain.n_labels + rng.normal(0, 0.05, n)
    across = np.cos(angle)[:, None, None] * place[:, None] + np.sin(angle)[:, None, None] * place
    shift = rng.uniform(-2, 2, n)[:, None, None]
    bright = np.where(np.abs(across - shift) < 1.5, 0.9, 0.0) + rng.uniform(0, 0.1, across.shape)
    codes = np.rint(
        np.repeat(bright.reshape(n, side * side), channels, axis=1) * (domain.n_codes[0] - 1)
    )
    return rows_with(codes, label)


DOMAIN, MU = domain_of(), 3.0
METHOD = ImageClustMix(DOMAIN, points=400)
LARGE = ImageLayout(height=28, width=28, channels=1, levels=256, n_labels=10)


@pytest.fixture(scope="module")
def rows():
    return rows_of(DOMAIN, 1_000, 0)


def measured(method, shards, *, mu, seed=1):
    return measure(method, curator_of(method, shards, SeededNoise(seed), mu=mu))


@pytest.fixture(scope="module")
def released(rows):
    return measured(METHOD, [rows], mu=MU)


@pytest.fixture(scope="module")
def sampled(released):
    return METHOD.sample(released, n_rows=800, rng=np.random.default_rng(2))


def nearest_label(train, labels, images):
    means = np.stack([train[labels == label].mean(axis=0) for label in range(3)])
    return ((images[:, None] - means) ** 2).sum(axis=2).argmin(axis=1)


def test_labels_are_as_many_as_released_all_along_the_file(released, sampled):
    shares = released["label_sizes"] / released["label_sizes"].sum()
    for part, allowed in ((sampled[1], 0.002), (sampled[1][:300], 0.1), (sampled[1][-300:], 0.1)):
        found = np.bincount(part, minlength=3) / len(part)
        np.testing.assert_allclose(found, shares, atol=allowed)


def test_a_plain_model_of_the_release_knows_the_real_images(rows, sampled):
    codes, labels = (part.astype(float) for part in sampled)
    assert (nearest_label(codes, labels, rows.codes.astype(float)) == rows.label).mean() > 0.9
    # As bright as the real ones, and of as much black and white.
    assert codes.mean() == pytest.approx(rows.codes.mean(), rel=0.15)


def test_any_sharding_gives_the_same_images(rows, released, sampled):
    order = np.random.default_rng(0).permutation(len(rows))
    parts = in_shards(rows, order, [1, 70, 900])
    again = measured(METHOD, parts, mu=MU)
    for name, array in released.items():
        np.testing.assert_array_equal(again[name], array, err_msg=name)
    found = METHOD.sample(again, n_rows=800, rng=np.random.default_rng(2))
    for mine, theirs in zip(found, sampled, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(
    ("domain", "n_rows"),
    [
        (domain_of(levels=2), 1),
        (domain_of(side=9, channels=3), 120),
        (domain_of(side=40, labels=2, patients=None), 0),
        (domain_of(side=1), 1),
        (domain_of(labels=40), 0),
    ],
    ids=["black and white", "colour", "large", "one pixel", "forty labels"],
)
def test_images_of_any_kind_and_hardly_any_are_released(domain, n_rows):
    # No exception may depend on the rows: most of what is here is noise.
    method = ImageClustMix(domain, points=300)
    found = measured(method, [rows_of(domain, n_rows, 3)], mu=0.2)
    assert all(np.isfinite(array).all() for array in found.values())
    valid_records(method, domain, found, 30)


def test_the_rule_gives_all_of_the_budget_and_reads_no_row():
    for patients in (None, 300, 60_000, 10**7):
        for mu in (0.01, 0.27, 2.0, 50.0):
            found = rule.rule_of(ImageLayout.of(DOMAIN), patients=patients, mu=mu)
            shares = found.class_sums + found.class_moments + found.norms + found.intensity
            shares += rule.CELL_ROUNDS * found.cells + found.rounds * found.residuals
            assert shares == pytest.approx(1.0)
            assert found.residuals > 0.0
            assert found.directions <= rule.INDUCING_POINTS


def test_the_density_is_finer_where_budget_is_much(rows):
    for mu, most in {0.06: 14, 0.26: 14, 1.0: 22, 2.0: 26}.items():
        assert rule.rule_of(LARGE, patients=60_000, mu=mu).frequencies == most
    coefficients = [len(basis_of(replace(LARGE, frequencies=most))) for most in (14, 26)]
    assert coefficients == [108, 336]
    method = ImageClustMix(domain_of(patients=10**6), points=300)
    released = measured(method, [rows], mu=MU)
    assert released["cell_centres"].shape[2] == 144
    valid_records(method, method.domain, released, 30)


def test_no_variation_leaves_images_as_they_are():
    images = np.random.default_rng(0).random((3, 1, 6, 7)).astype(np.float32)
    found = warped(images, np.zeros(3), np.random.default_rng(1))
    np.testing.assert_allclose(found, images, atol=2e-3)
    assert ImageClustMix(DOMAIN, variation=0.0)._rule(1.0).warps == (0.0, 0.0)


def test_the_kind_of_data_decides_the_form():
    config = ClustMixConfig(variation=0.5)
    table = replace(DOMAIN, image=None)
    assert clustmix(DOMAIN, config) == ImageClustMix(DOMAIN, 0.5)
    assert clustmix(table, config) == TableClustMix(table)
