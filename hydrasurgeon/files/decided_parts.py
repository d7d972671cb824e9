"""Parts that the records of a decision state are made of, its own and its cascade's."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

MAX_MEMBERS = 4096
"""Members that one state was fitted to: as many as a hydra may have."""

Share = Annotated[float, Field(gt=0, lt=1)]
Positive = Annotated[float, Field(gt=0, le=1e6)]


class Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class JointRecord(Record):
    """The joint calibration of an ensemble, used instead of the temperature."""

    aleatoric: Positive
    epistemic: Positive


class PenaltyRecord(Record):
    """Of raps."""

    weight: float = Field(ge=0)
    free_ranks: int = Field(ge=0, lt=2**31)


class ConformalRecord(Record):
    """Prediction sets: the labels whose score is at most the threshold."""

    method: Literal["lac", "aps", "raps"]
    coverage: Share
    threshold: float
    penalty: PenaltyRecord | None = None

    @model_validator(mode="after")
    def _penalised(self) -> ConformalRecord:
        if (self.method == "raps") != (self.penalty is not None):
            raise ValueError("a penalty belongs to raps")
        return self


class AbstainRecord(Record):
    """Answer where the probability is at least the threshold."""

    threshold: float = Field(ge=0, le=1)
    risk: Share
    delta: Share
    bound: float = Field(ge=0, le=1)
    coverage: float = Field(ge=0, le=1)
