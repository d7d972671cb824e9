"""finetune: train a member or an unpruned model by a recipe, or fit a probe."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydrasurgeon.checkpoints.class_names import classifying
from hydrasurgeon.checkpoints.writing import claim_checkpoint, save
from hydrasurgeon.errors import SurgeryError, UsageError
from hydrasurgeon.families.prompts import record_of
from hydrasurgeon.families.weights import by_name
from hydrasurgeon.files.history import step
from hydrasurgeon.files.manifest import (
    UNKNOWN,
    DataRecord,
    Input,
    Model,
    SingleManifest,
    Step,
)
from hydrasurgeon.files.resumable import check_place
from hydrasurgeon.measuring.known import record as recorded
from hydrasurgeon.options.base import stage
from hydrasurgeon.options.column_roles import CROSS, split_options
from hydrasurgeon.options.making import FinetuneOptions
from hydrasurgeon.runtime.torch_tensors import plan_tensors
from hydrasurgeon.tuning.start import (
    Start,
    manifest_after,
    model_to_tune,
    set_dropout,
    starting_module,
    starting_point,
    trainable,
    usual_recipe,
)

if TYPE_CHECKING:
    from torch import nn

    from hydrasurgeon.data import Samples
    from hydrasurgeon.families.weights import Weight
    from hydrasurgeon.runtime.features import LiveModel
    from hydrasurgeon.tuning.learning import Teacher
    from hydrasurgeon.tuning.loop import Trained, Training
    from hydrasurgeon.tuning.probe import Probed
    from hydrasurgeon.tuning.recipes import Recipe
    from hydrasurgeon.tuning.tracking import Tracking
    from hydrasurgeon.tuning.training_state import TrainingState


LENGTH = 10.0
"""The length of features for which a classifier's rate is meant."""


@dataclass(frozen=True)
class Finetuned:
    path: Path
    manifest: SingleManifest = field(repr=False)
    trained: Trained
    probed: bool = False
    """True if training began with a new classifier that was fitted to the body's features."""
    notes: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    """Why samples were left out."""


@dataclass(frozen=True)
class _Material:
    """The model to train, its recipe and its data."""

    source: Start
    recipe: Recipe
    model: Model
    """The trained model: the source's, with the classes and the length of the training data."""
    samples: Samples
    held_out: Samples | None
    unlabelled: Samples | None = None
    teachers: tuple[Teacher, ...] = ()
    taught_by: tuple[Input, ...] = ()

    @cached_property
    def data(self) -> list[DataRecord]:
        """All the data that is read."""
        sets = (self.samples, self.held_out, self.unlabelled)
        return [recorded(samples) for samples in sets if samples is not None]

    @cached_property
    def weights(self) -> dict[str, Weight]:
        return by_name(self.source.family.weights(self.model))

    def moves(self, name: str) -> bool:
        """Return True if the recipe trains this weight."""
        return trainable(self.weights, self.recipe, self.source.manifest.towers)(name)

    @property
    def transform(self) -> Callable[[Any], Any]:
        """The transform of inputs without augmentation."""
        return self.source.family.transform(self.model, files=self.source.files)

    def live(self, module: nn.Module) -> LiveModel:
        """Return the model that is trained, in memory."""
        from hydrasurgeon.runtime.features import LiveModel

        manifest = self.source.manifest.model_copy(update={"model": self.model})
        return LiveModel(module, manifest, self.transform)


