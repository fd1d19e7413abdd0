from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tasks.measurement.random_ntk import RandomNtkFeatures
from tasks.papers.clustmix.ntk import FullyConnectedNtk
from tasks.synthesizers.clustmix.kip import (
    centred_one_hot,
    krr_weights,
    moment_loss,
    optimise,
    raw_loss,
    z_score,
)
from tasks.synthesizers.clustmix.moment_kip import MomentLoss, descend
from tasks.synthesizers.clustmix.support_set import SupportSet, psd_projection


@pytest.fixture(name="toy")
def toy_problem():
    rng = np.random.default_rng(0)
    features = RandomNtkFeatures.draw(n_inputs=3, n_random=40, skip_weight=0.5, public_seed=1)
    targets = rng.uniform(-1, 1, (300, 3))
    codes = (targets[:, 0] > np.abs(targets[:, 1])).astype(int)
    labels = centred_one_hot(codes, 2)
    phi = features(targets)
    start = SupportSet(rng.uniform(-0.5, 0.5, (12, 3)), centred_one_hot(np.arange(12) % 2, 2))
    return {
        "features": features,
        "targets": targets,
        "labels": labels,
        "second": phi.T @ phi,
        "cross": phi.T @ labels,
        "start": start,
    }


def value_and_slope(loss):
    """Compiled as one program: step by step, each operation would be compiled by itself."""
    return jax.jit(jax.value_and_grad(loss))


def random_support(seed, toy):
    rng = np.random.default_rng(seed)
    return SupportSet(
        jnp.asarray(rng.uniform(-1, 1, toy["start"].points.shape)),
        jnp.asarray(rng.standard_normal(toy["start"].labels.shape)),
    )


def naive_loss(support, centroids, targets, target_labels, kernel, alpha, ridge):
    """Eq. 6, one row at a time."""
    points, labels = np.asarray(support.points), np.asarray(support.labels)
    inverse = np.linalg.inv(np.asarray(kernel(points, points)) + ridge * np.eye(len(points)))
    total = 0.0
    for x, y in zip(targets, target_labels, strict=True):
        prediction = np.asarray(kernel(x[None], points))[0] @ inverse @ labels
        total += 0.5 * np.sum((y - prediction) ** 2)
    fidelity = np.trace((points - centroids).T @ (points - centroids))
    return alpha * fidelity / np.trace(centroids.T @ centroids) + (1 - alpha) * total


def test_raw_loss_is_equation_6(toy):
    alpha = 0.3
    kernel = FullyConnectedNtk(depth=2, weight_std=1.4, bias_std=0.1)
    with jax.enable_x64(True):
        support = random_support(1, toy)
        fast = jax.jit(partial(raw_loss, kernel=kernel, alpha=alpha, ridge=0.01))(
            support, toy["start"].points, jnp.asarray(toy["targets"]), toy["labels"]
        )
        slow = naive_loss(
            support,
            toy["start"].points,
            toy["targets"],
            toy["labels"],
            jax.jit(kernel.__call__),
            alpha,
            0.01,
        )
    np.testing.assert_allclose(fast, slow, rtol=1e-9)


def test_moments_carry_all_that_the_raw_loss_reads(toy):
    seed, alpha = 0, 0.4
    features = toy["features"]
    raw = partial(
        raw_loss, kernel=lambda x, y: features(x) @ features(y).T, alpha=alpha, ridge=0.05
    )
    moment = partial(moment_loss, features=features, alpha=alpha, ridge=0.05)
    with jax.enable_x64(True):
        centroids = toy["start"].points
        rows = (jnp.asarray(toy["targets"]), jnp.asarray(toy["labels"]))
        moments = (jnp.asarray(toy["second"]), jnp.asarray(toy["cross"]))
        support = random_support(seed, toy)
        raw_value, raw_slope = value_and_slope(raw)(support, centroids, *rows)
        value, slope = value_and_slope(moment)(support, centroids, *moments)
        constant = 0.5 * (1.0 - alpha) * np.sum(toy["labels"] ** 2)
        np.testing.assert_allclose(value + constant, raw_value, rtol=1e-10)
        np.testing.assert_allclose(slope.points, raw_slope.points, rtol=1e-7, atol=1e-7)


