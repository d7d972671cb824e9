"""Packed-Ensembles, MIMO and BatchEnsemble (paper C.1.4) as predictions files, by torch-uncertainty's layers.

    python from_scratch.py packed single.safetensors TRAIN packed.safetensors TEST near:held-out=NEAR … [--seed S] [--epochs E]
    hydrasurgeon eval --predictions-in packed.safetensors

Each is a timm ViT of the shape of the single model, with three members, trained from random weights by the settings of scratch.toml.

packed  Laurent et al., 2023: three narrow models side by side in grouped layers; alpha 2, gamma 1.
mimo    Havasi et al., 2020: one trunk that takes three images at once and answers to each; rho 0.5, each batch mixed four times.
batch   Wen et al., 2020: weights W ∘ s rᵀ in every layer, W shared; every member sees every image.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import hydrasurgeon as hs
from hydrasurgeon.data import Batches, fit_classes, open_data
from hydrasurgeon.families import family_of
from hydrasurgeon.measuring.predictions import Predictions, write_predictions
from hydrasurgeon.tasks import task_of
from hydrasurgeon.tasks.base import Outputs

MEMBERS = 3
ALPHA = 2
"""Width of all members of a Packed-Ensemble together, relative to the single model's."""
SAME_IMAGE = 0.5
"""MIMO's rho: the share of inputs in which all members see the same image."""
REPEATS = 4
"""Number of times that MIMO mixes each batch anew."""
RATE, DECAY, SIZE, WARMUP = 2e-3, 0.05, 128, 0.05
AUGMENT = {"hflip": 0.5, "pad_crop": 2}
Shape = Mapping[str, int]


def shape_of(model: hs.Classifier) -> dict[str, int]:
    """Return the arguments with which timm builds a ViT of this model's shape."""
    vit: Any = getattr(model.module, "model", model.module)
    patches = vit.patch_embed
    return {
        "img_size": patches.img_size[0],
        "patch_size": patches.patch_size[0],
        "in_chans": patches.proj.in_channels,
        "embed_dim": vit.embed_dim,
        "depth": len(vit.blocks),
        "num_heads": vit.blocks[0].attn.num_heads,
        "num_classes": vit.head.out_features,
    }


def vit(shape: Shape, **changes: int) -> nn.Module:
    """Build the single model from random weights."""
    import timm

    settings: dict[str, Any] = {**shape, **changes}
    model: nn.Module = timm.create_model("vit_tiny_patch16_224", **settings)
    return model


def packed_width(shape: Shape) -> int:
    """Return the least width, not below the model's, whose alpha-fold the members and their heads divide."""
    width = shape["embed_dim"]
    while ALPHA * width % (MEMBERS * shape["num_heads"]):
        width += 1
    return width


class Packed(nn.Module):
    """Members side by side in the channels; images [batch, channel, side, side]."""

    def __init__(self, shape: Shape) -> None:
        from torch_uncertainty import layers

        super().__init__()
        together = {"alpha": ALPHA, "num_estimators": MEMBERS}
        width, patch = packed_width(shape), shape["patch_size"]
        self.embed = layers.PackedConv2d(
            shape["in_chans"], width, patch, stride=patch, first=True, **together
        )
        tokens = (shape["img_size"] // patch) ** 2 + 1
        self.cls = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, 1, ALPHA * width), std=0.02))
        self.position = nn.Parameter(
            nn.init.trunc_normal_(torch.empty(1, tokens, ALPHA * width), std=0.02)
        )
        self.blocks = nn.ModuleList(
            layers.PackedTransformerEncoderLayer(
                d_model=width,
                nhead=shape["num_heads"],
                dim_feedforward=4 * width,
                dropout=0.0,
                activation=nn.functional.gelu,
                layer_norm_eps=1e-6,
                batch_first=True,
                norm_first=True,
                **together,
            )
            for _ in range(shape["depth"])
        )
        self.norm = layers.PackedLayerNorm(width, eps=1e-6, **together)
        self.classifier = layers.PackedLinear(width, shape["num_classes"], last=True, **together)
        for part in self.modules():
            # As they come, these two let members see each other: the norm takes all members' channels together, …
            if isinstance(part, layers.PackedLayerNorm):
                part.num_groups = MEMBERS
            # … and attention of a tensor to itself takes the first member's projections for queries, the second's for keys.
            if isinstance(part, layers.PackedMultiheadAttention):
                part.register_forward_pre_hook(split_views)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits [batch, member, class]."""
        patches = self.embed(images).flatten(2).transpose(1, 2)
        hidden = torch.cat([self.cls.expand(len(patches), -1, -1), patches], dim=1) + self.position
        for block in self.blocks:
            hidden = block(hidden)
        logits: Tensor = self.classifier(self.norm(hidden)[:, 0])
        return logits.unflatten(0, (MEMBERS, -1)).transpose(0, 1)


def split_views(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the same tensors as other objects, which the layer then projects one by one."""
    return tuple(tensor.view_as(tensor) for tensor in inputs)


class Mimo(nn.Module):
    """A ViT that reads an image for each member; images [batch, member, channel, side, side], or one for all."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        channels, classes = MEMBERS * shape["in_chans"], MEMBERS * shape["num_classes"]
        self.vit = vit(shape, in_chans=channels, num_classes=classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits [batch, member, class]."""
        if images.dim() == 4:
            images = images[:, None].expand(-1, MEMBERS, -1, -1, -1)
        logits: Tensor = self.vit(images.flatten(1, 2))
        return logits.unflatten(1, (MEMBERS, -1))


