"""finetune: train a member, or an unpruned backbone, by a recipe (paper D.2 and D.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydrasurgeon.checkpoints.class_names import asked
from hydrasurgeon.checkpoints.writing import claim_checkpoint, save, shard_size
from hydrasurgeon.errors import UsageError
from hydrasurgeon.families import backend
from hydrasurgeon.families.open_clip.zero_shot import is_zero_shot, record_of
from hydrasurgeon.files.history import step
from hydrasurgeon.files.locks import releases_claims
from hydrasurgeon.files.manifest import UNKNOWN, DataRecord, Manifest
from hydrasurgeon.files.shards import check_count
from hydrasurgeon.run import Progress
from hydrasurgeon.runtime.tensors import plan_module
from hydrasurgeon.sharing.upload import destination, publish
from hydrasurgeon.tuning.start import (
    both,
    manifest_after,
    starting_module,
    starting_point,
    trainable,
    with_classes_of,
    with_length_of,
    with_names_of,
)

if TYPE_CHECKING:
    from hydrasurgeon.tuning.loop import Trained

__all__ = ["Finetuned", "finetune"]


@dataclass(frozen=True)
class Finetuned:
    path: Path
    manifest: Manifest
    trained: Trained
    notes: tuple[str, ...] = ()
    hub: str | None = None
    """Where on the hub it was uploaded to."""


@releases_claims
def finetune(
    checkpoint: str | Path,
    *,
    data: str,
    out: str | Path,
    val: str | None = None,
    recipe: str | Path = "imagenet",
    set: Mapping[str, str] | None = None,
    freeze: str | None = None,
    classes: str | None = None,
    template: Sequence[str] = (),
    limit: int | None = None,
    seed: int = 0,
    device: str = "auto",
    dtype: str = "float32",
    batch_size: int | None = None,
    skip_bad: bool = False,
    save_every: int | None = None,
    resume: bool = False,
    arch: str | None = None,
    force: bool = False,
    max_shard_size: str | None = None,
    push_to_hub: str | None = None,
    private: bool = False,
    progress: Progress | None = None,
) -> Finetuned:
    """Train a checkpoint on labelled data, or on image–text pairs, and write the result."""
    from hydrasurgeon.data import Batches, fit_classes, open_data
    from hydrasurgeon.data.pairs import open_pairs
    from hydrasurgeon.tuning.loop import epoch_order, train
    from hydrasurgeon.tuning.recipes import load_recipe
    from hydrasurgeon.tuning.state import State, check_state

    plan = load_recipe(recipe, dict(set or {}), batch_size=batch_size, freeze=freeze)
    repository = destination(push_to_hub, private=private)
    target = claim_checkpoint(
        out, force=force, inputs=[checkpoint, data, val, recipe, classes, template]
    )
    shard = shard_size(max_shard_size, target)
    interrupted = check_state(_state_path(target), resume=resume, force=force)
    start = starting_point(checkpoint, arch)
    paired = plan.objective == "pairs"
    if paired and not is_zero_shot(start.manifest.model):
        raise UsageError(
            f"--recipe {recipe}: learns from image–text pairs, and the model has no text tower for them",
            hint="Give a CLIP, or a recipe that learns from labels.",
        )
    held_out = None if val is None else open_data(val, seed=seed)
    samples = (open_pairs if paired else open_data)(data, limit=limit, seed=seed)
    source = with_names_of(start, classes, template, held_out if paired else samples)
    if is_zero_shot(source.manifest.model):
        plan = plan.model_copy(update={"classifier": "keep"})  # it follows from the class names
    elif source.manifest.model.num_classes == 0 and plan.classifier == "keep":
        plan = plan.model_copy(update={"classifier": "fresh"})  # there is none to keep
    model = with_length_of(with_classes_of(source.manifest.model, plan, samples), plan)
    labels = {"num_classes": model.num_classes, "labels": model.labels}
    if not paired:
        samples = fit_classes(samples, **labels)  # type: ignore[arg-type]
    family = backend(model.family)
    module = starting_module(source, model, plan, seed)
    if shard is not None:
        check_count(sum(tensor.nbytes for tensor in module.state_dict().values()) // shard)
    used = [samples.fingerprint()]
    validation = None
    if held_out is not None:
        held_out = fit_classes(held_out, **labels)  # type: ignore[arg-type]
        used.append(held_out.fingerprint())
        validation = Batches(
            held_out, family.transform(model, files=source.files), batch_size=plan.batch_size, skip_bad=skip_bad
        )  # fmt: skip
    transform: Any = family.transform(model, plan.augment.model_dump(), files=source.files)
    moves = trainable(family, plan, source.manifest)
    objective = None
    if paired:
        from hydrasurgeon.tuning.contrastive import Contrast

        objective = Contrast(module)
        transform, moves = objective.transform(transform), both(moves, objective.trainable)
    drop_last = len(samples) >= plan.batch_size

    def epoch_batches(epoch: int, rank: int, world: int, skip: int) -> Batches:
        order = epoch_order(len(samples), seed=seed, epoch=epoch, rank=rank, world=world)
        return Batches(
            samples, transform, batch_size=plan.batch_size, order=order[skip * plan.batch_size :],
            skip_bad=skip_bad, augment_seed=seed * 1_000_003 + epoch, drop_last=drop_last,
        )  # fmt: skip

    identity = {
        "checkpoint": source.sha256,
        "data": used,
        "recipe": plan.model_dump(mode="json"),
        "seed": seed,
        "skip_bad": skip_bad,
        **record_of(model),
    }
    state = State(_state_path(target), identity)
    trained = train(
        module, recipe=plan, epoch_batches=epoch_batches, trainable=moves, objective=objective,
        seed=seed, device=device, dtype=dtype, state=state, save_every=save_every, resume=resume,
        validation=validation, progress=progress,
    )  # fmt: skip
    arguments = {
        "checkpoint": None if source.inputs else str(checkpoint),  # random weights: no input tells of them
        "recipe": str(recipe), "set": dict(set) if set else None, "freeze": freeze, "data": data, "val": val,
        **asked(classes, template), "limit": limit, "dtype": dtype, "batch_size": batch_size, "skip_bad": skip_bad, "arch": arch,
    }  # fmt: skip
    entry = step(
        "finetune", args=arguments, inputs=source.inputs, data=[DataRecord(**record) for record in used], seed=seed,
        uses=("torch", model.family, "accelerate"),
    )  # fmt: skip
    manifest = manifest_after(source.manifest, model, entry)
    if not trained.is_main:
        return Finetuned(target, manifest(UNKNOWN), trained)
    written = save(target, plan_module(module), manifest, files=source.files, shard=shard)
    state.clear()
    hub = publish(target, written, source.files, at=repository, bars=progress is not None)
    notes = ("nothing was left to resume: trained from the beginning",)
    return Finetuned(target, written, trained, notes if resume and not interrupted else (), hub)


def _state_path(target: Path) -> Path:
    name = target.name.removesuffix(".safetensors")
    return target.with_name(f"{name}.training.safetensors")
