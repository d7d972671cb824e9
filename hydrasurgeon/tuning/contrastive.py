"""LiT: a text tower learns to meet a locked image tower on image–text pairs (paper D.3).

    L = ½ Σ_i [−ln softmax(s · t_i · vᵀ)_i − ln softmax(s · v_i · tᵀ)_i] / N
    s = exp(logit_scale)

over the N pairs of a step: all batches that it accumulates, of all processes; for SigLIP, to which
each image with each text is a decision of its own, −Σ_ij ln σ(±(s · v_i · t_j + b)) / N, with +
where i = j. Only their features are held together. The loss is differentiated by the text features
first, each process for its own rows of the two matrices; then each batch runs once more and carries
its part of that gradient into the text tower. What comes out is the gradient of one batch of N
pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, logsigmoid, one_hot

from hydrasurgeon.data import Batch
from hydrasurgeon.data.pairs import Pairing

LARGEST = math.log(100)
"""logit_scale is kept below it, as OpenCLIP does."""
CHUNK = 1024
"""Rows of the matrices that are held at once."""


@dataclass(frozen=True)
class Gradients:
    """Gradients of the loss, or of what some rows contribute to it."""

    loss: Tensor
    texts: Float[Tensor, "pair embed"]
    scale: Tensor
    """By exp(logit_scale)."""
    bias: Tensor


def contrast(
    images: Float[Tensor, "pair embed"],
    texts: Float[Tensor, "pair embed"],
    scale: Tensor,
    bias: Tensor | None = None,
    *,
    pairwise: bool = False,
    rows: range | None = None,
) -> Gradients:
    """The share of these rows (all, if none are named) in the loss, and its gradient."""
    texts, scale = texts.detach().requires_grad_(), scale.detach().requires_grad_()
    bias = (torch.zeros_like(scale) if bias is None else bias.detach()).requires_grad_()
    loss = texts.new_zeros(())
    rows = range(len(images)) if rows is None else rows
    with torch.enable_grad():
        for start in range(rows.start, rows.stop, CHUNK):
            here = slice(start, min(start + CHUNK, rows.stop))
            truth = torch.arange(here.start, here.stop, device=images.device)
            by_image = scale * images[here] @ texts.T + bias
            if pairwise:
                sign = 2 * one_hot(truth, len(texts)) - 1
                share = -logsigmoid(sign * by_image).sum() / len(images)
            else:
                by_text = scale * texts[here] @ images.T + bias
                share = cross_entropy(by_image, truth, reduction="sum")
                share = (share + cross_entropy(by_text, truth, reduction="sum")) / (2 * len(images))
            share.backward()  # type: ignore[no-untyped-call]
            loss += share.detach()
    zero = torch.zeros_like
    computed = (texts.grad, scale.grad, bias.grad)
    grads = [
        zero(x) if g is None else g for x, g in zip((texts, scale, bias), computed, strict=True)
    ]
    return Gradients(loss, *grads)


class Contrast:
    """The objective of a training run on pairs; `clip` is the zero-shot module of a family, whose
    features are normalised.
    """

    def __init__(self, clip: Any) -> None:
        self.clip = clip
        tuned = {
            id(parameter)
            for part in clip.text_parts()
            for parameter in (part.parameters() if isinstance(part, nn.Module) else (part,))
        }
        self._tuned = {name for name, p in clip.named_parameters() if id(p) in tuned}

    def among(self, moves: Callable[[str], bool]) -> Callable[[str], bool]:
        """Of what a recipe trains the text tower, its projection and the scale; the image tower is
        locked.
        """
        return lambda name: name in self._tuned and moves(name)

    def transform(self, prepare: Callable[[Any], Tensor]) -> Pairing:
        return Pairing(prepare, self.clip.tokenize)

    def backward(self, accelerator: Any, model: nn.Module, parts: Sequence[Batch]) -> float:
        """Gradients of one step over all its pairs; the loss."""
        clip, device = self.clip, accelerator.device
        tokens = [part.inputs["texts"].to(device) for part in parts]
        clip.image_tower.eval()
        with torch.no_grad(), accelerator.autocast():
            images = [clip.image_features(part.inputs["pixel_values"].to(device)) for part in parts]
            features_of_parts = [] if len(parts) == 1 else [clip.text_features(t) for t in tokens]
        # A single batch need not run twice.
        alone = model({"texts": tokens[0]}) if len(parts) == 1 else None
        texts = torch.cat(features_of_parts) if alone is None else alone.detach()
        gradients, mine = _together(torch.cat(images).float(), texts.float(), clip)
        shares = gradients.texts[mine.start : mine.stop].split([len(t) for t in tokens])
        for i, share in enumerate(shares):
            last = i + 1 == len(parts)
            with nullcontext() if last else accelerator.no_sync(model):
                features = alone if alone is not None else model({"texts": tokens[i]})
                # Processes average their gradients; the loss is a sum over them.
                carried = accelerator.num_processes * (features.float() * share).sum()
                if last:
                    carried = carried + (clip.log_scale.exp() * gradients.scale).sum()
                    if clip.shift is not None:
                        carried = carried + (clip.shift * gradients.bias).sum()
                accelerator.backward(carried)
        return float(gradients.loss)

    def settle(self) -> None:
        """After the optimizer's step."""
        if not self.clip.pairwise:
            with torch.no_grad():
                self.clip.log_scale.clamp_(0, LARGEST)


def _together(images: Tensor, texts: Tensor, clip: Any) -> tuple[Gradients, range]:
    """The loss over the pairs of all processes and its gradient, and which of the pairs are this
    one's.
    """
    scale, bias, pairwise = clip.log_scale.detach().exp(), clip.shift, clip.pairwise
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return contrast(images, texts, scale, bias, pairwise=pairwise), range(len(images))
    all_images, counts = _gathered(images)
    all_texts, _ = _gathered(texts)
    start = sum(counts[: dist.get_rank()])
    mine = range(start, start + len(images))
    share = contrast(all_images, all_texts, scale, bias, pairwise=pairwise, rows=mine)
    for tensor in (share.loss, share.texts, share.scale, share.bias):
        dist.all_reduce(tensor)
    return share, mine


def _gathered(rows: Tensor) -> tuple[Tensor, list[int]]:
    """The rows of all processes, and how many each has: unreadable images may have been left out."""
    counts = [
        torch.zeros(1, dtype=torch.long, device=rows.device) for _ in range(dist.get_world_size())
    ]
    dist.all_gather(counts, torch.tensor([len(rows)], device=rows.device))
    sizes = [int(count) for count in counts]
    padded = rows.new_zeros(max(sizes), rows.shape[1])
    padded[: len(rows)] = rows
    everyone = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(everyone, padded)
    return torch.cat([part[:size] for part, size in zip(everyone, sizes, strict=True)]), sizes
