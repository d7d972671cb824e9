"""finetune: train a member, or an unpruned backbone, by a recipe (paper D.2 and D.3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydrasurgeon.errors import UsageError
from hydrasurgeon.families.prompts import record_of
from hydrasurgeon.families.weights import by_name
from hydrasurgeon.files.history import step
from hydrasurgeon.files.manifest import UNKNOWN, DataRecord, Manifest, Model, Step
from hydrasurgeon.files.resumable import check_place
from hydrasurgeon.lookup import need
from hydrasurgeon.options.base import stage
from hydrasurgeon.options.making import FinetuneOptions
from hydrasurgeon.runtime.tensors import plan_module
from hydrasurgeon.sharing.output import claimed, repository_of
from hydrasurgeon.tuning import lora
from hydrasurgeon.tuning.start import (
    Start,
    both,
    manifest_after,
    set_dropout,
    starting_module,
    starting_point,
    trainable,
    usual_recipe,
    with_classes_of,
    with_length_of,
    with_names_of,
)

if TYPE_CHECKING:
    from torch import nn

    from hydrasurgeon.data import Samples
    from hydrasurgeon.families.weights import Weight
    from hydrasurgeon.tuning.loop import Trained, Training
    from hydrasurgeon.tuning.recipes import Recipe


LONGEST = 300
"""Epochs beyond which a recipe that counts steps was made for more data."""


@dataclass(frozen=True)
class Finetuned:
    path: Path
    manifest: Manifest
    trained: Trained
    notes: tuple[str, ...] = ()
    hub: str | None = None
    """Where on the hub it was uploaded to."""


@dataclass(frozen=True)
class _Material:
    """What is tuned, by which recipe, on what."""

    source: Start
    recipe: Recipe
    model: Model
    """What comes out: the source's, with the classes and the length of what it learns from."""
    samples: Samples
    held_out: Samples | None

    @cached_property
    def fingerprints(self) -> list[dict[str, Any]]:
        """Fingerprints of all the data that is read."""
        sets = [self.samples, *([] if self.held_out is None else [self.held_out])]
        return [each.fingerprint() for each in sets]


@stage(FinetuneOptions)
def finetune(arguments: FinetuneOptions) -> Finetuned:
    """Train a checkpoint on labelled data, or on image–text pairs, and write the result."""
    from hydrasurgeon.tuning.loop import train
    from hydrasurgeon.tuning.recipes import load_recipe
    from hydrasurgeon.tuning.state import TRAINING, TrainingState

    checkpoint = arguments.checkpoint
    repository = repository_of(arguments)
    chosen = arguments.recipe is None
    if chosen:
        arguments = arguments.but(recipe=usual_recipe(checkpoint, arguments.arch, arguments.data, arguments.limit))
    recipe = load_recipe(
        str(arguments.recipe), dict(arguments.set or {}), batch_size=arguments.batch_size, freeze=arguments.freeze
    )
    if recipe.lora_rank is not None:
        need("peft", purpose=f"--recipe {arguments.recipe}")
    target = claimed(
        arguments,
        arguments.out,
        repository=repository,
        inputs=[checkpoint, arguments.data, arguments.val, arguments.recipe, arguments.classes, arguments.template],
    )
    state_path = _state_path(target.path)
    interrupted = check_place(state_path, TRAINING, resume=arguments.resume, force=arguments.force)
    material = _material(checkpoint, recipe, arguments)
    module, left_out = _module(material, arguments)
    state = TrainingState(state_path, _identity(material, arguments))
    trained = train(
        module,
        _training(module, material, arguments),
        arguments,
        state,
        save_every=arguments.save_every,
        resume=arguments.resume,
    )
    if recipe.lora_rank is not None:
        lora.merge(module)
    manifest = manifest_after(material.source.manifest, material.model, _entry(checkpoint, material, arguments))
    if not trained.is_main:
        return Finetuned(target.path, manifest(UNKNOWN), trained)
    written = target.save(plan_module(module), manifest, files=material.source.files)
    state.clear()
    hub = target.publish(written, material.source.files, bars=arguments.progress is not None)
    orders = (material.samples.note, None if material.held_out is None else material.held_out.note)
    notes = (
        material.source.note,
        *orders,
        left_out,
        f"trained by the recipe {arguments.recipe}, as no --recipe was given" if chosen else None,
        "nothing was left to resume: trained from the beginning" if arguments.resume and not interrupted else None,
        *_doubts(trained, material, arguments),
    )
    return Finetuned(target.path, written, trained, tuple(filter(None, notes)), hub)


def _material(checkpoint: str | Path, recipe: Recipe, arguments: FinetuneOptions) -> _Material:
    """Checkpoint and data, opened and fitted to each other."""
    from hydrasurgeon.data import fit_classes, open_data
    from hydrasurgeon.data.pairs import open_pairs

    start = starting_point(checkpoint, arguments.arch)
    paired = recipe.objective == "pairs"
    if paired and not start.family.named_classes:
        raise UsageError(
            f"--recipe {arguments.recipe}: learns from image–text pairs, and the model has no text tower for them",
            hint="Give a CLIP, or a recipe that learns from labels.",
        )
    val, seed = arguments.val, arguments.seed
    held_out = None if val is None else open_data(val, seed=seed)
    read = open_pairs if paired else open_data
    samples = read(arguments.data, limit=arguments.limit, seed=seed)
    named = held_out if paired else samples
    source = with_names_of(start, arguments.classes, arguments.template, named)
    if source.family.named_classes:
        recipe = recipe.model_copy(update={"classifier": "keep"})  # it follows from the class names
    elif source.manifest.model.num_classes == 0 and recipe.classifier == "keep":
        recipe = recipe.model_copy(update={"classifier": "fresh"})  # there is none to keep
    model = with_length_of(with_classes_of(source.manifest.model, recipe, samples), recipe)
    if not paired:
        samples = fit_classes(samples, model)
        model = model.model_copy(update={"labels": samples.classes})
    if held_out is not None:
        held_out = fit_classes(held_out, model)
    return _Material(source, recipe, model, samples, held_out)