def test_padding_changes_neither_the_loss_nor_its_gradient(toy):
    kernel = FullyConnectedNtk(depth=1, weight_std=1.4, bias_std=0.1)
    loss = partial(raw_loss, kernel=kernel, alpha=0.3, ridge=0.01)
    with jax.enable_x64(True):
        support = random_support(2, toy)
        centroids, targets = toy["start"].points, toy["targets"]
        plain, slope = value_and_slope(loss)(support, centroids, targets, toy["labels"])

        def pad(array, rows):
            return jnp.pad(jnp.asarray(array), [(0, rows), (0, 0)])

        padded_support = SupportSet(pad(support.points, 4), pad(support.labels, 4))
        padded, padded_slope = value_and_slope(loss)(
            padded_support,
            pad(centroids, 4),
            pad(targets, 20),
            pad(toy["labels"], 20),
            (jnp.arange(16) < 12).astype(float),
            (jnp.arange(320) < 300).astype(float),
        )
        np.testing.assert_allclose(padded, plain, rtol=1e-12)
        np.testing.assert_allclose(padded_slope.points[:12], slope.points, rtol=1e-9, atol=1e-10)
        assert jnp.all(padded_slope.points[12:] == 0.0)


def test_krr_weights_equal_the_primal_ridge_solution():
    rng = np.random.default_rng(3)
    phi, labels = rng.standard_normal((9, 5)), rng.standard_normal((9, 2))
    with jax.enable_x64(True):
        dual = krr_weights(jnp.asarray(phi), jnp.asarray(labels), 0.3)
    primal = np.linalg.solve(phi.T @ phi + 0.3 * np.eye(5), phi.T @ labels)
    np.testing.assert_allclose(dual, primal, rtol=1e-9)


def moment_problem(toy, **changes):
    loss = partial(moment_loss, features=toy["features"], alpha=0.0, ridge=1e-3)
    data = (toy["start"].points, toy["second"] / 300, toy["cross"] / 300)
    settings = {"steps": 150, "learning_rate": 0.03, "lower": -1.0, "upper": 1.0} | changes
    return optimise(loss, toy["start"], data, **settings)


def test_optimised_support_comes_close_to_ridge_regression_on_all_rows(toy):
    result = moment_problem(toy)
    second, cross = toy["second"] / 300, toy["cross"] / 300
    teacher = np.linalg.solve(second + 1e-6 * np.eye(len(second)), cross)
    best = 0.5 * np.sum(teacher * (second @ teacher)) - np.sum(teacher * cross)
    assert best < result.loss
    # The start predicts little; the support set recovers at least nine tenths of what there is.
    assert (result.loss - best) < 0.1 * (result.start_loss - best)
    assert result.steps_taken == 150


def test_optimise_keeps_the_box_the_labels_and_the_global_precision(toy):
    assert not jax.config.jax_enable_x64
    bounds = {"lower": np.array([-0.2, -1.0, 0.0]), "upper": np.array([0.2, 1.0, 0.1])}
    result = moment_problem(toy, steps=30, **bounds)
    assert np.all(result.support.points >= bounds["lower"])
    assert np.all(result.support.points <= bounds["upper"])
    assert np.any(result.support.points == bounds["lower"])
    assert np.array_equal(result.support.labels, toy["start"].labels)
    assert result.support.points.dtype == np.float64
    assert not jax.config.jax_enable_x64


def test_optimise_is_repeatable_and_learns_labels_when_asked(toy):
    first, second = moment_problem(toy, steps=20), moment_problem(toy, steps=20)
    assert np.array_equal(first.support.points, second.support.points)
    learned = moment_problem(toy, steps=20, learn_labels=True)
    assert not np.array_equal(learned.support.labels, toy["start"].labels)
    assert learned.loss < first.loss


