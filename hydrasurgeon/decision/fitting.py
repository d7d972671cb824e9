"""Fit a decision state: one half of the validation data fits, the other certifies.

What is fitted (temperature, joint calibration, the choice of an OOD score, the penalty of raps) never meets the half
on which thresholds are taken (conformal, abstention, share of ID data flagged), so their promises hold. Before → after
is cross-fitted: each half is measured with what the other half gave.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hydrasurgeon.decision.abstain import fit_abstention
from hydrasurgeon.decision.conformal import fit_conformal, fit_penalty, quantile
from hydrasurgeon.decision.probabilities import Labels, Probs, Scores
from hydrasurgeon.decision.scores.evidence import Evidence, Gathering
from hydrasurgeon.decision.scores.fitted import EnsembleScore, check_score, fit, scores_of
from hydrasurgeon.decision.scores.on_logits import ON_LOGITS
from hydrasurgeon.decision.state import State
from hydrasurgeon.decision.temperature import calibrated, fit_joint, nll_of, temperature_of
from hydrasurgeon.errors import DataError
from hydrasurgeon.files.decided import FITTED, ZERO_SHOT, Decision, Joint, Ood
from hydrasurgeon.options.deciding import CalibrateOptions

# Without --fit-data, the share of the fitting half that OOD scores are fitted on; the rest standardises and chooses.
SHARE = 0.8
# Fewer validation samples than this tell nothing, whatever is promised.
FEWEST = 20
# So many keep the coverage that is reached within some 0.03 of what is promised.
ENOUGH = 1000


@dataclass(frozen=True)
class Outputs:
    """What a model said of some samples."""

    logits: Float[Tensor, "sample member klass"]
    features: Float[Tensor, "sample member width"] | None
    """None where only scores of the logits are asked for."""
    labels: Int[Tensor, " sample"] | None = None

    def at(self, rows: Tensor | slice) -> Outputs:
        parts = (self.logits, self.features, self.labels)
        return Outputs(*(None if part is None else part[rows] for part in parts))  # type: ignore[arg-type]

    def among(self, members: Sequence[int]) -> Outputs:
        """The same of some members, in this order."""
        at = list(members)
        features = None if self.features is None else self.features[:, at]
        return Outputs(self.logits[:, at], features, self.labels)

    def probs(self, temperature: float = 1.0, joint: Joint | None = None) -> Probs:
        """Calibrated."""
        return calibrated(self.logits, temperature, joint)

    def scores(self, kind: str, fitted: EnsembleScore | None) -> Scores:
        """How unfamiliar they look."""
        return scores_of(kind, self.logits, self.features, fitted)

    @property
    def truth(self) -> Labels:
        """The labels, which are there."""
        assert self.labels is not None
        return self.labels


def halves(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Two disjoint halves of the rows, drawn at random and in no order: a part of one is as random."""
    if count < FEWEST:
        what = f"{count} validation samples: half of them fits and half certifies, which takes at least {FEWEST}"
        raise DataError(what, hint="Give more --data.")
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return order[: count // 2], order[count // 2 :]


def check_count(count: int, promise: CalibrateOptions) -> str | None:
    """Refuse what so few cannot promise even of a model that is never wrong; a note where more would be of use."""
    fitting, certifying = (torch.ones(len(rows)) for rows in halves(count, 0))
    if promise.conformal == "raps":
        quantile(fitting, promise.coverage)
    quantile(certifying, promise.coverage)
    flag_threshold(certifying, promise.id_flagged)
    if promise.risk is not None:
        fit_abstention(certifying, certifying.bool(), risk=promise.risk, delta=promise.doubt)
    if count >= ENOUGH:
        return None
    spread = 2 * math.sqrt(promise.coverage * (1 - promise.coverage) / len(certifying))
    halved = f"calibrated on {count} samples, of which {len(certifying)} certify"
    reached = f"the coverage that is reached may lie {spread:.2f} from {promise.coverage:g}"
    return f"{halved}: {reached}, and the choice of OOD score is uncertain; {ENOUGH:,} or more are better"


def fit_state(
    val: Outputs,
    *,
    promise: CalibrateOptions,
    score: str = "auto",
    classifiers: Sequence[tuple[Tensor, Tensor]] = (),
    evidence: Sequence[Evidence] | None = None,
    foreign: Sequence[Outputs] = (),
    zero_shot: bool = False,
    chosen_by: Literal["option", "ood", "perturbed"] = "option",
    seed: int = 0,
) -> tuple[State, tuple[str, ...]]:
    """A state from the outputs on validation data, and notes; `foreign` are those on OOD or perturbed data, for `auto`.

    `evidence` is what OOD scores are fitted on, a member each; without it a part of the fitting half, read by
    `classifiers`.
    """
    if score != "auto":
        check_score(score)
    fitting, certifying = (val.at(rows) for rows in halves(len(val.logits), seed))
    held = fitting
    if evidence is None and val.features is not None:
        cut = int(SHARE * len(fitting.logits))
        some, held, evidence = fitting.at(slice(cut)), fitting.at(slice(cut, None)), []
        assert some.features is not None
        for member, classifier in enumerate(classifiers):
            gathering = Gathering(*classifier, seed=seed)
            gathering.add(some.features[:, member], some.logits[:, member], some.truth)
            evidence.append(gathering.evidence())
    temperature, joint, losses = _calibration(fitting, certifying)
    kind, fitted, auroc, notes = _ood(score, evidence, held, foreign, zero_shot)
    probs, truth, penalty, abstention = certifying.probs(temperature, joint), certifying.truth, None, None
    if promise.conformal == "raps":
        penalty = fit_penalty(fitting.probs(temperature, joint), fitting.truth, coverage=promise.coverage)
    if promise.risk is not None:
        confidence, label = probs.max(dim=-1)
        abstention = fit_abstention(confidence, label == truth, risk=promise.risk, delta=promise.doubt)
    ood = Ood(
        score=kind,
        threshold=flag_threshold(certifying.scores(kind, fitted), promise.id_flagged),
        id_flagged=promise.id_flagged,
        chosen_by=chosen_by,
        auroc=auroc,
        **_sizes(fitted),
    )
    record = Decision(
        temperature=temperature,
        joint=joint,
        ood=ood,
        conformal=fit_conformal(probs, truth, method=promise.conformal, coverage=promise.coverage, penalty=penalty),
        abstain=abstention,
        nll=losses,
        fitted=len(fitting.logits),
        certified=len(certifying.logits),
    )
    return State(record, fitted), tuple(dict.fromkeys(notes))


def _sizes(fitted: EnsembleScore | None) -> dict[str, Any]:
    """What the record says of a fit: its members, the width of the features, and how many are kept."""
    if fitted is None:
        return {}
    parts, first = FITTED[fitted.kind][1], fitted.fits[0]
    sizes = {dim: n for part, dims in parts.items() for dim, n in zip(dims.split(), first[part].shape, strict=True)}
    return {"width": sizes["width"], "size": sizes.get("size"), "members": fitted.standards}


def flag_threshold(scores: Tensor, flagged: float) -> float:
    """Above it lies, of samples like these, a share of at most `flagged`, on average over calibrations."""
    try:
        return quantile(scores, 1 - flagged)
    except DataError as error:
        what = f"{len(scores)} samples are too few for a threshold that flags a fraction of {flagged:g}"
        hint = f"It takes at least {math.ceil(1 / flagged) - 1} of them (half of the validation data certifies)."
        raise DataError(what, hint=hint) from error


Constants = tuple[float, Joint | None]
"""What calibrates: a temperature and, for an ensemble, the joint calibration."""


def _calibration(fitting: Outputs, certifying: Outputs) -> tuple[float, Joint | None, dict[str, float]]:
    """Temperature, the joint calibration where it is better on the fitting half, and the NLL before and after."""
    constants = temperature, joint = _constants(fitting)
    losses = _crossed((constants, certifying), (_constants(certifying), fitting))
    if joint is not None:
        cut = len(fitting.logits) // 2
        first, second = fitting.at(slice(cut)), fitting.at(slice(cut, None))
        inner = _crossed((_constants(first), second), (_constants(second), first))
        joint = joint if inner["joint"] < inner["temperature"] else None
    return temperature, joint, losses


def _constants(outputs: Outputs) -> Constants:
    joint = fit_joint(outputs.logits, outputs.truth) if outputs.logits.shape[1] > 1 else None
    return temperature_of(outputs.logits, outputs.truth), joint


def _crossed(*pairs: tuple[Constants, Outputs]) -> dict[str, float]:
    """NLL `before`, by `temperature` and, of an ensemble, `joint`: each part with constants that another one gave."""
    totals: dict[str, float] = {}
    for (temperature, joint), part in pairs:
        labels = part.truth
        losses = {"before": nll_of(part.logits, labels), "temperature": nll_of(part.logits, labels, temperature)}
        if joint is not None:
            losses["joint"] = nll_of(part.logits, labels, joint=joint)
        for name, loss in losses.items():
            totals[name] = totals.get(name, 0.0) + len(labels) * loss
    count = sum(len(part.logits) for _, part in pairs)
    return {name: total / count for name, total in totals.items()}


def _ood(
    score: str, evidence: Sequence[Evidence] | None, held: Outputs, foreign: Sequence[Outputs], zero_shot: bool
) -> tuple[str, EnsembleScore | None, dict[str, float], list[str]]:
    """The score that was asked for, or the one that tells `foreign` from `held` best.

    Of several OOD sets, the one whose largest loss against the best score of a set is the smallest: a set that all
    scores tell well, or none does, then has little say.
    """
    if score in ON_LOGITS:
        return score, None, {}, []
    if score != "auto":
        fitted = _fit(score, evidence, held)
        return score, fitted, {}, list(fitted.notes)
    notes: list[str] = []
    candidates: dict[str, EnsembleScore | None] = {
        kind: None for kind in ON_LOGITS if kind != "mi" or held.logits.shape[1] > 1
    }
    for kind in FITTED:
        if evidence is None or (kind in ZERO_SHOT and not zero_shot):
            continue
        try:
            candidates[kind] = _fit(kind, evidence, held)
        except DataError as error:
            notes.append(f"--ood-score auto leaves out {error.message}")
    worth = {kind: [_auroc(kind, fitted, held, other) for other in foreign] for kind, fitted in candidates.items()}
    highest = [max(of_set) for of_set in zip(*worth.values(), strict=True)]
    loss = {
        kind: max(top - value for top, value in zip(highest, values, strict=True)) for kind, values in worth.items()
    }
    # Of equals the first: msp, for which nothing has to be stored.
    best = min(loss, key=lambda kind: round(loss[kind], 6))
    auroc = {kind: sum(values) / len(values) for kind, values in worth.items()}
    chosen = candidates[best]
    return best, chosen, auroc, [*notes, *(() if chosen is None else chosen.notes)]


def _fit(kind: str, evidence: Sequence[Evidence] | None, held: Outputs) -> EnsembleScore:
    assert evidence is not None
    assert held.features is not None
    return fit(kind, evidence, (held.features, held.logits))


def _auroc(kind: str, fitted: EnsembleScore | None, held: Outputs, other: Outputs) -> float:
    """P(a foreign sample scores above one held back), ties counting half."""
    inside = held.scores(kind, fitted).sort().values
    outside = other.scores(kind, fitted)
    below = torch.searchsorted(inside, outside) + torch.searchsorted(inside, outside, right=True)
    return float(below.double().mean() / 2 / len(inside))
