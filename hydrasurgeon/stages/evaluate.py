"""eval: accuracy, calibration, OOD detection, diversity and cost of checkpoints, in one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydrasurgeon.checkpoints.reading import Checkpoint, open_checkpoint
from hydrasurgeon.errors import UsageError
from hydrasurgeon.families.open_clip.zero_shot import record_of
from hydrasurgeon.files.atomic import output_file, write_text
from hydrasurgeon.files.locks import releases_claims
from hydrasurgeon.files.manifest import DataRecord
from hydrasurgeon.measuring.asserts import check_paths, judged, parse_assertion
from hydrasurgeon.measuring.report import Report, Result
from hydrasurgeon.measuring.results import over_sets, rehearsed, result
from hydrasurgeon.measuring.sets import (
    DataSets,
    Further,
    LabelledSet,
    check_same_classes,
    class_hashes,
    data_names,
    labelled_sets,
    open_further,
    open_sets,
    portable_name,
    uses_of,
)
from hydrasurgeon.run import Progress, Run
from hydrasurgeon.sharing.measured_card import cards_of, write_cards

if TYPE_CHECKING:
    from hydrasurgeon.measuring.timing import SideBySide

__all__ = ["Evaluation", "evaluate"]

# Samples in the batch whose time the table shows.
TIMED = 16


@dataclass(frozen=True)
class Evaluation:
    report: Report
    skipped: tuple[str, ...] = ()
    cards: tuple[Path, ...] = ()
    """Model cards that the results were written into."""


@releases_claims
def evaluate(
    checkpoints: Sequence[str | Path],
    *,
    data: str | Sequence[str] | None = None,
    ood: Sequence[str] = (),
    shift: Sequence[str] = (),
    val: str | None = None,
    classes: str | Sequence[str] | None = None,
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
    asserts: Sequence[str] = (),
    force: bool = False,
    progress: Progress | None = None,
) -> Evaluation:
    """Evaluate checkpoints (or predictions files) side by side.

    Of several data sets, `D` or `NAME=D`, the first is the one that OOD sets, shifts, temperature and cost belong to.
    """
    from hydrasurgeon.measuring import metrics
    from hydrasurgeon.measuring.predictions import read_predictions, write_predictions
    from hydrasurgeon.measuring.timing import SideBySide

    assertions = [parse_assertion(text) for text in asserts]
    labelled = labelled_sets(data, classes)
    _check(checkpoints, labelled, predictions_in, ensemble, one_model=predictions, card=card)
    inputs = [checkpoints, data, ood, shift, val, classes, template, predictions_in]
    if json is not None:
        json = output_file(json, option="--json", force=force, inputs=inputs)
    if predictions is not None:
        predictions = output_file(predictions, option="--predictions", force=force, inputs=inputs)
    fixed = _temperature(temperature, val)
    if ood_score not in metrics.OOD_SCORES:
        metrics.ood_score(_nothing(), ood_score)
    computed = [
        result(read_predictions(Path(path)), ood_score=ood_score, temperature=_fitted(fixed, None))
        for path in predictions_in
    ]
    results: list[Result] = []
    opened = [open_checkpoint(checkpoint, arch=arch) for checkpoint in checkpoints]
    cards = cards_of(opened) if card else []
    for checkpoint in opened:
        checkpoint.digests()
    if assertions:
        names = [_name(opened)] if ensemble else [_name([checkpoint]) for checkpoint in opened]
        check_paths(assertions, [*(rehearsed(n, labelled, ood, shift) for n in names), *computed])
    further: list[Further] = []
    used: dict[str, DataRecord] = {}
    how = _How(device, dtype, batch_size, skip_bad, progress)
    timed = SideBySide()
    if opened:
        plain, (first, *others) = opened, labelled
        opened = first.named(plain, template)
        check_same_classes(opened)
        sets = open_sets(opened[0], first.spec, ood, shift, val, limit, seed)
        further = [open_further(each, plain, template, limit, seed) for each in others]
        used = uses_of(sets, further, fitted=fixed is None)
        everyone = range(len(opened))
        for numbers in [tuple(everyone)] if ensemble else [(i,) for i in everyone]:
            job = [opened[i] for i in numbers]
            models = [how.load(checkpoint) for checkpoint in job]
            found, val_logits = _run(job, models, sets, how, timed)
            t = _fitted(fixed, val_logits)
            measured = result(found, ood_score=ood_score, temperature=t)
            if further:
                rest = [s.measure(numbers, job, models, how.logits, load=how.load, temperature=t) for s in further]  # fmt: skip
                measured = over_sets(measured, rest, first=first.name)
            results.append(measured)
            if predictions is not None:
                write_predictions(found, Path(predictions))
    results = [_with_time(r, ms) for r, ms in zip(results, timed.milliseconds(), strict=True)]
    results += computed
    report = Report(
        settings={
            "data": data_names(labelled), "ood": [portable_name(o) for o in ood], "shift": [portable_name(s) for s in shift], "val": portable_name(val),
            "ensemble": ensemble, "temperature": temperature, "ood_score": ood_score, "limit": limit, "seed": seed,
            "dtype": dtype, "batch_size": batch_size, **(record_of(opened[0].manifest.model) if opened else {}),
            **class_hashes(further),
        },
        results=tuple(results),
        asserts=judged(assertions, results) if assertions else None,
    )  # fmt: skip
    if json is not None:
        write_text(Path(json), report.to_json())
    written = write_cards(cards, results, used, report.settings) if card else ()
    return Evaluation(report, tuple(how.skipped), written)


@dataclass(frozen=True)
class _How:
    """Where and in which pieces models run."""

    device: str
    dtype: str
    batch_size: int | None
    skip_bad: bool
    progress: Progress | None
    skipped: list[str] = field(default_factory=list)
    """Samples that could not be read, as they are met."""

    def load(self, checkpoint: Checkpoint) -> Any:
        from hydrasurgeon.runtime.classifier import as_classifier

        return as_classifier(checkpoint, device=self.device, dtype=self.dtype, lean=True)

    def logits(self, models: Sequence[Any], samples: Any) -> Any:
        from hydrasurgeon.runtime.inference import logits_of

        run = Run(batch_size=self.batch_size, skip_bad=self.skip_bad, progress=self.progress)
        return logits_of(models, samples, run, skipped=self.skipped)


def _check(
    checkpoints: Sequence[str | Path],
    labelled: Sequence[LabelledSet],
    predictions_in: Sequence[str | Path],
    ensemble: bool,
    *,
    one_model: str | Path | None,
    card: bool,
) -> None:
    """Refuse arguments that do not go together."""
    if not checkpoints and not predictions_in:
        raise UsageError(
            "eval: nothing to evaluate", hint="Give checkpoints, or --predictions-in F."
        )
    if checkpoints and not labelled:
        raise UsageError("eval: needs data", hint="Give --data D.")
    if one_model is not None and len(labelled) > 1:
        raise UsageError("--predictions: holds the logits on one data set", hint="Give one --data.")
    if ensemble and len(checkpoints) < 2:
        raise UsageError("--ensemble: needs at least two checkpoints")
    if one_model is not None and checkpoints and len(checkpoints) != 1 and not ensemble:
        raise UsageError(
            "--predictions: holds one model's logits",
            hint="Give one checkpoint, or several with --ensemble.",
        )
    if card and (ensemble or predictions_in):
        raise UsageError("--card: a model card holds the result of its own checkpoint alone")


def _fitted(fixed: float | None, val: Any) -> float:
    """The given temperature, or the one that suits logits and labels of the validation set."""
    from hydrasurgeon.measuring import metrics

    if fixed is not None:
        return fixed
    if val is None:
        raise UsageError(
            "--temperature fit: a predictions file has no validation set",
            hint="Give the temperature as a number.",
        )
    return metrics.fit_temperature(metrics.mean_probs(val[0]), val[1])


def _name(job: Sequence[Checkpoint]) -> str:
    return " + ".join(checkpoint.name.removesuffix(".safetensors") for checkpoint in job)


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
    if not 1e-3 <= value <= 1e3:
        raise UsageError(f"--temperature {given}: must lie between 0.001 and 1000")
    return value


def _with_time(measured: Result, milliseconds: float | None) -> Result:
    assert measured.cost is not None
    cost = measured.cost.model_copy(update={"latency_ms": milliseconds})
    return measured.model_copy(update={"cost": cost})


def _run(
    job: Sequence[Checkpoint], models: Sequence[Any], sets: DataSets, how: _How, timed: SideBySide
) -> tuple[Any, Any]:
    """Predictions and cost of one checkpoint, or of several run as one Deep Ensemble; logits on the validation set."""
    from hydrasurgeon.data import Batches, moved
    from hydrasurgeon.measuring.cost import cost_of
    from hydrasurgeon.measuring.predictions import OodSet, Predictions, ShiftSet
    from hydrasurgeon.measuring.timing import Sequence as InTurn

    def logits(samples: Any) -> Any:
        return how.logits(models, samples)

    predicted, labels = logits(sets.id)
    foreign = tuple(OodSet(name, group, logits(samples)[0]) for name, group, samples in sets.ood)
    shifted = []
    for name, severity, samples in sets.shift:
        found, truth = logits(samples)
        shifted.append(ShiftSet(name, severity, found, truth))

    def first(count: int) -> Any:
        few = Batches(
            sets.id, models[0].transform, batch_size=count, workers=0, skip_bad=how.skip_bad
        )
        weight = next(models[0].parameters())
        return moved(next(iter(few)).inputs, weight.device, weight.dtype)

    together = models[0] if len(models) == 1 else InTurn(list(models))
    timed.add(together, first(min(how.batch_size or TIMED, TIMED)))
    single = job[0]
    found = Predictions(
        name=_name(job),
        kind="ensemble" if len(job) > 1 else single.manifest.kind,
        logits=predicted,
        labels=labels,
        ood=foreign,
        shift=tuple(shifted),
        cost=cost_of(models, first(1)),  # a text without the padding that others bring
    )
    return found, logits(sets.val) if sets.val is not None else None
