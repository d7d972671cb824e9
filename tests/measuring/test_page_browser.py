"""The report in a real browser: no script fails, none but ours runs, and names are text."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import hydrasurgeon as hs

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed"),
]
NASTY = '<script>document.title="owned"</script><img src=x onerror="document.title=1">&"\''
LONG = "a-name-without-end-" * 20


@pytest.fixture
def page(tiny: Callable[..., Path], images: Callable[..., str], tmp_path: Path) -> Path:
    """A report with all that one can hold: heads, OOD sets, shifts, several sets, hostile and long names."""
    source = tiny()
    files = [
        hs.prune(source, method="random", keep=2, seed=s, out=tmp_path / f"m{s}.safetensors").path
        for s in (1, 2)
    ]
    hydra = hs.fuse(files, out=tmp_path / f"{NASTY.replace('/', '|')}.safetensors").path
    long = hs.prune(
        source, method="random", keep=1, out=tmp_path / f"{LONG[:200]}.safetensors"
    ).path
    hs.evaluate(
        [source, hydra, long],
        data=[f"one={images()}", f"two={images('two.npz', seed=4)}"],
        ood=[
            f"near:<b onerror>&={images('near.npz', seed=5)}",
            f"far:{LONG}={images('far.npz', seed=6)}",
        ],
        shift=[f"noise:{s}={images(f's{s}.npz', seed=s)}" for s in (1, 2)],
        ci=0.9,
        html=tmp_path / "r.html",
    )
    return tmp_path / "r.html"


def test_the_report_in_a_browser(page: Path, tmp_path: Path) -> None:
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path / 'profile'}",
    ]
    command += [
        "--enable-logging=stderr",
        "--virtual-time-budget=2000",
        "--dump-dom",
        page.resolve().as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert re.search(r"<title>Compared with ", done.stdout)
    assert len(re.findall("<script[ >]", done.stdout)) == 1
    pictures = re.findall("<img[ >][^>]*", done.stdout)
    assert pictures
    assert all(re.search(' src="data:image/(png|svg.xml);base64,', each) for each in pictures)