def test_alpha_one_leaves_the_centroids_alone(toy):
    loss = partial(moment_loss, features=toy["features"], alpha=1.0, ridge=1e-3)
    data = (toy["start"].points, toy["second"], toy["cross"])
    result = optimise(loss, toy["start"], data, steps=5, learning_rate=0.1, lower=-1.0, upper=1.0)
    assert np.array_equal(result.support.points, toy["start"].points)
    assert result.loss == 0.0


def quadratic(support, centre):
    return jnp.sum((support.points - centre) ** 2)


def test_tolerance_stops_early():
    start = SupportSet(np.zeros((1, 1)), np.zeros((1, 2)))
    settings = {"learning_rate": 0.05, "lower": -1.0, "upper": 1.0}
    full = optimise(quadratic, start, (np.array(0.5),), steps=500, **settings)
    early = optimise(quadratic, start, (np.array(1.0 / 3),), steps=500, tolerance=0.5, **settings)
    assert full.steps_taken == 500
    np.testing.assert_allclose(full.support.points, 0.5, atol=1e-6)
    assert early.steps_taken < 100


def blows_up(support):
    # Finite at the start and after small steps, not a number from 0.25 on.
    return jnp.sum(jnp.where(support.points > 0.25, jnp.nan, -support.points))


def test_a_step_to_a_loss_that_is_not_finite_ends_the_run_with_the_best_so_far():
    start = SupportSet(np.zeros((1, 1)), np.zeros((1, 2)))
    result = optimise(blows_up, start, steps=100, learning_rate=0.1, lower=-1.0, upper=1.0)
    assert result.steps_taken == 3
    np.testing.assert_allclose(result.support.points, 0.2, atol=1e-6)
    assert np.isfinite(result.loss)


def test_the_same_loss_and_shapes_are_compiled_once():
    traces = []

    def counting(support, centre):
        traces.append(None)
        return quadratic(support, centre)

    start = SupportSet(np.zeros((2, 2)), np.zeros((2, 2)))
    settings = {"learning_rate": 0.05, "lower": -1.0, "upper": 1.0}
    optimise(counting, start, (np.array(0.5),), steps=3, **settings)
    traced = len(traces)
    optimise(counting, start, (np.array(0.1),), steps=7, **settings)
    assert len(traces) == traced > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "expected 1 or more steps, found 0"),
        ({"learning_rate": 0.0}, "expected a learning_rate above 0, found 0.0"),
        ({"tolerance": -1.0}, "expected a tolerance of 0 or more, found -1.0"),
        ({"lower": 2.0}, "expected every lower bound of the box at or below its upper bound"),
    ],
)
def test_optimise_refuses_bad_parameters(toy, change, message):
    with pytest.raises(ValueError, match=message):
        moment_problem(toy, **change)


def test_psd_projection_is_the_nearest_and_adds_the_ridge():
    rng = np.random.default_rng(4)
    noisy = rng.standard_normal((6, 6))
    symmetric = (noisy + noisy.T) / 2
    projected = psd_projection(noisy, 0.0)
    assert np.linalg.eigvalsh(projected).min() > -1e-12
    np.testing.assert_allclose(projected, projected.T, rtol=0, atol=0)
    # Frobenius distance of the nearest matrix: the norm of the negative eigenvalues.
    negative = np.minimum(np.linalg.eigvalsh(symmetric), 0.0)
    np.testing.assert_allclose(
        np.linalg.norm(projected - symmetric), np.linalg.norm(negative), rtol=1e-10
    )
    np.testing.assert_allclose(psd_projection(noisy, 0.7), projected + 0.7 * np.eye(6), rtol=1e-12)
    gram = noisy @ noisy.T
    np.testing.assert_allclose(psd_projection(gram, 0.0), gram, rtol=1e-10, atol=1e-12)


def test_without_the_projection_the_noisy_loss_has_no_lower_bound():
    weights = np.array([[1.0], [0.0]])
    noisy = np.diag([-1.0, 1.0])
    assert np.sum(weights * (noisy @ weights)) < 0.0
    assert np.sum(weights * (psd_projection(noisy, 0.0) @ weights)) >= 0.0


