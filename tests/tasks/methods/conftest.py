from dataclasses import dataclass

import numpy as np
import pytest
from measuring import domain_with, every_labelled_record, norm_of

from tasks.measurement.encoded import N_FOLDS, EncodedRows, EncodingDomain
from tasks.measurement.vectors import VectorMap
from tasks.methods.dpgm.kernel_kmeans import Clustering, build_embedding, to_centres


@dataclass(frozen=True)
class SmallTable:
    """A public domain of three columns and two labels, and ways to fill it."""

    domain: EncodingDomain

    def rows(self, patients):
        """Encode patients given as ``(fold, [(codes, label), ...])``; weights are ``1 / m``."""
        codes = [codes for _, records in patients for codes, _ in records]
        return EncodedRows(
            codes=np.array(codes, dtype=np.uint16).reshape(-1, self.domain.n_columns),
            label=np.array([y for _, records in patients for _, y in records], dtype=np.uint16),
            weight=np.array([1.0 / len(r) for _, r in patients for _ in r], dtype=np.float64),
            fold=np.array([fold for fold, r in patients for _ in r], dtype=np.uint8),
        )

    def patients(self, n, seed):
        rng = np.random.default_rng(seed)

        def record():
            codes = [int(rng.integers(width)) for width in self.domain.n_codes]
            return codes, int(rng.integers(self.domain.n_labels))

        return [
            (int(rng.integers(N_FOLDS)), [record() for _ in range(rng.integers(1, 5))])
            for _ in range(n)
        ]

    def largest_norm(self, contribution):
        """Largest norm, exactly, of what a patient alone adds: of one record, or of some three."""
        records = every_labelled_record(self.domain)
        patients = [[record] for record in records]
        patients += [[a, b, records[0]] for a in records[::5] for b in records[::7]]
        changes = [contribution(self.rows([(0, patient)])) for patient in patients]
        assert not contribution(self.rows([])).any()
        assert {change.dtype for change in changes} == {np.dtype(np.int64)}
        return max(norm_of(change) for change in changes)

    def embedding(self, *, public_seed=3, with_label=True, n_features=8, **changes):
        """A public map of records to points; Fourier features unless told otherwise."""
        form = {"features": "fourier", "length_scale": 0.8, "l2_clip_norm": None, **changes}
        vector_map = VectorMap(self.domain, with_label=with_label)
        return build_embedding(vector_map, n_features=n_features, public_seed=public_seed, **form)

    def clustering(self, embedding, rng, n_clusters=3):
        return Clustering(
            embedding=embedding,
            centres=to_centres(0.4 * rng.standard_normal((n_clusters, embedding.width))),
            alive=np.ones(n_clusters, dtype=np.bool_),
        )


@pytest.fixture(scope="session")
def small():
    return SmallTable(domain_with(4, 2, 3, numeric=(0, 2), missing=[0]))
