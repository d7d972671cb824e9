"""A decision state ↔ its record in the manifest and its tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from hydrasurgeon.decision.abstain import Abstention
from hydrasurgeon.decision.conformal import Conformal, Penalty
from hydrasurgeon.decision.fitting import Fitted
from hydrasurgeon.decision.gate import Cascade, Gate
from hydrasurgeon.decision.scores.fitted import EnsembleScore
from hydrasurgeon.decision.state import OodRule, State
from hydrasurgeon.decision.temperature import Joint
from hydrasurgeon.files.decided import STORED, Decision, OodRecord, Standard, stored_name
from hydrasurgeon.files.decided_cascade import CascadeRecord
from hydrasurgeon.files.decided_parts import AbstainRecord, ConformalRecord, JointRecord, PenaltyRecord


def stored(
    fitted: Fitted, *, chosen_by: str, cascade: CascadeRecord | None = None
) -> tuple[Decision, dict[str, Tensor]]:
    """What goes into the manifest, and the tensors beside the weights."""
    state = fitted.state
    decision = Decision(
        temperature=state.temperature,
        joint=joint_record(state.joint),
        ood=_ood(state.ood, fitted.auroc, chosen_by),
        conformal=conformal_record(state.conformal),
        abstain=abstain_record(state.abstention),
        nll={"before": fitted.before["nll"], **fitted.after},
        fitted=fitted.rows[0],
        certified=fitted.rows[1],
        cascade=cascade,
    )
    states = () if state.ood.fitted is None else state.ood.fitted.states
    return decision, {
        stored_name(member, part): tensor.float().contiguous()
        for member, each in enumerate(states)
        for part, tensor in each.items()
    }


def joint_record(joint: Joint | None) -> JointRecord | None:
    if joint is None:
        return None
    return JointRecord(aleatoric=joint.aleatoric, epistemic=joint.epistemic)


def conformal_record(conformal: Conformal) -> ConformalRecord:
    penalty = conformal.penalty
    return ConformalRecord(
        method=conformal.method,
        coverage=conformal.coverage,
        threshold=conformal.threshold,
        penalty=None if penalty is None else PenaltyRecord(weight=penalty.weight, free_ranks=penalty.free_ranks),
    )


def abstain_record(abstention: Abstention | None) -> AbstainRecord | None:
    if abstention is None:
        return None
    return AbstainRecord(
        threshold=abstention.threshold,
        risk=abstention.risk,
        delta=abstention.delta,
        bound=abstention.bound,
        coverage=abstention.coverage,
    )


def _ood(rule: OodRule, auroc: Mapping[str, float], chosen_by: str) -> OodRecord:
    about = {
        "score": rule.kind,
        "threshold": rule.threshold,
        "id_flagged": rule.id_flagged,
        "chosen_by": chosen_by,
        "auroc": dict(auroc),
    }
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
        )
    return State(
        temperature=decision.temperature,
        joint=_joint(joint),
        ood=OodRule(ood.score, ood.threshold, ood.id_flagged, fitted),
        conformal=_conformal(decision.conformal),
        abstention=_abstention(abstain),
        cascade=None if decision.cascade is None else cascade_of(decision.cascade),
    )


def cascade_of(record: CascadeRecord) -> Cascade:
    """The cascade that a record tells."""
    low, high = record.gate.low, record.gate.high
    return Cascade(
        order=record.order,
        first=record.first,
        gate=Gate(record.gate.score, -math.inf if low is None else low, math.inf if high is None else high),
        temperature=record.temperature,
        ood_threshold=record.ood_threshold,
        conformal=_conformal(record.conformal),
        abstention=_abstention(record.abstain),
    )


def _joint(record: JointRecord | None) -> Joint | None:
    return None if record is None else Joint(record.aleatoric, record.epistemic)


def _conformal(record: ConformalRecord) -> Conformal:
    penalty = record.penalty
    return Conformal(
        record.method,
        record.coverage,
        record.threshold,
        None if penalty is None else Penalty(penalty.weight, penalty.free_ranks),
    )


def _abstention(record: AbstainRecord | None) -> Abstention | None:
    if record is None:
        return None
    return Abstention(record.threshold, record.risk, record.delta, record.bound, record.coverage)
