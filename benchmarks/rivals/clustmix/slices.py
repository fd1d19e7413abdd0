"""Random slices of the feature space: the small regions that are clustered one by one.

The paper: "for feature, we uniformly sample n data points as cutoff points", and everything else is
applied to each region. It leaves open which features are cut. Here features are taken in random
order, and every region that is still too large is cut along the next one, so that a table whose
features have few distinct values can be sliced too.

Flaw C2: the cut-offs are raw data values, and a record that happens to be a cut-off moves the
regions of many others. The sizes that decide whether to cut on are private too (flaw C3).
"""

import numpy as np

from privacy.arrays import Floats, Indices


def random_slices(
    features: Floats, *, max_rows: int, n_cutoffs: int, rng: np.random.Generator
) -> list[Indices]:
    """Cut the rows into regions of at most `max_rows` rows where the features allow it.

    Regions are cut by the values of `n_cutoffs` of their rows, drawn with replacement, a feature at
    a time, and given by ascending row numbers. Both numbers are at least 1 (ValueError).
    """
    if max_rows < 1 or n_cutoffs < 1:
        raise ValueError("expected max_rows and n_cutoffs of 1 or more")
    slices: list[Indices] = [np.arange(len(features))]
    for feature in rng.permutation(features.shape[1]):
        if all(len(rows) <= max_rows for rows in slices):
            break
        pieces: list[Indices] = []
        for rows in slices:
            if len(rows) <= max_rows:
                pieces.append(rows)
                continue
            values = features[rows, feature]
            cutoffs = np.unique(values[rng.integers(len(rows), size=n_cutoffs)])
            # A value equal to a cut-off goes to the region above it.
            region = np.searchsorted(cutoffs, values, side="right")
            pieces += [rows[region == index] for index in np.unique(region)]
        slices = pieces
    return slices