@stage(FinetuneOptions)
def finetune(arguments: FinetuneOptions) -> Finetuned:
    """Train a checkpoint on labelled data, and write the result."""
    from hydrasurgeon.data.samples import left_out_of
    from hydrasurgeon.tuning.recipes import load_recipe
    from hydrasurgeon.tuning.tracking import Tracking
    from hydrasurgeon.tuning.training_state import TRAINING, TrainingState

    chosen = arguments.recipe is None
    if chosen:
        arguments = arguments.but(recipe=usual_recipe(arguments.checkpoint, arguments.arch))
    overrides, name = dict(arguments.set or {}), str(arguments.recipe)
    rates = _rates(overrides, arguments)
    recipe = load_recipe(
        name,
        overrides,
        batch_size=arguments.batch_size,
        freeze=arguments.freeze,
        select=arguments.select,
        patience=arguments.patience,
    )
    tracking = None
    if arguments.track is not None:
        tracking = Tracking(arguments.track, Path(arguments.out))
        tracking.check()
    target = claim_checkpoint(arguments.out, force=arguments.force, inputs=arguments.sources)
    place = target.with_name(f"{target.name.removesuffix('.safetensors')}.training.safetensors")
    interrupted = check_place(place, TRAINING, resume=arguments.resume, force=arguments.force)
    if interrupted and arguments.resume:
        TrainingState(place, {}).noted()
    material = _material(recipe, arguments)
    doubts = _label_notes(material, arguments)
    if recipe.epochs != 0:
        arguments.note(f"recipe {name}: {_length(recipe)}{_harder(recipe)}")
    again = arguments.resume and interrupted
    best = _best_run(material, rates, place, tracking, arguments, again=again)
    source, material = material.source, replace(material, recipe=best.recipe)
    entry, probed = _entry(material, arguments), best.recipe.classifier == "probe"
    manifest = manifest_after(source.manifest, material.model, entry)
    if not best.trained.is_main:
        return Finetuned(target, manifest(UNKNOWN), best.trained, probed)
    tensors = plan_tensors(best.module.state_dict())
    written = save(target, tensors, manifest, files=source.files)
    best.state.clear()
    notes = [*doubts, *_notes(material, best, arguments)]
    if chosen:
        notes.append(f"trained by the recipe {name}, as no --recipe was given")
    if arguments.resume and not interrupted:
        notes.append("there was no interrupted run to resume: trained from the beginning")
    notes += [*_assumed_orders(material), *_doubts(best.trained)]
    sets = [samples for samples in (material.samples, material.held_out) if samples is not None]
    unread = [why for samples in sets for _, why in sorted(samples.unread.items())]
    skipped = (*left_out_of(*sets, material.unlabelled), *unread)
    return Finetuned(target, written, best.trained, probed, tuple(filter(None, notes)), skipped)


@dataclass(frozen=True)
class _Run:
    """A training, the best of those with several rates."""

    module: nn.Module
    recipe: Recipe
    trained: Trained
    state: TrainingState
    left_out: str | None
    """Note on modules that dropout cannot reach."""
    tried: Sequence[str]
    """Each rate with what it reached."""


def _best_run(
    material: _Material,
    rates: Sequence[float | None],
    place: Path,
    tracking: Tracking | None,
    arguments: FinetuneOptions,
    *,
    again: bool,
) -> _Run:
    """Train with each rate, and return the run that is best on the validation data."""
    from hydrasurgeon.tuning.loop import Diverged, train
    from hydrasurgeon.tuning.training_state import TrainingState

    best, highest, tried = None, -math.inf, list[str]()
    for rate in rates:
        plan = material
        if rate is not None:
            recipe = material.recipe.model_copy(update={"lr": rate})
            plan = replace(material, recipe=recipe)
        candidate, start = _prepare_training(plan, arguments, again=again)
        left_out = None
        if plan.recipe.dropout is not None:
            is_explicit = "dropout" in (arguments.set or {})
            left_out = set_dropout(
                candidate, material.source, plan.recipe.dropout, is_explicit=is_explicit
            )
        state = TrainingState(place, _identity(plan, arguments))
        try:
            run = train(
                candidate,
                _training(candidate, plan, arguments, start),
                arguments,
                state,
                save_every=arguments.save_every,
                resume=arguments.resume,
                tracking=tracking,
            )
        except Diverged:
            if rate is None or (rate == rates[-1] and best is None):
                raise
            tried.append(f"{rate:g}: diverged")
            continue
        reached = run.reached(plan.recipe)
        tried.append(f"{plan.recipe.lr:g}: {abs(reached):.4f}")
        if best is None or reached > highest:
            highest = reached if math.isfinite(reached) else -math.inf
            best = _Run(candidate, plan.recipe, run, state, left_out, tried)
    assert best is not None
    return best


