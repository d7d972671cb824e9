"""examples/any_model.py: a forest and a ConvNeXt get decisions that keep what they promise."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "any_model.py"


@pytest.mark.slow
def test_the_example_runs_and_its_decisions_hold(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), str(tmp_path)], capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["forest", "convnext"]
    for line in lines:
        accuracy, covered, flagged, nines = map(float, re.findall(r"0\.\d{3}", line))
        assert accuracy > 0.7
        assert covered > 0.83
        assert flagged < 0.12 < nines
