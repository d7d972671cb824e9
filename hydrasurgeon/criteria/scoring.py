"""One criterion computed on one checkpoint: what it is fed, what it says, what becomes of the record."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydrasurgeon.checkpoints.reading import Single
from hydrasurgeon.criteria import CIRCUIT, OOD_SCORES, criterion, objective_of
from hydrasurgeon.criteria.base import CircuitOptions, HeadScores, Removal, Subject, Verdict
from hydrasurgeon.criteria.circuits import state_path
from hydrasurgeon.errors import SurgeryError, UsageError
from hydrasurgeon.families.prompts import record_of
from hydrasurgeon.files.manifest import Score
from hydrasurgeon.heads import parse_layers, parse_towers
from hydrasurgeon.lookup import imported
from hydrasurgeon.options.shared import Run, Scoring


def check_keep(method: str | None, keep: int | str | None) -> None:
    """Refuse `--keep auto` for what has no number of its own."""
    if keep == "auto" and (method is None or not criterion(method).own_number):
        raise UsageError(
            f"--keep auto: {method or 'a mask'} has no number of heads of its own",
            hint="Give a number, or --method cahp.",
        )


def compute(checkpoint: Single, key: str, scoring: Scoring, run: Run, *, output: Path) -> Score:
    """Scores of all heads present, under a key such as `circuit-avg`; a search leaves its state beside `output`."""
    method = criterion(key)
    objective, ood_score = _objective(key, scoring.ood, scoring.search)
    manifest = checkpoint.manifest
    towers = parse_towers(scoring.tower, manifest.towers)
    sizes = [manifest.towers[name] for name in towers]
    keep, most = scoring.heads_kept, max(size.heads for size in sizes)
    if keep is not None and not 0 < keep <= most:
        raise SurgeryError(f"--keep {keep}: layers have {most} heads", hint=f"Keep between 1 and {most}.")
    layers = parse_layers(scoring.layers, max(size.layers for size in sizes))
    subject = Subject(checkpoint, run, towers, layers, keep)
    if method.needs_data:
        if scoring.data is None:
            raise UsageError(f"--method {key} needs data", hint="Give --data D.")
        ood = scoring.ood if objective != "acc" else ()
        subject = subject.fed(scoring.data, ood, in_turn=method.in_turn)
    if objective is not None:
        circuit = CircuitOptions(
            objective=objective,  # type: ignore[arg-type]
            ood_score=ood_score,
            search=scoring.search or "exact",
            remove=scoring.remove,
            state=state_path(output, key),
            recorded=manifest.scores.get(key),
            identity=_identity(subject, scoring, objective, ood_score),
        )
        subject = replace(subject, circuit=circuit)
    return _recorded(imported(method.score)(subject), key, subject, scoring)


def _identity(subject: Subject, scoring: Scoring, objective: str, ood_score: str) -> dict[str, Any]:
    """What must be the same for an interrupted search to be continued: not how many heads go, as an order has
    prefixes."""
    checkpoint = subject.checkpoint
    return {
        "weights": checkpoint.record(checkpoint.digests()).sha256,
        "data": [f"{each.rows} rows {each.sha256[:12]}" for each in subject.records],
        "objective": objective,
        **({"ood_score": ood_score} if ood_score != OOD_SCORES[0] else {}),
        "search": scoring.search or "exact",
        "layers": scoring.layers,
        "towers": list(subject.towers),
        "dtype": subject.run.dtype,
        "batch_size": subject.batch_size,
        **record_of(checkpoint.manifest.model),
    }


def _recorded(verdict: HeadScores | Verdict | Removal, key: str, subject: Subject, scoring: Scoring) -> Score:
    """What a criterion said, as the manifest records it."""
    classes, data = record_of(subject.checkpoint.manifest.model), subject.records
    tower = {} if scoring.tower is None else {"tower": scoring.tower}
    if isinstance(verdict, Removal):
        settings = {**verdict.settings, **tower, **classes}
        return Score(order=verdict.order, trace=verdict.trace, settings=settings, data=data)
    settings = {"keep": subject.keep, "sequential": True} if subject.keep is not None and key == "taylor" else {}
    if isinstance(verdict, Verdict):
        settings |= verdict.settings
    if key == "random":
        settings["seed"] = subject.run.seed
    settings |= tower | (classes if criterion(key).needs_data else {})
    scores = verdict.scores if isinstance(verdict, Verdict) else verdict
    return Score(values=_by_original_number(subject, scores, key), settings=settings, data=data)


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


def _by_original_number(subject: Subject, scores: HeadScores, method: str) -> dict[str, tuple[tuple[float, ...], ...]]:
    """Scores as [layer][head] of the original model; heads that are gone score 0."""
    manifest = subject.checkpoint.manifest
    values: dict[str, tuple[tuple[float, ...], ...]] = {}
    for tower in subject.towers:
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