def _notes(material: _Material, best: _Run, arguments: FinetuneOptions) -> Iterator[str | None]:
    """Yield notes on the data, the rates and the epoch that is written."""
    yield from (material.source.note, material.samples.note, best.left_out)
    if len(best.tried) > 1:
        recipe = best.recipe
        yield f"lr {recipe.lr:g} is the best on --val by {recipe.select} ({', '.join(best.tried)})"
    if material.held_out is not None:
        yield material.held_out.note
        if shared := material.held_out.shared_with(material.samples):
            yield (
                f"--val: {shared:,} of its {len(material.held_out):,} rows are training rows too, so its "
                "results are too good"
            )
    if arguments.val is None and arguments.data is not None and material.recipe.epochs != 0:
        yield f"no --val, so the last epoch is written; to hold a fifth out: {split_options(arguments.data)}"


def _rates(overrides: dict[str, str], arguments: FinetuneOptions) -> list[float | None]:
    """Take the rates of `--set lr=A,B,C`, each of which is tried; else the recipe's own, as None."""
    words = overrides.get("lr", "").split(",")
    if len(words) == 1:
        return [None]
    if arguments.val is None or arguments.resume:
        flag = "--resume conflicts with" if arguments.resume else "--val is required by"
        raise UsageError(
            f"{flag} --set lr={overrides['lr']}",
            hint="The rates are compared on --val, each from the beginning.",
        )
    try:
        rates: list[float | None] = [float(word) for word in words]
    except ValueError:
        raise UsageError(f"--set lr={overrides['lr']}: not numbers with commas") from None
    overrides["lr"] = words[0]
    return rates


def _length(recipe: Recipe) -> str:
    if recipe.steps is not None:
        return f"{recipe.steps:,} step{'s' * (recipe.steps != 1)} of {recipe.batch_size} rows"
    return f"{recipe.epochs:g} epoch{'s' * (recipe.epochs != 1)}"


def _harder(recipe: Recipe) -> str:
    """Say why the loss in training is higher than that on validation data."""
    harder = [name for name in ("label_smoothing", "mixup", "mask_tokens") if getattr(recipe, name)]
    return f", with {' and '.join(harder)}: its loss is above that of --val" if harder else ""


def _label_notes(material: _Material, arguments: FinetuneOptions) -> list[str]:
    """Say how many rows the classes have and what looks wrong with the labels, before any work;
    return the latter.
    """
    from hydrasurgeon.data.label_check import class_counts, label_notes

    if counts := class_counts(material.samples):
        arguments.note(counts)
    notes = label_notes(material.samples)
    for note in notes:
        arguments.note(f"note: {note}")
    return notes


def _prepare_training(
    material: _Material, arguments: FinetuneOptions, *, again: bool
) -> tuple[nn.Module, Probed]:
    """Return the module to train, and what a probe found. A resumed training takes its weights from
    the saved state.
    """
    from hydrasurgeon.tuning.probe import Probed, probe

    classifier = material.recipe.classifier
    module = starting_module(material.source, material.model, classifier, arguments.seed)
    if classifier != "probe" or again:
        return module, Probed()
    return module, probe(
        material.live(module),
        material.samples,
        material.held_out,
        arguments,
        cross=arguments.val == CROSS,
        most=material.recipe.probe_rows,
    )


def _pace(
    module: nn.Module, material: _Material, arguments: FinetuneOptions
) -> Callable[[str], float]:
    """Return a function from a weight's name to its learning rate relative to lr. The classifier's
    is scaled as if its features had length 10.
    """
    from hydrasurgeon.tuning.probe import feature_length

    rate = material.recipe.classifier_lr
    if rate == 1 or material.recipe.epochs == 0:
        return lambda name: 1.0
    length = feature_length(material.live(module), material.samples, arguments)
    last = material.model.num_classes

    def pace(name: str) -> float:
        weight = material.weights.get(name)
        if weight is None or weight.part != "classifier":
            return 1.0
        if len(weight.shape) == 2 and weight.shape[0] == last and length > 0:
            return rate * LENGTH / length
        return rate

    return pace


def _assumed_orders(material: _Material) -> Iterator[str]:
    """Yield a note on each teacher whose class order is assumed."""
    for teacher, record in zip(material.teachers, material.taught_by, strict=True):
        manifest = getattr(teacher, "manifest", None)
        if manifest is not None and manifest.model.labels is None and material.model.labels:
            yield f"classes of --teacher {record.name} are taken as the model's, in its order"


