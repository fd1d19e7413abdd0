"""Records and labels as vectors of bounded norm, and noisy sums of them back to records."""

import math
from dataclasses import dataclass

import numpy as np

from benchmarks.rivals.projection import Projection
from privacy.arrays import AnyFloats, Codes, Floats, Integers, Records
from tasks.measurement.encoded import EncodingDomain, row_slices
from tasks.measurement.vectors import VectorMap


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledVectors:
    """Public map of a record and its label to one vector.

    The record's vector less the `origin`, projected if there is a projection, is shortened to
    `l2_clip_norm` where it is longer; the one-hot label times `label_scale` stands behind it. So
    every vector has a Euclidean norm of at most `l2_bound`, and a label is never shortened. The
    bound of the record part may be None for the distance from the middle that no record of the
    domain exceeds (without a projection) or exceeds on average (with one). The label has a share of
    ``l2_bound**2``, between 0 and 1.
    """

    domain: EncodingDomain
    l2_clip_norm: float | None = None
    label_share: float
    projection: Projection | None = None

    @property
    def record_width(self) -> int:
        """Number of coordinates of the record part."""
        if self.projection is not None:
            return self.projection.n_projected
        return VectorMap(self.domain).width

    @property
    def width(self) -> int:
        """Number of coordinates: those of the record, and one per label."""
        return self.record_width + self.domain.n_labels

    @property
    def origin(self) -> Floats:
        """What adds nothing (D,): the middle of the domain, or 0 where a norm is declared.

        Every code is counted as well as before, and the vectors are shorter: by half where all
        columns have two codes.
        """
        vectors = VectorMap(self.domain)
        return vectors.middle if self.l2_clip_norm is None else np.zeros(vectors.width)

    @property
    def record_l2_bound(self) -> float:
        """Largest Euclidean norm of the record part."""
        largest = VectorMap(self.domain).radius(self.origin)
        if self.l2_clip_norm is None:
            return largest
        # Without a projection no record is longer, and less noise does for a tighter bound.
        return self.l2_clip_norm if self.projection else min(self.l2_clip_norm, largest)

    @property
    def label_scale(self) -> float:
        """Length of a label: what the 1 of its one-hot vector is multiplied by."""
        return self.record_l2_bound * math.sqrt(self.label_share / (1.0 - self.label_share))

    @property
    def l2_bound(self) -> float:
        """Largest Euclidean norm of a vector."""
        return math.hypot(self.record_l2_bound, self.label_scale)

    def vectors(self, codes: Codes, label: Codes) -> Floats:
        """Vectors of records, float64 of shape (n, width); each depends on its record alone."""
        records = VectorMap(self.domain).vectors(codes) - self.origin
        if self.projection is not None:
            records = self.projection.project(records)
        norms = np.sqrt((records * records).sum(axis=1))
        records *= (self.record_l2_bound / np.maximum(norms, self.record_l2_bound))[:, None]
        labels = self.label_scale * np.eye(self.domain.n_labels)[label]
        return np.concatenate([records, labels], axis=1)

    def decode(self, sums: Floats) -> Records:
        """Nearest valid record (m, d) and label (m,) of each noisy sum (m, width): free."""
        label_part, patients = self.label_counts(sums), self.patients(sums)
        codes = [
            self._nearest_codes(sums[block, : self.record_width] / patients)
            for block in row_slices(len(sums))
        ]
        return np.concatenate(codes), matched_labels(label_part)

    def label_counts(self, sums: AnyFloats) -> Floats:
        """Noisy number of patients of each label in each sum, of shape (m, C)."""
        return np.asarray(sums[:, self.record_width :] / self.label_scale, dtype=np.float64)

    def patients(self, sums: Floats) -> float:
        """Return what all sums are divided by: their mean number of patients, 1 at least."""
        return max(1.0, float(self.label_counts(sums).sum(axis=1).mean()))

    def _nearest_codes(self, records: Floats) -> Codes:
        if self.projection is not None:
            records = self.projection.back(records, self.origin)
        else:
            records = records + self.origin
        codes, _ = VectorMap(self.domain).codes(records)
        return codes


_SWEEPS = 50
"""Most rounds over the labels; a few are enough where the scores are not tied."""


def matched_labels(scores: Floats) -> Codes:
    """Return the label with the largest score plus an offset of the label.

    The plain argmax of mixtures of many records is the most frequent label, always: a table with
    one death in ten records would be released without any. The offsets are those with which every
    label is chosen as often as its share of the sum of all scores. They are found label by label
    (coordinate ascent on the dual of the transport problem between rows and labels). Scores, of
    shape (m, C), are the noisy number, or share, of the records of each label in each mixture.

    Privacy
    -------
    Post-processing of released scores.
    """
    n_rows, n_labels = scores.shape
    totals = np.maximum(scores.sum(axis=0), 0.0)
    if not totals.any():
        totals = np.ones(n_labels)
    wanted = _whole_numbers(totals / totals.sum() * n_rows, n_rows)
    offsets = np.zeros(n_labels)
    for _ in range(_SWEEPS):
        chosen = (scores + offsets).argmax(axis=1)
        if np.array_equal(np.bincount(chosen, minlength=n_labels), wanted):
            break
        for label in range(n_labels):
            shifted = scores + offsets
            shifted[:, label] = -np.inf
            # The offset that a row asks for before it takes this label; the cheapest rows get it.
            price = np.sort(shifted.max(axis=1) - scores[:, label])
            cheapest = wanted[label]
            below = price[cheapest - 1] if cheapest > 0 else price[0] - 2.0
            above = price[cheapest] if cheapest < n_rows else price[-1] + 2.0
            offsets[label] = (below + above) / 2.0
    labels: Codes = (scores + offsets).argmax(axis=1).astype(np.uint16)
    return labels


def _whole_numbers(parts: Floats, total: int) -> Integers:
    """Round parts of a total so that they add up to it: the largest remainders go up."""
    floors = np.floor(parts).astype(np.int64)
    order = np.argsort(-(parts - floors), kind="stable")
    floors[order[: total - floors.sum()]] += 1
    return floors
