"""Draw the flow of a release into flow.svg: ``python docs/flow_picture.py``.

One file for light and dark pages, without a script and without anything from elsewhere.
"""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

PICTURE = Path(__file__).resolve().parent / "flow.svg"

WIDTH, HEIGHT = 900, 530
_LEFT, _BAND_WIDTH = 10, 880
_BOX_HEIGHT = 56
_ENTRY = 46  # where a run begins

_TITLE = "From a table that arrives to a signed release"
_DESCRIPTION = (
    "A sender writes a table and a signed ready file into the landing folder. The watcher checks "
    "both, keeps the table and sends the orchestrator an event. An event, a schedule or a person "
    "starts the run measure, which is given ids only. It charges the ledger before a row is read, "
    "reads and bounds the rows in a closed folder, adds exact sums up on Dask, adds noise once and "
    "builds mixture, KIP and label model from released values. It seals the measurement and "
    "deletes the rows. The seal is an event that starts the run publish, which reads no table: it "
    "samples rows, holds them against the output gate, waits for the signature of an officer where "
    "one is required, and publishes the signed bundle as a whole. The same table again, and other "
    "rows of a release, start from the sealed measurement and are free. The orchestrator sees ids, "
    "states, guarantee and budget, and shows them to the operator."
)

_STYLE = """\
text{font-family:system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;fill:#1f2328}
.t{font-size:13px;font-weight:600}.m{font-size:14px}.s{font-size:12px;fill:#59636e}
.b{fill:#ffffff;stroke:#8c959f}.n{fill:#fff1e5;stroke:#bc4c00;stroke-width:2}
.k{fill:#e6f4ea;stroke:#1a7f37;stroke-width:2}
.o{fill:#f6f8fa;stroke:#d0d7de}.p{fill:#eef5ff;stroke:#b6d0f2}.r{fill:#fdf0f0;stroke:#eab8b8}
.a{fill:none;stroke:#59636e;stroke-width:1.6}
.d{fill:none;stroke:#1a7f37;stroke-width:1.6;stroke-dasharray:6 4}
.h{fill:#59636e}.g{fill:#1a7f37}.f{font-size:12px;fill:#1a7f37}
@media (prefers-color-scheme:dark){
text{fill:#e6edf3}.s{fill:#a5afb9}.b{fill:#161b22;stroke:#6e7681}
.n{fill:#3a2413;stroke:#f0883e}.k{fill:#12291a;stroke:#3fb950}
.o{fill:#11161d;stroke:#30363d}.p{fill:#0f1d30;stroke:#2a4365}.r{fill:#2b1417;stroke:#6b2f33}
.a{stroke:#a5afb9}.d{stroke:#3fb950}.h{fill:#a5afb9}.g{fill:#3fb950}.f{fill:#3fb950}
}
"""


class Picture:
    """Parts of the picture, in the order in which they are drawn."""

    def __init__(self) -> None:
        self._parts: list[str] = []

    def band(self, style: str, y: int, height: int, title: str, *, x: int = _ENTRY + 16) -> None:
        """Draw what surrounds the boxes of one place."""
        self._parts.append(
            f'<rect class="{style}" x="{_LEFT}" y="{y}" width="{_BAND_WIDTH}" height="{height}" '
            'rx="10"/>'
        )
        self.text(x, y + 22, title, style="t")

    def box(self, x: int, y: int, width: int, name: str, note: str, style: str = "b") -> None:
        """Draw a step."""
        self._parts.append(
            f'<rect class="{style}" x="{x}" y="{y}" width="{width}" height="{_BOX_HEIGHT}" rx="6"/>'
        )
        middle = x + width / 2
        self.text(middle, y + 24, name, style="m", anchor="middle")
        self.text(middle, y + 42, note, style="s", anchor="middle")

    def arrow(self, path: str, style: str = "a") -> None:
        """Draw a way from one step to the next; style d is a way that is free."""
        head = {"a": "h", "d": "g"}[style]
        self._parts.append(f'<path class="{style}" d="{path}" marker-end="url(#{head})"/>')

    def text(self, x: float, y: float, text: str, *, style: str, anchor: str = "start") -> None:
        """Write a line."""
        self._parts.append(
            f'<text class="{style}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">'
            f"{escape(text)}</text>"
        )

    def svg(self) -> str:
        """Return the file."""
        heads = "".join(
            f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            f'markerHeight="7" orient="auto"><path class="{name}" d="M0 0L8 4L0 8z"/></marker>'
            for name in ("h", "g")
        )
        return "\n".join(
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
                f'width="{WIDTH}" height="{HEIGHT}" role="img" aria-labelledby="title desc">',
                f'<title id="title">{escape(_TITLE)}</title>',
                f'<desc id="desc">{escape(_DESCRIPTION)}</desc>',
                f"<style>\n{_STYLE}</style>",
                f"<defs>{heads}</defs>",
                *self._parts,
                "</svg>\n",
            )
        )


