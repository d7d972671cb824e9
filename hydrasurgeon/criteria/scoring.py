"""Computation of one criterion on one checkpoint, and the record of its scores."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydrasurgeon.checkpoints.checkpoint import Single
from hydrasurgeon.criteria import ScoreKey, criterion
from hydrasurgeon.criteria.base import HeadScores, Subject, Verdict
from hydrasurgeon.errors import SurgeryError, UsageError
from hydrasurgeon.families.prompts import record_of
from hydrasurgeon.families.weights import all_neurons
from hydrasurgeon.files.manifest import Score
from hydrasurgeon.heads import NEURONS, parse_layers, parse_towers
from hydrasurgeon.lookup import imported
from hydrasurgeon.options.shared import Run, Scoring

if TYPE_CHECKING:
    from hydrasurgeon.data import Samples


def check_keep(method: str | None, keep: int | str | None) -> None:
    """Refuse `--keep auto` for a criterion that has no number of its own."""
    if keep == "auto" and (method is None or not criterion(method).own_number):
        raise UsageError(
            "--keep auto: only cahp chooses the number of heads",
            hint="Give a number, or --method cahp.",
        )


def compute(
    checkpoint: Single,
    key: ScoreKey,
    scoring: Scoring,
    run: Run,
    samples: Samples | None,
    *,
    output: Path,
) -> Score:
    """Score all heads or neurons present; a search saves its state beside `output`."""
    method = criterion(key)
    for flag, value in (("--ood", scoring.ood), ("--search", scoring.search)):
        if value and not key.is_circuit:
            raise UsageError(f"{flag} requires --method circuit.")
    if scoring.degree is not None and not method.own_number:
        raise UsageError("--degree requires --method cahp.")
    if key.objective in ("ood", "avg") and not scoring.ood:
        raise UsageError(
            f"--objective {key.objective} requires --ood.",
            hint="Or give --objective acc, which looks at no OOD data.",
        )
    manifest = checkpoint.manifest
    towers = parse_towers(scoring.tower, manifest.towers)
    sizes = [manifest.towers[name] for name in towers]
    keep = None if isinstance(scoring.keep, str) else scoring.keep  # cahp finds it
    most = max(size.heads for size in sizes)
    if keep is not None and not 0 < keep <= most:
        raise SurgeryError(
            f"--keep {keep}: layers have {most} heads", hint=f"Keep between 1 and {most}."
        )
    layers = parse_layers(scoring.layers, max(size.layers for size in sizes))
    subject = Subject(checkpoint, run, key, scoring, output, towers, layers, keep)
    if method.needs_data:
        if samples is None:
            raise UsageError(f"--method {key} requires --data.")
        ood = scoring.ood if key.objective != "acc" else ()
        subject = subject.fed(samples, ood, in_turn=method.in_turn)
    place = method.score if key.part == "heads" else str(method.neurons)
    return _recorded(imported(place)(subject), subject)


def _recorded(verdict: HeadScores | Verdict | Score, subject: Subject) -> Score:
    """Return a criterion's scores in the form of the manifest."""
    key, tower = subject.key, subject.scoring.tower
    about: dict[str, Any] = {} if tower is None else {"tower": tower}
    if subject.scoring.layers is not None:
        about["layers"] = sorted(subject.layers)
    if criterion(key).needs_data:
        about |= record_of(subject.checkpoint.manifest.model)
    if isinstance(verdict, Score):
        return verdict.model_copy(
            update={"settings": {**verdict.settings, **about}, "data": subject.records}
        )
    settings: dict[str, Any] = {}
    if subject.keep is not None and str(key) == "taylor":
        settings = {"keep": subject.keep, "sequential": True}
    if key.method == "random":
        settings["seed"] = subject.run.seed
    if isinstance(verdict, Verdict):
        settings, verdict = settings | verdict.settings, verdict.scores
    values = _by_original_number(subject, verdict)
    return Score(values=values, settings=settings | about, data=subject.records)


def _by_original_number(
    subject: Subject, scores: HeadScores
) -> dict[str, tuple[tuple[float, ...], ...]]:
    """Arrange scores as [layer][head] of the original model; removed heads score 0.

    Scores of neurons have six digits.
    """
    checkpoint, of_neurons = subject.checkpoint, subject.key.part == "neurons"
    original = all_neurons(checkpoint.weights.values()) if of_neurons else {}
    values: dict[str, tuple[tuple[float, ...], ...]] = {}
    for tower in subject.towers:
        if (tower, 0) not in scores:
            continue
        group, layers = f"{tower}{NEURONS}" if of_neurons else tower, []
        for layer, row in enumerate(checkpoint.kept[group]):
            present = dict(zip(row, scores[tower, layer], strict=True))
            wrong = next((at for at, value in present.items() if not math.isfinite(value)), None)
            if wrong is not None:
                description = f"the score of {'neuron' if of_neurons else 'head'} {wrong} in {tower} layer {layer}"
                raise SurgeryError(
                    f"--method {subject.key}: {description} is {present[wrong]}",
                    hint="Its weights hold NaN or infinity (`hydrasurgeon verify` names the "
                    "tensors), or the model overflows: then use --dtype float32.",
                )
            if of_neurons:
                row_values = (float(f"{present.get(at, 0.0):.6g}") for at in original[group][layer])
            else:
                heads = range(checkpoint.manifest.towers[tower].heads)
                row_values = (float(present.get(at, 0.0)) for at in heads)
            layers.append(tuple(row_values))
        values[tower] = tuple(layers)
    return values
