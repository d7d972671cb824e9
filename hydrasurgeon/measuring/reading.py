"""How predictions are read: by a decision state, by options, or by both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hydrasurgeon.errors import UsageError
from hydrasurgeon.lookup import did_you_mean
from hydrasurgeon.visible import visible

if TYPE_CHECKING:
    from torch import Tensor

    from hydrasurgeon.decision.conformal import Conformal
    from hydrasurgeon.decision.scores.fitted import EnsembleScore
    from hydrasurgeon.decision.state import State
    from hydrasurgeon.decision.temperature import Joint
    from hydrasurgeon.files.decided import Decision
    from hydrasurgeon.files.mixture import Mixture
    from hydrasurgeon.measuring.predictions import Predictions

# Logits that a score is made of at a time: in float64 all of them would be held several times over.
ELEMENTS = 1 << 20

MOST_SETS = 3
"""Sets without a score that are named."""


@dataclass(frozen=True)
class Reading:
    """How predictions are read: which probabilities they make, and which scores tell the foreign."""

    temperature: float = 1.0
    joint: Joint | None = None
    """Instead of the temperature."""
    ood_scores: tuple[str, ...] = ("msp",)
    """The first is the one in use."""
    score_temperature: float | None = None
    """Of the logits that OOD scores are functions of; None: that of the probabilities."""
    conformal: Conformal | None = None
    ci: float | None = None
    """The level of bootstrap intervals."""
    seed: int = 0
    mixture: Mixture | None = None
    """The members' weights; None where all count alike."""

    @property
    def is_calibrated(self) -> bool:
        return self.joint is not None or self.temperature != 1.0

    def probs(self, logits: Tensor) -> Tensor:
        from hydrasurgeon.decision.temperature import calibrated

        return calibrated(logits, self.temperature, self.joint, self.mixture)

    def apart(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """How far members are apart on each sample: mutual information, and whether they disagree."""
        from hydrasurgeon.measuring import metrics

        return (metrics.mutual_information(logits, self.mixture), metrics.disagreements(logits, self.mixture))

    def foreign(self, kind: str, logits: Tensor | None, stored: Mapping[str, Tensor]) -> Tensor:
        """How foreign samples look by one score: one that came with the logits, or a function of them."""
        import torch

        from hydrasurgeon.measuring import metrics

        if kind in stored:
            return stored[kind]
        assert logits is not None  # scores_in
        at = self.temperature if self.score_temperature is None else self.score_temperature
        most = max(1, ELEMENTS // max(1, logits[:1].numel()))
        return torch.cat([metrics.ood_score(rows, kind, at, self.mixture) for rows in logits.split(most)])


def ood_scores(wanted: str | None, state: State | None, name: str) -> tuple[str, ...]:
    """The scores that were asked for, the one in use first."""
    from hydrasurgeon.decision.scores.fitted import FITTED
    from hydrasurgeon.decision.scores.on_logits import ON_LOGITS

    recorded = None if state is None else state.ood.kind
    if wanted is None:
        return (recorded or "msp",)
    kinds = wanted.split(",")
    if wanted == "all":
        kinds = [recorded or "msp", *ON_LOGITS]
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
    bare = next((each.name for each in sets if each.logits is None), None)
    available = [*held, *(kind for kind in ON_LOGITS if bare is None and kind not in held)]
    kinds = (wanted or "msp").split(",")
    if wanted == "all":
        kinds = ["msp", *ON_LOGITS, *held] if bare is None else held or ["msp"]
    for kind in kinds:
        if kind not in available:
            why = f"{_lacking(kind, predictions)}{did_you_mean(kind, available, visible)}"
            if kind in ON_LOGITS:
                why = f"has no logits of {visible(bare)}, of which it is a function"
            shown = ", ".join(visible(name) for name in available) or "none"
            raise UsageError(f"--ood-score {visible(kind)}: {source} {why}", hint=f"Available: {shown}.")
    return tuple(dict.fromkeys(kinds))


def _lacking(kind: str, predictions: Predictions) -> str:
    """Which sets of a file have no such score."""
    lacking = [] if kind in predictions.scores else ["the labelled set"]
    lacking += [f"OOD set {visible(each.name)}" for each in predictions.ood if kind not in each.scores]
    if len(lacking) == 1 + len(predictions.ood):
        return "holds no such score"
    more = [f"{len(lacking) - MOST_SETS} more"] if len(lacking) > MOST_SETS else []
    return f"holds no such score of {', '.join([*lacking[:MOST_SETS], *more])}"


def fitted_among(state: State | None, kinds: Sequence[str]) -> EnsembleScore | None:
    """The fitted score that must be computed with the logits."""
    if state is None or state.ood.fitted is None or state.ood.kind not in kinds:
        return None
    return state.ood.fitted


def reading_of(
    state: State | None,
    kinds: tuple[str, ...],
    *,
    temperature: Callable[[], float] | None,
    ci: float | None,
    seed: int,
    mixture: Mixture | None = None,
) -> Reading:
    """By the decision state, unless there is none or a temperature is asked for."""
    if state is None or temperature is not None:
        heat = 1.0 if temperature is None else temperature()
        return Reading(heat, ood_scores=kinds, ci=ci, seed=seed, mixture=mixture)
    return Reading(
        state.temperature,
        state.joint,
        kinds,
        score_temperature=1.0,
        conformal=state.conformal,
        ci=ci,
        seed=seed,
        mixture=mixture,
    )


def rehearsal(decision: Decision | None, wanted: str | None, *, tempered: bool, ci: float | None) -> Reading:
    """A reading whose results have the keys of the real one's."""
    from hydrasurgeon.decision.conformal import Conformal
    from hydrasurgeon.decision.scores.on_logits import ON_LOGITS

    used = "msp" if decision is None else decision.ood.score
    kinds = [used, *ON_LOGITS] if wanted == "all" else (wanted or used).split(",")
    sets = Conformal("lac", 0.5, 0.5) if decision is not None and not tempered else None
    return Reading(ood_scores=tuple(dict.fromkeys(kinds)), ci=ci, conformal=sets)
