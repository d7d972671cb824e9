"""Rivals that are trained from random weights as scratch_vits.py's are, of torch-uncertainty's layers: Packed-Ensemble,
MIMO, BatchEnsemble.

Each is a ViT of their depth, heads and patches with three members, and answers with logits [batch, member, class];
same images, augmentations,
optimizer and number of steps as the single model has, settings of the methods as in the paper's C.1.4.

    Packed-Ensemble   Laurent et al., 2023: M narrow models side by side in grouped layers; α = 2, γ = 1. A member's
    width would be 64 α / M = 42.7,
                      which eight heads do not divide: it is 48, rounded up. The members share no weight, but one loss
                      and the order of the batches.
    MIMO              Havasi et al., 2020: one trunk that takes M images at once and answers to each; ρ = 0.5, each
    batch mixed four times.
    BatchEnsemble     Wen et al., 2020: weights W ∘ s rᵀ in every layer, W shared; each member sees every image, and it
    starts from random
                      weights as the others do (the paper tunes a trained checkpoint).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from quality_tasks import Place
from safetensors.torch import load_file, save_file
from scratch_vits import FROM_SCRATCH, SCRATCH, full_train
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from hydrasurgeon.data import Batch, Batches, fit_classes, open_data
from hydrasurgeon.families import family_of
from hydrasurgeon.measuring.cost import macs
from hydrasurgeon.options.shared import Run
from hydrasurgeon.runtime.classifier import Classifier
from hydrasurgeon.tuning.loop import Training, epoch_order, train
from hydrasurgeon.tuning.recipes import load_recipe
from hydrasurgeon.tuning.state import TrainingState

MEMBERS = 3
"""Members of each of them."""
ALPHA = 2
"""How much wider all members of a Packed-Ensemble together are than a single model."""
PACKED_DIM = 72
"""Width of the packed single model: the next above 64 whose α-fold both three members and eight heads divide."""
SAME = 0.5
"""MIMO's ρ: the share of inputs in which all members see the same image."""
REPEATED = 4
"""How often MIMO mixes each batch anew."""
SEED_STRIDE = 1_000_003
"""Between the augmentations of two seeds, as `finetune` has it."""


TASK = "fashion-mnist"
"""Whose base is trained from random weights too."""
PIECE = 128
"""Inputs whose gradients are found at once: more leave the processor's caches."""


class Absent(Exception):
    """A rival that cannot be had here, and why."""


def shape() -> dict[str, int]:
    """Arguments of those ViTs, as timm takes them."""
    _, *settings = SCRATCH.format(dim=64, depth=6, heads=8).split(",")
    return {key: int(value) for key, _, value in (each.partition("=") for each in settings)}


def vit(**changes: int) -> nn.Module:
    """The single model, changed."""
    import timm

    settings: dict[str, Any] = shape() | changes
    model: nn.Module = timm.create_model("vit_tiny_patch16_224", **settings)
    return model


class Packed(nn.Module):
    """Members side by side in the channels; images [batch, 1, side, side]."""

    def __init__(self) -> None:
        from torch_uncertainty import layers

        super().__init__()
        size, together = shape(), {"alpha": ALPHA, "num_estimators": MEMBERS}
        width, patch = ALPHA * PACKED_DIM, size["patch_size"]
        self.embed = layers.PackedConv2d(
            size["in_chans"], PACKED_DIM, patch, stride=patch, first=True, **together
        )
        tokens = (size["img_size"] // patch) ** 2 + 1
        self.cls = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, 1, width), std=0.02))
        self.position = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, tokens, width), std=0.02))
        self.blocks = nn.ModuleList(
            layers.PackedTransformerEncoderLayer(
                d_model=PACKED_DIM,
                nhead=size["num_heads"],
                dim_feedforward=4 * PACKED_DIM,
                dropout=0.0,
                activation=nn.functional.gelu,
                layer_norm_eps=1e-6,
                batch_first=True,
                norm_first=True,
                **together,
            )
            for _ in range(size["depth"])
        )
        self.norm = layers.PackedLayerNorm(PACKED_DIM, eps=1e-6, **together)
        self.classifier = layers.PackedLinear(
            PACKED_DIM, size["num_classes"], last=True, **together
        )
        for part in self.modules():
            # As they come, these two let members see each other: all members' channels are normalised together, …
            if isinstance(part, layers.PackedLayerNorm):
                part.num_groups = MEMBERS
            # … and attention of a tensor to itself takes the first member's projections for queries, the second's for
            # keys.
            if isinstance(part, layers.PackedMultiheadAttention):
                part.register_forward_pre_hook(_apart)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.embed(images).flatten(2).transpose(1, 2)
        hidden = torch.cat([self.cls.expand(len(patches), -1, -1), patches], dim=1) + self.position
        for block in self.blocks:
            hidden = block(hidden)
        logits: Tensor = self.classifier(self.norm(hidden)[:, 0])
        return logits.unflatten(0, (MEMBERS, -1)).transpose(0, 1)