def picture() -> str:
    """Return the whole picture."""
    drawn = Picture()
    drawn.band("o", 10, 104, "What starts a run: an arrival, a schedule, or a person", x=30)
    drawn.band("r", 146, 156, "Run 1, measure: private rows, deleted at its end")
    drawn.band("p", 340, 150, "Run 2, publish: released values, no table")
    _arrival(drawn)
    _measure(drawn)
    _publish(drawn)
    drawn.text(
        _LEFT + 16,
        HEIGHT - 16,
        "The ledger follows: reserved, executing, sealed, approved, published. A run that stops "
        "after it began keeps its charge.",
        style="s",
    )
    return drawn.svg()


def _arrival(drawn: Picture) -> None:
    y = 44
    drawn.box(30, y, 185, "landing folder", "table, signed ready file")
    drawn.box(260, y, 185, "watcher", "checks and keeps the table")
    drawn.box(490, y, 185, "orchestrator", "event, schedule, page")
    drawn.box(720, y, 150, "operator", "page, status, webhook")
    for start, end in ((215, 257), (445, 487), (675, 717)):
        drawn.arrow(f"M{start} {y + 28}H{end}")
    drawn.arrow(f"M582 {y + 56}V130H{_ENTRY}V177")
    drawn.text(594, 134, "ids only: dataset, arrival, release", style="s")


def _measure(drawn: Picture) -> None:
    y, width, step = 180, 130, 142
    for number, (name, note, style) in enumerate(
        (
            ("charge", "before a row is read", "b"),
            ("read, bound", "closed folder", "b"),
            ("exact sums", "on Dask workers", "b"),
            ("noise, once", "in this process", "n"),
            ("mixture, KIP", "see released values", "b"),
            ("seal", "measurement is kept", "k"),
        )
    ):
        x = 30 + number * step
        drawn.box(x, y, width, name, note, style)
        if number:
            drawn.arrow(f"M{x - step + width} {y + 28}H{x - 3}")
    drawn.arrow(f"M663 {y + 56}V250H379V{y + 59}")
    drawn.text(521, 264, "next statistic, as planned", style="s", anchor="middle")
    drawn.arrow(f"M95 {y + 56}V276H775V{y + 59}", "d")
    drawn.text(521, 291, "the same table again: nothing is charged", style="f", anchor="middle")
    drawn.arrow(f"M835 {y + 56}V320H{_ENTRY}V371")
    drawn.text(521, 334, "event: measurement.sealed", style="s", anchor="middle")


def _publish(drawn: Picture) -> None:
    y, width, step = 374, 150, 173
    for number, (name, note) in enumerate(
        (
            ("sample, decode", "as many as asked"),
            ("output gate", "report, card, manifest"),
            ("officer", "signs, where required"),
            ("sign, publish", "all files or none"),
            ("release store", "bundle, verified offline"),
        )
    ):
        x = 30 + number * step
        drawn.box(x, y, width, name, note, "k" if number == 4 else "b")
        if number:
            drawn.arrow(f"M{x - step + width} {y + 28}H{x - 3}")
    drawn.arrow(f"M797 {y + 56}V458H105V{y + 59}", "d")
    drawn.text(
        451, 474, "other rows of the same measurement: no charge", style="f", anchor="middle"
    )


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
