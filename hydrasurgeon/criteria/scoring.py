"""One criterion computed on one checkpoint: what it is fed, what it says, what becomes of the record."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydrasurgeon.checkpoints.reading import Single
from hydrasurgeon.criteria import CIRCUIT, OOD_SCORES, WITHOUT_DATA, criterion, objective_of
from hydrasurgeon.criteria.base import CircuitOptions, HeadScores, Removal, Subject, Verdict
from hydrasurgeon.criteria.circuits.state import state_path
from hydrasurgeon.criteria.feed import Feed, NoData
from hydrasurgeon.errors import SurgeryError, UsageError
from hydrasurgeon.families.prompts import record_of
from hydrasurgeon.files.manifest import DataRecord, Score
from hydrasurgeon.heads import parse_layers, parse_towers
from hydrasurgeon.options.shared import Run, Scoring


def check_keep(method: str | None, keep: int | str | None) -> None:
    """Refuse `--keep auto` for what has no number of its own."""
    if keep == "auto" and method != "cahp":
        raise UsageError(
            f"--keep auto: {method or 'a mask'} has no number of heads of its own",
            hint="Give a number, or --method cahp.",
        )


def compute(checkpoint: Single, key: str, scoring: Scoring, run: Run, *, output: Path) -> Score:
    """Scores of all heads present, under a key such as `circuit-avg`; a search leaves its state beside `output`."""
    judge = criterion(key)
    objective, ood_score = _objective(key, scoring.ood, scoring.search)
    manifest = checkpoint.manifest
    towers = parse_towers(scoring.tower, manifest.towers)
    sizes = [manifest.towers[name] for name in towers]
    keep, most = scoring.heads_kept, max(size.heads for size in sizes)
    if keep is not None and not 0 < keep <= most:
        raise SurgeryError(f"--keep {keep}: layers have {most} heads", hint=f"Keep between 1 and {most}.")
    ood = scoring.ood if objective != "acc" else ()
    feed = (
        NoData()
        if key in WITHOUT_DATA
        else Feed.open(checkpoint, scoring.data, ood, method=key, towers=towers, run=run)
    )
    circuit = None
    if objective is not None:
        circuit = CircuitOptions(
            objective=objective,  # type: ignore[arg-type]
            ood_score=ood_score,
            search=scoring.search or "exact",
            remove=scoring.remove,
            state=state_path(output, key),
            recorded=manifest.scores.get(key),
            identity=_identity(checkpoint, feed, scoring, (objective, ood_score), towers, run.dtype),
        )
    verdict = judge(
        Subject(
            checkpoint=checkpoint,
            load=feed.load,
            batches=feed.batches,
            samples=feed.rows,
            keep=keep,
            towers=towers,
            layers=parse_layers(scoring.layers, max(size.layers for size in sizes)),
            seed=run.seed,
            batch_size=feed.batch_size,
            foreign=feed.foreign_batches,
            circuit=circuit,
            progress=run.progress,
        )
    )
    return _recorded(verdict, key, checkpoint, scoring, run.seed, feed.records, towers)


def _identity(
    checkpoint: Single,
    feed: Feed | NoData,
    scoring: Scoring,
    objective: tuple[str, str],
    towers: Sequence[str],
    dtype: str,
) -> dict[str, Any]:
    """What must be the same for an interrupted search to be continued: not how many heads go, as an order has
    prefixes."""
    kind, ood_score = objective
    by = {"ood_score": ood_score} if ood_score != OOD_SCORES[0] else {}
    return {
        "weights": checkpoint.record(checkpoint.digests()).sha256,
        "data": [f"{each.rows} rows {each.sha256[:12]}" for each in feed.records],
        "objective": kind,
        **by,
        "search": scoring.search or "exact",
        "layers": scoring.layers,
        "towers": list(towers),
        "dtype": dtype,
        "batch_size": feed.batch_size,
        **record_of(checkpoint.manifest.model),
    }


def _recorded(
    verdict: HeadScores | Verdict | Removal,
    key: str,
    checkpoint: Single,
    scoring: Scoring,
    seed: int,
    data: tuple[DataRecord, ...],
    towers: Sequence[str],
) -> Score:
    """What a criterion said, as the manifest records it."""
    model = checkpoint.manifest.model
    tower = {} if scoring.tower is None else {"tower": scoring.tower}
    if isinstance(verdict, Removal):
        settings = {**verdict.settings, **tower, **record_of(model)}
        return Score(order=verdict.order, trace=verdict.trace, settings=settings, data=data)
    keep = scoring.heads_kept
    settings = {"keep": keep, "sequential": True} if keep is not None and key == "taylor" else {}
    if isinstance(verdict, Verdict):
        settings |= verdict.settings
    if key == "random":
        settings["seed"] = seed
    settings |= tower
    if key not in WITHOUT_DATA:
        settings |= record_of(model)
    scores = verdict.scores if isinstance(verdict, Verdict) else verdict
    values = _by_original_number(checkpoint, scores, towers, key)
    return Score(values=values, settings=settings, data=data)


def _objective(method: str, ood: Sequence[str], search: str | None) -> tuple[str | None, str]:
    """Objective and OOD score of a circuit's key; no objective for a criterion that has none."""
    if method.partition("-")[0] != CIRCUIT:
        useless = "--ood" if ood else "--search" if search else None
        if useless is not None:
            raise UsageError(f"{useless}: --method {method} has no use for it", hint="Leave it out.")
        return None, OOD_SCORES[0]
    objective, ood_score = objective_of(method)
    if objective != "acc" and not ood:
        raise UsageError(f"--objective {objective}: needs OOD data", hint="Give --ood D, or --objective acc.")
    return objective, ood_score


def _by_original_number(
    checkpoint: Single, scores: HeadScores, towers: Sequence[str], method: str
) -> dict[str, tuple[tuple[float, ...], ...]]:
    """Scores as [layer][head] of the original model; heads that are gone score 0."""
    manifest = checkpoint.manifest
    values: dict[str, tuple[tuple[float, ...], ...]] = {}
    for tower in towers:
        layers = []
        for layer, row in enumerate(manifest.kept[tower]):
            present = dict(zip(row, scores[tower, layer], strict=True))
            for head, value in present.items():
                if not math.isfinite(value):
                    raise SurgeryError(
                        f"--method {method}: the score of head {head} in {tower} layer {layer} is {value}",
                        hint=(
                            "Its weights hold NaN or infinity (`hydrasurgeon verify` names the tensors), or the model"
                            " overflows: then use --dtype float32."
                        ),
                    )
            layers.append(tuple(float(present.get(h, 0.0)) for h in range(manifest.towers[tower].heads)))
        values[tower] = tuple(layers)
    return values
