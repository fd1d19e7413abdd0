"""Digits drawn by the proven DPGM at the paper's epsilon: RBM and VAE, with and without clusters.

Each network is trained on the 60,000 training images of MNIST in their 256 gray levels, through the
plan, the curator and the stages of a release. Two runs of each: ten clusters, and one. A sheet is
a PNG; with clusters a line shows digits of one cluster. They are there to be looked at.

Noise is exact and from the operating system unless ``--seeded`` asks for rounded normal noise of a
public seed: it looks the same, takes minutes less, and protects nobody.

Source of the comparison: DPGM paper (Acs, Melis, Castelluccia and De Cristofaro 2019), Fig. 4.

``python -m benchmarks.generated_digits FOLDER [--network rbm|vae] [--clusters 1|10] [--seeded]``
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.seeded_noise import SeededNoise
from benchmarks.tables import read_images
from privacy.calibration import gdp_mu
from privacy.randomness import NoiseSource, OperatingSystemNoise
from storage.public_data.datasets import find
from tasks.measurement.curator import Curator
from tasks.measurement.encoded import EncodedRows, EncodingDomain
from tasks.measurement.method import Released
from tasks.methods.dpgm.dpgm import Dpgm
from tasks.methods.dpgm.dpgm_settings import DpgmConfig

EPSILON, DELTA = 1.74, 1e-5
"""Of the paper's Fig. 4; here proven."""

NETWORKS = ("rbm", "vae")
CLUSTERS = (10, 1)
_MOMENTUM: dict[str, Any] = {"network": "rbm", "optimiser": "momentum"}
_ADAM: dict[str, Any] = {"network": "vae", "optimiser": "adam", "momentum": 0.8}
SETTINGS: dict[tuple[str, int], dict[str, Any]] = {
    ("rbm", 10): {**_MOMENTUM, "momentum": 0.8, "learning_rate": 0.4},
    ("rbm", 1): {**_MOMENTUM, "momentum": 0.5, "learning_rate": 0.5},
    ("vae", 10): {**_ADAM, "learning_rate": 0.04},
    ("vae", 1): {**_ADAM, "learning_rate": 0.02},
}
"""By network and number of clusters; found on MNIST itself, which is public: a private table would
have to pay for the search."""

SCHEDULE: dict[str, Any] = {"epochs": 10, "adaptive_clipping": False, "l2_clip_norm": 4.0}

LINES, DIGITS_PER_LINE = 10, 16
_SIDE, _LEVELS, _GAP, _FACTOR, _GRAY = 28, 256, 2, 2, 70
_QUICK_SEED = 1


def digits() -> tuple[EncodingDomain, EncodedRows]:
    """MNIST as a synthesizer sees it, one patient per image."""
    images, label = read_images(find("mnist"))
    n, n_pixels = len(images), _SIDE * _SIDE
    domain = EncodingDomain(
        column_names=tuple(f"pixel_{index:03d}" for index in range(n_pixels)),
        n_codes=(_LEVELS,) * n_pixels,
        has_missing=(False,) * n_pixels,
        numeric=(True,) * n_pixels,
        label_levels=tuple(str(digit) for digit in range(10)),
    )
    rows = EncodedRows(
        codes=images.astype(np.uint16),
        label=label.astype(np.uint16),
        weight=np.ones(n),
        fold=np.zeros(n, dtype=np.uint8),
    )
    return domain, rows


def trained(
    domain: EncodingDomain,
    rows: EncodedRows,
    config: DpgmConfig,
    *,
    noise_source: NoiseSource,
    show: Callable[[str], None],
) -> tuple[Dpgm, Released]:
    """Run all stages of one measurement."""
    mu = gdp_mu(epsilon=EPSILON, delta=DELTA)
    method = Dpgm(domain, config)
    curator = Curator(plan=method.plan(mu=mu), shards=[rows], noise_source=noise_source)
    released: dict[str, NDArray[Any]] = {}
    for stage in method.stages():
        began = time.perf_counter()
        released.update(stage.run(curator, released))
        show(f"{stage.name}: {time.perf_counter() - began:.0f} s")
    return method, released


def drawn_lines(method: Dpgm, released: Released) -> list[NDArray[np.uint8]]:
    """Images line by line, each of shape (n, 28, 28): one line per cluster that is used."""
    rng = np.random.default_rng(_QUICK_SEED)
    weights = released["weights"]
    # Without clusters every line is drawn from the one network.
    used = np.flatnonzero(weights) if len(weights) > 1 else np.zeros(LINES, dtype=np.int64)
    lines = []
    for cluster in used:
        alone = {**released, "weights": np.eye(len(weights))[cluster]}
        codes, _ = method.sample(alone, n_rows=DIGITS_PER_LINE, rng=rng)
        lines.append(codes.astype(np.uint8).reshape(-1, _SIDE, _SIDE))
    return lines


def sheet(lines: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Lay images out on a gray ground, uint8 of shape (height, width), enlarged."""
    step = _SIDE + _GAP
    width = max(len(line) for line in lines) * step + _GAP
    ground = np.full((len(lines) * step + _GAP, width), _GRAY, dtype=np.uint8)
    for row, line in enumerate(lines):
        for column, image in enumerate(line):
            top, left = row * step + _GAP, column * step + _GAP
            ground[top : top + _SIDE, left : left + _SIDE] = image
    return ground.repeat(_FACTOR, axis=0).repeat(_FACTOR, axis=1)


def write_png(path: Path, image: NDArray[np.uint8]) -> None:
    """Write a gray image, making the folder where there is none."""
    from matplotlib.image import imsave

    path.parent.mkdir(parents=True, exist_ok=True)
    imsave(path, image, cmap="gray", vmin=0, vmax=255)


def run(
    folder: Path,
    *,
    networks: Sequence[str] = NETWORKS,
    clusters: Sequence[int] = CLUSTERS,
    seeded: bool = False,
    show: Callable[[str], None] = print,
) -> list[Path]:
    """Write the sheet of the real digits, then one per network and number of clusters."""
    domain, rows = digits()
    shown = rows.codes[: LINES * DIGITS_PER_LINE].astype(np.uint8)
    written = [folder / "real.png"]
    write_png(written[0], sheet(list(shown.reshape(LINES, DIGITS_PER_LINE, _SIDE, _SIDE))))
    for network in networks:
        for n_clusters in clusters:
            config = DpgmConfig(clusters=n_clusters, **SCHEDULE, **SETTINGS[network, n_clusters])
            noise = SeededNoise(_QUICK_SEED) if seeded else OperatingSystemNoise()
            show(f"{network}, {n_clusters} cluster(s)")
            method, released = trained(domain, rows, config, noise_source=noise, show=show)
            written.append(folder / f"{network}_{n_clusters}_clusters.png")
            write_png(written[-1], sheet(drawn_lines(method, released)))
    return written


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks.generated_digits",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, help="where the sheets are written")
    parser.add_argument("--network", choices=NETWORKS, help="this network alone")
    parser.add_argument("--clusters", type=int, choices=CLUSTERS, help="this number alone")
    parser.add_argument("--seeded", action="store_true", help="quick noise, without any privacy")
    options = parser.parse_args(arguments)

    def show(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    written = run(
        options.folder,
        networks=[options.network] if options.network else NETWORKS,
        clusters=[options.clusters] if options.clusters else CLUSTERS,
        seeded=options.seeded,
        show=show,
    )
    for path in written:
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