def test_psd_projection_refuses_bad_input():
    with pytest.raises(ValueError, match=r"expected a square matrix, found shape \(2, 3\)"):
        psd_projection(np.zeros((2, 3)), 0.0)
    with pytest.raises(ValueError, match=r"expected a ridge of 0 or more, found -1\.0"):
        psd_projection(np.eye(2), -1.0)


def test_label_vectors_and_z_scores():
    np.testing.assert_allclose(centred_one_hot(np.array([1, 0]), 2), [[-0.5, 0.5], [0.5, -0.5]])
    norms = np.linalg.norm(centred_one_hot(np.arange(4), 4), axis=1)
    np.testing.assert_allclose(norms, np.sqrt(1 - 1 / 4))
    scored = z_score(np.array([[1.0, 4.0]]), centre=np.array([0.0, 2.0]), spread=np.array([2.0, 1]))
    np.testing.assert_allclose(scored, [[0.5, 2.0]])


def direct_loss(toy, **changes):
    settings = {
        "features": toy["features"],
        "start": toy["start"].points,
        "second": toy["second"] / 300,
        "cross": toy["cross"] / 300,
        "alpha": 0.3,
        "ridge": 1e-3,
    }
    return MomentLoss(**settings | changes)


def test_the_gradient_in_numpy_is_that_of_jax(toy):
    direct = direct_loss(toy)
    compiled = partial(moment_loss, features=toy["features"], alpha=0.3, ridge=1e-3)
    with jax.enable_x64(True):
        support = random_support(5, toy)
        # A point at the origin has no direction: its features and their derivative are zero.
        support = support._replace(points=support.points.at[3].set(0.0))
        data = (jnp.asarray(direct.start), jnp.asarray(direct.second), jnp.asarray(direct.cross))
        expected, slope = value_and_slope(compiled)(support, *data)
        value, found = direct.value_and_gradient(SupportSet(*map(np.asarray, support)))
        np.testing.assert_allclose(value, expected, rtol=1e-10)
        np.testing.assert_allclose(found.points, slope.points, rtol=1e-8, atol=1e-11)
        np.testing.assert_allclose(found.labels, slope.labels, rtol=1e-8, atol=1e-11)


def test_the_descent_in_numpy_is_that_of_jax(toy):
    settings = {"steps": 40, "learning_rate": 0.03}
    direct = descend(direct_loss(toy, alpha=0.0), toy["start"], box=0.4, **settings)
    compiled = moment_problem(toy, learn_labels=True, lower=-0.4, upper=0.4, **settings)
    assert np.abs(direct.support.points).max() == 0.4
    np.testing.assert_allclose(direct.loss, compiled.loss, rtol=1e-9)
    np.testing.assert_allclose(direct.start_loss, compiled.start_loss, rtol=1e-9)
    np.testing.assert_allclose(direct.support.points, compiled.support.points, atol=1e-7)
    np.testing.assert_allclose(direct.support.labels, compiled.support.labels, atol=1e-7)
    assert direct.steps_taken == compiled.steps_taken == 40


def test_the_descent_in_numpy_ends_where_the_loss_is_not_finite(toy):
    broken = direct_loss(toy, cross=np.full_like(toy["cross"], np.nan))
    result = descend(broken, toy["start"], steps=9, learning_rate=0.03, box=1.0)
    assert result.steps_taken == 0
    np.testing.assert_array_equal(result.support.points, toy["start"].points)


def test_a_step_that_is_not_finite_ends_the_descent_in_numpy(toy):
    endless = direct_loss(toy)
    with np.errstate(invalid="ignore", over="ignore"):
        result = descend(endless, toy["start"], steps=9, learning_rate=np.inf, box=1.0)
    assert result.steps_taken == 1
    np.testing.assert_array_equal(result.support.points, toy["start"].points)


@pytest.mark.parametrize("change", [{"steps": 0}, {"learning_rate": 0.0}, {"box": 0.0}])
def test_the_descent_in_numpy_refuses_bad_parameters(toy, change):
    settings = {"steps": 9, "learning_rate": 0.03, "box": 1.0} | change
    with pytest.raises(ValueError, match="expected"):
        descend(direct_loss(toy), toy["start"], **settings)