class RankOneLinear(nn.Module):
    """torch-uncertainty's BatchLinear on [member × batch, token, channel]."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, hidden: Tensor) -> Tensor:
        """Multiply each member's rows by its own weights W ∘ s rᵀ."""
        layer = self.layer
        weights = layer.linear.weight * layer.s_group[:, :, None] * layer.r_group[:, None]
        rows = hidden.reshape(MEMBERS, -1, hidden.shape[-1])
        result = torch.baddbmm(layer.bias[:, None], rows, weights.mT)
        return result.reshape(*hidden.shape[:-1], -1)


class RankOne(nn.Module):
    """BatchEnsemble: the single model's layers, each with factors of every member."""

    def __init__(self, shape: Shape) -> None:
        from torch_uncertainty.layers import BatchConv2d, BatchLinear

        super().__init__()
        self.vit = vit(shape)
        plain = [
            (name, part)
            for name, part in self.vit.named_modules()
            if isinstance(part, nn.Linear | nn.Conv2d)
        ]
        for name, part in plain:
            parent, _, last = name.rpartition(".")
            if isinstance(part, nn.Linear):
                layer = BatchLinear.from_linear(part, MEMBERS)
                shared, new = layer.linear, RankOneLinear(layer)
            else:
                new = layer = BatchConv2d.from_conv2d(part, MEMBERS)
                shared = layer.conv
            with torch.no_grad():  # from where the single model starts
                shared.weight.copy_(part.weight)
                assert part.bias is not None
                layer.bias.copy_(part.bias.expand(MEMBERS, -1))
            setattr(self.vit.get_submodule(parent), last, new)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits [batch, member, class]."""
        logits: Tensor = self.vit(images.repeat(MEMBERS, 1, 1, 1))
        return logits.unflatten(0, (MEMBERS, -1)).transpose(0, 1)


def same_batch(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Let all members learn from all images."""
    return images, labels[:, None].expand(-1, MEMBERS)


def mixed_batch(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Give each member another image of the batch, or, in a share of inputs, the same one."""
    from torch_uncertainty.transforms import MIMOBatchFormat

    form = MIMOBatchFormat(MEMBERS, rho=SAME_IMAGE, batch_repeat=REPEATS)
    images, labels = form((images, labels))
    return images.unflatten(0, (MEMBERS, -1)).transpose(0, 1), labels.unflatten(0, (MEMBERS, -1)).T


Presents = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
METHODS: Mapping[str, tuple[Callable[[Shape], nn.Module], Presents]] = {
    "packed": (Packed, same_batch),
    "mimo": (Mimo, mixed_batch),
    "batch": (RankOne, same_batch),
}
"""Name → how the model is built, and what its members see of a batch."""


def train(
    module: nn.Module,
    single: hs.Classifier,
    spec: str,
    presents: Presents,
    *,
    seed: int,
    epochs: int,
) -> None:
    """Train from random weights by AdamW with a cosine; the loss is the mean over members."""
    facts = single.manifest.model
    samples = fit_classes(open_data(spec), facts)
    transform = family_of(facts).transform(facts, AUGMENT, files={})
    optimizer = torch.optim.AdamW(module.parameters(), lr=RATE, weight_decay=DECAY)
    steps = epochs * (len(samples) // SIZE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, RATE, total_steps=steps, pct_start=WARMUP
    )
    random = np.random.default_rng(seed)
    module.train()
    for epoch in range(epochs):
        order = random.permutation(len(samples))
        batches = Batches(
            samples,
            transform,
            batch_size=SIZE,
            order=order,
            augment_seed=1_000_003 * seed + epoch,
            drop_last=True,
        )
        for batch in batches:
            assert batch.labels is not None
            images, labels = presents(batch.inputs, batch.labels)
            loss = cross_entropy(module(images).flatten(0, 1), labels.flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
            schedule.step()


@torch.no_grad()
def answer(
    module: nn.Module, single: hs.Classifier, spec: str
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return logits [sample, member, class] and labels, in the order of the samples."""
    samples = open_data(spec)
    if samples.labels is not None:
        samples = fit_classes(samples, single.manifest.model)
    logits, labels = [], []
    for batch in Batches(samples, single.transform, batch_size=64):
        logits.append(module(batch.inputs).float())
        labels.append(batch.labels if batch.labels is not None else torch.zeros(len(batch.index)))
    return torch.cat(logits).numpy(), torch.cat(labels).numpy()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("method", choices=METHODS)
    parser.add_argument("single", help="whose shape, classes and transforms are taken")
    parser.add_argument("train")
    parser.add_argument("out", type=Path)
    parser.add_argument("test")
    parser.add_argument("ood", nargs="*", metavar="near:NAME=D")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=30)
    options = parser.parse_args()
    single = hs.load(options.single, device="cpu")
    build, presents = METHODS[options.method]
    torch.manual_seed(options.seed)
    module = build(shape_of(single))
    train(module, single, options.train, presents, seed=options.seed, epochs=options.epochs)
    module.eval()
    logits, labels = answer(module, single, options.test)
    sets, near = {}, []
    for word in options.ood:
        name, _, spec = word.partition("=")
        group, _, name = name.rpartition(":")
        sets[name] = Outputs(answer(module, single, spec)[0], None)
        near += [name] * (group == "near")
    predictions = Predictions(
        name=options.out.stem,
        kind="ensemble",
        outputs=Outputs(logits, None, labels),
        ood=sets,
        near=near,
        task=task_of(single.manifest.model),
    )
    write_predictions(predictions, options.out)


if __name__ == "__main__":
    main()
