"""Gradients of single records, out of the sums that networks give."""

import numpy as np

GRID = 2**30
NO_CLIP = 1_024.0


def clipped_gradients(network, parameters, vectors, **step):
    """Sum and norms of the gradients of records, none of which is clipped."""
    weights = np.ones(len(vectors))
    options = {"l2_clip_norm": NO_CLIP, "scale": GRID, **step}
    found = network.clipped_sum(parameters, vectors, weights, **options)
    assert (found.norms < NO_CLIP).all()
    return found.total / GRID


def gradient_of_each(network, parameters, vectors, **step):
    """Gradient of each record by itself, float64 (n, P), exact to one part in 2**29."""
    return np.array(
        [clipped_gradients(network, parameters, one[None, :], **step) for one in vectors]
    )


def mean_gradient(network, parameters, vectors, **step):
    """Mean gradient of a batch, (P,)."""
    return clipped_gradients(network, parameters, vectors, **step) / len(vectors)
