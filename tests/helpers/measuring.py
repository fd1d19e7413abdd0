"""Measurements in one process: without noise, of every record that there can be, checked."""

import math
from dataclasses import replace
from itertools import product

import numpy as np

from benchmarks.in_process import SeededNoise
from tasks.execution.executor import InProcessExecutor
from tasks.measurement.curator import Curator
from tasks.measurement.encoded import EncodedRows, EncodingDomain
from tasks.measurement.method import measure


def domain_with(*n_codes, numeric=(), missing=(), labels=("no", "yes"), **others):
    """A public domain of columns of so many codes; places say which are numbers or may miss."""
    places = range(len(n_codes))
    return EncodingDomain(
        column_names=tuple(f"c{j}" for j in places),
        n_codes=n_codes,
        numeric=tuple(j in numeric for j in places),
        has_missing=tuple(j in missing for j in places),
        label_levels=labels,
        **others,
    )


class NoNoise:
    tainted = True

    def __init__(self):
        self.draws = []

    def discrete_gaussian(self, shape, *, noise_stddev):
        self.draws.append((shape, noise_stddev))
        return np.zeros(shape, dtype=np.int64)


class NotingExecutor(InProcessExecutor):
    """Notes which functions a curator has summed, with which public arguments."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def sum(self, function, shards, public):
        self.asked.append((public["contribution"], public["public"]))
        return super().sum(function, shards, public)


def curator_of(method, shards, noise_source=None, *, mu, **how):
    noise = NoNoise() if noise_source is None else noise_source
    return Curator(plan=method.plan(mu=mu), shards=shards, noise_source=noise, **how)


def released_of(method, rows, noise_source=None, *, mu):
    """What a whole measurement releases; every planned draw is made, and nothing else."""
    curator = curator_of(method, [rows], noise_source, mu=mu)
    released = measure(method, curator)
    assert curator.event == curator.plan.event
    return released


def transcript_of(method, rows, *, mu, seed=1):
    """Each draw with what was summed and its released arguments, and what came out."""
    draws, executor = [], NotingExecutor()

    def seal(_, noisy):
        draws.append((noisy, *executor.asked[-1]))

    how = {"mu": mu, "executor": executor, "seal": seal}
    return draws, measure(method, curator_of(method, [rows], SeededNoise(seed), **how))


def drawn_by(method, rows, *, mu):
    """The plan, what was summed with which released arguments, by statistic, and what came out."""
    draws, released = transcript_of(method, rows, mu=mu)
    seen = {noisy.event.statistic: asked for noisy, *asked in draws}
    return method.plan(mu=mu), seen, released


def sampled(method, domain, released, n_rows, *, seed=0):
    codes, labels = method.sample(released, n_rows=n_rows, rng=np.random.default_rng(seed))
    assert_valid(domain, codes, labels, n_rows)
    return codes, labels


def assert_valid(domain, codes, labels, n_rows):
    assert (codes.shape, codes.dtype) == ((n_rows, domain.n_columns), np.uint16)
    assert (labels.shape, labels.dtype) == ((n_rows,), np.uint16)
    assert (codes < np.array(domain.n_codes)).all()
    assert (labels < domain.n_labels).all()


def rows_with(codes, label, *, weight=None, fold=None):
    return EncodedRows(
        codes=codes.astype(np.uint16),
        label=label.astype(np.uint16),
        weight=np.ones(len(label)) if weight is None else weight,
        fold=(np.zeros(len(label)) if fold is None else fold).astype(np.uint8),
    )


def take(rows, index):
    names = ("codes", "label", "weight", "fold")
    return replace(rows, **{name: getattr(rows, name)[index] for name in names})


def in_shards(rows, order, cuts):
    """Rows in a given order, split at given positions; neighbours may leave a shard empty."""
    return [take(rows, part) for part in np.split(np.asarray(order), sorted(cuts))]


def random_records(domain, n, seed):
    rng = np.random.default_rng(seed)
    codes = np.stack([rng.integers(0, k, n) for k in domain.n_codes], axis=1).astype(np.uint16)
    return codes, rng.integers(0, domain.n_labels, n).astype(np.uint16)


def every_record(domain):
    """Codes of every record that there can be, uint16 of shape (n, d)."""
    return np.array(list(product(*map(range, domain.n_codes))), dtype=np.uint16)


def every_labelled_record(domain):
    return [(codes, y) for codes in every_record(domain).tolist() for y in range(domain.n_labels)]


def norm_of(exact):
    """Euclidean norm of integers, without rounding before the root."""
    return math.sqrt(sum(value * value for value in exact.ravel().tolist()))
