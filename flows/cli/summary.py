"""The summary of a check on the terminal of its owner: private, as the restricted file is."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from flows.cli import terminal


def show_summary(records: Sequence[Mapping[str, Any]]) -> None:
    """Write a line of each column with a fault, the worst first, then the changes as YAML.

    Shares are those of all cells: clipped at the low and at the high end, sent to the level other,
    missing, and outside of any declared code.
    """
    faults = [record for record in records if "seen" in record]
    rows = [
        [one["column"], _words(one["shares"]) or _words({"": one["share"]}), one["seen"]]
        for one in faults
    ]
    terminal.table(rows, ("column", "cells", "seen"))
    fine = next((record["fine"] for record in records if "fine" in record), {})
    named = [f"{name} ({words})" if (words := _words(fine[name])) else name for name in fine]
    if named:
        text = f"nothing to mend in {len(named)}: {', '.join(named)}"
        terminal.line(textwrap.fill(text, terminal.WIDTH, subsequent_indent="  "))
    if faults:
        terminal.line(
            "\nWhat would mend it, where the codebook agrees; it also says each FILL_IN:\n"
        )
    for record in faults:
        terminal.line(f"# {record['column']}: {record['advice']}")
        if record["change"]:
            terminal.line(record["change"])


def _words(shares: Mapping[str, float]) -> str:
    """Return the shares above zero, such as ``34 % clipped high``."""
    texts = [
        f"{100 * share:.0f} % {kind}" if share >= 0.005 else f"< 1 % {kind}"
        for kind, share in shares.items()
        if share
    ]
    return ", ".join(texts).replace("_", " ")
