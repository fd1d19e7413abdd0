"""The commands ``export`` and ``pool``; neither reads a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from flows.cli import terminal
from flows.cli.options import Commands, ReleaseId, argument, option
from flows.cli.publishing import MAX_ROWS, publishing
from flows.cli.terminal import Whole

app = Commands()


@app.command()
def export(
    release: ReleaseId, *, to: Annotated[Path, option("FILE", "the new file", "--to")]
) -> None:
    """Write the sealed sums of a release as one signed file, which another installation pools.

    It holds no row, and only what the noise has made public. Methods: clustmix on tables, and
    naive_bayes.
    """
    from flows.pooling import exported
    from storage.files.private import write_durably

    with publishing() as here:
        write_durably(to, exported(here, release), mode=0o644)
    terminal.answer({"release_id": release, "file": str(to)}, {"Exported": Whole(str(to))})


@app.command()
def pool(
    parts: Annotated[list[str], argument("PARTS", "ids of releases, and files of export")],
    *,
    key: Annotated[
        list[Path] | None,
        option("FILE", "public key, or folder of them, of the hospitals that exported", "--key"),
    ] = None,
    disjoint: Annotated[
        bool,
        option(None, "assume that no patient is in two parts; the guarantee says so", "--disjoint"),
    ] = False,
    rows: Annotated[int | None, option("N", "synthetic rows", min=1, max=MAX_ROWS)] = None,
) -> None:
    """Publish one release of several measurements of one declared table, at no charge.

    Noisy sums of different patients add up. Of parts of one partitioned cohort the guarantee is
    that of the largest part; of others their losses add up, unless --disjoint. The manifest lists
    every part, with its signature.
    """
    from flows.pooling import pooled
    from storage.keys.key_store import read_public_keys
    from tasks.reporting.claim import Claim

    hospitals = read_public_keys(key) if key else ()
    with publishing() as here:
        bundle, manifest = pooled(here, parts, hospitals=hospitals, disjoint=disjoint, rows=rows)
    stated = ("dataset", "release_id", "epsilon", "delta", "adjacency", "rows")
    terminal.answer(
        {**{name: getattr(manifest, name) for name in stated}, "bundle": str(bundle)},
        {
            "Pooled": f"{len(parts)} measurements; nothing is charged",
            "Guarantee": Claim(manifest).statement,
            "Bundle": Whole(str(bundle)),
        },
    )
