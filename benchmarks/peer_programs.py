"""Programs of others in environments of their own.

``python -m benchmarks.peer_programs FOLDER KIND`` reads a request and coded rows, the label last,
from a folder, and puts the rows that a peer made beside them. It imports numpy and the peer alone:
models get codes of the declared schema and their numbers, so they read no bound and no level from
the rows. AIM and MST (McKenna and others, 2022 and 2021) have the defaults of ``dpmm`` but one
process; reduced AIM ends in minutes. The mixture of ``mbi`` has the steps and rate of its manual.
The networks of ``smartnoise-synth`` and ``synthcity`` have the defaults of their packages, every
column as levels, and protect one row; ADS-GAN has a penalty in place of an epsilon.
"""

from __future__ import annotations

import secrets
import sys
from dataclasses import asdict, dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

REQUEST, MADE, SPENT = "request.npz", "made.npz", "spent.txt"
TABLES = "tables.npz"
"""Arrays ``columns_I``, ``counts_I``, ``noise_I`` and, by column, ``joins_I_J`` (groups, codes)."""

REDUCED = {"rounds": 25, "n_iters": 200, "max_model_size": 5}
STEPS, RATE = 1_000, 0.1

Codes = NDArray[np.uint16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Public facts that a peer gets: numbers of codes of the columns, budget, rows to be made."""

    n_codes: tuple[int, ...]
    epsilon: float
    delta: float
    rows_out: int


def write_request(folder: Path, request: Request, codes: Codes) -> None:
    np.savez(folder / REQUEST, codes=codes, **asdict(request))


def read_request(folder: Path) -> tuple[Request, Codes]:
    with np.load(folder / REQUEST) as found:  # noqa: TID251, arrays of our own, no pickles
        facts = {one.name: found[one.name].tolist() for one in fields(Request)}
        return Request(**{**facts, "n_codes": tuple(facts["n_codes"])}), found["codes"]


def write_made(folder: Path, codes: NDArray[np.integer], request: Request) -> None:
    if codes.shape != (request.rows_out, len(request.n_codes)):
        raise ValueError(f"expected {request.rows_out} rows of every column, found {codes.shape}")
    np.savez(folder / MADE, codes=codes.astype(np.uint16))


def read_made(folder: Path, request: Request) -> Codes:
    """Read the rows that were made, and hold them to the declared numbers of codes."""
    with np.load(folder / MADE) as found:  # noqa: TID251, arrays of our own, no pickles
        codes: Codes = found["codes"]
    if (codes >= np.array(request.n_codes)).any():
        raise ValueError("expected codes of the declared schema alone")
    return codes


@dataclass(frozen=True, eq=False)
class Joined:
    """The table of groups of codes, as a linear query on a table of codes."""

    joins: tuple[np.ndarray, ...]

    def __call__(self, table: Any) -> Any:
        """Return the counts of groups, flat."""
        found = self.joins[0] @ table.datavector(flatten=False).reshape(self.joins[0].shape[1], -1)
        return (found @ self.joins[1].T if len(self.joins) == 2 else found).reshape(-1)

    def __hash__(self) -> int:
        return id(self)


def of_dpmm(kind: str, request: Request, codes: Codes, names: list[str]) -> Any:
    import pandas as pd
    from dpmm.models.aim import AIMGM
    from dpmm.models.mst import MSTGM

    model = (MSTGM if kind == "mst" else AIMGM)(
        epsilon=request.epsilon, delta=request.delta, n_jobs=1,
        domain=dict(zip(names, request.n_codes, strict=True)),
        **(REDUCED if kind == "aim_reduced" else {}),
    )  # fmt: skip
    frame = pd.DataFrame(codes.astype(np.int64), columns=names)
    model.check_fit(frame)
    model.fit(frame)
    return model.generate(n_records=request.rows_out)


def of_mbi(tables: Path, request: Request, names: list[str]) -> Any:
    import mbi
    import optax
    from mbi.extensions import MixtureOfProductsEstimator

    measured = []
    with np.load(tables) as arrays:  # noqa: TID251, arrays of our own, no pickles
        for place in range(sum(name.startswith("columns_") for name in arrays)):
            columns = arrays[f"columns_{place}"]
            joins = tuple(arrays[f"joins_{place}_{side}"] for side in range(len(columns)))
            measured.append(mbi.LinearMeasurement(
                arrays[f"counts_{place}"].reshape(-1),
                tuple(names[int(column)] for column in columns),
                stddev=float(arrays[f"noise_{place}"]), query=Joined(joins),
            ))  # fmt: skip
    total = float(np.mean([np.sum(one.noisy_measurement) for one in measured]))
    estimator = MixtureOfProductsEstimator(optimizer=optax.adam(RATE))
    domain = mbi.Domain(names, request.n_codes)
    model = estimator.estimate(domain, measured, known_total=total, iters=STEPS)
    return model.synthetic_data(rows=request.rows_out).data


def of_smartnoise(kind: str, request: Request, codes: Codes) -> Any:
    from snsynth import Synthesizer
    from snsynth.transform import OneHotEncoder, TableTransformer

    # A row of the largest codes stands for the declared ones: no level is read from the rows.
    declared = TableTransformer([OneHotEncoder() for _ in request.n_codes])
    declared.fit([tuple(n - 1 for n in request.n_codes)])
    name = kind.replace("_", "")
    model = Synthesizer.create(name, request.epsilon, delta=request.delta, verbose=False)
    model.fit(codes.astype(np.int64), transformer=declared)
    return model.sample(request.rows_out)


def of_synthcity(folder: Path, kind: str, request: Request, codes: Codes, names: list[str]) -> Any:
    import pandas as pd
    from synthcity.plugins.core.dataloader import GenericDataLoader
    from synthcity.plugins.core.models.tabular_encoder import TabularEncoder

    frame = pd.DataFrame(codes.astype(np.int64), columns=names)
    numbered, _ = GenericDataLoader(frame).encode()  # as the model numbers levels, too
    encoder = TabularEncoder().fit(numbered.dataframe(), discrete_columns=names)
    budget = {"epsilon": request.epsilon, "delta": request.delta}
    model = import_module(f"synthcity.plugins.privacy.plugin_{kind.replace('_', '')}").plugin(
        # Strict models leave out rows that occur twice.
        encoder=encoder, strict=False, workspace=folder, random_state=secrets.randbelow(2**31),
        **({} if kind == "ads_gan" else budget),
    )  # fmt: skip
    model.fit(frame)
    if kind == "pate_gan":  # which looks at what it has spent after each round alone
        moments = model.model.alpha_dict - np.log(model.model.delta)
        spent = (moments / np.arange(1, len(moments) + 1)).min()
        (folder / SPENT).write_text(str(spent), encoding="utf-8")
    return model.generate(count=request.rows_out).dataframe()[names].to_numpy()


def main(folder: Path, kind: str) -> None:
    request, codes = read_request(folder)
    names = [f"c{place}" for place in range(len(request.n_codes))]
    if kind == "mbi":
        made = of_mbi(folder / TABLES, request, names)
    elif kind.endswith("ctgan"):
        made = of_smartnoise(kind, request, codes)
    elif kind.endswith("gan"):
        made = of_synthcity(folder, kind, request, codes, names)
    else:
        made = of_dpmm(kind, request, codes, names)
    if not isinstance(made, np.ndarray):
        made = np.column_stack([made[name] for name in names])
    write_made(folder, made, request)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
