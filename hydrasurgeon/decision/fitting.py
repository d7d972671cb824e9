"""Fit a decision state: one half of the validation data fits, the other certifies.

What is fitted (temperature, joint calibration, the choice of an OOD score, the penalty of raps)
never meets the half on which thresholds are taken (conformal, abstention, share of ID data
flagged), so their promises hold. Before → after is cross-fitted: each half is measured with what
the other half gave.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import binary_cross_entropy

from hydrasurgeon.decision.cascaded import with_seen
from hydrasurgeon.decision.many_labels import fit_labels, fit_sets, probs_of
from hydrasurgeon.decision.problems import Problem
from hydrasurgeon.decision.state import State
from hydrasurgeon.errors import DataError
from hydrasurgeon.files.decided import (
    FITTED,
    LOGITS,
    OF_CLASSIFIERS,
    OF_LABELS,
    ZERO_SHOT,
    Decision,
    Joint,
    Ood,
    Penalty,
)
from hydrasurgeon.options.deciding import CalibrateOptions
from hydrasurgeon.statistics.abstain import fit_abstention, fit_limits
from hydrasurgeon.statistics.conformal import fit_conformal, fit_penalty, quantile
from hydrasurgeon.statistics.metrics import YES, areas
from hydrasurgeon.statistics.probabilities import (
    TINY,
    Labels,
    Probs,
    Scores,
    by_pieces,
    entropy,
    yes_or_no,
)
from hydrasurgeon.statistics.scores.evidence import Evidence, Gathering
from hydrasurgeon.statistics.scores.fitted import EnsembleScore, check_score, fit, scores_of
from hydrasurgeon.statistics.temperature import (
    CALIBRATED,
    HIGH,
    LOW,
    calibrated,
    fit_joint,
    nll_of,
    nll_of_shares,
    platt,
    temperature_of,
)

Chooser = Literal["option", "ood", "perturbed", "default"]
"""Who chose the OOD score."""
# Without --fit-data, the share of the fitting half that OOD scores are fitted on; the rest
# standardises and chooses.
SHARE = 0.8
LINEAR = 0.01
"""How far, as a fraction of the largest, logits may be from a linear function of the features:
bfloat16 rounds so.
"""
# Fewer validation samples than this tell nothing, whatever is promised.
FEWEST = 20
# So many keep the coverage that is reached within some 0.03 of what is promised.
ENOUGH = 1000
ORDER = (
    "Check that the classes of the data stand in the model's order, and that each label belongs to "
    "its row."
)
"""What to do about labels that do not fit."""
FAR_BETTER = 0.1
"""How much more accurate another order of the classes must be to show that labels do not fit ..."""
BY_CHANCE = 3.0
"""... and how many standard errors."""
FEWEST_OOD = 20
"""OOD samples that an AUROC takes at least, to choose anything by."""
ROUNDING = 1e-4
"""Nats by which one loss must lie below another to be a lower one."""
AT_BOUND = 0.999
"""A temperature this close to its bound, as a share of it, would go further if it could."""


@dataclass(frozen=True)
class Outputs:
    """What a model said of some samples."""

    logits: Float[Tensor, "sample member klass"]
    features: Float[Tensor, "sample member width"] | None
    """None where only scores of the logits are asked for."""
    labels: Int[Tensor, " sample"] | None = None
    shares: Float[Tensor, " sample"] | None = None
    """Of one logit how true yes is, of which the labels are the nearer class."""

    def at(self, rows: Tensor | slice) -> Outputs:
        parts = (self.logits, self.features, self.labels, self.shares)
        return Outputs(*(None if part is None else part[rows] for part in parts))  # type: ignore[arg-type]

    def among(self, members: Sequence[int]) -> Outputs:
        """The same of some members, in this order."""
        at = list(members)
        features = None if self.features is None else self.features[:, at]
        return Outputs(self.logits[:, at], features, self.labels, self.shares)

    def probs(
        self, temperature: float = 1.0, joint: Joint | None = None, bias: float | None = None
    ) -> Probs:
        """Calibrated."""
        return calibrated(self.logits, temperature, joint, bias)

    def decisions(self, problem: Problem) -> Outputs:
        """Of one logit, as a choice between no and yes, of many labels as one for each; others as
        they are.
        """
        if problem.name == "multi_label":
            return Outputs(problem.choices(self.logits), self.features, self.labels)
        if self.logits.shape[-1] > 1:
            return self
        labels = None if self.labels is None else (self.labels >= YES).long()
        return Outputs(yes_or_no(self.logits), self.features, labels, self.labels)

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
        what = (
            f"{count} validation samples: half of them fits and half certifies, which takes at "
            f"least {FEWEST}"
        )
        raise DataError(what, hint="Give more --data.")
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return order[: count // 2], order[count // 2 :]


def check_count(count: int, promise: CalibrateOptions) -> str | None:
    """Refuse what so few cannot promise even of a model that is never wrong; a note where more
    would be of use.
    """
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
    return (
        f"{halved}: {reached}, and the choice of OOD score is uncertain; {ENOUGH:,} or more "
        "are better"
    )


def too_few_ood(name: str, count: int) -> str | None:
    """A note on OOD data that choose nothing."""
    if count >= FEWEST_OOD:
        return None
    return f"{name}: {count} OOD samples choose nothing; {FEWEST_OOD} or more are needed"


def fit_state(
    val: Outputs,
    *,
    promise: CalibrateOptions,
    score: str = "auto",
    classifiers: Sequence[tuple[Tensor, Tensor]] = (),
    evidence: Sequence[Evidence] | None = None,
    foreign: Sequence[Outputs] = (),
    leaves_out: Sequence[str] = ZERO_SHOT,
    chosen_by: Chooser = "option",
    seed: int = 0,
) -> tuple[State, tuple[str, ...]]:
    """A state from the outputs on validation data, and notes; `foreign` are those on OOD or
    perturbed data, for `auto`, which `leaves_out` fitted scores that the model is not made for.

    `evidence` is what OOD scores are fitted on, a member each; without it a part of the fitting
    half, read by `classifiers`.
    """
    if score != "auto":
        check_score(score)
    fitting, certifying = (val.at(rows) for rows in halves(len(val.logits), seed))
    held = fitting
    if evidence is None and val.features is not None:
        cut = int(SHARE * len(fitting.logits))
        evidence, held = (
            evidence_of(fitting.at(slice(cut)), classifiers, seed),
            fitting.at(slice(cut, None)),
        )
    constants, losses = _calibration(fitting, certifying)
    fitted_answers, other_answers = (_predicted(half, constants) for half in (fitting, certifying))
    right = torch.cat([fitted_answers == fitting.truth, other_answers == certifying.truth])
    accuracy = float(right.double().mean())
    order = best_order(fitted_answers, fitting.truth, val.logits.shape[-1])
    check_order(other_answers, certifying.truth, order)
    loss = losses["temperature" if constants[1] is None else "joint"]
    separated = bool(right[: len(fitted_answers)].all())
    check_fit(loss, _guessing(val), accuracy, constants[0], separated=separated)
    kind, fitted, auroc, notes = _ood(score, evidence, held, foreign, leaves_out)
    ood = Ood(
        score=kind,
        threshold=flag_threshold(certifying.scores(kind, fitted), promise.id_flagged),
        id_flagged=promise.id_flagged,
        chosen_by=chosen_by,
        auroc=auroc,
        **_sizes(fitted),
    )
    record = Decision(
        temperature=constants[0],
        joint=constants[1],
        bias=constants[2],
        ood=ood,
        **_promises(fitting, certifying, constants, promise),
        accuracy=accuracy,
        nll=losses,
        fitted=len(fitting.logits),
        certified=len(certifying.logits),
    )
    return with_seen(State(record, fitted), val.logits, val.features), tuple(dict.fromkeys(notes))


def _predicted(outputs: Outputs, constants: Constants) -> Labels:
    """The most probable class of each sample."""
    return by_pieces(
        lambda rows: calibrated(rows, *constants).argmax(dim=-1), outputs.logits, CALIBRATED
    )


def best_order(predicted: Labels, truth: Labels, classes: int) -> Labels:
    """Predicted class → the label that it most often stands for, each label once."""
    pairs, counts = (predicted * classes + truth).unique(return_counts=True)
    order = torch.full((classes,), -1)
    for pair in pairs[counts.argsort(descending=True, stable=True)].tolist():
        answer, label = divmod(pair, classes)
        if order[answer] < 0 and not (order == label).any():
            order[answer] = label
    return order


def check_order(predicted: Labels, truth: Labels, order: Labels) -> None:
    """Refuse labels that fit far better, by more than chance, with the classes in another `order`."""
    reordered, right = order[predicted] == truth, predicted == truth
    gained = int(reordered.sum() - right.sum())
    differing = int((reordered != right).sum())
    if gained > max(FAR_BETTER * len(truth), BY_CHANCE * math.sqrt(differing)):
        raise DataError(
            f"the labels do not fit the model's answers: accuracy {right.double().mean():.3f}, and "
            f"{reordered.double().mean():.3f} with the classes in another order",
            hint=ORDER,
        )


def _guessing(val: Outputs) -> float:
    """The NLL of answering every sample with the shares of the classes."""
    if val.shares is not None:
        yes = val.shares.double().mean()
        return float(entropy(torch.stack([1 - yes, yes])))
    return float(entropy(val.truth.bincount().double() / len(val.truth)))


def check_fit(
    loss: float, guessing: float, accuracy: float, temperature: float, *, separated: bool
) -> None:
    """Refuse labels of which the answers know no more than the shares of the classes: often those of
    classes in another order. And logits that no temperature calibrates, unless they are `separated`:
    where all that fitted was answered rightly, none is low enough.
    """
    facts = f"accuracy {accuracy:.3f}, calibrated NLL {loss:.4f}, temperature {temperature:.3f}"
    if loss >= guessing - ROUNDING or temperature > HIGH * AT_BOUND:
        raise DataError(
            f"the labels do not fit the model's answers: {facts}; guessing by the shares of the "
            f"classes has NLL {guessing:.4f}",
            hint=ORDER,
        )
    if temperature < LOW / AT_BOUND and not separated:
        raise DataError(
            f"the logits are too small to be calibrated: {facts}, its lowest",
            hint="Multiply similarities by the model's scale; probabilities go into "
            "`probabilities`, not `logits`.",
        )


def _promises(
    fitting: Outputs, certifying: Outputs, constants: Constants, promise: CalibrateOptions
) -> dict[str, Any]:
    """Prediction sets, and when to abstain."""
    probs, penalty = certifying.probs(*constants), None
    if promise.conformal == "raps":
        penalty = fit_penalty(fitting.probs(*constants), fitting.truth, coverage=promise.coverage)
    return promised(probs, certifying, promise, penalty)


def promised(
    probs: Probs, certifying: Outputs, promise: CalibrateOptions, penalty: Penalty | None = None
) -> dict[str, Any]:
    """Prediction sets, and when to abstain, of these probabilities of what certifies."""
    truth = certifying.truth
    if truth.dim() > 1:
        return {"conformal": fit_sets(probs, truth.bool(), promise.coverage)}
    sets = fit_conformal(
        probs, truth, method=promise.conformal, coverage=promise.coverage, penalty=penalty
    )
    if promise.risk is None:
        return {"conformal": sets}
    bounds = {"risk": promise.risk, "delta": promise.doubt}
    if certifying.shares is not None:
        return {"conformal": sets, "limits": fit_limits(probs[:, 1], truth.bool(), **bounds)}
    confidence, label = probs.max(dim=-1)
    return {"conformal": sets, "abstain": fit_abstention(confidence, label == truth, **bounds)}


def fit_label_state(
    val: Outputs,
    *,
    promise: CalibrateOptions,
    score: str,
    foreign: Sequence[Outputs],
    chosen_by: Chooser,
) -> tuple[State, tuple[str, ...]]:
    """A state of many labels: `val` holds choices, a row of 0 and 1 for each sample as its labels."""
    fitting, certifying = (val.at(rows) for rows in halves(len(val.logits), promise.seed))
    constants = fit_labels(fitting.logits, fitting.truth.bool())
    kind, auroc = score, dict[str, float]()
    if score == "auto":
        kinds = [kind for kind in OF_LABELS if kind != "mi" or val.logits.shape[1] > 1]
        auroc = {
            kind: sum(_auroc(kind, None, fitting, each) for each in foreign) / len(foreign)
            for kind in kinds
        }
        kind = max(kinds, key=lambda kind: round(auroc[kind], 6))
    chances, truth = probs_of(certifying.logits, constants.temperatures), certifying.truth.double()
    before = probs_of(certifying.logits)
    losses = {
        name: float(binary_cross_entropy(p.clamp(TINY, 1.0), truth))
        for name, p in (("before", before), ("temperature", chances))
    }
    shares = truth.mean(dim=0)
    guessing = float(entropy(torch.stack([1 - shares, shares], dim=-1)).mean())
    answers = chances >= torch.tensor(constants.thresholds, dtype=chances.dtype)
    accuracy = float((answers == truth.bool()).double().mean())
    coolest = min(constants.temperatures)
    check_fit(losses["temperature"], guessing, accuracy, coolest, separated=True)
    threshold = flag_threshold(certifying.scores(kind, None), promise.id_flagged)
    record = Decision(
        temperature=1.0,
        labels=constants,
        accuracy=accuracy,
        ood=Ood(
            score=kind,
            threshold=threshold,
            id_flagged=promise.id_flagged,
            chosen_by=chosen_by,
            auroc=auroc,
        ),
        **promised(chances, certifying, promise),
        nll=losses,
        fitted=len(fitting.logits),
        certified=len(certifying.logits),
    )
    return State(record), ()


def evidence_of(
    outputs: Outputs, classifiers: Sequence[tuple[Tensor, Tensor]], seed: int
) -> list[Evidence]:
    """What OOD scores are fitted on, a member each."""
    assert outputs.features is not None
    made = []
    for member, classifier in enumerate(classifiers):
        gathering = Gathering(*classifier, seed=seed)
        gathering.add(outputs.features[:, member], outputs.logits[:, member], outputs.truth)
        made.append(gathering.evidence())
    return made


def _sizes(fitted: EnsembleScore | None) -> dict[str, Any]:
    """What the record says of a fit: its members, the width of the features, and how many are kept."""
    if fitted is None:
        return {}
    parts, first = FITTED[fitted.kind][1], fitted.fits[0]
    sizes = {
        dim: n
        for part, dims in parts.items()
        for dim, n in zip(dims.split(), first[part].shape, strict=True)
    }
    return {"width": sizes["width"], "size": sizes.get("size"), "members": fitted.standards}


def flag_threshold(scores: Tensor, flagged: float) -> float:
    """Above it lies, of samples like these, a share of at most `flagged`, on average over
    calibrations.
    """
    try:
        return quantile(scores, 1 - flagged)
    except DataError as error:
        what = (
            f"{len(scores)} samples are too few for a threshold that flags a fraction of "
            f"{flagged:g}"
        )
        hint = (
            f"It takes at least {math.ceil(1 / flagged) - 1} of them (half of the validation "
            "data certifies)."
        )
        raise DataError(what, hint=hint) from error


Constants = tuple[float, Joint | None, float | None]
"""What calibrates: a temperature; for an ensemble the joint calibration; for one logit a bias."""


def _calibration(fitting: Outputs, certifying: Outputs) -> tuple[Constants, dict[str, float]]:
    """Temperature, the joint calibration where it is better on the fitting half, and the NLL before
    and after.
    """
    constants = temperature, joint, bias = _constants(fitting)
    losses = _crossed((constants, certifying), (_constants(certifying), fitting))
    if joint is not None:
        cut = len(fitting.logits) // 2
        first, second = fitting.at(slice(cut)), fitting.at(slice(cut, None))
        inner = _crossed((_constants(first), second), (_constants(second), first))
        joint = joint if inner["joint"] < inner["temperature"] else None
    return (temperature, joint, bias), losses


def _constants(outputs: Outputs) -> Constants:
    if outputs.shares is not None:
        temperature, bias = platt(outputs.logits, outputs.shares)
        return temperature, None, bias
    joint = fit_joint(outputs.logits, outputs.truth) if outputs.logits.shape[1] > 1 else None
    return temperature_of(outputs.logits, outputs.truth), joint, None


def _losses(
    outputs: Outputs, temperature: float, joint: Joint | None, bias: float | None
) -> dict[str, float]:
    if outputs.shares is not None:
        after = nll_of_shares(outputs.logits, outputs.shares, temperature, bias or 0.0)
        return {"before": nll_of_shares(outputs.logits, outputs.shares), "temperature": after}
    labels = outputs.truth
    losses = {
        "before": nll_of(outputs.logits, labels),
        "temperature": nll_of(outputs.logits, labels, temperature),
    }
    return (
        losses
        if joint is None
        else {**losses, "joint": nll_of(outputs.logits, labels, joint=joint)}
    )


def _crossed(*pairs: tuple[Constants, Outputs]) -> dict[str, float]:
    """NLL `before`, by `temperature` and, of an ensemble, `joint`: each part with constants that
    another one gave.
    """
    totals: dict[str, float] = {}
    for constants, part in pairs:
        for name, loss in _losses(part, *constants).items():
            totals[name] = totals.get(name, 0.0) + len(part.truth) * loss
    count = sum(len(part.logits) for _, part in pairs)
    return {name: total / count for name, total in totals.items()}


def _ood(
    score: str,
    evidence: Sequence[Evidence] | None,
    held: Outputs,
    foreign: Sequence[Outputs],
    leaves_out: Sequence[str],
) -> tuple[str, EnsembleScore | None, dict[str, float], list[str]]:
    """The score that was asked for, or the one that tells `foreign` from `held` best."""
    if score in LOGITS:
        return score, None, {}, []
    if score != "auto":
        fitted = _fit(score, evidence, held)
        return score, fitted, {}, list(fitted.notes)
    notes: list[str] = []
    candidates: dict[str, EnsembleScore | None] = {
        kind: None for kind in LOGITS if kind != "mi" or held.logits.shape[1] > 1
    }
    for kind in FITTED:
        if evidence is None or kind in leaves_out:
            continue
        try:
            candidates[kind] = _fit(kind, evidence, held)
        except DataError as error:
            notes.append(f"--ood-score auto leaves out {error.message}")
    worth = {
        kind: [_auroc(kind, fitted, held, other) for other in foreign]
        for kind, fitted in candidates.items()
    }
    best = least_loss(worth)
    auroc = {kind: sum(values) / len(values) for kind, values in worth.items()}
    chosen = candidates[best]
    return best, chosen, auroc, [*notes, *(() if chosen is None else chosen.notes)]


def least_loss(aurocs: Mapping[str, Sequence[float]]) -> str:
    """Of OOD scores with an AUROC for each OOD set, the one whose largest loss against the best score
    of a set is the smallest: a set that all scores tell well, or none does, then has little say.
    """
    highest = [max(of_set) for of_set in zip(*aurocs.values(), strict=True)]
    loss = {
        kind: max(top - value for top, value in zip(highest, values, strict=True))
        for kind, values in aurocs.items()
    }
    # Of equals the first: msp, for which nothing has to be stored.
    return min(loss, key=lambda kind: round(loss[kind], 6))


def _fit(kind: str, evidence: Sequence[Evidence] | None, held: Outputs) -> EnsembleScore:
    assert evidence is not None
    assert held.features is not None
    return fit(kind, evidence, (held.features, held.logits))


def _auroc(kind: str, fitted: EnsembleScore | None, held: Outputs, other: Outputs) -> float:
    """P(an OOD sample scores above one held back), ties counting half."""
    return float(areas(held.scores(kind, fitted), other.scores(kind, fitted)))


def fit_alone(
    val: Outputs, fit: Outputs | None, foreign: Sequence[Outputs], promise: CalibrateOptions
) -> tuple[State, tuple[str, ...]]:
    """A state of any model, from its predictions on validation data, on what OOD scores are fitted
    on, and on OOD data; and notes.
    """
    score, linear = promise.ood_score, None if val.features is None else classifiers_of(fit or val)
    lacking = FITTED if val.features is None else OF_CLASSIFIERS if linear is None else ()
    if score in lacking:
        what = (
            "predictions without features"
            if val.features is None
            else "logits that no linear classifier made"
        )
        raise DataError(
            f"--ood-score {score}: cannot be fitted to {what}", hint="Give another --ood-score."
        )
    chosen_by: Literal["option", "ood", "default"] = (
        "option" if score != "auto" else "ood" if foreign else "default"
    )
    notes = []
    if chosen_by == "default":
        # On average over the tasks of benchmarks/decision.py the best, and nowhere worse than msp
        # by a point.
        score = next(kind for kind in ("vim", "mds", "msp") if kind not in lacking)
        notes.append(f"--ood-score auto chooses by --ood-predictions; without them it is {score}")
    if linear is None and val.features is not None:
        _, members, width = val.features.shape
        linear = [
            (torch.zeros(val.logits.shape[-1], width), torch.zeros(val.logits.shape[-1]))
        ] * members
    state, more = fit_state(
        val,
        promise=promise,
        score=score,
        classifiers=linear or (),
        evidence=None if fit is None or linear is None else evidence_of(fit, linear, promise.seed),
        foreign=foreign,
        leaves_out=(*ZERO_SHOT, *lacking),
        chosen_by=chosen_by,
        seed=promise.seed,
    )
    return state, (*notes, *more)


def classifiers_of(outputs: Outputs) -> list[tuple[Tensor, Tensor]] | None:
    """Each member's weight and bias by least squares; None where they do not give the logits of
    rows left aside.
    """
    assert outputs.features is not None
    cut, made = int(SHARE * len(outputs.logits)), []
    for member in range(outputs.logits.shape[1]):
        x, z = outputs.features[:, member].double(), outputs.logits[:, member].double()
        x = torch.cat([x, torch.ones_like(x[:, :1])], dim=1)
        solution = torch.linalg.lstsq(x[:cut], z[:cut], driver="gelsd").solution
        if (x[cut:] @ solution - z[cut:]).abs().max() > LINEAR * z.abs().max():
            return None
        made.append((solution[:-1].T, solution[-1]))
    return made
