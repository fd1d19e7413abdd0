"""The command ``clustmix audit``: the audit room of the repository, where it is there."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated

from flows.cli.options import Commands, argument, option
from privacy.errors import refusals

refusal = refusals(__package__)

ROOT = Path(__file__).resolve().parents[2]
"""Folder of a checkout, which has the package ``audits`` beside this one."""

app = Commands()


@app.command()
def audit(
    method: Annotated[
        str | None, argument("METHOD", "clustmix, naive_bayes, or noise for the noise path alone")
    ] = None,
    *,
    whole_release: Annotated[
        Path | None,
        option(
            "SITE.yaml",
            "attack a release of a generated table of this schema, with the method, epsilon and "
            "delta of the site file",
        ),
    ] = None,
    canaries: Annotated[int, option("N", "planted patients of a whole release")] = 20_000,
    runs: Annotated[int | None, option("N", "runs of each table (default: a few minutes)")] = None,
    confidence: Annotated[float, option("C", "confidence of all bounds together")] = 0.999,
    epsilon: Annotated[float, option("E", "epsilon to audit the method at")] = 1.0,
    delta: Annotated[float, option("D", "delta to audit the method at")] = 1e-6,
    output: Annotated[Path | None, option("FOLDER", "folder for the numbers and a drawing")] = None,
) -> int:
    """Attack a method and bound epsilon from below.

    It runs many times on the worst pairs of neighbouring tables, and its output is attacked; with
    --whole-release, a release of a generated table is. An audit can show a flaw and never the
    absence of one. No private table is read. Exit code 1 if a bound is above the claim. It runs
    from a checkout of the repository, with the extra audit.
    """
    if not (ROOT / "audits" / "command.py").is_file():
        raise refusal("AUDIT_NOT_HERE")
    if str(ROOT) not in sys.path:
        sys.path.append(str(ROOT))
    code: int = import_module("audits.command").run(
        method,
        whole_release,
        canaries=canaries,
        runs=runs,
        confidence=confidence,
        epsilon=epsilon,
        delta=delta,
        output=output,
    )
    return code
