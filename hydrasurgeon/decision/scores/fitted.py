"""Every score that is fitted on features, and how the members of an ensemble join: the mean of what each finds,
standardised.

s(x) = 1/M Σ_m (s_m(x) − mean_m) / std_m        mean and deviation over samples held back from fitting
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from hydrasurgeon.decision.probabilities import Scores, in_pieces
from hydrasurgeon.decision.scores.angles import fit_mcm, fit_nci, score_mcm, score_nci
from hydrasurgeon.decision.scores.evidence import Evidence, State
from hydrasurgeon.decision.scores.gaussian import (
    fit_directions,
    fit_mds,
    fit_rmds,
    score_directions,
    score_mds,
    score_rmds,
)
from hydrasurgeon.decision.scores.neighbours import fit_knn, score_knn
from hydrasurgeon.decision.scores.on_logits import ON_LOGITS
from hydrasurgeon.decision.scores.subspace import fit_residual, fit_vim, score_residual, score_vim
from hydrasurgeon.errors import DataError, UsageError
from hydrasurgeon.lookup import did_you_mean

Features = Float[Tensor, "sample member width"]

# Samples that are scored at a time: a knn bank of 10,000 then takes some 80 MB.
ROWS = 1024


@dataclass(frozen=True)
class FittedScore:
    """How a score is fitted to one member, and what it then makes of features and logits."""

    fit: Callable[[Evidence], tuple[State, list[str]]]
    score: Callable[[State, Tensor, Tensor], Scores]
    zero_shot: bool = False
    """Whether it is for zero-shot classifiers alone."""


FITTED: dict[str, FittedScore] = {
    "mds": FittedScore(fit_mds, score_mds),
    "rmds": FittedScore(fit_rmds, score_rmds),
    "maha++": FittedScore(fit_directions, score_directions),
    "vim": FittedScore(fit_vim, score_vim),
    "residual": FittedScore(fit_residual, score_residual),
    "knn": FittedScore(fit_knn, score_knn),
    "nci": FittedScore(fit_nci, score_nci),
    "mcm": FittedScore(fit_mcm, score_mcm, zero_shot=True),
}
"""score → how it is fitted and computed; each formula stands in its own module, what it stores in
`files/decided.py`."""


def check_score(kind: str, among: Sequence[str] = (*ON_LOGITS, *FITTED)) -> None:
    """Refuse a name that no score has."""
    if kind not in among:
        raise UsageError(
            f"--ood-score {kind}: not known{did_you_mean(kind, among)}", hint=f"Available: {', '.join(among)}."
        )


@dataclass(frozen=True)
class EnsembleScore:
    """A score fitted to each member, with what its values were on samples held back."""

    kind: str
    states: tuple[State, ...]
    means: tuple[float, ...]
    deviations: tuple[float, ...]
    notes: tuple[str, ...] = ()

    def among(self, members: Sequence[int]) -> EnsembleScore:
        """The same of some members, in this order."""
        return replace(
            self,
            states=tuple(self.states[m] for m in members),
            means=tuple(self.means[m] for m in members),
            deviations=tuple(self.deviations[m] for m in members),
        )

    def __call__(self, features: Features, logits: Tensor) -> Scores:
        each = [
            (_values(self.kind, state, features[:, m], logits[:, m]) - mean) / deviation
            for m, (state, mean, deviation) in enumerate(zip(self.states, self.means, self.deviations, strict=True))
        ]
        return torch.stack(each).mean(dim=0)


def _values(kind: str, state: State, features: Tensor, logits: Tensor) -> Scores:
    """One member's score of many samples, in bounded memory."""
    score = FITTED[kind].score
    pairs = zip(in_pieces(features, ROWS), in_pieces(logits, ROWS), strict=True)
    return torch.cat([score(state, x, z) for x, z in pairs])


def fit(
    kind: str, evidence: Sequence[Evidence], held: tuple[Features, Tensor], *, precise: bool = False
) -> EnsembleScore:
    """Fit a score to every member and standardise it on `held`, features and logits that were not fitted on.

    States are kept in float32, as they are stored: what is measured is what will be used. `precise` keeps float64.
    """
    features, logits = held
    states, means, deviations = [], [], []
    notes: dict[str, None] = {}
    for member, each in enumerate(evidence):
        each.need_spread(kind)
        state, said = FITTED[kind].fit(each)
        if not precise:
            state = {name: tensor.float() for name, tensor in state.items()}
        values = _values(kind, state, features[:, member], logits[:, member])
        if not torch.isfinite(values).all():
            raise DataError(
                f"{kind}: is not finite for samples that were held back from fitting it",
                hint="Give more --data or --fit-data, or another --ood-score.",
            )
        states.append(state)
        means.append(float(values.mean()))
        deviation = float(values.std(correction=0))
        deviations.append(deviation if deviation > 0 else 1.0)
        notes |= dict.fromkeys(said)
    return EnsembleScore(kind, tuple(states), tuple(means), tuple(deviations), tuple(notes))


def scores_of(
    kind: str, logits: Tensor, features: Features | None, fitted: EnsembleScore | None, temperature: float = 1.0
) -> Scores:
    """Any score, of logits alone or fitted."""
    if kind in ON_LOGITS:
        score = ON_LOGITS[kind]
        return torch.cat([score(rows, temperature) for rows in in_pieces(logits, ROWS)])
    assert fitted is not None
    assert features is not None
    assert fitted.kind == kind
    return fitted(features, logits)
