"""Accuracy on MNIST after training on the output of DPMix, local perturbation, random projection.

The rivals of Table 3 of the DP-CDA paper, each as published and in its proven form, scored by the
network of that paper's Table 1 and by ridge regression on the labels. A published method is scored
on the valid records that it releases, and DPMix also on its mixtures before they are made valid
records (the paper trains on those): rounding to [0, 1] clips the noise of a pixel.

The outputs are small, 5,000 rows and three passes of the network, so that everything runs in
minutes: this shows which methods are above chance, not the most that each can reach. The label of
a mixture of the whole table says little; the network needs many more of them than the regression.

``python -m benchmarks.rivals_images FOLDER`` with the folder of the four idx files.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import convolutional
from benchmarks.results import CLAIMED, NO_GUARANTEE, PROVEN, table
from privacy.calibration import gdp_mu
from privacy.parameters import PrivacyParameters
from privacy.randomness import SeededNoise
from storage.idx_files import read_idx
from tasks.synthesizers.base import Synthesizer, measure
from tasks.synthesizers.curator import Curator, InProcessCompute
from tasks.synthesizers.dp_mix.config import DPMixConfig
from tasks.synthesizers.dp_mix.published import DPMixPublished
from tasks.synthesizers.dp_mix.synthesizer import DPMix
from tasks.synthesizers.encoded import EncodedRows, EncodingDomain
from tasks.synthesizers.local_perturbation.config import LocalPerturbationConfig
from tasks.synthesizers.local_perturbation.published import LocalPerturbationPublished
from tasks.synthesizers.local_perturbation.synthesizer import LocalPerturbation
from tasks.synthesizers.random_projection.config import RandomProjectionConfig
from tasks.synthesizers.random_projection.published import RandomProjectionPublished
from tasks.synthesizers.random_projection.synthesizer import RandomProjection
from tasks.synthesizers.vectors import VectorMap

EPSILONS = (10.0, 20.0)
DELTA = 1e-5
ORDER_OF_MIXTURE = 64
N_PROJECTED = 64
L2_CLIP_NORM = 10.0
"""Public: most digits have a norm of about 9 where a white pixel is 1."""

PAPER = {
    ("random_projection", 10.0): 0.100,
    ("random_projection", 20.0): 0.104,
    ("local_perturbation", 10.0): 0.098,
    ("local_perturbation", 20.0): 0.098,
    ("dp_mix", 10.0): 0.782,
    ("dp_mix", 20.0): 0.800,
}
"""Table 3 of the DP-CDA paper, column MNIST."""

_PIXELS, _DIGITS, _WHITE = 784, 10, 255
_SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRow:
    """Test accuracy after training on one output.

    Parameters
    ----------
    method, form
        Kind of the method; what the classifiers saw.
    guarantee
        What epsilon and delta stand for.
    epsilon, delta
        None for real images.
    rows
        Rows of the output.
    network, ridge
        Accuracy of each classifier on the 10,000 test images.
    paper
        Accuracy in the DP-CDA paper, with the network and more rows; None where it has none.
    seconds
        Wall time of the method.
    """

    method: str
    form: str
    guarantee: str
    epsilon: float | None = None
    delta: float | None = None
    rows: int
    network: float
    ridge: float
    paper: float | None = None
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What a method made: images in units of a white pixel, and their digits or shares of them."""

    method: str
    form: str
    guarantee: str
    epsilon: float | None
    images: NDArray[np.float32]
    labels: NDArray[Any]
    shares: NDArray[np.float64]
    seconds: float


def image_domain() -> EncodingDomain:
    """Domain of an image: 784 numeric columns of 256 codes."""
    return EncodingDomain(
        column_names=tuple(f"pixel_{index:03d}" for index in range(_PIXELS)),
        n_codes=(_WHITE + 1,) * _PIXELS,
        has_missing=(False,) * _PIXELS,
        numeric=(True,) * _PIXELS,
        label_levels=tuple(str(digit) for digit in range(_DIGITS)),
    )


