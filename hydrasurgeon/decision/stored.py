"""A decision state ↔ its record in the manifest and its tensors."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from hydrasurgeon.decision.abstain import Abstention
from hydrasurgeon.decision.conformal import Conformal, Penalty
from hydrasurgeon.decision.fitting import Fitted
from hydrasurgeon.decision.scores.fitted import EnsembleScore
from hydrasurgeon.decision.state import OodRule, State
from hydrasurgeon.decision.temperature import Joint
from hydrasurgeon.files.decided import (
    STORED,
    AbstainRecord,
    ConformalRecord,
    Decision,
    JointRecord,
    OodRecord,
    PenaltyRecord,
    Standard,
    stored_name,
)

__all__ = ["state_of", "stored"]


def stored(fitted: Fitted, *, chosen_by: str) -> tuple[Decision, dict[str, Tensor]]:
    """What goes into the manifest, and the tensors beside the weights."""
    state = fitted.state
    joint, conformal, abstention = state.joint, state.conformal, state.abstention
    penalty = conformal.penalty
    decision = Decision(
        temperature=state.temperature,
        joint=None if joint is None else JointRecord(aleatoric=joint.aleatoric, epistemic=joint.epistemic),
        ood=_ood(state.ood, fitted.auroc, chosen_by),
        conformal=ConformalRecord(
            method=conformal.method, coverage=conformal.coverage, threshold=conformal.threshold,
            penalty=None if penalty is None else PenaltyRecord(weight=penalty.weight, free_ranks=penalty.free_ranks),
        ),
        abstain=None if abstention is None else AbstainRecord(
            threshold=abstention.threshold, risk=abstention.risk, delta=abstention.delta,
            bound=abstention.bound, coverage=abstention.coverage,
        ),
        nll={"before": fitted.before["nll"], **fitted.after},
        fitted=fitted.rows[0],
        certified=fitted.rows[1],
    )  # fmt: skip
    states = () if state.ood.fitted is None else state.ood.fitted.states
    return decision, {
        stored_name(member, part): tensor.float().contiguous()
        for member, each in enumerate(states)
        for part, tensor in each.items()
    }


def _ood(rule: OodRule, auroc: Mapping[str, float], chosen_by: str) -> OodRecord:
    about = {
        "score": rule.kind, "threshold": rule.threshold, "id_flagged": rule.id_flagged,
        "chosen_by": chosen_by, "auroc": dict(auroc),
    }  # fmt: skip
    if rule.fitted is not None:
        first = rule.fitted.states[0]
        members = zip(rule.fitted.means, rule.fitted.deviations, strict=True)
        about["members"] = tuple(Standard(mean=mean, deviation=each) for mean, each in members)
        if "bank" in first:
            about["size"], about["width"] = first["bank"].shape
        elif "rest" in first:
            about["width"], about["size"] = first["rest"].shape
        else:
            about["width"] = next(iter(first.values())).shape[-1]
    return OodRecord.model_validate(about)


def state_of(decision: Decision, tensors: Mapping[str, Tensor]) -> State:
    """The state that a manifest and the tensors it names make."""
    ood, joint, abstain = decision.ood, decision.joint, decision.abstain
    fitted = None
    if ood.width is not None:
        states = tuple(
            {part: tensors[stored_name(member, part)] for part in STORED[ood.score]}
            for member in range(len(ood.members))
        )
        fitted = EnsembleScore(
            ood.score, states, tuple(m.mean for m in ood.members), tuple(m.deviation for m in ood.members)
        )  # fmt: skip
    penalty = decision.conformal.penalty
    return State(
        temperature=decision.temperature,
        joint=None if joint is None else Joint(joint.aleatoric, joint.epistemic),
        ood=OodRule(ood.score, ood.threshold, ood.id_flagged, fitted),
        conformal=Conformal(
            decision.conformal.method, decision.conformal.coverage, decision.conformal.threshold,
            None if penalty is None else Penalty(penalty.weight, penalty.free_ranks),
        ),
        abstention=None if abstain is None else Abstention(
            abstain.threshold, abstain.risk, abstain.delta, abstain.bound, abstain.coverage
        ),
    )  # fmt: skip
