"""Gradients of single records, out of the sums that networks give."""

import numpy as np

GRID = 2**30
NO_CLIP = 1_024.0


def gradient_of_each(network, parameters, vectors, *, step_seed, state):
    """Gradient of each record by itself, float64 (n, P), exact to one part in 2**29."""
    sums = [
        network.clipped_sum(
            parameters,
            record[None, :],
            np.ones(1),
            l2_clip_norm=NO_CLIP,
            scale=GRID,
            step_seed=step_seed,
            state=state,
        )
        for record in vectors
    ]
    assert all(found.norms[0] < NO_CLIP for found in sums)
    return np.array([found.total / GRID for found in sums]).reshape(len(sums), -1)


def mean_gradient(network, parameters, vectors, *, step_seed, state):
    """Mean gradient of a batch, (P,)."""
    batch = network.batch_gradients(parameters, vectors, step_seed=step_seed, state=state)
    return batch.weighted_sum(np.full(len(vectors), 1.0 / len(vectors)))