def _entry(material: _Material, arguments: FinetuneOptions) -> Step:
    """Return the history entry of this training."""
    args, inputs, teachers = arguments.recorded(), material.source.inputs, material.taught_by
    if not inputs:  # random weights have none that tells of them
        args["checkpoint"] = str(arguments.checkpoint)
    if teachers:
        args["teacher"] = [record.name for record in teachers]
    return step(
        "finetune",
        args=args,
        inputs=inputs,
        data=material.data,
        teachers=teachers,
        seed=arguments.seed,
        uses=("torch", material.model.family, "accelerate"),
    )


def _material(recipe: Recipe, arguments: FinetuneOptions) -> _Material:
    """Open the checkpoint and the data, and fit them to each other."""
    from hydrasurgeon.data import fit_classes, fit_held_out, open_data
    from hydrasurgeon.data.label_check import (
        collecting,
        new_class_errors,
        raise_all,
        text_errors,
    )
    from hydrasurgeon.data.samples import Subset

    source = starting_point(arguments.checkpoint, arguments.arch)
    read = partial(open_data, seed=arguments.seed, skip_bad=arguments.skip_bad)
    if arguments.val == CROSS and recipe.classifier != "probe":
        raise UsageError(
            f"--val {CROSS}: chooses the penalty of a probe, and this recipe trains all weights",
            hint=f"Give --recipe probe, or split the table: {split_options(arguments.training)}",
        )
    held_out = None if arguments.val in (None, CROSS) else read(str(arguments.val))
    labelled = arguments.data is not None
    samples = read(arguments.training, limit=arguments.limit, labelled=labelled)
    if arguments.data is None:
        samples = Subset(samples, None)  # without labels that it may have
    if source.checkpoint is not None:
        opened = classifying(source.checkpoint, arguments, samples)
        source = replace(source, checkpoint=opened, manifest=opened.manifest)
    if source.family.named_classes and recipe.classifier == "probe":
        raise UsageError(
            f"--recipe {arguments.recipe}: the classifier of this model is computed from class names",
            hint="Give another recipe, or --set classifier=keep.",
        )
    if source.family.named_classes:
        recipe = recipe.model_copy(update={"classifier": "keep"})  # it follows from the class names
    elif source.manifest.model.num_classes == 0 and recipe.classifier == "keep":
        probed = samples.labels is not None
        recipe = recipe.model_copy(
            update={"classifier": "probe" if probed else "fresh"}
        )  # there is none to keep
    is_new = recipe.classifier != "keep" and samples.labels is not None
    errors = new_class_errors(samples, held_out) if is_new else []
    for labelled_set in filter(None, (samples, held_out)):
        errors += text_errors(labelled_set, skip_bad=arguments.skip_bad)
    if is_new:
        raise_all(errors)
    model = model_to_tune(source.manifest.model, recipe, samples)
    if samples.labels is not None or not arguments.teacher:
        with collecting(errors):
            samples = fit_classes(samples, model)
            model = model.model_copy(update={"labels": samples.classes})
    if held_out is not None:
        with collecting(errors):
            held_out = (fit_held_out if is_new else fit_classes)(held_out, model)
    raise_all(errors)
    if not arguments.teacher:
        return _Material(source, recipe, model, samples, held_out)
    unlabelled = (
        None
        if arguments.unlabelled is None or arguments.data is None
        else read(arguments.unlabelled, labelled=False)
    )
    return _with_teachers(
        _Material(source, recipe, model, samples, held_out, unlabelled), arguments
    )


