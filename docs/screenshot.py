"""Take the picture of a report into docs/report.png: ``python docs/screenshot.py BUNDLE``.

BUNDLE is the folder of a release of a public table, such as that of ``make release``. A headless
Chromium opens the report as a reader would; the colours are reduced, so that the file stays small.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

PICTURE = Path(__file__).resolve().with_name("report.png")
WIDTH, HEIGHT = 1000, 960
_COLOURS = 64


def take(bundle: Path) -> None:
    """Write the first screen of the report of a bundle into `PICTURE`."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        raise SystemExit("expected chromium on the PATH, found none; install the package chromium")
    with tempfile.TemporaryDirectory() as folder:
        shot = Path(folder) / "shot.png"
        options = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
        page = (bundle / "report.html").resolve().as_uri()
        size = f"--window-size={WIDTH},{HEIGHT}"
        command = [browser, *options, size, f"--screenshot={shot}", page]
        subprocess.run(command, check=True, capture_output=True)  # noqa: S603
        Image.open(shot).convert("RGB").quantize(_COLOURS).save(PICTURE, optimize=True)


if __name__ == "__main__":
    take(Path(sys.argv[1]))
