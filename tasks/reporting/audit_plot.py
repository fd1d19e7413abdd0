"""A drawing of audits: what is claimed, and what attacks measured at least."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.audit.findings import WITHIN

_CLAIM, _WITHIN, _ABOVE, _QUIET = "#222222", "#2166ac", "#b2182b", "#bbbbbb"
_ROW_INCHES = 0.29


def draw_audits(audits: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw a line per audit: claim, lower bound; those with a true ``planted`` flaw stand apart."""
    # Imported here: a drawing is made by few commands, and this takes half a second.
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    groups = [
        ("proven methods", [audit for audit in audits if not audit.get("planted", False)]),
        ("planted flaws", [audit for audit in audits if audit.get("planted", False)]),
    ]
    groups = [(title, members) for title, members in groups if members]
    n_lines = len(audits) + len(groups)
    figure = Figure(figsize=(8.2, 1.7 + _ROW_INCHES * n_lines), layout="constrained")
    axes = figure.add_subplot()
    names: list[str] = []
    heading_lines = []
    for title, members in groups:
        heading_lines.append(len(names))
        names.append(title)
        for audit in sorted(members, key=lambda a: (a["method"], a["claimed_epsilon"])):
            y, claimed = len(names), audit["claimed_epsilon"]
            measured = audit["audited_epsilon"]
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
            names.append(f"{audit['method'].replace('_', ' ')}, epsilon {claimed:.2g}")
    axes.set_yticks(range(len(names)), names)
    for line, label in enumerate(axes.get_yticklabels()):
        if line in heading_lines:
            label.set_fontweight("bold")
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(left=0.0)
    axes.margins(x=0.08)
    axes.tick_params(axis="y", length=0, pad=9)
    axes.grid(axis="x", color="#eeeeee")
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    deltas = sorted({f"{audit['delta']:g}" for audit in audits})
    which = f"delta {deltas[0]}" if len(deltas) == 1 else "the delta of each claim"
    axes.set_xlabel(f"epsilon at {which}")
    confidences = sorted({audit["confidence"] for audit in audits})
    axes.set_title(
        "Claimed epsilon and the largest lower bound that attacks measured\n"
        f"(each with a confidence of at least {100 * confidences[0]:g} %)",
        fontsize=10,
        loc="left",
    )
    tick = Line2D([], [], color=_CLAIM, marker="|", linestyle="", markersize=13, label="claimed")
    tick.set_markeredgewidth(2)
    dots = [
        Line2D([], [], color=colour, marker="o", linestyle="", label=label)
        for colour, label in ((_WITHIN, "measured, within"), (_ABOVE, "measured, above"))
    ]
    style: dict[str, Any] = {"ncols": 3, "frameon": False, "fontsize": 9}
    figure.legend(handles=[tick, *dots], loc="outside lower center", **style)
    figure.savefig(path, dpi=150)
