"""eval: accuracy, calibration, OOD detection, diversity and cost of checkpoints, in one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hydrasurgeon.checkpoint import Checkpoint, open_checkpoint, write_text
from hydrasurgeon.classnames import names_in, with_class_names
from hydrasurgeon.errors import DataError, UsageError
from hydrasurgeon.evalcard import cards_of, write_cards
from hydrasurgeon.manifest import DataRecord
from hydrasurgeon.report import Report, Result, result
from hydrasurgeon.stages.score import Progress
from hydrasurgeon.zeroshot import record_of

__all__ = ["Evaluation", "evaluate"]


@dataclass(frozen=True)
class Evaluation:
    report: Report
    skipped: tuple[str, ...] = ()
    cards: tuple[Path, ...] = ()
    """Model cards that the results were written into."""


@dataclass(frozen=True)
class _Sets:
    """The data of one evaluation, opened once."""

    id: Any
    ood: tuple[tuple[str, Literal["near", "far"], Any], ...]
    shift: tuple[tuple[str, int | None, Any], ...]
    val: Any | None


def evaluate(
    checkpoints: Sequence[str | Path],
    *,
    data: str | None = None,
    ood: Sequence[str] = (),
    shift: Sequence[str] = (),
    val: str | None = None,
    classes: str | None = None,
    template: Sequence[str] = (),
    ensemble: bool = False,
    temperature: str | float = 1.0,
    ood_score: str = "msp",
    limit: int | None = None,
    seed: int = 0,
    device: str = "auto",
    dtype: str = "float32",
    batch_size: int | None = None,
    skip_bad: bool = False,
    arch: str | None = None,
    json: str | Path | None = None,
    predictions: str | Path | None = None,
    predictions_in: Sequence[str | Path] = (),
    card: bool = False,
    progress: Progress | None = None,
) -> Evaluation:
    """Evaluate checkpoints (or predictions files) side by side."""
    from hydrasurgeon import metrics
    from hydrasurgeon.predictions import read_predictions, write_predictions

    if not checkpoints and not predictions_in:
        raise UsageError(
            "eval: nothing to evaluate", hint="Give checkpoints, or --predictions-in F."
        )
    if checkpoints and data is None:
        raise UsageError("eval: needs data", hint="Give --data D.")
    if ensemble and len(checkpoints) < 2:
        raise UsageError("--ensemble: needs at least two checkpoints")
    if predictions is not None and checkpoints and len(checkpoints) != 1 and not ensemble:
        raise UsageError(
            "--predictions: holds one model's logits",
            hint="Give one checkpoint, or several with --ensemble.",
        )
    if card and (ensemble or predictions_in):
        raise UsageError("--card: a model card holds the result of its own checkpoint alone")
    if ood_score not in metrics.OOD_SCORES:
        metrics.ood_score(_nothing(), ood_score)
    fixed = _temperature(temperature, val)
    results: list[Result] = []
    skipped: list[str] = []
    opened = [open_checkpoint(checkpoint, arch=arch) for checkpoint in checkpoints]
    cards = cards_of(opened) if card else []
    for checkpoint in opened:
        checkpoint.digests()
    opened = [
        with_class_names(c, classes=classes, templates=template, names=names_in(data))
        for c in opened
    ]
    if opened:
        _same_classes(opened)
        sets = _open(opened[0], data or "", ood, shift, val, limit, seed)
        jobs = [opened] if ensemble else [[checkpoint] for checkpoint in opened]
        for job in jobs:
            found, val_logits = _run(
                job, sets, device, dtype, batch_size, skip_bad, progress, skipped
            )
            t = (
                fixed
                if fixed is not None
                else metrics.fit_temperature(metrics.mean_probs(val_logits[0]), val_logits[1])
            )
            results.append(result(found, ood_score=ood_score, temperature=t))
            if predictions is not None:
                write_predictions(found, Path(predictions))
    for path in predictions_in:
        if fixed is None:
            raise UsageError(
                "--temperature fit: a predictions file has no validation set",
                hint="Give the temperature as a number.",
            )
        results.append(result(read_predictions(Path(path)), ood_score=ood_score, temperature=fixed))
    report = Report(
        settings={
            "data": _name(data), "ood": [_name(o) for o in ood], "shift": [_name(s) for s in shift], "val": _name(val),
            "ensemble": ensemble, "temperature": temperature, "ood_score": ood_score, "limit": limit, "seed": seed,
            "dtype": dtype, "batch_size": batch_size, **(record_of(opened[0].manifest.model) if opened else {}),
        },
        results=tuple(results),
    )  # fmt: skip
    if json is not None:
        write_text(Path(json), report.to_json())
    written = (
        write_cards(cards, results, _used(sets, fitted=fixed is None), report.settings)
        if card
        else ()
    )
    return Evaluation(report, tuple(skipped), written)


def _used(sets: _Sets, *, fitted: bool) -> dict[str, DataRecord]:
    """What each data set was for, the labelled one first."""
    found = {"in distribution": sets.id}
    found |= {f"{group}-OOD `{name}`": samples for name, group, samples in sets.ood}
    found |= {f"shift `{name}`{'' if severity is None else f', severity {severity}'}": samples for name, severity, samples in sets.shift}  # fmt: skip
    if sets.val is not None and fitted:
        found["temperature"] = sets.val
    return {use: DataRecord(**samples.fingerprint()) for use, samples in found.items()}


def _nothing() -> Any:
    import torch

    return torch.zeros(1, 1, 2)


def _temperature(given: str | float, val: str | None) -> float | None:
    """A number, or None where it is to be fitted on the validation set."""
    if given == "fit":
        if val is None:
            raise UsageError("--temperature fit: needs a validation set", hint="Give --val D.")
        return None
    try:
        value = float(given)
    except ValueError as error:
        raise UsageError(f"--temperature {given}: neither a number nor fit") from error
    if value <= 0:
        raise UsageError(f"--temperature {given}: must be positive")
    return value


def _name(spec: str | None) -> str | None:
    """A data spec without folders of this machine."""
    if spec is None:
        return None
    head, equals, path = spec.rpartition("=")
    return head + equals + (Path(path).name if path.startswith("/") else path)


def _same_classes(opened: Sequence[Checkpoint]) -> None:
    first = opened[0].manifest.model
    for other in opened[1:]:
        if other.manifest.model.num_classes != first.num_classes:
            raise DataError(
                f"{opened[0].name} has {first.num_classes} classes, {other.name} {other.manifest.model.num_classes}",
                hint="One table needs models of the same classes.",
            )


def _open(
    checkpoint: Checkpoint,
    data: str,
    ood: Sequence[str],
    shift: Sequence[str],
    val: str | None,
    limit: int | None,
    seed: int,
) -> _Sets:
    from hydrasurgeon.data import Samples, fit_classes, open_data

    model = checkpoint.manifest.model

    def labelled(spec: str) -> Samples:
        return fit_classes(
            open_data(spec, limit=limit, seed=seed),
            num_classes=model.num_classes,
            labels=model.labels,
        )

    foreign = []
    for entry in ood:
        group, name, spec = parse_ood(entry)
        foreign.append((name, group, open_data(spec, limit=limit, seed=seed)))
    shifted = []
    for entry in shift:
        name, severity, spec = parse_shift(entry)
        shifted.append((name, severity, labelled(spec)))
    return _Sets(labelled(data), tuple(foreign), tuple(shifted), labelled(val) if val else None)


def parse_ood(text: str) -> tuple[Literal["near", "far"], str, str]:
    """`near:NAME=D`, `far:NAME=D`, `NAME=D` or `D` (far)."""
    group: Literal["near", "far"] = "far"
    if text.startswith("near:"):
        group = "near"
    text = text.removeprefix("near:").removeprefix("far:")
    name, equals, spec = text.partition("=")
    if not equals:
        name, spec = Path(text.rpartition(":")[2]).stem, text
    if not name or not spec or "." in name:
        raise UsageError(f"--ood {text}: not near:NAME=D or far:NAME=D")
    return group, name, spec


def parse_shift(text: str) -> tuple[str, int | None, str]:
    """`NAME=D` or `NAME:SEVERITY=D`."""
    name, equals, spec = text.partition("=")
    name, colon, severity = name.partition(":")
    if not equals or not name or not spec or (colon and not severity.isdigit()):
        raise UsageError(f"--shift {text}: not NAME=D or NAME:SEVERITY=D")
    return name, int(severity) if colon else None, spec


def _run(
    job: Sequence[Checkpoint],
    sets: _Sets,
    device: str,
    dtype: str,
    batch_size: int | None,
    skip_bad: bool,
    progress: Progress | None,
    skipped: list[str],
) -> tuple[Any, Any]:
    """Predictions and cost of one checkpoint, or of several run as one Deep Ensemble."""
    from hydrasurgeon.cost import cost_of
    from hydrasurgeon.data import Batches, moved
    from hydrasurgeon.inference import logits_of
    from hydrasurgeon.loading import as_classifier
    from hydrasurgeon.predictions import OodSet, Predictions, ShiftSet

    models = [as_classifier(checkpoint, device=device, dtype=dtype) for checkpoint in job]

    def logits(samples: Any) -> Any:
        return logits_of(
            models,
            samples,
            batch_size=batch_size,
            skip_bad=skip_bad,
            progress=progress,
            skipped=skipped,
        )

    predicted, labels = logits(sets.id)
    foreign = tuple(OodSet(name, group, logits(samples)[0]) for name, group, samples in sets.ood)
    shifted = []
    for name, severity, samples in sets.shift:
        found, truth = logits(samples)
        shifted.append(ShiftSet(name, severity, found, truth))
    first = next(models[0].parameters())
    few = Batches(
        sets.id, models[0].transform, batch_size=min(batch_size or 16, 16), workers=0, skip_bad=skip_bad
    )  # fmt: skip
    inputs = moved(next(iter(few)).inputs, first.device, first.dtype)
    single = job[0]
    found = Predictions(
        name=" + ".join(c.name.removesuffix(".safetensors") for c in job),
        kind="ensemble" if len(job) > 1 else single.manifest.kind,
        logits=predicted,
        labels=labels,
        ood=foreign,
        shift=tuple(shifted),
        cost=cost_of(models, inputs),
    )
    return found, logits(sets.val) if sets.val is not None else None
