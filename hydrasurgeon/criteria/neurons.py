"""Importance of each neuron of an MLP, and the choice of those that go.

taylor      mean over samples of |∂L/∂m|     m multiplies what the neuron says to every token
magnitude   mean |W| of its rows of W_1, times that of its column of W_2
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hydrasurgeon.checkpoints.checkpoint import Single
from hydrasurgeon.criteria.base import HeadScores, Subject
from hydrasurgeon.criteria.selection import scored_layers
from hydrasurgeon.errors import SurgeryError
from hydrasurgeon.files.manifest import Score
from hydrasurgeon.heads import NEURONS, Layers, parse_towers
from hydrasurgeon.options.making import PruneOptions


def random(subject: Subject) -> HeadScores:
    check_neurons(subject.checkpoint, subject.towers)
    rng = np.random.default_rng(subject.run.seed)
    rows = {tower: subject.checkpoint.kept[f"{tower}{NEURONS}"] for tower in subject.towers}
    return {
        (tower, at): rng.random(len(row)).tolist()
        for tower in rows
        for at, row in enumerate(rows[tower])
    }


def taylor(subject: Subject) -> HeadScores:
    import torch

    from hydrasurgeon.anatomy.hooks import removed
    from hydrasurgeon.anatomy.word_logits import samples_of

    check_neurons(subject.checkpoint, subject.towers)
    model = subject.module
    blocks = [
        b
        for b in subject.checkpoint.family.anatomy(model).blocks
        if b.attention.tower in subject.towers
    ]
    model.requires_grad_(False)
    sums: dict[tuple[str, int], Any] = {}
    for inputs, labels in subject.batches("gradients of the neurons"):
        masks = [
            torch.ones(len(labels), b.out.in_features, device=labels.device, requires_grad=True)
            for b in blocks
        ]
        rows = samples_of(inputs, len(labels))
        hooks = [
            b.out.register_forward_pre_hook(_scaled(mask[rows]))
            for b, mask in zip(blocks, masks, strict=True)
        ]
        with removed(*hooks):
            loss = subject.losses(model(inputs), labels).sum()
        for block, gradients in zip(blocks, torch.autograd.grad(loss, masks), strict=True):
            place = block.attention.tower, block.attention.layer
            sums[place] = sums.get(place, 0) + gradients.double().abs().sum(dim=0).cpu()
    return {place: (values / subject.samples).tolist() for place, values in sums.items()}


def _scaled(mask: Any) -> Callable[[Any, tuple[Any, ...]], tuple[Any, ...]]:
    """Return a hook that multiplies the input of W_2 by a sample's mask, for any axes between."""

    def scale(_: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        x = args[0]
        factors = mask.view(len(mask), *[1] * (x.dim() - 1), -1).to(x.dtype)
        return (x.unflatten(0, (len(mask), -1)) * factors).flatten(0, 1), *args[1:]

    return scale


def magnitude(subject: Subject) -> HeadScores:
    checkpoint = subject.checkpoint
    check_neurons(checkpoint, subject.towers)
    scores: HeadScores = {}
    for tower in subject.towers:
        for layer, row in enumerate(checkpoint.kept[f"{tower}{NEURONS}"]):
            into, out = [], []
            for axis, weights in subject.matrices(f"{tower}{NEURONS}", layer):
                values = np.abs(weights)
                if axis.axis == 0:
                    into += list(values.reshape(axis.blocks, len(row), -1).mean(axis=-1))
                else:
                    out.append(values.reshape(-1, len(row)).mean(axis=0))
            scores[tower, layer] = (np.mean(into, axis=0) * out[0]).tolist()
    return scores


def check_neurons(checkpoint: Single, towers: tuple[str, ...]) -> None:
    """Refuse MLPs that cannot be cut."""
    lacking = [tower for tower in towers if f"{tower}{NEURONS}" not in checkpoint.kept]
    if lacking:
        raise SurgeryError(
            f"{checkpoint.path}: its MLPs normalise over all neurons, so none can be removed",
            hint="Prune heads only.",
        )


def choose_neurons(
    checkpoint: Single, score: Score, share: float, options: PruneOptions
) -> dict[str, Layers]:
    """Choose the neurons that stay, by tower: this fraction of those present, in every layer."""
    assert score.values is not None
    manifest = checkpoint.manifest
    towers = [name for name in parse_towers(options.tower, manifest.towers) if name in score.values]
    check_neurons(checkpoint, tuple(towers))
    most = max(manifest.towers[name].layers for name in towers)
    chosen = scored_layers(score, options.layers, most)
    kept = {}
    for name in towers:
        rows = list(checkpoint.kept[f"{name}{NEURONS}"])
        for layer in chosen & set(range(len(rows))):
            worth = score.values[name][layer]
            best = sorted(rows[layer], key=lambda neuron: (-worth[neuron], neuron))
            rows[layer] = tuple(sorted(best[: max(1, round(share * len(best)))]))
        kept[name] = tuple(rows)
    return kept
