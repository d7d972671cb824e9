"""finetune: train a member, or an unpruned backbone, by a recipe (paper D.2 and D.3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydrasurgeon.checkpoints.class_names import asked, with_class_names
from hydrasurgeon.checkpoints.reading import Checkpoint, open_checkpoint, rewritten, single
from hydrasurgeon.checkpoints.writing import UNKNOWN, output_path, save
from hydrasurgeon.errors import UsageError
from hydrasurgeon.families import backend
from hydrasurgeon.families.open_clip.zero_shot import is_zero_shot
from hydrasurgeon.files.history import step
from hydrasurgeon.files.manifest import DataRecord, Input, Manifest, Model, Step
from hydrasurgeon.files.tensors import Planned, digest
from hydrasurgeon.run import Progress
from hydrasurgeon.sharing.upload import destination, publish

if TYPE_CHECKING:
    from torch import Tensor, nn

    from hydrasurgeon.data import Samples
    from hydrasurgeon.families.base import Backend
    from hydrasurgeon.tuning.loop import Trained
    from hydrasurgeon.tuning.recipes import Recipe

__all__ = ["FRESH", "Finetuned", "finetune", "fresh"]

FRESH = "init:"
"""`init:timm:NAME,key=value…` stands for random weights, drawn from the seed."""
# What the families call the dropout of attention weights.
ATTENTION_DROPOUT = ("attn_drop", "attention.self.dropout", "attention.attn.dropout")


@dataclass(frozen=True)
class Finetuned:
    path: Path
    manifest: Manifest
    trained: Trained
    hub: str | None = None
    """Where on the hub it was uploaded to."""


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
    push_to_hub: str | None = None,
    private: bool = False,
    progress: Progress | None = None,
) -> Finetuned:
    """Train a checkpoint on labelled data, or on image–text pairs, and write the result."""
    from hydrasurgeon.data import Batches, fit_classes, open_data
    from hydrasurgeon.data.pairs import open_pairs
    from hydrasurgeon.tuning.loop import State, epoch_order, train
    from hydrasurgeon.tuning.recipes import load_recipe

    plan = load_recipe(recipe, dict(set or {}), batch_size=batch_size, freeze=freeze)
    repository = destination(push_to_hub, private=private)
    target = output_path(out, force=force)
    start = _source(checkpoint, arch)
    paired = plan.objective == "pairs"
    if paired and not is_zero_shot(start.manifest.model):
        raise UsageError(
            f"--recipe {recipe}: learns from image–text pairs, and the model has no text tower for them",
            hint="Give a CLIP, or a recipe that learns from labels.",
        )
    held_out = None if val is None else open_data(val, seed=seed)
    samples = (open_pairs if paired else open_data)(data, limit=limit, seed=seed)
    source = _named(start, classes, template, held_out if paired else samples)
    if is_zero_shot(source.manifest.model):
        plan = plan.model_copy(update={"classifier": "keep"})  # it follows from the class names
    elif source.manifest.model.num_classes == 0 and plan.classifier == "keep":
        plan = plan.model_copy(update={"classifier": "fresh"})  # there is none to keep
    model = _for_length(_for_classes(source.manifest.model, plan, samples), plan)
    labels = {"num_classes": model.num_classes, "labels": model.labels}
    if not paired:
        samples = fit_classes(samples, **labels)  # type: ignore[arg-type]
    family = backend(model.family)
    module = _module(source, model, plan, seed)
    used = [samples.fingerprint()]
    validation = None
    if held_out is not None:
        held_out = fit_classes(held_out, **labels)  # type: ignore[arg-type]
        used.append(held_out.fingerprint())
        validation = Batches(
            held_out, family.transform(model, files=source.files), batch_size=plan.batch_size, skip_bad=skip_bad
        )  # fmt: skip
    transform: Any = family.transform(model, plan.augment.model_dump(), files=source.files)
    trainable = _trainable(family, plan, source.manifest)
    objective = None
    if paired:
        from hydrasurgeon.tuning.contrastive import Contrast

        objective = Contrast(module)
        transform, trainable = objective.transform(transform), _both(trainable, objective.trainable)
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
    }
    state = State(_state_path(target), identity)
    trained = train(
        module, recipe=plan, epoch_batches=epoch_batches, trainable=trainable, objective=objective,
        seed=seed, device=device, dtype=dtype, state=state, save_every=save_every, resume=resume,
        validation=validation, progress=progress,
    )  # fmt: skip
    arguments = {
        "recipe": str(recipe), "set": dict(set) if set else None, "freeze": freeze, "data": data, "val": val,
        **asked(classes, template), "limit": limit, "dtype": dtype, "batch_size": batch_size, "skip_bad": skip_bad, "arch": arch,
    }  # fmt: skip
    entry = step(
        "finetune", args=arguments, inputs=source.inputs, data=[DataRecord(**record) for record in used], seed=seed,
        uses=("torch", model.family, "accelerate"),
    )  # fmt: skip
    manifest = _manifest(source.manifest, model, entry)
    if not trained.is_main:
        return Finetuned(target, manifest(UNKNOWN), trained)
    written = save(target, plan_module(module), manifest, files=source.files)
    state.clear()
    hub = publish(target, written, source.files, at=repository, bars=progress is not None)
    return Finetuned(target, written, trained, hub)


def fresh(spec: str, out: str | Path, *, seed: int = 0, force: bool = False) -> Manifest:
    """Write random weights of an `init:` spec as a backbone."""
    from hydrasurgeon.tuning.recipes import load_recipe

    target = output_path(out, force=force)
    source = _source(spec, None)
    module = _module(source, source.manifest.model, load_recipe("scratch", {}), seed)
    entry = step(
        "init",
        args={"spec": spec},
        inputs=[],
        seed=seed,
        uses=("torch", source.manifest.model.family),
    )
    return save(
        target, plan_module(module), _manifest(source.manifest, source.manifest.model, entry)
    )


@dataclass(frozen=True)
class _Source:
    """Where training starts: a checkpoint, or (without one) random weights."""

    manifest: Manifest
    checkpoint: Checkpoint | None
    sha256: str
    inputs: tuple[Input, ...]

    @property
    def files(self) -> Mapping[str, str]:
        return self.checkpoint.files if self.checkpoint is not None else {}


def _source(spec: str | Path, arch: str | None) -> _Source:
    text = str(spec)
    if not text.startswith(FRESH):
        opened = open_checkpoint(spec, arch=arch)
        single(opened)
        record = opened.record(opened.digests())
        return _Source(opened.manifest, opened, record.sha256, (record,))
    from hydrasurgeon.families.timm_vit.family import fresh_model, towers_of

    family, _, name = text.removeprefix(FRESH).partition(":")
    if family != "timm":
        raise UsageError(f"{text}: only init:timm:NAME[,key=value…] can start from random weights")
    model = fresh_model(name)
    towers = towers_of(model)
    kept = {tower: (tuple(range(size.heads)),) * size.layers for tower, size in towers.items()}
    manifest = Manifest(
        kind="backbone", model=model, towers=towers, kept=kept, weights_sha256=UNKNOWN
    )
    return _Source(manifest, None, text, ())


def _named(
    source: _Source, classes: str | None, templates: Sequence[str], samples: Samples | None
) -> _Source:
    """A source that knows its classes, where it learns them by name and there is data that has them."""
    if source.checkpoint is None:
        return source
    names = None if samples is None else lambda: samples.classes
    opened = with_class_names(source.checkpoint, classes=classes, templates=templates, names=names)
    return replace(source, checkpoint=opened, manifest=opened.manifest)


def _for_classes(model: Model, plan: Recipe, samples: Samples) -> Model:
    """The model with the data's classes, where the recipe gives it a new classifier."""
    if plan.classifier == "keep" or samples.labels is None:
        return model
    classes = samples.classes
    count = len(classes) if classes is not None else int(samples.labels.max()) + 1
    return backend(model.family).with_classes(model, count, classes)


