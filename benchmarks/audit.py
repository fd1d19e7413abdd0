"""Draw all audits of a folder: ``python -m benchmarks.audit [FOLDER]``, after the long audits."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from privacy.errors import ConfigurationError
from tasks.audit.findings import LOWER_BOUND, WITHIN
from tasks.reporting.audit_plot import draw_audits

AUDIT_OUTPUT = Path("audit-output")


def read_audits(folder: Path) -> list[dict[str, Any]]:
    """Read the numbers of all audits of a folder, in the order of their names."""
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise ConfigurationError(
            "NO_AUDITS", f"expected results of audits in {folder}, found none; run make audit"
        )
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.audit", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=AUDIT_OUTPUT)
    folder = parser.parse_args(arguments).folder
    audits = read_audits(folder)
    for suffix in ("svg", "png"):
        draw_audits(audits, folder / f"audit.{suffix}")
    for audit in sorted(audits, key=lambda a: (a.get("planted", False), a["method"])):
        print(
            f"{audit['method']:<40} claimed {audit['claimed_epsilon']:6.2f}  measured at least "
            f"{audit['audited_epsilon']:6.2f}  {audit['verdict']}"
        )
    print(f"each measured epsilon is {LOWER_BOUND}")
    print(folder / "audit.svg")
    # A proven method above its claim and a planted flaw that was not found both fail.
    return int(any(a.get("planted", False) == (a["verdict"] == WITHIN) for a in audits))


if __name__ == "__main__":
    sys.exit(main())