def read_images(folder: Path, part: str) -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
    """Codes and digits of the part "train" or "t10k"."""
    images = read_idx(folder / f"{part}-images-idx3-ubyte.gz").reshape(-1, _PIXELS)
    return images.astype(np.uint16), read_idx(folder / f"{part}-labels-idx1-ubyte.gz").astype(
        np.uint16
    )


def outputs(
    codes: NDArray[np.uint16], labels: NDArray[np.uint16], *, n_rows: int, epsilons: Sequence[float]
) -> Iterator[Output]:
    """Run every method at every epsilon; per-record methods on the first ``n_rows`` records."""
    domain = image_domain()
    yield _output("real", "real images", None, (codes[:n_rows], labels[:n_rows]), 0.0)
    mix = DPMixConfig(
        order_of_mixture=ORDER_OF_MIXTURE,
        n_mixtures=n_rows,
        declared_patients=len(labels),
        l2_clip_norm=L2_CLIP_NORM,
    )
    local = LocalPerturbationConfig(n_slots=n_rows, l2_clip_norm=L2_CLIP_NORM)
    projected = RandomProjectionConfig(
        n_slots=n_rows, n_projected=N_PROJECTED, l2_clip_norm=L2_CLIP_NORM
    )
    some = codes[:n_rows], labels[:n_rows]
    for epsilon in epsilons:
        claimed = PrivacyParameters(epsilon=epsilon, delta=DELTA)
        rng = np.random.default_rng(_SEED)
        yield _mixtures(DPMixPublished(domain, mix, claimed), codes, labels)
        for method, bound, data in (
            ("dp_mix", DPMixPublished(domain, mix, claimed), (codes, labels)),
            ("local_perturbation", LocalPerturbationPublished(domain, local, claimed), some),
            ("random_projection", RandomProjectionPublished(domain, projected, claimed), some),
        ):
            started = time.perf_counter()
            made = bound.synthesize(*data, rng)
            taken = time.perf_counter() - started
            yield _output(method, "published, valid records", epsilon, made, taken)
        for method, proven, data in (
            ("dp_mix", DPMix(domain, mix), (codes, labels)),
            ("local_perturbation", LocalPerturbation(domain, local), some),
            ("random_projection", RandomProjection(domain, projected), some),
        ):
            started = time.perf_counter()
            made = _proven(proven, *data, n_rows=n_rows, epsilon=epsilon)
            taken = time.perf_counter() - started
            yield _output(method, "proven, valid records", epsilon, made, taken)


def _proven(
    method: Synthesizer,
    codes: NDArray[np.uint16],
    labels: NDArray[np.uint16],
    *,
    n_rows: int,
    epsilon: float,
) -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
    mu = gdp_mu(epsilon=epsilon, delta=DELTA)
    rows = EncodedRows(
        codes=codes,
        label=labels,
        weight=np.ones(len(labels)),
        fold=np.zeros(len(labels), dtype=np.uint8),
        patient=np.arange(len(labels), dtype=np.uint32),
    )
    # Seeded noise: the images are public, nothing is released, and millions of numbers are drawn.
    curator = Curator(
        plan=method.plan(mu=mu), compute=InProcessCompute([rows]), noise_source=SeededNoise(_SEED)
    )
    released = measure(method, curator, mu=mu)
    return method.sample(released, n_rows=n_rows, rng=np.random.default_rng(_SEED))


def _mixtures(
    method: DPMixPublished, codes: NDArray[np.uint16], labels: NDArray[np.uint16]
) -> Output:
    """DPMix before its mixtures are made valid records."""
    started = time.perf_counter()
    parts = list(method.mixtures(codes, labels, np.random.default_rng(_SEED)))
    shares = np.concatenate([part for _, part in parts])
    return Output(
        method="dp_mix",
        form="published, as mixed",
        guarantee=CLAIMED,
        epsilon=method.parameters.epsilon,
        images=np.concatenate([part for part, _ in parts]).astype(np.float32),
        labels=shares.argmax(axis=1),
        shares=shares,
        seconds=time.perf_counter() - started,
    )