def _with_teachers(material: _Material, arguments: FinetuneOptions) -> _Material:
    """Add the teachers. Stored predictions answer for unchanged inputs alone, so they turn
    augmentation off.
    """
    import torch

    from hydrasurgeon.measuring.predictions import is_predictions, read_answers
    from hydrasurgeon.tuning.learning import Teacher, open_teacher

    model, samples, teachers = material.model, material.samples, list[tuple[Teacher, Input]]()
    for spec in arguments.teacher:
        if not is_predictions(spec):
            teachers.append(open_teacher(spec, model, material.source.files, arguments.device))
            continue
        logits, record = read_answers(Path(spec), samples)
        if logits.shape[-1] != model.num_classes or material.unlabelled is not None:
            wrong = "does not contain answers for --unlabelled"
            if logits.shape[-1] != model.num_classes:
                wrong = f"has {logits.shape[-1]} classes, the model {model.num_classes}"
            raise SurgeryError(
                f"--teacher {spec}: {wrong}", hint="Give the checkpoint that answered."
            )
        teachers.append((torch.from_numpy(logits), record))
    recipe = material.recipe
    if any(isinstance(teacher, torch.Tensor) for teacher, _ in teachers):
        still = {
            "mixup": 0.0,
            "mask_tokens": 0.0,
            "augment": type(recipe.augment)(),
        }
        recipe = recipe.model_copy(update=still)
    live, records = zip(*teachers, strict=True)
    return replace(material, recipe=recipe, teachers=live, taught_by=records)


def _training(
    module: nn.Module, material: _Material, arguments: FinetuneOptions, start: Probed
) -> Training:
    """Return the batches, the trainable weights and the loss."""
    from hydrasurgeon.data import Batches
    from hydrasurgeon.data.samples import Joined, Subset
    from hydrasurgeon.tasks import task_of
    from hydrasurgeon.tuning.learning import Learning, perturbation, positive_weight
    from hydrasurgeon.tuning.loop import Training, epoch_order

    source, recipe, samples = material.source, material.recipe, material.samples
    if material.unlabelled is not None:
        samples = Joined(samples, Subset(material.unlabelled, None))  # labels of it are not learnt
    # Where no sample has a label, all that is learnt is the teachers'.
    alpha = arguments.alpha if samples.labels is not None else 1.0
    size, skip_bad = recipe.batch_size, arguments.skip_bad
    validation = None
    if material.held_out is not None:
        validation = Batches(
            material.held_out, material.transform, batch_size=size, skip_bad=skip_bad
        )
    transform = source.family.transform(
        material.model, recipe.augment.model_dump(), files=source.files
    )
    task = task_of(material.model)

    def batches(epoch: int, rank: int, world: int, skip: int) -> Batches:
        seed = arguments.seed if recipe.order_seed is None else recipe.order_seed
        order = epoch_order(len(samples), seed=seed, epoch=epoch, rank=rank, world=world)
        return Batches(
            samples,
            transform,
            batch_size=size,
            order=order[skip * size :],
            skip_bad=skip_bad,
            augment_seed=arguments.seed * 1_000_003 + epoch,
            drop_last=len(samples) >= size,
        )

    loss = Learning(
        recipe.label_smoothing,
        perturbation(recipe, transform),
        material.teachers,
        alpha if material.teachers else 0.0,
        arguments.temperature,
        task,
        positive_weight(recipe, material.model),
    )
    return Training(
        recipe,
        batches,
        material.moves,
        loss,
        validation,
        pace=_pace(module, material, arguments),
        label=f"training by {arguments.recipe}",
        task=task,
        begin=start.begin,
        start=start.figures if arguments.dtype == "float32" else None,
    )


def _identity(material: _Material, arguments: FinetuneOptions) -> dict[str, Any]:
    """Return the facts that must be unchanged for an interrupted run to resume."""
    return {
        "checkpoint": material.source.sha256,
        "data": [record.model_dump() for record in material.data],
        "recipe": material.recipe.model_dump(mode="json"),
        "teachers": [record.sha256 for record in material.taught_by],
        "alpha": [arguments.alpha, arguments.temperature],
        "seed": arguments.seed,
        "skip_bad": arguments.skip_bad,
        **record_of(material.model),
    }


def _doubts(trained: Trained) -> Iterator[str]:
    """Yield reasons to think that nothing was learnt."""
    if not trained.steps:
        return
    accuracies = {epoch["val_accuracy"] for epoch in trained.log if "val_accuracy" in epoch}
    if len(accuracies) == 1 and (accuracy := accuracies.pop()) < 1:
        yield (
            f"validation accuracy was {accuracy:.3f} before training and after each epoch: "
            "try another --set lr=…, more epochs or a smaller --batch-size"
        )
    elif trained.kept_epoch == 0:
        yield (
            "no epoch was better on --val than the start, whose weights are "
            "written: try a lower --set lr=…, or --set keep=last to have the trained weights"
        )
