"""calibrate: fit the decision state on validation data, and write a copy of the checkpoint that carries it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydrasurgeon.checkpoints.class_names import names_in, with_class_names, with_data_names
from hydrasurgeon.checkpoints.reading import Checkpoint, open_checkpoint, rewritten, undecided
from hydrasurgeon.errors import CheckpointError, UsageError
from hydrasurgeon.files.decided import FITTED, Decision
from hydrasurgeon.files.history import step
from hydrasurgeon.files.manifest import DataRecord, Manifest
from hydrasurgeon.files.tensors import Planned
from hydrasurgeon.measuring.sets import apart
from hydrasurgeon.options.base import stage
from hydrasurgeon.options.deciding import DELTA, CalibrateOptions
from hydrasurgeon.options.shared import Run
from hydrasurgeon.sharing.output import claimed, repository_of

if TYPE_CHECKING:
    from torch import Tensor

    from hydrasurgeon.data import Samples
    from hydrasurgeon.decision.fitting import Outputs, Promise
    from hydrasurgeon.decision.scores.evidence import Evidence
    from hydrasurgeon.decision.state import State
    from hydrasurgeon.files.decided import Cascade
    from hydrasurgeon.runtime.classifier import Classifier


DROP = 0.5
"""Points that no measure of a cascade may lose, unless something else is asked for."""


@dataclass(frozen=True)
class Calibrated:
    """What was found, and where it was written."""

    path: Path
    manifest: Manifest
    notes: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    hub: str | None = None
    """Where on the hub it was uploaded to."""

    @property
    def decision(self) -> Decision:
        assert self.manifest.decision is not None
        return self.manifest.decision


@stage(CalibrateOptions)
def calibrate(arguments: CalibrateOptions) -> Calibrated:
    """Write a copy of a checkpoint that knows its temperature, its OOD score, its prediction sets and when to
    abstain."""
    checkpoint = arguments.checkpoint
    _check(arguments)
    repository = repository_of(arguments)
    whole_file = open_checkpoint(checkpoint, arch=arguments.arch)
    named = with_class_names(
        whole_file, classes=arguments.classes, templates=arguments.template, names=names_in(arguments.data)
    )
    target = claimed(
        arguments,
        arguments.out,
        repository=repository,
        inputs=[checkpoint, arguments.data, arguments.fit_data, arguments.ood, arguments.classes, arguments.template],
    )
    _check_model(named, arguments)
    named.digests()
    opened = undecided(named)
    digests = opened.digests()
    data = _opened_data(opened, arguments)
    opened = with_data_names(opened, data.val)
    skipped: list[str] = []
    from hydrasurgeon.decision.fitting import check_count

    few = check_count(len(data.val), _promise(arguments))
    state, notes = _fit(opened, data, arguments, skipped)
    entry = step(
        "calibrate",
        args=_recorded(arguments),
        inputs=[opened.record(digests)],
        data=[*data.records.values()],
        seed=arguments.seed,
        uses=("torch", opened.manifest.model.family),
    )
    planned = [*opened.tensors.planned(), *(_added(name, tensor) for name, tensor in state.tensors().items())]

    def manifest(sha256: str) -> Manifest:
        history = (*opened.manifest.history, entry.wrote(sha256))
        return rewritten(opened.manifest, decision=state.record.model_dump(), weights_sha256=sha256, history=history)

    written = target.save(sorted(planned, key=lambda each: each.name), manifest, files=opened.files)
    hub = target.publish(written, opened.files, bars=arguments.progress is not None)
    every = (
        *([opened.note] if opened.note else []),
        *_unfitted(arguments),
        *data.notes,
        *([few] if few else []),
        *notes,
    )
    return Calibrated(target.path, written, every, tuple(skipped), hub)


def _check(arguments: CalibrateOptions) -> None:
    """Shares are shares, and names are known."""
    from hydrasurgeon.decision.scores.fitted import check_score

    if arguments.ood_score != "auto":
        check_score(arguments.ood_score)
        if arguments.ood and not arguments.cascade:
            raise UsageError(
                f"--ood: chooses among OOD scores, and --ood-score {arguments.ood_score} is chosen",
                hint="Leave one of them out.",
            )


def _unfitted(arguments: CalibrateOptions) -> Iterator[str]:
    """That data for fitting scores fits none."""
    if arguments.fit_data is not None and arguments.ood_score not in ("auto", *FITTED):
        yield f"--fit-data: changes nothing, for --ood-score {arguments.ood_score} is a function of the logits alone"


def _check_model(opened: Checkpoint, arguments: CalibrateOptions) -> None:
    """Some scores, and cascades, mean nothing for some models."""
    score = arguments.ood_score
    if score == "mi" and not opened.manifest.members:
        raise UsageError(
            f"--ood-score mi: tells how far members disagree, and {opened.name} has one only",
            hint="Give a hydra, or another score.",
        )
    if arguments.cascade and not opened.manifest.members:
        raise UsageError(
            f"--cascade: lets some members answer first, and {opened.name} has one only", hint="Give a hydra."
        )
    if score == "mcm" and not opened.family.named_classes:
        raise UsageError(
            f"--ood-score mcm: is for models that compare images with class names, and {opened.name} does not",
            hint="Give another score.",
        )


@dataclass(frozen=True)
class _Data:
    """All that is read, opened."""

    val: Samples
    fit: Samples | None
    ood: tuple[Samples, ...]
    records: Mapping[str, DataRecord]
    notes: tuple[str, ...]
    """What is odd about them."""


def _opened_data(opened: Checkpoint, arguments: CalibrateOptions) -> _Data:
    from hydrasurgeon.data import open_data

    model = opened.manifest.model
    if model.num_classes == 0:
        raise CheckpointError(
            f"{opened.path}: has no classes to decide between",
            hint="Finetune it with a classifier, or give a CLIP its --classes.",
        )

    def labelled(spec: str) -> Samples:
        return open_data(spec, limit=arguments.limit, seed=arguments.seed, model=model)

    val = labelled(arguments.data)
    fit = None if arguments.fit_data is None else labelled(arguments.fit_data)
    foreign = tuple(open_data(spec, limit=arguments.limit, seed=arguments.seed) for spec in arguments.ood)
    every = [val, *([] if fit is None else [fit]), *foreign]
    records = {f"{i}": DataRecord(**samples.fingerprint()) for i, samples in enumerate(every)}
    options = ["--data", *([] if fit is None else ["--fit-data"]), *["--ood"] * len(foreign)]
    rule = "What certifies must be neither what was fitted on nor OOD data."
    notes = apart(list(zip(options, every, strict=True)), rule)
    return _Data(val, fit, foreign, records, tuple(notes))


def _fit(
    opened: Checkpoint, data: _Data, arguments: CalibrateOptions, skipped: list[str]
) -> tuple[State, tuple[str, ...]]:
    """The state, and what is to be said of it."""
    from hydrasurgeon.data.perturbed import Perturbed
    from hydrasurgeon.decision.fitting import fit_state
    from hydrasurgeon.runtime.classifier import as_classifier
    from hydrasurgeon.runtime.features import classifiers
    from hydrasurgeon.runtime.outputs import collected

    model = as_classifier(opened, device=arguments.device, dtype=arguments.dtype, lean=True)
    auto = arguments.ood_score == "auto"
    features = auto or arguments.ood_score in FITTED

    def outputs(samples: Samples) -> Outputs:
        return collected([model], samples, arguments, features=features, skipped=skipped)

    val = outputs(data.val)
    foreign: list[Outputs] = []
    if auto or arguments.cascade:
        # Foreign data of one kind may be too easy to tell scores apart: perturbed data have a say too.
        sets = (*data.ood, Perturbed(data.val, arguments.seed))
        foreign = [outputs(samples) for samples in sets]
    linear = [(each.weight, each.bias) for each in classifiers(model)] if features else []
    evidence = None
    if features and data.fit is not None:
        evidence = _gathered(model, linear, data.fit, arguments, skipped)
    fitted = fit_state(
        val,
        promise=_promise(arguments),
        score=arguments.ood_score,
        classifiers=linear,
        evidence=evidence,
        foreign=foreign,
        zero_shot=opened.family.named_classes,
        chosen_by="option" if not auto else "ood" if data.ood else "perturbed",
        seed=arguments.seed,
    )
    state, notes = fitted.state, fitted.notes
    if arguments.cascade:
        cascade, more = _cascade(arguments, model, state, data.val, (val, foreign))
        state, notes = replace(state, record=state.record.model_copy(update={"cascade": cascade})), (*notes, *more)
    return state, notes


def _promise(arguments: CalibrateOptions) -> Promise:
    from hydrasurgeon.decision.fitting import Promise

    return Promise(
        arguments.coverage, arguments.conformal, arguments.id_flagged, arguments.risk, arguments.delta or DELTA
    )


def max_drop(arguments: CalibrateOptions) -> float | None:
    """What a cascade may lose; None where none is fitted, or its cost is what counts."""
    if not arguments.cascade or arguments.budget is not None:
        return None
    return DROP if arguments.max_drop is None else arguments.max_drop


def _cascade(
    arguments: CalibrateOptions,
    model: Classifier,
    state: State,
    samples: Samples,
    outputs: tuple[Outputs, Sequence[Outputs]],
) -> tuple[Cascade, tuple[str, ...]]:
    """From what all members said of the validation samples and of foreign ones; multiply-adds are of the first
    sample."""
    from hydrasurgeon.data import first_batch, moved
    from hydrasurgeon.measuring.cascades.fit import CascadeFit, MacsOf, Wanted
    from hydrasurgeon.measuring.cost import StepMacs, macs, single_macs, step_macs

    weight = next(model.parameters())
    one = first_batch(samples, model.transform, 1, skip_bad=arguments.skip_bad)
    one = moved(one, weight.device, weight.dtype)

    @cache
    def steps(starters: tuple[int, ...]) -> StepMacs:
        return step_macs(model, one, starters)

    costs = MacsOf(single_macs(model, one), macs(model, one), steps)
    wanted = Wanted(max_drop(arguments), arguments.budget)
    val, foreign = outputs
    return CascadeFit(state, val, foreign, costs, seed=arguments.seed).record(wanted)


def _gathered(
    model: Classifier, linear: Sequence[tuple[Tensor, Tensor]], samples: Samples, run: Run, skipped: list[str]
) -> list[Evidence]:
    """What OOD scores are fitted on, in one pass: features are not kept."""
    from hydrasurgeon.decision.scores.evidence import Gathering
    from hydrasurgeon.runtime.outputs import pieces

    gatherings = [Gathering(weight, bias, seed=run.seed) for weight, bias in linear]
    for _, piece in pieces([model], samples, run, features=True, skipped=skipped):
        assert piece.features is not None
        assert piece.labels is not None
        for member, gathering in enumerate(gatherings):
            gathering.add(piece.features[:, member], piece.logits[:, member], piece.labels)
    return [gathering.evidence() for gathering in gatherings]


def _recorded(arguments: CalibrateOptions) -> dict[str, Any]:
    """What history gets to know: the bounds that hold where none were given, too."""
    delta = None if arguments.risk is None else arguments.delta or DELTA
    return arguments.but(delta=delta, max_drop=max_drop(arguments)).recorded()


def _added(name: str, tensor: Tensor) -> Planned:
    from hydrasurgeon.runtime.tensors import to_raw

    raw, dtype = to_raw(tensor)
    return Planned(name, dtype, tuple(tensor.shape), lambda: [raw])
