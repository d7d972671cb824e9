"""Curves of a training, in whatever accelerate can write them to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydrasurgeon.lookup import need
from hydrasurgeon.tuning.recipes import Recipe

FOLDER = "runs"
"""Folder beside the output for trackers that write files."""


@dataclass(frozen=True)
class Tracking:
    """A tracker, and what a run is called in it."""

    tracker: str
    out: Path

    def check(self) -> None:
        """Refuse one that is not installed."""
        need(self.tracker, purpose=f"--track {self.tracker}")

    def accelerator(self, **options: Any) -> Any:
        """Return an accelerator that writes to the tracker."""
        from accelerate import Accelerator
        from accelerate.utils import ProjectConfiguration

        folder = str(self.out.parent / FOLDER)
        project = ProjectConfiguration(project_dir=folder, logging_dir=folder)
        return Accelerator(log_with=self.tracker, project_config=project, **options)

    def begin(self, accelerator: Any, recipe: Recipe) -> None:
        """Open the run, with the recipe's settings."""
        fields = recipe.model_dump().items()
        settings = {name: value for name, value in fields if isinstance(value, str | int | float)}
        accelerator.init_trackers(self.out.name.removesuffix(".safetensors"), settings)
