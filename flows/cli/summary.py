"""The summary of a check on the terminal of its owner: private, as the restricted file is."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from flows.cli import terminal


def show_summary(records: Sequence[Mapping[str, Any]]) -> None:
    """Write a line of each column with a fault, the worst first, then the changes as YAML."""
    *faults, last = records
    rows = [
        [one["column"], _shares(one["shares"]) or _shares({"": one["share"]}), one["seen"]]
        for one in faults
    ]
    if faults:
        terminal.table(rows, ("column", "cells", "seen"))
    fine = [f"{name} ({_shares(own)})".removesuffix(" ()") for name, own in last["fine"].items()]
    text = f"nothing to mend in {len(fine)}: {', '.join(fine)}"
    terminal.line(textwrap.fill(text, terminal.WIDTH, subsequent_indent="  "))
    if faults:
        terminal.line("\nWhat would mend it, where the codebook agrees, which says each FILL_IN:\n")
    for record in faults:
        terminal.line(f"# {record['column']}: {record['advice']}")
        if record["change"]:
            terminal.line(record["change"])


def _shares(shares: Mapping[str, float]) -> str:
    """Return the shares above zero, such as ``34 % clipped high``."""
    texts = [f"{100 * share:.3g} % {kind}" for kind, share in shares.items() if share]
    return ", ".join(texts).replace("_", " ")
