"""Public feature map: codes of a record to a vector of Euclidean norm at most one.

The map is a finite-width neural tangent kernel. The network is fully connected, with one hidden
ReLU layer and a linear skip from the encoded record to the output; its kernel is the weighted sum
of a linear kernel and the kernel of the hidden layer. The linear part is kept exactly, the hidden
part by random features drawn from a public seed. Nothing here is fitted to data.

Sources: Nguyen, Chen and Lee 2020 (kernel inducing points); Jacot et al. 2018 (tangent kernel).
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from privacy.arrays import Codes, Floats, Integers
from privacy.sensitivity import block_fourth_power_sum
from tasks.measurement.encoded import EncodingDomain
from tasks.measurement.random_ntk import RandomNtkFeatures

FeatureBlockKind = Literal["one_hot", "ordinal"]

ONE_HOT_WIDTH_LIMIT = 400
"""Widest one-hot row for which every code keeps its own feature; wider tables use ordinal scores.

The noise of a released second moment grows with the number of features, the signal does not."""


@dataclass(frozen=True, slots=True, eq=False)
class FeatureMap:
    """Map codes to features ``phi`` with ``||phi||_2 <= 1`` for every possible record.

    Parameters
    ----------
    tables
        For each column an array of shape (n_codes, width): the raw features of each code.
    products
        For each column an array of shape (n_codes, n_random): the products of the raw features of
        each code with the gates and the directions of ``hidden``, side by side.
    hidden
        Public random features of the tangent kernel, applied to the raw features.

    Privacy
    -------
    A function of one record and public constants, to the last bit. Every record is normalised by
    its own norm, never by a statistic of the table. A matrix product of the whole shard would not
    do: how it rounds a row depends on how many other rows there are, so that one more patient
    could move the truncated features of others.
    """

    tables: tuple[Floats, ...]
    products: tuple[Floats, ...]
    hidden: RandomNtkFeatures

    @property
    def n_raw(self) -> int:
        """Number of raw features: the linear part."""
        return self.hidden.n_inputs

    @property
    def n_features(self) -> int:
        """Number m of features of ``phi``."""
        return self.hidden.n_features

    @property
    def max_fourth_power_sum(self) -> float:
        """Proven bound of ``sum_i phi_i**4`` over all records, for the second moment.

        Where every code of every column has raw features of norm ``1 / sqrt(d)`` (one-hot codes),
        the norm of a raw row is one and its blocks stay at ``1 / sqrt(d)`` when it is normalised.
        Otherwise a block of a normalised row may have any norm up to one.
        """
        d, skip = len(self.tables), self.hidden.skip_weight
        norms = np.concatenate([np.linalg.norm(table, axis=1) for table in self.tables])
        even = bool(np.allclose(norms, 1.0 / np.sqrt(d), rtol=1e-12, atol=0.0))
        linear = [np.sqrt(skip / d)] * d if even else [np.sqrt(skip)]
        return block_fourth_power_sum([*linear, np.sqrt(1.0 - skip)])

    @property
    def raw_offsets(self) -> Integers:
        """Start of each column's block of raw features, with the total at the end."""
        return np.cumsum([0] + [table.shape[1] for table in self.tables])

    def raw(self, codes: Codes) -> Floats:
        """Raw features of encoded records (n, d), of shape (n, n_raw) and norm at most 1."""
        offsets = self.raw_offsets
        features = np.empty((len(codes), self.n_raw))
        for column, table in enumerate(self.tables):
            features[:, offsets[column] : offsets[column + 1]] = table[codes[:, column]]
        return features

    def phi(self, codes: Codes) -> Floats:
        """Features of encoded records, float64 of shape (n, m), every row of norm at most 1."""
        total = np.zeros((len(codes), self.n_features - self.n_raw))
        for column, product in enumerate(self.products):
            total += product[codes[:, column]]
        drive, directed = np.split(total, 2, axis=1)
        features: Floats = self.hidden.from_products(self.raw(codes), drive, directed)
        return features

    def raw_of_marginals(self, marginals: Floats) -> Floats:
        """Mean raw features of records drawn column by column from marginals.

        These, (..., one_hot_width), have one probability vector per column, side by side; the
        result is of shape (..., n_raw).
        """
        start, blocks = 0, []
        for table in self.tables:
            blocks.append(marginals[..., start : start + len(table)] @ table)
            start += len(table)
        return np.concatenate(blocks, axis=-1)


def build_feature_map(
    domain: EncodingDomain,
    *,
    n_random: int,
    skip_weight: float,
    public_seed: int,
    block_kind: FeatureBlockKind | None = None,
) -> FeatureMap:
    """Build the feature map from the public domain and a public seed, which never touches noise.

    The random hidden features are even in number, 2 or more; the skip weight is the share of the
    linear part in the squared norm, in (0, 1]. Blocks are "one_hot", one raw feature per code, or
    "ordinal": a score in [-1, 1] for a numeric column and an indicator of missingness, one-hot for
    a categorical one. None chooses by the public width of the table.
    """
    if block_kind is None:
        block_kind = "one_hot" if domain.one_hot_width <= ONE_HOT_WIDTH_LIMIT else "ordinal"
    tables = [
        _ordinal_table(n_codes, has_missing=missing)
        if block_kind == "ordinal" and numeric
        else np.eye(n_codes)
        for n_codes, missing, numeric in zip(
            domain.n_codes, domain.has_missing, domain.numeric, strict=True
        )
    ]
    # Every block has norm at most one; dividing by sqrt(d) bounds the whole row by one.
    scale = 1.0 / np.sqrt(len(tables))
    scaled = tuple(table * scale for table in tables)
    ends = np.cumsum([table.shape[1] for table in scaled])
    hidden = RandomNtkFeatures.draw(
        n_inputs=int(ends[-1]), n_random=n_random, skip_weight=skip_weight, public_seed=public_seed
    )
    lines = np.split(np.concatenate([hidden.gates, hidden.directions]).T, ends[:-1])
    products = tuple(table @ line for table, line in zip(scaled, lines, strict=True))
    return FeatureMap(tables=scaled, products=products, hidden=hidden)


def _ordinal_table(n_codes: int, *, has_missing: bool) -> Floats:
    """Raw features of a numeric column: centred bin position, and missingness where it has one."""
    n_bins = n_codes - int(has_missing)
    score = (2.0 * np.arange(n_bins) + 1.0) / n_bins - 1.0
    if not has_missing:
        return score[:, None]
    table = np.zeros((n_codes, 2))
    table[:n_bins, 0] = score
    table[n_bins, 1] = 1.0
    return table
