"""The start of a training: a checkpoint, or an architecture with fresh weights; its classifier, and
the parameters that are trained.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hydrasurgeon.checkpoints.checkpoint import (
    Single,
    as_single,
    open_checkpoint,
    rewritten,
    undecided,
    unpruned,
)
from hydrasurgeon.errors import SurgeryError, UsageError
from hydrasurgeon.families import families, family_of, family_of_bare
from hydrasurgeon.families.base import BareCheckpoint
from hydrasurgeon.families.weights import Part, Weight, by_name
from hydrasurgeon.files.manifest import (
    MOST_LEVELS,
    Input,
    Model,
    SingleManifest,
    Step,
    Tower,
)
from hydrasurgeon.options.base import FRESH

if TYPE_CHECKING:
    from torch import nn

    from hydrasurgeon.data import Samples
    from hydrasurgeon.families.base import Family
    from hydrasurgeon.heads import Kept
    from hydrasurgeon.tuning.recipes import Recipe


@dataclass(frozen=True)
class Start:
    """The start of a training: a checkpoint, or (without one) random weights."""

    manifest: SingleManifest
    checkpoint: Single | None
    sha256: str
    inputs: tuple[Input, ...]

    @property
    def family(self) -> Family:
        return family_of(self.manifest.model)

    @property
    def kept(self) -> Kept:
        """Its heads and neurons."""
        if self.checkpoint is not None:
            return self.checkpoint.kept
        return self.manifest.kept

    @property
    def note(self) -> str | None:
        """Note for the user on the checkpoint."""
        if self.checkpoint is None or not self.checkpoint.recorded:
            return None
        return self.checkpoint.note

    @property
    def files(self) -> Mapping[str, str]:
        return self.checkpoint.files if self.checkpoint is not None else {}


def starting_point(spec: str | Path, arch: str | None) -> Start:
    text = str(spec)
    if not text.startswith(FRESH):
        opened = undecided(open_checkpoint(spec, arch=arch))
        if opened.manifest.kind == "hydra":
            raise SurgeryError(
                f"{opened.path} is a hydra of {len(opened.manifest.members)} members",
                hint="Tune its members, then fuse them.",
            )
        opened = as_single(opened)
        manifest = opened.manifest
        record = opened.record(opened.digests())
        return Start(manifest, opened, record.sha256, (record,))
    model = _fresh_model(text)
    return Start(unpruned(family_of(model), model), None, text, ())


def usual_recipe(spec: str | Path, arch: str | None) -> str:
    """Return the default recipe, by the kind of inputs that the model reads."""
    if str(spec).startswith(FRESH):
        raise UsageError(
            f"{spec}: random weights require --recipe.",
            hint="examples/paper/scratch.toml trains a small ViT; a .toml file holds any other.",
        )
    towers = open_checkpoint(spec, arch=arch).manifest.towers
    return "text" if "vision" not in towers else "image"


def _fresh_model(spec: str) -> Model:
    """Return the model that an `init:` spec describes."""
    name, _, arch = spec.removeprefix(FRESH).partition(":")
    if any(family.name == name for family in families()):
        family = family_of_bare(BareCheckpoint({}, spec, arch=f"{name}:{arch}"))
        if (model := family.fresh_model(arch)) is not None:
            return model
    specs = " or ".join(dict.fromkeys(f.fresh_spec for f in families() if f.fresh_spec))
    raise UsageError(f"{spec}: only {specs} can start from random weights")


def model_to_tune(model: Model, plan: Recipe, samples: Samples) -> Model:
    """Return the model that training produces.

    It has the data's classes if the recipe gives it a new classifier, the recipe's text length, and
    the data's kind of texts.
    """
    import numpy as np

    from hydrasurgeon.data.matching import new_task
    from hydrasurgeon.data.samples import reading
    from hydrasurgeon.tasks import TASKS

    if plan.task not in (None, model.task) and plan.classifier == "keep":
        raise UsageError(
            f"--set task={plan.task}: the model's classifier is {model.task}",
            hint="Give it a new one: --set classifier=fresh.",
        )
    column = samples.written
    if plan.classifier != "keep" and column is not None:
        task, count, classes = new_task(samples.spec, column, plan.task)
        words = "word" in TASKS[task].axes
        model = family_of(model).with_classes(model, count, classes, words=words)
        model = model.model_copy(update={"task": task, "inputs": None})
    model = reading(model, samples)
    if column is not None:
        levels = None
        if model.task == "regression":
            likely = column.chances is not None and column.numbers is not None
            numbers = np.array(column.numbers) if likely else np.unique(column.positions)
            if 2 <= len(numbers) <= MOST_LEVELS and (numbers % 1 == 0).all():
                levels = tuple(map(int, numbers))
        model = model.model_copy(update={"levels": levels})
    longest = model.preprocess.get("max_length")
    if plan.max_length is None or longest is None:
        return model
    shorter = {**model.preprocess, "max_length": min(longest, plan.max_length)}
    return model.model_copy(update={"preprocess": shorter})


def starting_module(source: Start, model: Model, classifier: str, seed: int) -> nn.Module:
    """Return the live model: the checkpoint's weights, and a new classifier if the recipe asks for
    one.
    """
    import torch

    from hydrasurgeon.runtime.torch_tensors import to_weights

    family, weights = source.family, by_name(source.family.weights(model))
    torch.manual_seed(seed)
    module = family.module(model, source.kept, fresh=True, files=source.files)
    if source.checkpoint is not None:
        tensors = source.checkpoint.tensors
        state = module.state_dict()
        for name in state:
            renewed = weights[name].part == "classifier" and classifier != "keep"
            if renewed or name not in tensors:
                continue  # a new classifier, and what only a classifier needs
            state[name] = to_weights(
                tensors.read(name), tensors[name].dtype, name=name, path=source.checkpoint.path
            )
        module.load_state_dict(state)
    if classifier == "zero":
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                # Only the last layer of a deep classifier: zeros further down would pass no
                # gradient on.
                last = parameter.shape[0] == model.num_classes
                if weights[name].part == "classifier" and last:
                    parameter.zero_()
    return module


def set_dropout(
    module: nn.Module, source: Start, chance: float, *, is_explicit: bool
) -> str | None:
    """Let the layers drop; where none of them can, refuse what the user `is_explicit`, or note that the
    recipe's is left out.
    """
    places = [*source.family.dropouts(module)]
    for place in places:
        place.p = chance
    if places or not chance:
        return None
    message = f"no layer of {source.manifest.model.arch} has dropout"
    if not is_explicit:
        return f"the recipe's dropout={chance:g} is left out: {message}"
    raise SurgeryError(f"--set dropout={chance:g}: {message}", hint="Leave it out.")


FROZEN: dict[str, tuple[Part, ...]] = {
    "mlp": ("mlp",),
    "attention": ("attention", "output"),
    "norms": ("norm", "scale"),
    "embeddings": ("embedding",),
    "readout": ("readout",),
    "classifier": ("classifier",),
}
"""Parts that a recipe may freeze, in the words of the families' tables."""


def trainable(
    weights: Mapping[str, Weight], plan: Recipe, towers: Mapping[str, Tower]
) -> Callable[[str], bool]:
    """Return a function that returns True for the name of a parameter that the recipe trains."""
    frozen = {part for name in plan.freeze for part in FROZEN[name]}

    def trainable(name: str) -> bool:
        weight = weights[name]
        if weight.part in frozen:
            return False
        # What lies behind the layers belongs to no tower.
        if plan.last_blocks is None or weight.tower is None:
            return True
        last = towers[weight.tower].layers - plan.last_blocks
        return weight.layer is not None and weight.layer >= last

    return trainable


def manifest_after(
    base: SingleManifest, model: Model, entry: Step
) -> Callable[[str], SingleManifest]:
    def manifest(sha256: str) -> SingleManifest:
        history = (*base.history, entry.wrote(sha256))
        # Scores speak of weights that training has changed.
        return rewritten(base, model=model, scores={}, weights_sha256=sha256, history=history)

    return manifest
