"""KIP: Eq. 6 on raw rows, on two moments by jax and in numpy, and the descents of both."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tasks.measurement.random_ntk import RandomNtkFeatures
from tasks.papers.clustmix.raw_kip import centred_one_hot, raw_loss
from tasks.synthesizers.clustmix.earlier.kip import krr_weights, moment_loss, optimise
from tasks.synthesizers.clustmix.earlier.moment_kip import MomentLoss, descend
from tasks.synthesizers.clustmix.earlier.support_set import SupportSet, psd_projection

N_ROWS, N_POINTS = 300, 12
FEATURES = RandomNtkFeatures.draw(n_inputs=3, n_random=40, skip_weight=0.5, public_seed=1)
TARGETS = np.random.default_rng(0).uniform(-1, 1, (N_ROWS, 3))
LABELS = centred_one_hot((TARGETS[:, 0] > np.abs(TARGETS[:, 1])).astype(int), 2)
SECOND = FEATURES(TARGETS).T @ FEATURES(TARGETS)
CROSS = FEATURES(TARGETS).T @ LABELS
START = SupportSet(
    np.random.default_rng(1).uniform(-0.5, 0.5, (N_POINTS, 3)),
    centred_one_hot(np.arange(N_POINTS) % 2, 2),
)


def loss_on_moments(support, start, second, cross, alpha, ridge):
    """One function for all tests: jax compiles it once for each kind of descent."""
    return moment_loss(support, start, second, cross, features=FEATURES, alpha=alpha, ridge=ridge)


def random_support(seed):
    rng = np.random.default_rng(seed)
    return SupportSet(rng.uniform(-1, 1, (N_POINTS, 3)), rng.standard_normal((N_POINTS, 2)))


def direct_loss(**changes):
    settings = {"start": START.points, "second": SECOND / N_ROWS, "cross": CROSS / N_ROWS}
    return MomentLoss(**{"features": FEATURES, "alpha": 0.3, "ridge": 1e-3} | settings | changes)


def padded(array, rows):
    return np.pad(np.asarray(array), [(0, rows), (0, 0)])


def padded_arguments(support):
    """Arguments of the loss on raw rows with four points and twenty rows too many."""
    points, labels = (padded(part, 4) for part in support)
    masks = (np.arange(n + more) < n for n, more in ((N_POINTS, 4), (N_ROWS, 20)))
    rest = (padded(START.points, 4), padded(TARGETS, 20), padded(LABELS, 20))
    return SupportSet(points, labels), *rest, *(mask.astype(float) for mask in masks)


def naive_loss(support, kernel, alpha, ridge):
    """Eq. 6, one row at a time."""
    points, labels = support
    inverse = np.linalg.inv(kernel(points, points) + ridge * np.eye(N_POINTS))
    total = 0.0
    for x, y in zip(TARGETS, LABELS, strict=True):
        total += 0.5 * np.sum((y - kernel(x[None], points)[0] @ inverse @ labels) ** 2)
    moved = np.trace((points - START.points).T @ (points - START.points))
    return alpha * moved / np.trace(START.points.T @ START.points) + (1 - alpha) * total


def test_raw_loss_is_equation_6_and_padding_does_not_count():
    def kernel(x, y):
        return (1.0 + x @ y.T) ** 2

    support = random_support(1)
    with jax.enable_x64(True):
        found = raw_loss(*padded_arguments(support), kernel=kernel, alpha=0.3, ridge=0.5)
    assert float(found) == pytest.approx(naive_loss(support, kernel, 0.3, 0.5), rel=1e-9)


def test_moments_carry_all_that_the_raw_loss_reads():
    alpha, support = 0.4, random_support(0)

    def raw(*arguments):
        return raw_loss(
            *arguments, kernel=lambda x, y: FEATURES(x) @ FEATURES(y).T, alpha=alpha, ridge=0.05
        )

    with jax.enable_x64(True):
        raw_value, raw_slope = jax.jit(jax.value_and_grad(raw))(*padded_arguments(support))
    moments = direct_loss(second=SECOND, cross=CROSS, alpha=alpha, ridge=0.05)
    value, slope = moments.value_and_gradient(support)
    constant = 0.5 * (1.0 - alpha) * np.sum(LABELS**2)
    np.testing.assert_allclose(value + constant, raw_value, rtol=1e-10)
    by_points, by_padding = np.split(np.asarray(raw_slope.points), [N_POINTS])
    np.testing.assert_allclose(by_points, slope.points, rtol=1e-7, atol=1e-7)
    assert np.all(by_padding == 0.0)


def test_the_gradient_in_numpy_is_that_of_jax():
    direct, support = direct_loss(), random_support(5)
    # A point at the origin has no direction: its features and their derivative are zero.
    support.points[3] = 0.0
    with jax.enable_x64(True):
        expected, slope = jax.jit(jax.value_and_grad(loss_on_moments))(
            support, direct.start, direct.second, direct.cross, 0.3, 1e-3
        )
    value, found = direct.value_and_gradient(support)
    np.testing.assert_allclose(value, expected, rtol=1e-10)
    np.testing.assert_allclose(found.points, slope.points, rtol=1e-8, atol=1e-11)
    np.testing.assert_allclose(found.labels, slope.labels, rtol=1e-8, atol=1e-11)


def test_krr_weights_equal_the_primal_ridge_solution():
    rng = np.random.default_rng(3)
    phi, labels = rng.standard_normal((9, 5)), rng.standard_normal((9, 2))
    with jax.enable_x64(True):
        dual = krr_weights(jnp.asarray(phi), jnp.asarray(labels), 0.3)
    primal = np.linalg.solve(phi.T @ phi + 0.3 * np.eye(5), phi.T @ labels)
    np.testing.assert_allclose(dual, primal, rtol=1e-9)


def optimised(*, alpha=0.0, **changes):
    data = (START.points, SECOND / N_ROWS, CROSS / N_ROWS, alpha, 1e-3)
    settings = {"steps": 150, "learning_rate": 0.03, "lower": -1.0, "upper": 1.0} | changes
    # Arrays in every call: bounds of another shape would be compiled once more.
    settings |= {name: np.broadcast_to(settings[name], 3) for name in ("lower", "upper")}
    return optimise(loss_on_moments, START, data, **settings)


def test_optimised_support_comes_close_to_ridge_regression_on_all_rows():
    result = optimised()
    second, cross = SECOND / N_ROWS, CROSS / N_ROWS
    teacher = np.linalg.solve(second + 1e-6 * np.eye(len(second)), cross)
    best = 0.5 * np.sum(teacher * (second @ teacher)) - np.sum(teacher * cross)
    assert best < result.loss
    # The start predicts little; the support set recovers at least nine tenths of what there is.
    assert (result.loss - best) < 0.1 * (result.start_loss - best)
    assert result.steps_taken == 150


def test_optimise_keeps_the_box_the_labels_and_the_global_precision():
    assert not jax.config.jax_enable_x64
    lower, upper = np.array([-0.2, -1.0, 0.0]), np.array([0.2, 1.0, 0.1])
    result, again = (optimised(steps=30, lower=lower, upper=upper) for _ in range(2))
    assert np.all((result.support.points >= lower) & (result.support.points <= upper))
    assert np.any(result.support.points == lower)
    assert np.array_equal(result.support.labels, START.labels)
    assert result.support.points.dtype == np.float64
    assert np.array_equal(result.support.points, again.support.points)
    assert not jax.config.jax_enable_x64


def test_alpha_one_leaves_the_centroids_alone():
    result = optimised(alpha=1.0, steps=5, learning_rate=0.1)
    assert np.array_equal(result.support.points, START.points)
    assert result.loss == 0.0


def test_tolerance_stops_early_and_the_same_loss_and_shapes_are_compiled_once():
    traces = []

    def quadratic(support, centre):
        traces.append(None)
        return jnp.sum((support.points - centre) ** 2)

    start = SupportSet(np.zeros((1, 1)), np.zeros((1, 2)))
    settings = {"learning_rate": 0.05, "lower": -1.0, "upper": 1.0}
    full = optimise(quadratic, start, (np.array(0.5),), steps=500, **settings)
    traced = len(traces)
    early = optimise(quadratic, start, (np.array(1.0 / 3),), steps=400, tolerance=0.5, **settings)
    assert full.steps_taken == 500
    np.testing.assert_allclose(full.support.points, 0.5, atol=1e-6)
    assert early.steps_taken < 100
    assert len(traces) == traced > 0


def test_a_step_to_a_loss_that_is_not_finite_ends_the_run_with_the_best_so_far():
    def blows_up(support):
        # Finite at the start and after small steps, not a number from 0.25 on.
        return jnp.sum(jnp.where(support.points > 0.25, jnp.nan, -support.points))

    start = SupportSet(np.zeros((1, 1)), np.zeros((1, 2)))
    result = optimise(blows_up, start, steps=100, learning_rate=0.1, lower=-1.0, upper=1.0)
    assert result.steps_taken == 3
    np.testing.assert_allclose(result.support.points, 0.2, atol=1e-6)
    assert np.isfinite(result.loss)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "expected 1 or more steps, found 0"),
        ({"learning_rate": 0.0}, "expected a learning_rate above 0, found 0.0"),
        ({"tolerance": -1.0}, "expected a tolerance of 0 or more, found -1.0"),
        ({"lower": 2.0}, "expected every lower bound of the box at or below its upper bound"),
    ],
)
def test_optimise_refuses_bad_parameters(change, message):
    with pytest.raises(ValueError, match=message):
        optimised(**change)


def test_psd_projection_is_the_nearest_and_adds_the_ridge():
    noisy = np.random.default_rng(4).standard_normal((6, 6))
    symmetric = (noisy + noisy.T) / 2
    projected = psd_projection(noisy, 0.0)
    assert np.linalg.eigvalsh(projected).min() > -1e-12
    np.testing.assert_allclose(projected, projected.T, rtol=0, atol=0)
    # Frobenius distance of the nearest matrix: the norm of the negative eigenvalues. Without the
    # projection the noisy loss has no lower bound.
    negative = np.minimum(np.linalg.eigvalsh(symmetric), 0.0)
    assert negative.any()
    np.testing.assert_allclose(
        np.linalg.norm(projected - symmetric), np.linalg.norm(negative), rtol=1e-10
    )
    np.testing.assert_allclose(psd_projection(noisy, 0.7), projected + 0.7 * np.eye(6), rtol=1e-12)
    with pytest.raises(ValueError, match=r"expected a square matrix, found shape \(2, 3\)"):
        psd_projection(np.zeros((2, 3)), 0.0)
    with pytest.raises(ValueError, match=r"expected a ridge of 0 or more, found -1\.0"):
        psd_projection(np.eye(2), -1.0)


def test_the_descent_in_numpy_is_that_of_jax_and_learns_labels():
    settings = {"steps": 40, "learning_rate": 0.03}
    direct = descend(direct_loss(alpha=0.0), START, box=0.4, **settings)
    compiled = optimised(learn_labels=True, lower=-0.4, upper=0.4, **settings)
    assert np.abs(direct.support.points).max() == 0.4
    assert not np.array_equal(direct.support.labels, START.labels)
    np.testing.assert_allclose(direct.loss, compiled.loss, rtol=1e-9)
    np.testing.assert_allclose(direct.start_loss, compiled.start_loss, rtol=1e-9)
    np.testing.assert_allclose(direct.support.points, compiled.support.points, atol=1e-7)
    np.testing.assert_allclose(direct.support.labels, compiled.support.labels, atol=1e-7)
    assert direct.steps_taken == compiled.steps_taken == 40


@pytest.mark.parametrize(
    ("cross", "learning_rate", "steps_taken"), [(np.nan, 0.03, 0), (1.0, np.inf, 1)]
)
def test_the_descent_in_numpy_ends_where_something_is_not_finite(cross, learning_rate, steps_taken):
    loss = direct_loss(cross=cross * CROSS / N_ROWS)
    with np.errstate(invalid="ignore", over="ignore"):
        result = descend(loss, START, steps=9, learning_rate=learning_rate, box=1.0)
    assert result.steps_taken == steps_taken
    np.testing.assert_array_equal(result.support.points, START.points)


@pytest.mark.parametrize("change", [{"steps": 0}, {"learning_rate": 0.0}, {"box": 0.0}])
def test_the_descent_in_numpy_refuses_bad_parameters(change):
    settings = {"steps": 9, "learning_rate": 0.03, "box": 1.0} | change
    with pytest.raises(ValueError, match="expected"):
        descend(direct_loss(), START, **settings)
