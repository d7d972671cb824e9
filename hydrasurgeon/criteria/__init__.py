"""Criteria by name; each is imported when it is first used. Adding one is a file here and a line
below.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from hydrasurgeon.criteria.base import Criterion
from hydrasurgeon.errors import UsageError
from hydrasurgeon.files.decided import FITTED, OF_CIRCUITS
from hydrasurgeon.files.manifest import OF_NEURONS
from hydrasurgeon.heads import Layers
from hydrasurgeon.lookup import did_you_mean, imported

CRITERIA = {
    "taylor": Criterion("hydrasurgeon.criteria.taylor:score"),
    "fisher": Criterion("hydrasurgeon.criteria.fisher:score"),
    "magnitude": Criterion("hydrasurgeon.criteria.magnitude:score", needs_data=False),
    "random": Criterion("hydrasurgeon.criteria.random:score", needs_data=False),
    "circuit": Criterion("hydrasurgeon.criteria.circuits.criterion:score"),
    "headmap": Criterion("hydrasurgeon.criteria.headmap:score"),
    "cahp": Criterion(
        "hydrasurgeon.criteria.cahp.criterion:score",
        choose="hydrasurgeon.criteria.cahp.choice:choose_heads",
        own_number=True,
        uses=("scikit-learn", "kmedoids", "kneed"),
        in_turn=True,
    ),
    "neurons-taylor": Criterion("hydrasurgeon.criteria.neurons:taylor"),
    "neurons-fisher": Criterion("hydrasurgeon.criteria.neurons:fisher"),
    "neurons-magnitude": Criterion("hydrasurgeon.criteria.neurons:magnitude", needs_data=False),
    "neurons-random": Criterion("hydrasurgeon.criteria.neurons:random", needs_data=False),
}
"""Name → the criterion."""
CIRCUIT = "circuit"
"""The criterion that ranks heads by removing them."""
SEARCHES = {
    "exact": "hydrasurgeon.criteria.circuits.exact:Exact",
    "attribution": "hydrasurgeon.criteria.circuits.attribution:Attribution",
}
"""Name → where the search of a circuit stands."""
OBJECTIVES = ("acc", "ood", "avg")
"""What a circuit can keep."""
WITHOUT_DATA = {name for name, each in CRITERIA.items() if not each.needs_data}
"""Criteria that need no data."""


def score_key(
    method: str,
    objective: str | None = None,
    ood_score: str | None = None,
    *,
    recorded: Collection[str] = (),
) -> str:
    """Under which name scores stand in the manifest: `circuit-OBJECTIVE`, and
    `circuit-OBJECTIVE-SCORE` for a score that is not msp.

    Without an objective it is the only one recorded (of that score), or else avg.
    """
    family, *names = method.split("-", 2)
    if family != CIRCUIT:
        for flag, value in (("--objective", objective), ("--ood-score", ood_score)):
            if value is not None:
                raise UsageError(f"{flag} {value}: --method {method} has none")
        return method
    wanted, by = (*names, None, None)[:2]
    for flag, value, named in (("--objective", objective, wanted), ("--ood-score", ood_score, by)):
        if None not in (value, named) and value != named:
            raise UsageError(f"{flag} {value}: --method {method} names another")
    wanted, by = wanted or objective, by or ood_score
    if by is not None and by not in OF_CIRCUITS:
        why = f"not known{did_you_mean(by, OF_CIRCUITS)}"
        if by in (*FITTED, "mi"):
            why = "a circuit is searched by what one model's logits say"
        raise UsageError(f"--ood-score {by}: {why}", hint=f"Available: {', '.join(OF_CIRCUITS)}.")
    if wanted is None:
        circuits = [
            key
            for key in recorded
            if key.startswith(f"{CIRCUIT}-") and by in (None, objective_of(key)[1])
        ]
        if len(circuits) > 1:
            raise UsageError(
                f"--method circuit: the manifest has {' and '.join(sorted(circuits))}",
                hint="Name one with --objective and --ood-score, or as --method.",
            )
        if circuits:
            return circuits[0]
        wanted = "avg"
    if wanted not in OBJECTIVES:
        raise UsageError(
            f"--objective {wanted}: no such objective", hint=f"Available: {', '.join(OBJECTIVES)}."
        )
    if wanted == "acc" and by is not None:
        raise UsageError(
            f"--ood-score {by}: --objective acc looks at no OOD data",
            hint="Leave it out, or give --objective ood or avg.",
        )
    return f"{CIRCUIT}-{wanted}" + (f"-{by}" if by not in (None, OF_CIRCUITS[0]) else "")


def neurons_key(method: str | None) -> str:
    """Under which name scores of neurons stand: by the same criterion as heads, or taylor where it
    has none.
    """
    name = f"{OF_NEURONS}{(method or 'taylor').removeprefix(OF_NEURONS)}"
    return name if name in CRITERIA else f"{OF_NEURONS}taylor"


def objective_of(key: str) -> tuple[str, str]:
    """Objective and OOD score of a circuit's key."""
    _, objective, *score = key.split("-", 2)
    return objective, score[0] if score else OF_CIRCUITS[0]


def criterion(name: str, *, option: str = "--method") -> Criterion:
    """The criterion behind a method's name or a score's key (`circuit-avg`)."""
    if name.startswith(f"{CIRCUIT}-"):
        name = CIRCUIT
    if name not in CRITERIA:
        raise UsageError(
            f"{option} {name}: no such criterion{did_you_mean(name, CRITERIA)}",
            hint=f"Available: {', '.join(each for each in CRITERIA if not each.startswith(OF_NEURONS))}.",
        )
    return CRITERIA[name]


def chooser(key: str) -> Callable[..., tuple[dict[str, Layers], tuple[str, ...]]]:
    """What turns a criterion's scores and an amount into the heads that stay, and notes."""
    choose: Callable[..., tuple[dict[str, Layers], tuple[str, ...]]] = imported(
        criterion(key).choose
    )
    return choose
