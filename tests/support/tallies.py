"""Decision states and counts of answers, made up."""

from __future__ import annotations

from hydrasurgeon.files.decided import Conformal, DecisionRecord, Ood, Seen


def decision(seen: Seen | None) -> DecisionRecord:
    return DecisionRecord(
        temperature=1.0,
        ood=Ood(score="msp", threshold=0.5, id_flagged=0.05, chosen_by="option"),
        conformal=Conformal(method="lac", coverage=0.9, threshold=0.5),
        fitted=500,
        certified=500,
        seen=seen,
    )


def tally(unfamiliar: int, *predicted: int) -> Seen:
    return Seen(
        rows=sum(predicted), unfamiliar=unfamiliar, abstain=0, uncertainty=0.1, predicted=predicted
    )
