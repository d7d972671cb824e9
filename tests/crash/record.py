"""benchmarks/results/crash.json: what was struck and raced; written as it comes, and added to."""

from __future__ import annotations

import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from crash.blows import HOWS

KILLS, FAULTS = ("kill", "power"), ("EIO", "ENOSPC")
LIBRARIES = ("torch", "safetensors", "timm", "accelerate")


class Record:
    """Counts of blows by scene and kind, of races by outcome, and of what went wrong."""

    def __init__(self, path: Path | None, *, add: bool) -> None:
        self.path = path
        before = json.loads(path.read_text()) if add and path is not None and path.exists() else {}
        self.scenes: dict[str, dict[str, int]] = before.get("scenes", {})
        self.races: dict[str, dict[str, int]] = before.get("outcomes", {})
        self.wrong: dict[str, int] = before.get("wrong", {})
        """Violations by scene and kind of blow, or by race; where there were any."""

    def struck(self, scene: str, how: str, blows: int, violations: int) -> None:
        """A scene that is struck again in the same way replaces its older count."""
        self.scenes.setdefault(scene, {})[how] = blows
        self.wrong[f"{scene}, {how}"] = violations
        self._write()

    def has(self, scene: str, how: str) -> bool:
        """Whether the scene has been struck so to its end."""
        return how in self.scenes.get(scene, {})

    def raced(self, name: str, outcome: str, violations: int) -> None:
        tally = self.races.setdefault(name, {})
        tally[outcome] = tally.get(outcome, 0) + 1
        self.wrong[name] = self.wrong.get(name, 0) + violations
        self._write()

    @property
    def violations(self) -> int:
        return sum(self.wrong.values())

    def total(self, *hows: str) -> int:
        return sum(counts.get(how, 0) for counts in self.scenes.values() for how in hows)

    def _write(self) -> None:
        if self.path is None:
            return
        result: dict[str, Any] = {
            "format": "hydrasurgeon.crash/1",
            "machine": {
                "system": platform.system(),
                "python": platform.python_version(),
                **{name: version(name) for name in LIBRARIES},
            },
            "how": {how: said for how, said in HOWS.items() if self.total(how)},
            "stages": sorted({name.partition(":")[0] for name in self.scenes}),
            "kills": self.total(*KILLS),
            "faults": self.total(*FAULTS),
            "races": sum(sum(tally.values()) for tally in self.races.values()),
            "violations": self.violations,
            "wrong": {name: count for name, count in self.wrong.items() if count},
            "scenes": self.scenes,
            "outcomes": self.races,
        }
        made = self.path.with_name(f".{self.path.name}")
        made.write_text(json.dumps(result, indent=1) + "\n")
        made.replace(self.path)