def _for_length(model: Model, plan: Recipe) -> Model:
    """The model with the recipe's text length, which it keeps: what it is trained on is what it reads."""
    longest = model.preprocess.get("max_length")
    if plan.max_length is None or longest is None:
        return model
    shorter = {**model.preprocess, "max_length": min(longest, plan.max_length)}
    return model.model_copy(update={"preprocess": shorter})


def _module(source: _Source, model: Model, plan: Recipe, seed: int) -> nn.Module:
    """The live model: the checkpoint's weights, a new classifier where the recipe asks for one."""
    import torch

    from hydrasurgeon.runtime.classifier import to_tensor

    family = backend(model.family)
    torch.manual_seed(seed)
    module = family.build(model, source.manifest.towers, source.manifest.kept or {}, fresh=True)
    if source.checkpoint is not None:
        tensors = source.checkpoint.tensors
        state = module.state_dict()
        for name in state:
            if (family.is_classifier(name) and plan.classifier != "keep") or name not in tensors:
                continue  # a new classifier, and what only a classifier needs
            state[name] = to_tensor(tensors.read(name), tensors[name].dtype).float()
        module.load_state_dict(state)
    if plan.classifier == "zero":
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                # Only the last layer of a deep classifier: zeros further down would pass no gradient on.
                if family.is_classifier(name) and parameter.shape[0] == model.num_classes:
                    parameter.zero_()
    if plan.dropout is not None:
        for name, part in module.named_modules():
            if (
                isinstance(part, torch.nn.Dropout)
                and family.layer_of(name) is not None
                and not name.endswith(ATTENTION_DROPOUT)
            ):
                part.p = plan.dropout
    return module


def _trainable(family: Backend, plan: Recipe, manifest: Manifest) -> Callable[[str], bool]:
    """Which parameters the recipe trains."""

    def trainable(name: str) -> bool:
        place = family.layer_of(name)
        frozen = {
            "mlp": family.is_mlp(name),
            "attention": place is not None and (".attn." in name or ".attention." in name),
            "embedding": family.embedding_of(name) is not None,
            "classifier": family.is_classifier(name),
        }
        if any(frozen[part] for part in plan.freeze):
            return False
        if plan.last_blocks is None or (place is None and not frozen["embedding"]):
            return True
        return place is not None and place[1] >= manifest.towers[place[0]].layers - plan.last_blocks

    return trainable


def _both(first: Callable[[str], bool], second: Callable[[str], bool]) -> Callable[[str], bool]:
    return lambda name: first(name) and second(name)


def _manifest(base: Manifest, model: Model, entry: Step) -> Callable[[str], Manifest]:
    # Scores speak of weights that training has changed.
    return lambda sha256: rewritten(
        base, model=model, scores={}, weights_sha256=sha256, history=(*base.history, entry)
    )


def _state_path(target: Path) -> Path:
    name = target.name.removesuffix(".safetensors")
    return target.with_name(f"{name}.training.safetensors")


def plan_module(module: nn.Module) -> list[Planned]:
    """Every tensor of a live module, as it will be written."""
    from hydrasurgeon.runtime.classifier import to_raw

    def plan(name: str, tensor: Tensor) -> Planned:
        raw, dtype = to_raw(tensor)
        return Planned(name, dtype, tuple(tensor.shape), lambda: (raw, digest(raw)))

    return [plan(name, tensor) for name, tensor in module.state_dict().items()]
