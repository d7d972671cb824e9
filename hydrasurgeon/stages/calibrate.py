"""calibrate: fit the decision state on validation data, and write a copy of the checkpoint that carries it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from hydrasurgeon.checkpoints.class_names import classifying, need_classes, with_data_names
from hydrasurgeon.checkpoints.reading import Checkpoint, open_checkpoint, rewritten, undecided
from hydrasurgeon.errors import UsageError
from hydrasurgeon.files.decided import FITTED, Decision
from hydrasurgeon.files.history import step
from hydrasurgeon.files.manifest import DataRecord, Manifest
from hydrasurgeon.measuring.sets import apart
from hydrasurgeon.options.base import stage
from hydrasurgeon.options.deciding import CalibrateOptions
from hydrasurgeon.sharing.output import claimed

if TYPE_CHECKING:
    from torch import Tensor

    from hydrasurgeon.data import Samples
    from hydrasurgeon.decision.fitting import Outputs
    from hydrasurgeon.decision.scores.evidence import Evidence
    from hydrasurgeon.decision.state import State
    from hydrasurgeon.measuring.cascades.fit import MacsOf
    from hydrasurgeon.runtime.classifier import Classifier


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
    from hydrasurgeon.decision.fitting import check_count
    from hydrasurgeon.runtime.tensors import plan_tensors

    named = classifying(open_checkpoint(arguments.checkpoint, arch=arguments.arch), arguments, arguments.data)
    need_classes(named)
    _check_score(named, arguments)
    target = claimed(arguments, arguments.out, bars=arguments.progress is not None)
    named.digests()
    opened = undecided(named)
    digests = opened.digests()
    sets = _opened_data(opened, arguments)
    val, data = sets["--data"][0], [samples for each in sets.values() for samples in each]
    options = [(option, samples) for option, each in sets.items() for samples in each]
    odd = apart(options, "What certifies must be neither what was fitted on nor OOD data.")
    opened = with_data_names(opened, val)
    few = check_count(len(val), arguments)
    skipped: list[str] = []
    state, fitted_notes = _fit(opened, sets, arguments, skipped)
    entry = step(
        "calibrate",
        args=arguments.recorded(),
        inputs=[opened.record(digests)],
        data=[DataRecord(**samples.fingerprint()) for samples in data],
        seed=arguments.seed,
        uses=("torch", opened.manifest.model.family),
    )
    planned = [*opened.tensors.planned(), *plan_tensors(state.tensors())]

    def manifest(sha256: str) -> Manifest:
        history = (*opened.manifest.history, entry.wrote(sha256))
        return rewritten(opened.manifest, decision=state.record.model_dump(), weights_sha256=sha256, history=history)

    written = target.save(sorted(planned, key=lambda each: each.name), manifest, files=opened.files)
    hub = target.publish(written, opened.files)
    unused = None
    if arguments.fit_data is not None and arguments.ood_score not in ("auto", *FITTED):
        unused = f"--fit-data: changes nothing, for --ood-score {arguments.ood_score} is a function of the logits alone"
    notes = (opened.note, unused, *odd, few, *fitted_notes)
    return Calibrated(target.path, written, tuple(filter(None, notes)), tuple(skipped), hub)


def _check_score(opened: Checkpoint, arguments: CalibrateOptions) -> None:
    """Some scores, and cascades, mean nothing for some models."""
    from hydrasurgeon.decision.scores.fitted import check_score

    score = arguments.ood_score
    if score != "auto":
        check_score(score)
        if arguments.ood and not arguments.cascade:
            raise UsageError(
                f"--ood: chooses among OOD scores, and --ood-score {score} is chosen", hint="Leave one of them out."
            )
    alone = "--ood-score mi" if score == "mi" else "--cascade" if arguments.cascade else None
    if alone is not None and not opened.manifest.members:
        raise UsageError(f"{alone} requires several members, and {opened.name} has one", hint="Give a hydra.")
    if score == "mcm" and not opened.family.named_classes:
        raise UsageError(
            f"--ood-score mcm: is for models that compare images with class names, and {opened.name} does not",
            hint="Give another score.",
        )


def _opened_data(opened: Checkpoint, arguments: CalibrateOptions) -> dict[str, list[Samples]]:
    """All that is read, by its option."""
    from hydrasurgeon.data import open_data

    read = partial(open_data, limit=arguments.limit, seed=arguments.seed)
    fit, model = [] if arguments.fit_data is None else [arguments.fit_data], opened.manifest.model
    labelled = {"--data": [arguments.data], "--fit-data": fit}
    sets = {option: [read(spec, model=model) for spec in specs] for option, specs in labelled.items()}
    return sets | {"--ood": [read(spec) for spec in arguments.ood]}


def _fit(
    opened: Checkpoint, sets: dict[str, list[Samples]], arguments: CalibrateOptions, skipped: list[str]
) -> tuple[State, tuple[str, ...]]:
    """The state, and what is to be said of it."""
    from hydrasurgeon.data.corruptions import Perturbed
    from hydrasurgeon.decision.fitting import fit_state
    from hydrasurgeon.measuring.cascades.fit import CascadeFit
    from hydrasurgeon.runtime.classifier import as_classifier
    from hydrasurgeon.runtime.features import classifiers
    from hydrasurgeon.runtime.outputs import collected

    model = as_classifier(opened, device=arguments.device, dtype=arguments.dtype, lean=True)
    auto = arguments.ood_score == "auto"
    features = auto or arguments.ood_score in FITTED

    def outputs(samples: Samples) -> Outputs:
        return collected([model], samples, arguments, features=features, skipped=skipped)

    (validation,) = sets["--data"]
    foreign: list[Outputs] = []
    val = outputs(validation)
    if auto or arguments.cascade:
        # Foreign data of one kind may be too easy to tell scores apart: perturbed data have a say too.
        foreign = [outputs(samples) for samples in (*sets["--ood"], Perturbed(validation, arguments.seed))]
    linear = [(each.weight, each.bias) for each in classifiers(model)] if features else []
    evidence = None
    if features and sets["--fit-data"]:
        evidence = _gathered(model, linear, sets["--fit-data"][0], arguments, skipped)
    state, notes = fit_state(
        val,
        promise=arguments,
        score=arguments.ood_score,
        classifiers=linear,
        evidence=evidence,
        foreign=foreign,
        zero_shot=opened.family.named_classes,
        chosen_by="option" if not auto else "ood" if sets["--ood"] else "perturbed",
        seed=arguments.seed,
    )
    if arguments.cascade:
        costs = _costs(model, validation, arguments)
        cascade, more = CascadeFit(state, val, foreign, costs, seed=arguments.seed).record(arguments)
        state, notes = replace(state, record=state.record.model_copy(update={"cascade": cascade})), (*notes, *more)
    return state, notes


def _costs(model: Classifier, samples: Samples, arguments: CalibrateOptions) -> MacsOf:
    """Multiply-adds of the first sample."""
    from hydrasurgeon.data import first_batch, moved
    from hydrasurgeon.measuring.cascades.fit import MacsOf
    from hydrasurgeon.measuring.cost import StepMacs, macs, single_macs, step_macs

    weight = next(model.parameters())
    one = first_batch(samples, model.transform, 1, skip_bad=arguments.skip_bad)
    one = moved(one, weight.device, weight.dtype)

    @cache
    def steps(starters: tuple[int, ...]) -> StepMacs:
        return step_macs(model, one, starters)

    return MacsOf(single_macs(model, one), macs(model, one), steps)


def _gathered(
    model: Classifier,
    linear: Sequence[tuple[Tensor, Tensor]],
    samples: Samples,
    arguments: CalibrateOptions,
    skipped: list[str],
) -> list[Evidence]:
    """What OOD scores are fitted on, in one pass: features are not kept."""
    from hydrasurgeon.decision.scores.evidence import Gathering
    from hydrasurgeon.runtime.outputs import pieces

    gatherings = [Gathering(weight, bias, seed=arguments.seed) for weight, bias in linear]
    for _, piece in pieces([model], samples, arguments, features=True, skipped=skipped):
        assert piece.features is not None
        assert piece.labels is not None
        for member, gathering in enumerate(gatherings):
            gathering.add(piece.features[:, member], piece.logits[:, member], piece.labels)
    return [gathering.evidence() for gathering in gatherings]