def _output(
    method: str,
    form: str,
    epsilon: float | None,
    made: tuple[NDArray[np.uint16], NDArray[np.uint16]],
    seconds: float,
) -> Output:
    codes, labels = made
    proven = PROVEN if form.startswith("proven") else CLAIMED
    return Output(
        method=method,
        form=form,
        guarantee=NO_GUARANTEE if epsilon is None else proven,
        epsilon=epsilon,
        images=VectorMap(image_domain()).vectors(codes).astype(np.float32),
        labels=labels,
        shares=np.eye(_DIGITS)[labels],
        seconds=seconds,
    )


def ridge_accuracy(
    output: Output, images: NDArray[np.float32], labels: NDArray[np.uint16]
) -> float:
    """Accuracy of ridge regression of the shares of the digits on the pixels."""
    centre = output.images.mean(axis=0)
    pixels = output.images - centre
    moment = pixels.T @ pixels
    moment += np.trace(moment) / _PIXELS * np.eye(_PIXELS, dtype=np.float32)
    targets = output.shares - output.shares.mean(axis=0)
    weights = np.linalg.solve(moment, pixels.T @ targets)
    return float((((images - centre) @ weights).argmax(axis=1) == labels).mean())


def run(
    folder: Path,
    *,
    n_rows: int,
    epochs: int,
    epsilons: Sequence[float] = EPSILONS,
    show: Callable[[str], None] = print,
) -> list[ImageRow]:
    """Score every output."""
    codes, labels = read_images(folder, "train")
    test_codes, test_labels = read_images(folder, "t10k")
    test_images = VectorMap(image_domain()).vectors(test_codes).astype(np.float32)
    rows = []
    for output in outputs(codes, labels, n_rows=n_rows, epsilons=epsilons):
        network = convolutional.fit(
            output.images, output.labels, n_labels=_DIGITS, epochs=epochs, seed=_SEED
        )
        rows.append(
            ImageRow(
                method=output.method,
                form=output.form,
                guarantee=output.guarantee,
                epsilon=output.epsilon,
                delta=None if output.epsilon is None else DELTA,
                rows=len(output.labels),
                network=convolutional.accuracy(network, test_images, test_labels),
                ridge=ridge_accuracy(output, test_images, test_labels),
                paper=None
                if output.epsilon is None
                else PAPER.get((output.method, output.epsilon)),
                seconds=round(output.seconds, 2),
            )
        )
        show(rivals_table(rows[-1:]))
    return rows


def rivals_table(rows: Sequence[ImageRow]) -> str:
    """Lay out the accuracies beside those of the paper."""
    return table(
        ("method", "form", "guarantee", "epsilon", "rows", "network", "ridge", "paper", "seconds"),
        [
            (
                row.method,
                row.form,
                row.guarantee,
                "-" if row.epsilon is None else f"{row.epsilon:g}",
                str(row.rows),
                f"{row.network:.3f}",
                f"{row.ridge:.3f}",
                "-" if row.paper is None else f"{row.paper:.3f}",
                f"{row.seconds:.1f}",
            )
            for row in rows
        ],
        n_left=3,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.rivals_images", description=__doc__)
    parser.add_argument("folder", type=Path, help="folder of the MNIST idx files (gzip)")
    parser.add_argument("--rows", type=int, default=5_000, help="rows of every output")
    parser.add_argument("--epochs", type=int, default=3, help="passes of the network")
    parser.add_argument("--output", type=Path, help="JSON file for the rows of the table")
    options = parser.parse_args(arguments)

    def show(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    rows = run(options.folder, n_rows=options.rows, epochs=options.epochs, show=show)
    if options.output is not None:
        text = json.dumps([asdict(row) for row in rows], indent=1, allow_nan=False)
        options.output.write_text(text + "\n", encoding="utf-8")
    print(rivals_table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
