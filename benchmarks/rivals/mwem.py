"""MWEM: multiplicative weights with queries chosen by the exponential mechanism; two forms.

Source: Hardt, Ligett and McSherry 2012, "A simple and practical algorithm for differentially
private data release", NIPS 25, Figure 1 and the section on scaling.

As printed, each of T rounds spends ``epsilon / (2 T)`` on the choice of a query and as much on its
answer with Laplace noise; half the error of a share is the step; the mean of all distributions is
the result; the number of rows is public. Several passes over all measurements in each round are the
improvement that the paper describes itself.

The accounted form differs: the number of records is a noisy statistic; answers have Gaussian noise;
the update meets a measurement instead of taking a short step toward it; and the first distribution
may have noisy one-way histograms. Choices and answers compose in zero-concentrated privacy, where a
choice at epsilon costs ``epsilon**2 / 8`` (Cesar and Rogers 2021, Lemma 3.4).
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from benchmarks.rivals.factored_distribution import (
    FactoredDistribution,
    NoisyAnswer,
    Tilt,
    iterates,
    matching_tilt,
    printed_tilt,
    update,
)
from benchmarks.rivals.noise import concentrated_rho
from benchmarks.rivals.registry import Rival
from benchmarks.rivals.workload import draw_workload, workload_answers
from privacy.arrays import Codes, Floats, Records
from tasks.measurement.centred import centred_norm, counts_of, label_counts
from tasks.measurement.encoded import EncodedRows
from tasks.measurement.marginals import to_marginals
from tasks.measurement.statistics import SUM_SCALE

_SMALLEST_COUNT = 0.5
"""Records that a code or a query has at least: a weight of zero could never grow again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MwemSettings:
    """Settings of both forms; the last six are of the accounted one."""

    rounds: int = 30
    """Queries chosen and measured (T)."""
    max_queries: int = 2000
    """Size of the public workload of queries."""
    label_share: float = 0.5
    """Share of the two-way queries that ask for the label."""
    max_component_cells: int = 2**14
    """Largest joint table of dependent columns."""
    passes: int = 10
    """Updates by every measurement in each round."""
    start: Literal["uniform", "histograms"] = "histograms"
    output: Literal["average", "last"] = "average"
    count_share: float = 0.02
    histogram_share: float = 0.4
    selection_share: float = 0.4
    measurement_share: float = 0.18
    """Ratios in which rho is split."""


class _Mwem(Rival[MwemSettings]):
    def _rounds(
        self,
        first: Floats,
        records: tuple[Codes, Codes],
        *,
        n_records: float,
        noise_of: Callable[[], float],
        epsilon: float,
        tilt: Tilt,
        rng: np.random.Generator,
    ) -> list[NoisyAnswer]:
        """Choose, measure and update, round by round; returns the noisy answers."""
        settings = self.settings
        workload = draw_workload(
            self.domain, max_queries=settings.max_queries, label_share=settings.label_share
        )
        exact = workload_answers(*records, workload)
        distribution, history = self._start(first), list[NoisyAnswer]()
        smallest = min(_SMALLEST_COUNT / n_records, 0.5)
        for _ in range(settings.rounds):
            admissible = distribution.admissible(workload, max_cells=settings.max_component_cells)
            errors = np.abs(distribution.answers(workload) * n_records - exact)[admissible]
            # The largest of scores with Gumbel noise is a draw by the exponential mechanism.
            query = int(
                admissible[np.argmax(epsilon * errors / 2.0 + rng.gumbel(size=len(errors)))]
            )
            share = (exact[query] + noise_of()) / n_records
            if tilt is matching_tilt:
                share = min(max(share, smallest), 1.0 - smallest)
            history.append(NoisyAnswer(**workload.named(query), share=share))
            update(distribution, history, passes=settings.passes, tilt=tilt)
        return history

    def _start(self, marginals: Floats) -> FactoredDistribution:
        ends = np.cumsum((*self.domain.n_codes, self.domain.n_labels))[:-1]
        return FactoredDistribution(np.split(marginals, ends))

    def _uniform(self) -> Floats:
        codes = (*self.domain.n_codes, self.domain.n_labels)
        return np.concatenate([np.full(n, 1.0 / n) for n in codes])


