"""Draw all audits of a folder: ``python -m audits [FOLDER]``, after the long audits."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from audits.drawing import draw_audits
from audits.findings import LOWER_BOUND, WITHIN
from privacy.errors import ConfigurationError


def read_audits(folder: Path) -> list[dict[str, Any]]:
    """Read the numbers of all audits of a folder, in the order of their names."""
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise ConfigurationError(
            "NO_AUDITS", f"expected results of audits in {folder}, found none; run make audit"
        )
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw, list and judge audits: exit code 1 if a flaw was not found, or one that is none was."""
    parser = argparse.ArgumentParser(prog="audits", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("audit-output"))
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
    return int(any(a.get("planted", False) == (a["verdict"] == WITHIN) for a in audits))


if __name__ == "__main__":
    sys.exit(main())
