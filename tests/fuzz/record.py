"""benchmarks/results/fuzz.json: what came out, kind by kind; written as it comes, and added to."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fuzz.runner import Tally

LIBRARIES = (
    "torch",
    "numpy",
    "safetensors",
    "pydantic",
    "pillow",
    "pyarrow",
    "datasets",
    "transformers",
    "tokenizers",
    "timm",
    "open_clip_torch",
)
SHOWN = 50
"""Failures of a kind that are written out, the others are counted."""


class Record:
    """The result file: kinds that are run replace their older results, or add to them."""

    def __init__(self, path: Path | None, *, first: int, add: bool) -> None:
        self.path, self.first, self.add = path, first, add
        exists = path is not None and path.exists()
        self.kinds: dict[str, Any] = json.loads(path.read_text())["kinds"] if exists else {}  # type: ignore[union-attr]

    def next_seed(self, kind: str, way: str) -> int:
        if not self.add or kind not in self.kinds:
            return self.first
        before = self.kinds[kind]
        return int(before["first_seed"] + before.get(way, {}).get("inputs", 0))

    def failures(self) -> list[tuple[str, str, int]]:
        """Kind, way and seed of each failure that is written out."""
        return [
            (kind, way, failure["seed"])
            for kind, ways in self.kinds.items()
            for way, counted in ways.items()
            if isinstance(counted, dict)
            for failure in counted["failures"]
        ]

    def mended(self, kind: str, way: str, seed: int, tally: Tally) -> None:
        """An input that failed once and now ends as it should counts by how it ends."""
        counted = self.kinds[kind][way]
        counted["failures"] = [f for f in counted["failures"] if f["seed"] != seed]
        counted["failed"] -= 1
        for code, number in tally.outcomes.items():
            counted["outcomes"][str(code)] = counted["outcomes"].get(str(code), 0) + number

    def write(self, tallies: Mapping[tuple[str, str], Tally]) -> None:
        if self.path is None:
            return
        kinds = dict(self.kinds)
        for name in {kind: None for kind, _ in tallies}:
            before = self.kinds.get(name, {}) if self.add else {}
            ways = {way: _counted(tally) for (kind, way), tally in tallies.items() if kind == name}
            for way in before.keys() & ways.keys():
                ways[way] = _sum(before[way], ways[way])
            kinds[name] = {"first_seed": self.first, **before, **ways}
        machine = {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            **{name: version(name) for name in LIBRARIES},
        }
        made = self.path.with_name(f".{self.path.name}")
        made.write_text(json.dumps({"kinds": kinds, "machine": machine}, indent=1) + "\n")
        made.replace(self.path)


def _counted(tally: Tally) -> dict[str, Any]:
    return {
        "inputs": tally.count,
        "outcomes": {str(code): n for code, n in sorted(tally.outcomes.items())},
        "failures": [{"seed": f.seed, "problem": f.problem, "where": f.where} for f in tally.failures[:SHOWN]],
        "failed": len(tally.failures),
        "seconds": round(tally.seconds, 1),
        "slowest_seconds": round(tally.slowest, 2),
        "peak_mb": tally.peak >> 10,
    }


def _sum(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    codes = sorted({*one["outcomes"], *other["outcomes"]}, key=int)
    return {
        **{name: one[name] + other[name] for name in ("inputs", "failed")},
        "failures": [*one["failures"], *other["failures"]][:SHOWN],
        "outcomes": {code: one["outcomes"].get(code, 0) + other["outcomes"].get(code, 0) for code in codes},
        "seconds": round(one["seconds"] + other["seconds"], 1),
        **{name: max(one[name], other[name]) for name in ("slowest_seconds", "peak_mb")},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