def _module(material: _Material, arguments: FinetuneOptions) -> tuple[nn.Module, str | None]:
    """What is trained, with the recipe's dropout and low-rank changes; what of the recipe is left out."""
    source, recipe = material.source, material.recipe
    module, left_out = starting_module(source, material.model, recipe, arguments.seed), None
    if recipe.dropout is not None:
        wanted = "dropout" in (arguments.set or {})
        left_out = set_dropout(module, source, recipe.dropout, wanted=wanted)
    if recipe.lora_rank is not None:
        lora.attach(
            module,
            recipe,
            family=source.family,
            model=material.model,
            weights=_weights(material),
            trainable=_moves(material),
        )
    return module, left_out


def _training(module: nn.Module, material: _Material, arguments: FinetuneOptions) -> Training:
    """Batches, what moves, and the loss."""
    from hydrasurgeon.data import Batches
    from hydrasurgeon.tuning.contrastive import Contrast
    from hydrasurgeon.tuning.loop import CrossEntropy, Training, epoch_order

    source, recipe, samples = material.source, material.recipe, material.samples
    family, size, skip_bad = source.family, recipe.batch_size, arguments.skip_bad
    validation = None
    if material.held_out is not None:
        plain = family.transform(material.model, files=source.files)
        validation = Batches(material.held_out, plain, batch_size=size, skip_bad=skip_bad)
    transform: Any = family.transform(material.model, recipe.augment.model_dump(), files=source.files)
    moves = _moves(material)
    if recipe.lora_rank is not None:
        moves = lora.trains(moves, _weights(material))
    loss: CrossEntropy | Contrast = CrossEntropy(recipe.label_smoothing)
    if recipe.objective == "pairs":
        loss = Contrast(module)
        transform, moves = loss.transform(transform), both(moves, loss.trainable)
    seed, drop_last = arguments.seed, len(samples) >= size
    epochs = _epochs(recipe, len(samples))
    label = f"training by {arguments.recipe}{f' ({epochs:,} epochs)' if epochs > LONGEST else ''}"

    def epoch_batches(epoch: int, rank: int, world: int, skip: int) -> Batches:
        order = epoch_order(len(samples), seed=seed, epoch=epoch, rank=rank, world=world)
        return Batches(
            samples,
            transform,
            batch_size=size,
            order=order[skip * size :],
            skip_bad=skip_bad,
            augment_seed=seed * 1_000_003 + epoch,
            drop_last=drop_last,
        )

    return Training(recipe, epoch_batches, moves, loss, validation, label)


def _weights(material: _Material) -> dict[str, Weight]:
    return by_name(material.source.family.weights(material.model))


def _moves(material: _Material) -> Callable[[str], bool]:
    """Which weights the recipe trains."""
    return trainable(_weights(material), material.recipe, material.source.manifest.towers)


def _identity(material: _Material, arguments: FinetuneOptions) -> dict[str, Any]:
    """What must be the same for an interrupted run to be continued."""
    return {
        "checkpoint": material.source.sha256,
        "data": material.fingerprints,
        "recipe": material.recipe.model_dump(mode="json"),
        "seed": arguments.seed,
        "skip_bad": arguments.skip_bad,
        **record_of(material.model),
    }


def _entry(checkpoint: str | Path, material: _Material, arguments: FinetuneOptions) -> Step:
    """What history gets to know."""
    inputs = material.source.inputs
    # Random weights have no input that tells of them.
    recorded = arguments.recorded() | ({} if inputs else {"checkpoint": str(checkpoint)})
    data = [DataRecord(**fingerprint) for fingerprint in material.fingerprints]
    uses = ["torch", material.model.family, "accelerate"]
    if material.recipe.lora_rank is not None:
        uses.append("peft")
    return step("finetune", args=recorded, inputs=inputs, data=data, seed=arguments.seed, uses=uses)


def _doubts(trained: Trained, material: _Material, arguments: FinetuneOptions) -> Iterator[str]:
    """What makes it likely that nothing was learnt."""
    recipe, count = material.recipe, len(material.samples)
    if recipe.batch_size >= count:
        yield (
            f"a batch of {recipe.batch_size} holds all {count} samples, so each epoch is one step: "
            "give a smaller --batch-size"
        )
    if (epochs := _epochs(recipe, count)) > LONGEST:
        yield (
            f"{recipe.steps:,} steps are {epochs:,} epochs of {count:,} samples; the recipe {arguments.recipe} is for "
            "more data: give --set epochs=N, or --recipe image or text"
        )
    accuracies = {epoch["val_accuracy"] for epoch in trained.log if "val_accuracy" in epoch}
    if len(trained.log) > 1 and len(accuracies) == 1 and (accuracy := accuracies.pop()) < 1:
        yield (
            f"validation accuracy was {accuracy:.3f} after each of {len(trained.log)} epochs: nothing was learnt that "
            "it shows; try another --set lr=…, more epochs or a smaller --batch-size"
        )


def _epochs(recipe: Recipe, count: int) -> int:
    """How often a recipe of so many steps sees each sample; 0 of one that counts epochs."""
    return (recipe.steps or 0) // max(1, count // (recipe.batch_size * recipe.accumulate))


def _state_path(target: Path) -> Path:
    name = target.name.removesuffix(".safetensors")
    return target.with_name(f"{name}.training.safetensors")
