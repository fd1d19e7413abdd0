"""KIP: Eq. 6 on raw rows, and the descent."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tasks.papers.clustmix.kip import centred_one_hot, optimise, raw_loss, ridge_solve

N_ROWS, N_POINTS = 300, 12
WAVES = np.random.default_rng(2).standard_normal((3, 40))
TARGETS = np.random.default_rng(0).uniform(-1, 1, (N_ROWS, 3))
LABELS = centred_one_hot((TARGETS[:, 0] > np.abs(TARGETS[:, 1])).astype(int), 2)
SECOND, CROSS = (np.cos(TARGETS @ WAVES).T @ right for right in (np.cos(TARGETS @ WAVES), LABELS))
START = np.random.default_rng(1).uniform(-0.5, 0.5, (N_POINTS, 3))
START_LABELS = centred_one_hot(np.arange(N_POINTS) % 2, 2)


def loss_on_moments(points, labels, start, second, cross, alpha, ridge):
    """Eq. 6 where the rows enter by moments of features; jax compiles it once for all tests."""
    phi = jnp.cos(points @ WAVES)
    weights = phi.T @ ridge_solve(phi @ phi.T, labels, ridge)
    fit = jnp.sum(weights * (second @ weights)) - 2.0 * jnp.sum(weights * cross)
    moved = jnp.sum((points - start) ** 2) / jnp.sum(start**2)
    return alpha * moved + 0.5 * (1.0 - alpha) * fit


def padded(array, rows):
    return np.pad(np.asarray(array), [(0, rows), (0, 0)])


def padded_arguments(support):
    """Arguments of the loss on raw rows with four points and twenty rows too many."""
    points, labels = (padded(part, 4) for part in support)
    masks = (np.arange(n + more) < n for n, more in ((N_POINTS, 4), (N_ROWS, 20)))
    rest = (padded(START, 4), padded(TARGETS, 20), padded(LABELS, 20))
    return points, labels, *rest, *(mask.astype(float) for mask in masks)


def naive_loss(support, kernel, alpha, ridge):
    """Eq. 6, one row at a time."""
    points, labels = support
    inverse = np.linalg.inv(kernel(points, points) + ridge * np.eye(N_POINTS))
    total = 0.0
    for x, y in zip(TARGETS, LABELS, strict=True):
        total += 0.5 * np.sum((y - kernel(x[None], points)[0] @ inverse @ labels) ** 2)
    moved = np.trace((points - START).T @ (points - START))
    return alpha * moved / np.trace(START.T @ START) + (1 - alpha) * total


def test_raw_loss_is_equation_6_and_padding_does_not_count():
    def kernel(x, y):
        return (1.0 + x @ y.T) ** 2

    rng = np.random.default_rng(1)
    support = rng.uniform(-1, 1, (N_POINTS, 3)), rng.standard_normal((N_POINTS, 2))
    with jax.enable_x64(True):
        found = raw_loss(*padded_arguments(support), kernel=kernel, alpha=0.3, ridge=0.5)
    assert float(found) == pytest.approx(naive_loss(support, kernel, 0.3, 0.5), rel=1e-9)


MOMENTS = (START, SECOND / N_ROWS, CROSS / N_ROWS)


def loss_at(points):
    with jax.enable_x64(True):
        return float(loss_on_moments(points, START_LABELS, *MOMENTS, 0.0, 1e-3))


def optimised(*, alpha=0.0, **changes):
    data = (START_LABELS, *MOMENTS, alpha, 1e-3)
    settings = {"steps": 150, "learning_rate": 0.03, "lower": -1.0, "upper": 1.0} | changes
    # Arrays in every call: bounds of another shape would be compiled once more.
    settings |= {name: np.broadcast_to(settings[name], 3) for name in ("lower", "upper")}
    return optimise(loss_on_moments, START, data, **settings)


def test_optimised_support_comes_close_to_ridge_regression_on_all_rows():
    reached = loss_at(optimised())
    second, cross = SECOND / N_ROWS, CROSS / N_ROWS
    teacher = np.linalg.solve(second + 1e-6 * np.eye(len(second)), cross)
    best = 0.5 * np.sum(teacher * (second @ teacher)) - np.sum(teacher * cross)
    assert best < reached
    # The start predicts little; the support set recovers at least nine tenths of what there is.
    assert (reached - best) < 0.1 * (loss_at(START) - best)
    # Nothing but the distance to the start counts: it stays.
    assert np.array_equal(optimised(alpha=1.0, steps=5, learning_rate=0.1), START)


def test_optimise_keeps_the_box_and_the_global_precision():
    assert not jax.config.jax_enable_x64
    lower, upper = np.array([-0.2, -1.0, 0.0]), np.array([0.2, 1.0, 0.1])
    result, again = (optimised(steps=30, lower=lower, upper=upper) for _ in range(2))
    assert np.all((result >= lower) & (result <= upper))
    assert np.any(result == lower)
    assert result.dtype == np.float64
    assert np.array_equal(result, again)
    assert not jax.config.jax_enable_x64


def test_tolerance_stops_early_and_the_same_loss_and_shapes_are_compiled_once():
    traces = []

    def quadratic(points, centre):
        traces.append(None)
        return jnp.sum((points - centre) ** 2)

    start = np.zeros((1, 1))
    settings = {"learning_rate": 0.05, "lower": -1.0, "upper": 1.0}
    full = optimise(quadratic, start, (np.array(0.5),), steps=500, **settings)
    traced = len(traces)
    early = optimise(quadratic, start, (np.array(1.0 / 3),), steps=400, tolerance=0.5, **settings)
    np.testing.assert_allclose(full, 0.5, atol=1e-6)
    assert 0.0 < early < 1.0 / 3 - 1e-3
    assert len(traces) == traced > 0


def test_a_step_to_a_loss_that_is_not_finite_ends_the_run_with_the_best_so_far():
    def blows_up(points):
        # Finite at the start and after small steps, not a number from 0.25 on.
        return jnp.sum(jnp.where(points > 0.25, jnp.nan, -points))

    result = optimise(
        blows_up, np.zeros((1, 1)), steps=100, learning_rate=0.1, lower=-1.0, upper=1.0
    )
    np.testing.assert_allclose(result, 0.2, atol=1e-6)


def test_a_gpu_takes_the_same_steps():
    try:
        gpu = jax.devices("gpu")[0]
    except RuntimeError:
        pytest.skip("needs a GPU that jax has a plugin for")
    found = []
    for device in (gpu, jax.devices("cpu")[0]):
        with jax.default_device(device):
            found.append(optimised())
    np.testing.assert_allclose(*found, atol=1e-4)
