"""Recipes of examples/paper/."""

from __future__ import annotations

from pathlib import Path

PAPER = Path(__file__).parents[2] / "examples" / "paper"
SST2 = str(PAPER / "sst2.toml")
SCRATCH = str(PAPER / "scratch.toml")
