"""The decision state in a manifest: what `calibrate` found, and which tensors belong to it.

Tensors are called `hydrasurgeon.decision.<member>.<part>`, float32, and count into the weights' hash like all others.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from hydrasurgeon.files.decided_cascade import CascadeRecord
from hydrasurgeon.files.decided_parts import (
    MAX_MEMBERS,
    AbstainRecord,
    ConformalRecord,
    JointRecord,
    Positive,
    Record,
    Share,
)

PREFIX = "hydrasurgeon.decision."
"""What the names of a decision state's tensors begin with."""
BESIDE = "decision.safetensors"
"""Where they lie in a directory: other libraries load its weights, and refuse those that are not of their model."""
MAX_WIDTH = 1 << 20
"""Numbers in a token's features: as many as a manifest allows."""

STORED: dict[str, tuple[str, ...]] = {
    "mds": ("centre", "factor", "means"),
    "rmds": ("centre", "factor", "means", "background"),
    "maha++": ("centre", "factor", "means"),
    "vim": ("origin", "rest", "alpha"),
    "residual": ("origin", "rest"),
    "knn": ("bank",),
    "nci": ("mean", "weight"),
    "mcm": ("classes",),
}
"""OOD score → the tensors that one member's fit consists of; scores that are not here are functions of the logits."""

Rows = Annotated[int, Field(ge=1, lt=2**31)]


class Standard(Record):
    """Mean and deviation of a member's score on samples held back from fitting."""

    mean: float
    deviation: float = Field(gt=0)


class OodRecord(Record):
    """Which score tells unfamiliar samples, and from where on."""

    score: Literal[
        "msp",
        "entropy",
        "energy",
        "max-logit",
        "mi",
        "gen",
        "mds",
        "rmds",
        "maha++",
        "vim",
        "residual",
        "knn",
        "nci",
        "mcm",
    ]
    threshold: float
    id_flagged: Share
    chosen_by: Literal["option", "ood", "perturbed"]
    """Whether it was asked for, or told foreign data, or perturbed data, best."""
    auroc: dict[str, float] = Field(default={}, max_length=100)
    """Of each score it was chosen among."""
    width: int | None = Field(default=None, ge=1, le=MAX_WIDTH)
    """Of the features; None for a score of the logits."""
    size: Rows | None = None
    """Features that knn keeps; columns of vim's and residual's `rest`."""
    members: tuple[Standard, ...] = Field(default=(), max_length=MAX_MEMBERS)

    @model_validator(mode="after")
    def _whole(self) -> OodRecord:
        fitted = self.score in STORED
        if fitted != (self.width is not None) or fitted != bool(self.members):
            raise ValueError(f"{self.score}: width and members belong to a score that is fitted")
        sized = fitted and bool({"rest", "bank"} & set(STORED[self.score]))
        if sized != (self.size is not None):
            raise ValueError(f"{self.score}: a size belongs to knn, vim and residual")
        return self


class Decision(Record):
    """What the checkpoint makes of its own answers."""

    temperature: Positive
    joint: JointRecord | None = None
    ood: OodRecord
    conformal: ConformalRecord
    abstain: AbstainRecord | None = None
    nll: dict[str, float] = Field(default={}, max_length=10)
    """On data held out: `before`, and after by `temperature` and `joint`."""
    fitted: Rows
    """Validation samples that fitted."""
    certified: Rows
    """Others, on which the thresholds were taken."""
    cascade: CascadeRecord | None = None
    """How to answer most inputs by few members; absent without it."""

    @model_validator(mode="after")
    def _same_promises(self) -> Decision:
        """The cascade promises what the hydra does: other thresholds, for other answers."""
        if self.cascade is None:
            return self
        whole, part = self.conformal, self.cascade.conformal
        if (whole.method, whole.coverage) != (part.method, part.coverage):
            raise ValueError("cascade: promises other prediction sets than the hydra")
        risks = [None if a is None else (a.risk, a.delta) for a in (self.abstain, self.cascade.abstain)]
        if risks[0] != risks[1]:
            raise ValueError("cascade: promises another risk than the hydra")
        return self

    @model_serializer(mode="wrap")
    def _without_absent(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Files without a cascade say nothing of one."""
        absent = ("cascade",) if self.cascade is None else ()
        return {name: value for name, value in handler(self).items() if name not in absent}


def stored_name(member: int, part: str) -> str:
    return f"{PREFIX}{member}.{part}"


def shapes_of(decision: Decision, classes: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the state's tensors."""
    ood = decision.ood
    if ood.width is None:
        return {}
    width, size = ood.width, ood.size or 0
    shapes: dict[str, tuple[int, ...]] = {
        "centre": (width,),
        "factor": (width, width),
        "means": (classes, width),
        "background": (width, width),
        "origin": (width,),
        "rest": (width, size),
        "alpha": (),
        "bank": (size, width),
        "mean": (width,),
        "weight": (classes, width),
        "classes": (classes, width),
    }
    return {stored_name(member, part): shapes[part] for member in range(len(ood.members)) for part in STORED[ood.score]}
