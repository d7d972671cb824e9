"""docs/report.png: the top of a report, as a browser shows it, with few enough colours to be small.

python tools/screenshot.py REPORT.html [OUT.png]       needs Chromium
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

WIDTH, HEIGHT, COLOURS = 1280, 1240, 160
"""Size of the picture, and its number of colours."""


def main(page: Path, out: Path) -> None:
    from PIL import Image

    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [
        f"--window-size={WIDTH},{HEIGHT}",
        f"--screenshot={out.resolve()}",
        page.resolve().as_uri(),
    ]
    subprocess.run(command, check=True, capture_output=True)
    Image.open(out).convert("RGB").quantize(COLOURS).save(out, optimize=True)
    print(f"{out}: {out.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(
        Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / "docs" / "report.png"
    )
