"""The options that history records, as typed records: what a manifest says was done can be done again."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from hydrasurgeon.errors import ManifestError
from hydrasurgeon.files.manifest import Step

Count = Annotated[int, Field(ge=1)]


class StepOptions(BaseModel):
    """Options as they were given; what was not given has the command's default."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @field_validator("*")
    @classmethod
    def _printable(cls, value: Any) -> Any:
        """Options become words of a shell script: nothing in them may end a line or speak to a terminal."""
        texts = [*value, *value.values()] if isinstance(value, dict) else value
        for text in texts if isinstance(texts, list) else [texts]:
            if isinstance(text, str) and not text.isprintable():
                raise ValueError("holds control characters")
        return value


class NamedOptions(StepOptions):
    """What a classifier by class names needs."""

    classes: str | None = None
    """Class names, a file of them, or `data`."""
    template: list[str] = []


class RunOptions(NamedOptions):
    """What the steps that may run a model have in common."""

    data: str | None = None
    limit: Count | None = None
    dtype: Literal["float32", "bfloat16", "float16", "float64"] = "float32"
    batch_size: Count | None = None
    skip_bad: bool = False
    arch: str | None = None


class _Selection(RunOptions):
    method: str | None = None
    ood: list[str] = []
    search: str | None = None
    keep: int | Literal["auto"] | None = None
    remove: int | None = None
    layers: str | None = None
    tower: str | None = None


class ScoreOptions(_Selection):
    method: str = "taylor"


class PruneOptions(_Selection):
    sample: str | None = None
    rearrange: bool = False
    compensate: Literal["none", "mean", "lstsq"] = "none"
    mask: str | None = None


class FinetuneOptions(RunOptions):
    checkpoint: Annotated[str, Field(pattern="^init:")] | None = None
    """What it started from, where that was no file: `init:timm:NAME`."""
    data: str
    recipe: str
    set: dict[str, str] = {}
    freeze: str | None = None
    val: str | None = None


class FuseOptions(NamedOptions):
    mlp: Literal["average", "separate"] = "average"
    weights: str | None = None


class CalibrateOptions(RunOptions):
    data: str
    fit_data: str | None = None
    ood: list[str] = []
    ood_score: str = "auto"
    coverage: float = 0.9
    conformal: str = "lac"
    id_flagged: float = 0.05
    risk: float | None = None
    delta: float | None = None
    cascade: bool = False
    max_drop: float | None = None
    budget: float | None = None


class ExportOptions(StepOptions):
    """Of the one format that is a checkpoint again."""

    format: Literal["padded"]
    member: Annotated[int, Field(ge=0)] | None = None


class InitOptions(StepOptions):
    spec: str


OPTIONS: dict[str, type[StepOptions]] = {
    "score": ScoreOptions,
    "prune": PruneOptions,
    "finetune": FinetuneOptions,
    "fuse": FuseOptions,
    "calibrate": CalibrateOptions,
    "export": ExportOptions,
    "init": InitOptions,
}
"""What each command that can be run again writes about itself."""


def options_of(entry: Step, where: str) -> StepOptions:
    """A step's options, checked; ManifestError for commands and options that this version does not record."""
    if entry.command not in OPTIONS:
        raise ManifestError(
            f"{where}: its history has a step {entry.command!r}, which cannot be done again",
            hint=f"Only {', '.join(OPTIONS)} can.",
        )
    if entry.seed is not None and entry.seed < 0:
        raise ManifestError(f"{where}: its history's {entry.command}: has a seed below 0")
    try:
        return OPTIONS[entry.command].model_validate(entry.args)
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(str(part) for part in first["loc"])
        raise ManifestError(f"{where}: its history's {entry.command}: {at}: {first['msg']}") from error