class PrintedMwem(_Mwem):
    """MWEM as printed: the start is uniform, the output the mean, and ``delta`` is not used."""

    def synthesize(self, codes: Codes, labels: Codes, rng: np.random.Generator) -> Records:
        """Make as many records as there are real ones.

        Privacy
        -------
        Claimed by the paper: epsilon under replacement of one row, whose number is public.
        """
        settings, n_rows = self.settings, len(labels)
        epsilon, first = self.parameters.epsilon / (2.0 * settings.rounds), self._uniform()
        history = self._rounds(
            first,
            (codes, labels),
            n_records=n_rows,
            noise_of=lambda: rng.laplace(scale=1.0 / epsilon),
            epsilon=epsilon,
            tilt=printed_tilt,
            rng=rng,
        )
        found = iterates(self._start(first), history, passes=settings.passes, tilt=printed_tilt)
        return sample_iterates(found, len(history), output="average", n_rows=n_rows, rng=rng)


class AccountedMwem(_Mwem):
    """MWEM with Gaussian answers, calibrated to add or remove of one record."""

    def synthesize(self, codes: Codes, labels: Codes, rng: np.random.Generator) -> Records:
        """Make as many records as there are real ones."""
        settings = self.settings
        with_histograms = settings.start == "histograms"
        total = settings.count_share + settings.selection_share + settings.measurement_share
        unit = concentrated_rho(self.parameters)
        unit /= total + settings.histogram_share * with_histograms
        count = len(labels) + rng.normal() / math.sqrt(2.0 * unit * settings.count_share)
        n_records, first = max(count, 1.0), self._uniform()
        if with_histograms:
            noise = 1.0 / math.sqrt(2.0 * unit * settings.histogram_share)
            first = self._histograms(codes, labels, n_records, noise, rng)
        noise = 1.0 / math.sqrt(2.0 * unit * settings.measurement_share / settings.rounds)
        history = self._rounds(
            first,
            (codes, labels),
            n_records=n_records,
            noise_of=lambda: rng.normal(scale=noise),
            epsilon=math.sqrt(8.0 * unit * settings.selection_share / settings.rounds),
            tilt=matching_tilt,
            rng=rng,
        )
        found = iterates(self._start(first), history, passes=settings.passes, tilt=matching_tilt)
        return sample_iterates(
            found, len(history), output=settings.output, n_rows=len(labels), rng=rng
        )

    def _histograms(
        self,
        codes: Codes,
        labels: Codes,
        n_records: float,
        noise_stddev: float,
        rng: np.random.Generator,
    ) -> Floats:
        """Noisy one-way marginals of all columns and the label, from counts of sensitivity 1."""
        n_codes, n = (*self.domain.n_codes, self.domain.n_labels), len(labels)
        rows = EncodedRows(
            codes=np.column_stack([codes, labels]),
            label=np.zeros_like(labels),
            weight=np.ones(n),
            fold=np.zeros(n, dtype=np.uint8),
        )
        exact = label_counts(rows, n_codes=n_codes, n_labels=1) / SUM_SCALE
        noisy = exact + noise_stddev * rng.standard_normal(exact.shape)
        [counts] = counts_of(noisy, n_codes)[1]
        offsets = np.concatenate([[0], np.cumsum(n_codes)])
        marginals = to_marginals(counts, offsets, noise_stddev=noise_stddev * centred_norm(n_codes))
        marginals = np.maximum(marginals, _SMALLEST_COUNT / n_records)
        totals = np.add.reduceat(marginals, offsets[:-1])
        shares: Floats = marginals / np.repeat(totals, n_codes)
        return shares


def sample_iterates(
    distributions: Iterable[FactoredDistribution],
    n_rounds: int,
    *,
    output: str,
    n_rows: int,
    rng: np.random.Generator,
) -> Records:
    """Sample ``(codes, labels)`` from the last of some distributions, or from their mean.

    The mean of products is no product: a record is drawn from one of them, at random. There is a
    distribution after each of one round or more.
    """
    if output == "average":
        sizes = rng.multinomial(n_rows, np.full(n_rounds, 1.0 / n_rounds))
    else:
        sizes = np.zeros(n_rounds, dtype=np.int64)
        sizes[-1] = n_rows
    parts = [
        distribution.sample(int(size), rng)
        for size, distribution in zip(sizes, distributions, strict=True)
    ]
    records = rng.permutation(np.concatenate(parts))
    return records[:, :-1], records[:, -1]
