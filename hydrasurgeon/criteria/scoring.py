"""One criterion computed on one checkpoint: what it is fed, what it says, what becomes of the record."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydrasurgeon.checkpoints.reading import Checkpoint
from hydrasurgeon.criteria import CIRCUIT, WITHOUT_DATA, criterion
from hydrasurgeon.criteria.base import CircuitOptions, HeadScores, Removal, Subject, Verdict
from hydrasurgeon.criteria.circuits.state import state_path
from hydrasurgeon.criteria.feed import Feed, NoData
from hydrasurgeon.errors import SurgeryError, UsageError
from hydrasurgeon.families.open_clip.zero_shot import record_of
from hydrasurgeon.files.manifest import DataRecord, Score
from hydrasurgeon.heads import parse_layers, parse_towers
from hydrasurgeon.run import Progress

__all__ = ["compute", "counted"]


def counted(method: str | None, keep: int | str | None) -> int | None:
    """`--keep` as a number; None for CAHP's own."""
    if isinstance(keep, str):
        if keep != "auto":
            raise UsageError(f"--keep {keep}: neither a number nor auto")
        if method != "cahp":
            raise UsageError(
                f"--keep auto: {method or 'a mask'} has no number of heads of its own",
                hint="Give a number, or --method cahp.",
            )
        return None
    return keep


def compute(
    checkpoint: Checkpoint,
    *,
    method: str,
    data: str | None,
    ood: Sequence[str] = (),
    search: str | None = None,
    remove: int | None = None,
    output: Path | None = None,
    keep: int | None,
    layers: str | None,
    tower: str | None,
    limit: int | None,
    seed: int,
    device: str,
    dtype: str,
    batch_size: int | None,
    skip_bad: bool,
    progress: Progress | None,
) -> tuple[Score, tuple[DataRecord, ...]]:
    """Scores of all heads present, and the data they were computed on; `method` is the score's key."""
    judge = criterion(method)
    objective = _objective(method, ood, search)
    model = checkpoint.manifest.model
    towers = parse_towers(tower, checkpoint.manifest.towers)
    sizes = [checkpoint.manifest.towers[name] for name in towers]
    most = max(size.heads for size in sizes)
    if keep is not None and not 0 < keep <= most:
        raise SurgeryError(
            f"--keep {keep}: layers have {most} heads", hint=f"Keep between 1 and {most}."
        )
    feed = NoData() if method in WITHOUT_DATA else Feed.open(
        checkpoint, data, ood if objective != "acc" else (), method=method, towers=towers, limit=limit, seed=seed,
        device=device, dtype=dtype, batch_size=batch_size, skip_bad=skip_bad, progress=progress,
    )  # fmt: skip
    options = None
    if objective is not None:
        options = CircuitOptions(
            objective=objective,  # type: ignore[arg-type]
            search=search or "exact",
            remove=remove,
            state=None if output is None else state_path(output, method),
            identity={
                "weights": checkpoint.record(checkpoint.digests()).sha256,
                "data": [f"{each.rows} rows {each.sha256[:12]}" for each in feed.records],
                "objective": objective, "search": search or "exact", "layers": layers, "towers": list(towers), "dtype": dtype,
                "batch_size": feed.batch_size, **record_of(model),
            },
        )  # fmt: skip
    subject = Subject(
        checkpoint=checkpoint,
        load=feed.load,
        batches=feed.batches,
        samples=feed.rows,
        keep=keep,
        towers=towers,
        layers=parse_layers(layers, max(size.layers for size in sizes)),
        seed=seed,
        batch_size=feed.batch_size,
        foreign=feed.foreign_batches,
        circuit=options,
        progress=progress,
    )
    verdict = judge(subject)
    if isinstance(verdict, Removal):
        told = {**verdict.settings, **({"tower": tower} if tower is not None else {}), **record_of(model)}  # fmt: skip
        return Score(
            order=verdict.order, trace=verdict.trace, settings=told, data=feed.records
        ), feed.records
    more = verdict.settings if isinstance(verdict, Verdict) else {}
    scores = verdict.scores if isinstance(verdict, Verdict) else verdict
    values = _by_original_number(checkpoint, scores, towers, method)
    settings: dict[str, Any] = (
        {"keep": keep, "sequential": True} if keep is not None and method == "taylor" else {}
    )
    settings |= more
    if method == "random":
        settings["seed"] = seed
    if tower is not None:
        settings["tower"] = tower
    if method not in WITHOUT_DATA:
        settings |= record_of(model)
    used = feed.records
    return Score(values=values, settings=settings, data=used), used


def _objective(method: str, ood: Sequence[str], search: str | None) -> str | None:
    """The objective of a circuit's key; None for a criterion that has none."""
    circuit, _, objective = method.partition("-")
    if circuit != CIRCUIT:
        given = "--ood" if ood else "--search" if search else None
        if given is not None:
            raise UsageError(f"{given}: --method {method} has no use for it", hint="Leave it out.")
        return None
    if objective != "acc" and not ood:
        raise UsageError(
            f"--objective {objective}: needs OOD data", hint="Give --ood D, or --objective acc."
        )
    return objective


def _by_original_number(
    checkpoint: Checkpoint, found: HeadScores, towers: Sequence[str], method: str
) -> dict[str, tuple[tuple[float, ...], ...]]:
    """Scores as [layer][head] of the original model; heads that are gone score 0."""
    manifest = checkpoint.manifest
    assert manifest.kept is not None
    values: dict[str, tuple[tuple[float, ...], ...]] = {}
    for tower in towers:
        layers = []
        for layer, row in enumerate(manifest.kept[tower]):
            scores = dict(zip(row, found[tower, layer], strict=True))
            for head, value in scores.items():
                if not math.isfinite(value):
                    raise SurgeryError(
                        f"--method {method}: the score of head {head} in {tower} layer {layer} is {value}",
                        hint="Its weights hold NaN or infinity (`hydrasurgeon verify` names the tensors), or the model overflows: "
                        "then use --dtype float32.",
                    )
            layers.append(
                tuple(float(scores.get(h, 0.0)) for h in range(manifest.towers[tower].heads))
            )
        values[tower] = tuple(layers)
    return values
