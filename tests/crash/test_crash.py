"""A sample of `make crash`: every call of the stages that need no model."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from crash.scenes import SCENES

ROOT = Path(__file__).resolve().parents[2]


def crash(*options: str) -> subprocess.CompletedProcess[str]:
    """`python -m crash`."""
    paths = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "support")]
    return subprocess.run(
        [sys.executable, "-m", "crash", *options],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="scenes run in forked processes")
def test_every_scene_does_its_work_where_nothing_strikes() -> None:
    """Else what is struck is a refusal, which writes nothing."""
    done = crash("--unharmed")
    assert done.returncode == 0, done.stdout + done.stderr
    for scene in SCENES:
        assert f"{scene.name}: " in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="blows strike forked processes")
def test_no_blow_leaves_half_an_output() -> None:
    """In a process of its own: one that has started threads should not fork."""
    done = crash("--sample")
    assert done.returncode == 0, done.stdout + done.stderr
    kills = [int(count) for count in re.findall(r"'kill': (\d+)", done.stdout)]
    assert min(kills) >= 10
    assert " 0 violations" in done.stdout
