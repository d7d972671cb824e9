"""docs/report.png: the top of a report, as a browser shows it, with few enough colours to be small.

python tools/screenshot.py REPORT.html [OUT.png]       needs Chromium
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

WIDTH, HEIGHT, COLOURS = 1280, 1240, 160
"""Size of the picture, and its number of colours."""


def main(page: Path, out: Path) -> None:
    from browser import Browser
    from PIL import Image

    with tempfile.TemporaryDirectory() as profile, Browser(Path(profile)) as browser:
        browser.open(page, width=WIDTH, dark=False)
        browser.picture(out, height=HEIGHT)
    Image.open(out).convert("RGB").quantize(COLOURS).save(out, optimize=True)
    print(f"{out}: {out.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / "docs" / "report.png")
