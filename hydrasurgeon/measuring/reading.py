"""How predictions are read: by a decision state, by options, or by both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hydrasurgeon.errors import UsageError
from hydrasurgeon.files.foreign import visible
from hydrasurgeon.lookup import did_you_mean

if TYPE_CHECKING:
    from torch import Tensor

    from hydrasurgeon.decision.scores.fitted import EnsembleScore
    from hydrasurgeon.decision.state import State
    from hydrasurgeon.files.decided import Conformal, Joint
    from hydrasurgeon.measuring.predictions import Predictions

ELEMENTS = 1 << 20
"""Logits that a score is made of at a time: in float64 all of them would be held several times over."""


@dataclass(frozen=True)
class Reading:
    """How predictions are read: which probabilities they make, and which scores tell the foreign."""

    temperature: float = 1.0
    joint: Joint | None = None
    """Instead of the temperature."""
    ood_scores: tuple[str, ...] = ("msp",)
    """The first is the one in use."""
    score_temperature: float | None = None
    """Temperature of the logits that OOD scores use; None for that of the probabilities."""
    conformal: Conformal | None = None
    ci: float | None = None
    """The level of bootstrap intervals."""
    seed: int = 0

    @property
    def is_calibrated(self) -> bool:
        return self.joint is not None or self.temperature != 1.0

    def probs(self, logits: Tensor) -> Tensor:
        from hydrasurgeon.decision.temperature import calibrated

        return calibrated(logits, self.temperature, self.joint)

    def apart(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """How far members are apart on each sample: mutual information, and whether they disagree."""
        from hydrasurgeon.measuring import metrics

        return metrics.mutual_information(logits), metrics.disagreements(logits)

    def foreign(self, kind: str, logits: Tensor | None, stored: Mapping[str, Tensor]) -> Tensor:
        """How OOD samples look by one score: one that came with the logits, or a function of them."""
        import torch

        from hydrasurgeon.measuring import metrics

        if kind in stored:
            return stored[kind]
        assert logits is not None  # scores_in
        at = self.temperature if self.score_temperature is None else self.score_temperature
        most = max(1, ELEMENTS // max(1, logits[:1].numel()))
        return torch.cat([metrics.ood_score(rows, kind, at) for rows in logits.split(most)])


def ood_scores(wanted: str | None, state: State | None, name: str) -> tuple[str, ...]:
    """The scores that were asked for, the one in use first."""
    from hydrasurgeon.files.decided import FITTED, OF_LOGITS

    recorded = None if state is None else state.record.ood.score
    if wanted is None:
        return (recorded or "msp",)
    kinds = wanted.split(",")
    if wanted == "all":
        kinds = [recorded or "msp", *OF_LOGITS]
    for kind in kinds:
        if kind in FITTED and kind != recorded:
            raise UsageError(
                f"--ood-score {kind}: is fitted to features, and {name} carries no such fit",
                hint=f"Write one that does: hydrasurgeon calibrate --ood-score {kind}.",
            )
    return tuple(dict.fromkeys(kinds))


def scores_in(wanted: str | None, predictions: Predictions, source: str) -> tuple[str, ...]:
    """The scores that were asked for of a predictions file, the one in use first: those it holds, and functions of its
    logits."""
    from hydrasurgeon.decision.scores.on_logits import ON_LOGITS

    sets = predictions.ood
    held = [name for name in predictions.scores if all(name in each.scores for each in sets)]
    on_logits = [] if any(each.logits is None for each in sets) else list(ON_LOGITS)
    available = [*held, *(kind for kind in on_logits if kind not in held)]
    kinds = (wanted or "msp").split(",")
    if wanted == "all":
        kinds = ["msp", *on_logits, *held] if on_logits else held or ["msp"]
    for kind in kinds:
        if kind not in available:
            why = "has OOD sets without logits" if kind in ON_LOGITS else "does not hold this score of every set"
            raise UsageError(
                f"--ood-score {visible(kind)}: {source} {why}{did_you_mean(kind, available, visible)}",
                hint=f"Available: {', '.join(map(visible, available)) or 'none'}.",
            )
    return tuple(dict.fromkeys(kinds))


def fitted_among(state: State | None, kinds: Sequence[str]) -> EnsembleScore | None:
    """The fitted score that must be computed with the logits."""
    return None if state is None or state.record.ood.score not in kinds else state.fitted


def reading_of(
    state: State | None, kinds: tuple[str, ...], *, temperature: float | None, ci: float | None, seed: int
) -> Reading:
    """By the decision state, unless there is none or a temperature is asked for."""
    if state is None or temperature is not None:
        return Reading(1.0 if temperature is None else temperature, ood_scores=kinds, ci=ci, seed=seed)
    record = state.record
    return Reading(
        record.temperature, record.joint, kinds, score_temperature=1.0, conformal=record.conformal, ci=ci, seed=seed
    )
