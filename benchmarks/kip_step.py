"""How fast a step of KIP is, beside the matrix products in it: 1,000 points on 60,000 rows of 784.

A step is the loss of Eq. 6 with the tangent kernel of neural-tangents and its gradient in all
points, in float32 and in batches of rows, so that memory does not grow with them. The products of
the same shapes by themselves, one for the kernel and two for its gradient, say what the device can
do.

``python -m benchmarks.kip_step [--rows N]`` runs on a GPU where jax has one, and says so where not.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from benchmarks.results import Requirement, requirement_table
from benchmarks.rivals.clustmix.kip import centred_one_hot, ridge_solve
from tasks.distillation.tangent_kernels import tangent_kernel

ROWS, POINTS, FEATURES, CLASSES, BATCH = 60_000, 1_000, 784, 10, 20_000
DEPTH, RIDGE, REPEATS, ASKED = 2, 1.0, 3, 2.0


def step_of(n_batches: int) -> Callable[..., tuple[Array, Array]]:
    """Return a compiled step: the loss at points and its gradient, over batches of targets."""
    kernel = tangent_kernel(depth=DEPTH, weight_std=2.0**0.5, bias_std=0.1)

    def loss(points: Array, labels: Array, targets: Array, target_labels: Array) -> Array:
        solved = ridge_solve(kernel(points, points), labels, RIDGE)

        @jax.checkpoint
        def of_batch(batch: tuple[Array, Array]) -> Array:
            rows, row_labels = batch
            return 0.5 * jnp.sum((row_labels - kernel(rows, points) @ solved) ** 2)

        parts = [array.reshape(n_batches, BATCH, -1) for array in (targets, target_labels)]
        return jax.lax.map(of_batch, tuple(parts)).sum()

    return jax.jit(jax.value_and_grad(loss))


@jax.jit
def products(targets: Array, points: Array) -> tuple[Array, Array]:
    """Return the products of the kernel and of its gradients, of the shapes of a step."""
    crossed = targets @ points.T
    return crossed.T @ targets, crossed @ points


def seconds(call: Callable[[], Any]) -> float:
    """Return the median time of a call, after one that compiles."""
    jax.block_until_ready(call())
    found = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        jax.block_until_ready(call())
        found.append(time.perf_counter() - started)
    return median(found)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.kip_step", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS, help=f"a multiple of {BATCH}")
    options = parser.parse_args(arguments)
    # A GPU takes products of float32 with ten bits of the fraction, where it is not told otherwise.
    jax.config.update("jax_default_matmul_precision", "highest")
    rng = np.random.default_rng(0)
    targets, points = (
        jnp.asarray(rng.uniform(size=(n, FEATURES)), jnp.float32) for n in (options.rows, POINTS)
    )
    target_labels, labels = (
        jnp.asarray(centred_one_hot(rng.integers(CLASSES, size=n), CLASSES), jnp.float32)
        for n in (options.rows, POINTS)
    )
    step = step_of(options.rows // BATCH)
    whole = seconds(lambda: step(points, labels, targets, target_labels))
    alone = seconds(lambda: products(targets, points))
    device = jax.devices()[0]
    rate = 6e-12 * options.rows * POINTS * FEATURES / alone
    print(f"{device.device_kind}: {alone:.3f} s for the products ({rate:.2f} TFLOP/s)")
    if device.platform != "gpu":
        print("no GPU is at hand: what was asked is about one")
    row = Requirement(
        text=f"KIP step, {options.rows:,} x {POINTS:,} points, over its products",
        asked=f"<= {ASKED:g}",
        measured=f"{whole / alone:.2f} ({whole:.3f} s)",
        met=whole <= ASKED * alone,
    )
    print(requirement_table([row]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
