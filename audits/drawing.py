"""A drawing of audits: the claims, and the lower bounds that attacks measured."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from audits.findings import WITHIN

_CLAIM, _WITHIN, _ABOVE, _QUIET = "#222222", "#2166ac", "#b2182b", "#bbbbbb"
_ROW_INCHES = 0.29


def draw_audits(audits: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw a line per audit: claim, lower bound; those with a true ``planted`` flaw stand apart."""
    ordered = sorted(
        audits, key=lambda a: (a.get("planted", False), a["method"], a["claimed_epsilon"])
    )
    figure = Figure(figsize=(8.2, 2.0 + _ROW_INCHES * len(ordered)), layout="constrained")
    axes = figure.add_subplot()
    names = []
    for y, audit in enumerate(ordered):
        claimed, measured = audit["claimed_epsilon"], audit["audited_epsilon"]
        colour = _WITHIN if audit["verdict"] == WITHIN else _ABOVE
        axes.plot([measured, claimed], [y, y], color=_QUIET, linewidth=1.2, zorder=1)
        axes.plot([claimed], [y], "|", color=_CLAIM, markersize=13, markeredgewidth=2, zorder=2)
        axes.plot([measured], [y], "o", color=colour, markersize=6.5, zorder=3, clip_on=False)
        axes.annotate(
            f"{measured:.2f}",
            (max(measured, claimed), y),
            xytext=(9, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=colour,
        )
        flaw = "planted flaw: " if audit.get("planted", False) else ""
        names.append(f"{flaw}{audit['method'].replace('_', ' ')}, epsilon {claimed:.2g}")
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(left=0.0)
    axes.margins(x=0.08)
    axes.tick_params(axis="y", length=0, pad=9)
    axes.grid(axis="x", color="#eeeeee")
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_xlabel("epsilon at the delta of each claim")
    confidence = min(audit["confidence"] for audit in audits)
    axes.set_title(
        "Claimed epsilon and the largest lower bound that attacks measured\n"
        f"(each with a confidence of at least {100 * confidence:g} %)",
        fontsize=10,
        loc="left",
    )
    marks = [Line2D([], [], color=_CLAIM, marker="|", markersize=13, linestyle="", label="claimed")]
    marks += [
        Line2D([], [], color=colour, marker="o", linestyle="", label=label)
        for colour, label in ((_WITHIN, "measured, within"), (_ABOVE, "measured, above"))
    ]
    figure.legend(handles=marks, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    figure.savefig(path, dpi=150)
