"""Cells: a public rule that sends a record to one (slice, cluster) of its label.

A cell is defined by public cut-offs and released centres. The cell of a record is a function of
that record and of public arrays alone; no other record can move it. That is what the printed
algorithm lacks, whose memberships move when any record changes.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privacy.arrays import Codes, Floats, Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """Slices by cut-offs on a public projection, clusters by the nearest released centre.

    Parameters
    ----------
    offsets : int64 array of shape (d + 1,)
        Start of each column's block in a one-hot row.
    code_scores : float64 array of shape (one_hot_width,)
        Public random score of each code; a record's projection is the sum over its columns,
        divided by sqrt(d).
    cut_offs : float64 array of shape (n_slices - 1,), ascending
        Public cut-offs of the projection.
    centres : float64 array of shape (n_labels, n_slices, n_clusters, one_hot_width)
        Released centres in the space of one-hot rows; public starting points before round one.
    alive : bool array of shape (n_labels, n_slices, n_clusters)
        Clusters that the size prior keeps; at least one in every slice.
    """

    offsets: Integers
    code_scores: Floats
    cut_offs: Floats
    centres: Floats
    alive: NDArray[np.bool_]

    @property
    def n_labels(self) -> int:
        """Number of label levels."""
        return int(self.centres.shape[0])

    @property
    def n_cells(self) -> int:
        """Number of cells of a label: slices times clusters."""
        return int(self.centres.shape[1] * self.centres.shape[2])

    def slices(self, codes: Codes) -> Integers:
        """Slice (n,) of each record (n, d): the number of cut-offs at or below its projection."""
        projection = np.zeros(len(codes))
        # Column by column: how one call would round the sum of a row depends on the other rows.
        for column, start in enumerate(self.offsets[:-1]):
            projection += self.code_scores[start + codes[:, column]]
        projection /= np.sqrt(codes.shape[1])
        return np.asarray(np.searchsorted(self.cut_offs, projection, side="right"))

    def assign(self, codes: Codes, label: Codes) -> Integers:
        """Cell (n,) of each record (n, d) within its label: ``slice * n_clusters + cluster``.

        The cluster is the one whose isotropic Gaussian around the centre is most likely; all
        share one variance, so it is the nearest centre that is alive. Ties go to the lower index.
        """
        n_clusters = self.centres.shape[2]
        slices = self.slices(codes)
        if n_clusters == 1:
            return slices
        cell = np.zeros(len(codes), dtype=np.int64)
        # -2 <x, c> + |c|^2 orders the clusters like the squared distance.
        penalty = (self.centres**2).sum(axis=-1)
        penalty[~self.alive] = np.inf
        for label_level in range(self.n_labels):
            for slice_index in range(self.centres.shape[1]):
                member = np.flatnonzero((label == label_level) & (slices == slice_index))
                centres = self.centres[label_level, slice_index]
                inner = np.zeros((len(member), n_clusters))
                for column, start in enumerate(self.offsets[:-1]):
                    inner += centres.T[start + codes[member, column]]
                distance = penalty[label_level, slice_index] - 2.0 * inner
                cell[member] = slice_index * n_clusters + distance.argmin(axis=1)
        return cell
