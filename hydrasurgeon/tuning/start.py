"""What tuning starts from: a checkpoint, or an architecture with fresh weights; with which classifier, and what of it moves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hydrasurgeon.checkpoints.class_names import with_class_names
from hydrasurgeon.checkpoints.reading import Checkpoint, open_checkpoint, rewritten, single
from hydrasurgeon.checkpoints.writing import claim_checkpoint, save
from hydrasurgeon.errors import UsageError
from hydrasurgeon.families import backend
from hydrasurgeon.files.history import step
from hydrasurgeon.files.locks import releases_claims
from hydrasurgeon.files.manifest import UNKNOWN, Input, Manifest, Model, Step
from hydrasurgeon.runtime.tensors import plan_module

if TYPE_CHECKING:
    from torch import nn

    from hydrasurgeon.data import Samples
    from hydrasurgeon.families.base import Backend
    from hydrasurgeon.tuning.recipes import Recipe

__all__ = [
    "ATTENTION_DROPOUT",
    "FRESH",
    "Start",
    "both",
    "fresh",
    "manifest_after",
    "starting_module",
    "starting_point",
    "trainable",
    "with_classes_of",
    "with_length_of",
    "with_names_of",
]

FRESH = "init:"
"""`init:timm:NAME,key=value…` stands for random weights, drawn from the seed."""


# What the families call the dropout of attention weights.
ATTENTION_DROPOUT = ("attn_drop", "attention.self.dropout", "attention.attn.dropout")


@releases_claims
def fresh(spec: str, out: str | Path, *, seed: int = 0, force: bool = False) -> Manifest:
    """Write random weights of an `init:` spec as a backbone."""
    from hydrasurgeon.tuning.recipes import load_recipe

    target = claim_checkpoint(out, force=force)
    source = starting_point(spec, None)
    module = starting_module(source, source.manifest.model, load_recipe("scratch", {}), seed)
    entry = step(
        "init",
        args={"spec": spec},
        inputs=[],
        seed=seed,
        uses=("torch", source.manifest.model.family),
    )
    return save(
        target, plan_module(module), manifest_after(source.manifest, source.manifest.model, entry)
    )


@dataclass(frozen=True)
class Start:
    """Where training starts: a checkpoint, or (without one) random weights."""

    manifest: Manifest
    checkpoint: Checkpoint | None
    sha256: str
    inputs: tuple[Input, ...]

    @property
    def files(self) -> Mapping[str, str]:
        return self.checkpoint.files if self.checkpoint is not None else {}


def starting_point(spec: str | Path, arch: str | None) -> Start:
    text = str(spec)
    if not text.startswith(FRESH):
        opened = open_checkpoint(spec, arch=arch)
        single(opened)
        record = opened.record(opened.digests())
        return Start(opened.manifest, opened, record.sha256, (record,))
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
    return Start(manifest, None, text, ())


def with_names_of(
    source: Start, classes: str | None, templates: Sequence[str], samples: Samples | None
) -> Start:
    """A source that knows its classes, where it learns them by name and there is data that has them."""
    if source.checkpoint is None:
        return source
    names = None if samples is None else lambda: samples.classes
    opened = with_class_names(source.checkpoint, classes=classes, templates=templates, names=names)
    return replace(source, checkpoint=opened, manifest=opened.manifest)


def with_classes_of(model: Model, plan: Recipe, samples: Samples) -> Model:
    """The model with the data's classes, where the recipe gives it a new classifier."""
    if plan.classifier == "keep" or samples.labels is None:
        return model
    classes = samples.classes
    count = len(classes) if classes is not None else int(samples.labels.max()) + 1
    return backend(model.family).with_classes(model, count, classes)


def with_length_of(model: Model, plan: Recipe) -> Model:
    """The model with the recipe's text length, which it keeps: what it is trained on is what it reads."""
    longest = model.preprocess.get("max_length")
    if plan.max_length is None or longest is None:
        return model
    shorter = {**model.preprocess, "max_length": min(longest, plan.max_length)}
    return model.model_copy(update={"preprocess": shorter})


def starting_module(source: Start, model: Model, plan: Recipe, seed: int) -> nn.Module:
    """The live model: the checkpoint's weights, a new classifier where the recipe asks for one."""
    import torch

    from hydrasurgeon.runtime.tensors import to_weights

    family = backend(model.family)
    torch.manual_seed(seed)
    module = family.build(model, source.manifest.towers, source.manifest.kept or {}, fresh=True)
    if source.checkpoint is not None:
        tensors = source.checkpoint.tensors
        state = module.state_dict()
        for name in state:
            if (family.is_classifier(name) and plan.classifier != "keep") or name not in tensors:
                continue  # a new classifier, and what only a classifier needs
            state[name] = to_weights(
                tensors.read(name), tensors[name].dtype, name=name, path=source.checkpoint.path
            )
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


def trainable(family: Backend, plan: Recipe, manifest: Manifest) -> Callable[[str], bool]:
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


def both(first: Callable[[str], bool], second: Callable[[str], bool]) -> Callable[[str], bool]:
    return lambda name: first(name) and second(name)


def manifest_after(base: Manifest, model: Model, entry: Step) -> Callable[[str], Manifest]:
    # Scores speak of weights that training has changed.
    return lambda sha256: rewritten(
        base, model=model, scores={}, weights_sha256=sha256, history=(*base.history, entry)
    )