def _apart(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The same tensors by other names, which are projected one by one."""
    return tuple(each.view_as(each) for each in inputs)


class Mimo(nn.Module):
    """One image for all members, or [batch, member, channel, side, side]: one for each."""

    def __init__(self) -> None:
        super().__init__()
        size = shape()
        self.vit = vit(
            in_chans=MEMBERS * size["in_chans"], num_classes=MEMBERS * size["num_classes"]
        )

    def forward(self, images: Tensor) -> Tensor:
        if images.dim() == 4:
            images = images[:, None].expand(-1, MEMBERS, -1, -1, -1)
        logits: Tensor = self.vit(images.flatten(1, 2))
        return logits.unflatten(1, (MEMBERS, -1))


class Tokenwise(nn.Module):
    """torch-uncertainty's BatchLinear, which takes rows, on [member × batch, token, channel]: each member's weights W ∘
    s rᵀ are made once a pass."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, hidden: Tensor) -> Tensor:
        layer = self.layer
        weights = layer.linear.weight * layer.s_group[:, :, None] * layer.r_group[:, None]
        rows = hidden.reshape(MEMBERS, -1, hidden.shape[-1])
        result = torch.baddbmm(layer.bias[:, None], rows, weights.mT)
        return result.reshape(*hidden.shape[:-1], -1)


class RankOne(nn.Module):
    """BatchEnsemble: the single model's layers, each with factors of every member."""

    def __init__(self) -> None:
        from torch_uncertainty.layers import BatchConv2d, BatchLinear

        super().__init__()
        self.vit = vit()
        plain = [
            (name, part)
            for name, part in self.vit.named_modules()
            if isinstance(part, nn.Linear | nn.Conv2d)
        ]
        for name, part in plain:
            parent, _, last = name.rpartition(".")
            if isinstance(part, nn.Linear):
                layer = BatchLinear.from_linear(part, MEMBERS)
                shared, new = layer.linear, Tokenwise(layer)
            else:
                new = layer = BatchConv2d.from_conv2d(part, MEMBERS)
                shared = layer.conv
            with torch.no_grad():  # from where the single model starts
                shared.weight.copy_(part.weight)
                assert part.bias is not None
                layer.bias.copy_(part.bias.expand(MEMBERS, -1))
            setattr(self.vit.get_submodule(parent), last, new)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.vit(images.repeat(MEMBERS, 1, 1, 1))
        return logits.unflatten(0, (MEMBERS, -1)).transpose(0, 1)


def alike(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """All members learn from all images."""
    return images, labels[:, None].expand(-1, MEMBERS)


def mixed(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Each member learns from another image of the batch, or, in a share of inputs, from the same one."""
    from torch_uncertainty.transforms import MIMOBatchFormat

    form = MIMOBatchFormat(MEMBERS, rho=SAME, batch_repeat=REPEATED)
    images, labels = form((images, labels))
    return images.unflatten(0, (MEMBERS, -1)).transpose(0, 1), labels.unflatten(0, (MEMBERS, -1)).T


@dataclass(frozen=True)
class Rival:
    build: Callable[[], nn.Module]
    """Random weights."""
    presents: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    """A batch → what the members see, and the label of each [batch, member]."""
    parts: int
    """How often its multiply-adds are those of `costs`."""
    costs: Callable[[], nn.Module]
    """The model, or one of its members, without torch-uncertainty."""


RIVALS = {
    # Their members are ViTs of 48 channels; the package multiplies in attention by blocks of zeros too, which no one
    # has to.
    "Packed-Ensemble": Rival(
        Packed, alike, MEMBERS, lambda: vit(embed_dim=ALPHA * PACKED_DIM // MEMBERS)
    ),
    "MIMO": Rival(Mimo, mixed, 1, Mimo),
    # Its factors scale channels, which is no matrix product.
    "BatchEnsemble": Rival(RankOne, alike, MEMBERS, vit),
}


def multiply_adds(name: str) -> float:
    """Multiply-adds of matrix products, convolutions and attention, relative to the single model's; both go over all
    tokens to the end."""
    size, about = shape(), RIVALS[name]
    image = torch.zeros(1, size["in_chans"], size["img_size"], size["img_size"])
    return about.parts * macs(about.costs().eval(), image) / macs(vit().eval(), image)


@dataclass(frozen=True)
class MeanOfMembers:
    """Cross-entropy of each member by itself."""

    rival: Rival
    label_smoothing: float

    def backward(self, accelerator: Any, model: nn.Module, parts: Sequence[Batch]) -> float:
        (batch,) = parts
        assert batch.labels is not None
        images, labels = self.rival.presents(batch.inputs, batch.labels)
        total = 0.0
        for some, answers in zip(images.split(PIECE), labels.split(PIECE), strict=True):
            loss = cross_entropy(
                model(some).flatten(0, 1), answers.flatten(), label_smoothing=self.label_smoothing
            )
            share = len(some) / len(images)
            accelerator.backward(loss * share)
            total += float(loss.detach()) * share
        return total

    def settle(self) -> None:
        pass


@dataclass
class Progress:
    """A line every so many steps."""

    every: int = 100
    said: int = field(default=-1)

    def __call__(self, what: str, done: int, total: int) -> None:
        if done // self.every > self.said:
            self.said = done // self.every
            print(f"{what} {done}/{total}", flush=True)


def rival(name: str, place: Place, seed: int, folder: Path, base: Classifier) -> Classifier:
    """Trained as the base was, or read from where it was; classes and transforms are the base's."""
    if find_spec("torch_uncertainty") is None:
        raise Absent(f"{name}: is made of torch-uncertainty's layers, which is not installed")
    if place.name != TASK:
        raise Absent(f"{name}: is trained from random weights, as the models of {TASK} alone are")
    path = folder / f"{name.lower()}.safetensors"
    torch.manual_seed(seed)
    module = RIVALS[name].build()
    if path.exists():
        module.load_state_dict(load_file(path))
    else:
        _train(name, module, place, seed, folder, base)
        save_file({key: t.contiguous() for key, t in module.state_dict().items()}, path)
    return Classifier(module, base.manifest, base.transform, name=name).eval()


def _train(
    name: str, module: nn.Module, place: Place, seed: int, folder: Path, base: Classifier
) -> None:
    """In place; goes on where it was interrupted."""
    recipe = load_recipe("scratch", dict(FROM_SCRATCH))
    about = base.manifest.model
    samples = fit_classes(open_data(full_train(place.cache, place.shared)), about)
    transform = family_of(about).transform(about, recipe.augment.model_dump(), files={})

    def epoch_batches(epoch: int, rank: int, world: int, skip: int) -> Batches:
        order: np.ndarray[Any, Any] = epoch_order(
            len(samples), seed=seed, epoch=epoch, rank=rank, world=world
        )
        return Batches(
            samples,
            transform,
            batch_size=recipe.batch_size,
            order=order[skip * recipe.batch_size :],
            augment_seed=seed * SEED_STRIDE + epoch,
            drop_last=True,
        )

    loss = MeanOfMembers(RIVALS[name], recipe.label_smoothing)
    training = Training(recipe, epoch_batches, lambda _: True, loss, label=f"{name}, seed {seed}")
    identity = {
        "rival": name,
        "seed": seed,
        "recipe": recipe.model_dump(mode="json"),
        "data": samples.fingerprint(),
    }
    state = TrainingState(folder / f"{name.lower()}.training.safetensors", identity)
    run = Run(seed=seed, device="cpu", progress=Progress())
    train(module, training, run, state, resume=True)
    state.clear()
