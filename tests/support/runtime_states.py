"""Decision states made by hand, for models that nobody has calibrated."""

from __future__ import annotations

import numpy as np
import torch

from hydrasurgeon.decision.fitting import _sizes
from hydrasurgeon.decision.state import State
from hydrasurgeon.files.decided import (
    FITTED,
    Cascade,
    Conformal,
    DecisionRecord,
    Ood,
    Standard,
)
from hydrasurgeon.statistics.scores.fitted import EnsembleScore

STANDARDS = tuple(Standard(mean=m, deviation=d) for m, d in ((0.3, 1.0), (2.0, 0.5), (-1.0, 3.0)))


def lac(threshold: float = 0.5, coverage: float = 0.9) -> Conformal:
    return Conformal(method="lac", coverage=coverage, threshold=threshold)


def state(
    score: str = "msp",
    threshold: float = 0.5,
    *,
    fitted: EnsembleScore | None = None,
    temperature: float = 1.0,
    conformal: Conformal | None = None,
    cascade: Cascade | None = None,
) -> State:
    sizes = _sizes(fitted)
    ood = Ood(score=score, threshold=threshold, id_flagged=0.05, chosen_by="option", **sizes)
    record = DecisionRecord(
        temperature=temperature,
        ood=ood,
        conformal=conformal or lac(),
        fitted=1,
        certified=1,
        cascade=cascade,
    )
    return State(record, fitted)


def cascade_by(
    threshold: float, *, temperature: float = 1.0, conformal: Conformal | None = None
) -> Cascade:
    return Cascade(
        threshold=threshold,
        share_on=0.5,
        temperature=temperature,
        conformal=conformal or lac(),
    )


def drawn(score: str, members: int, *, width: int = 8, classes: int = 5) -> State:
    """Return a state with any score, and with random tensors if the score has some."""
    sizes, random = (
        {"width": width, "size": 60, "classes": classes},
        torch.Generator().manual_seed(members),
    )

    def fit() -> dict[str, np.ndarray]:
        shapes = {
            part: [sizes[dim] for dim in dims.split()] for part, dims in FITTED[score].items()
        }
        return {
            part: np.asarray(torch.randn(shape, generator=random)) for part, shape in shapes.items()
        }

    fitted = None
    if score in FITTED:
        fitted = EnsembleScore(score, tuple(fit() for _ in range(members)), STANDARDS[:members])
    return state(score, 0.4, fitted=fitted, temperature=1.7)
