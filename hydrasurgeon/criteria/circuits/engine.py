"""Many one-head removals in one pass: what they have in common runs once (paper D.1.2, the same
numbers for less).

A removal in layer l leaves all layers before it as they are, so candidates branch off the present
circuit where they differ from it. Within a layer they share one attention pass: W_O acts on each
head by itself,

    MHA without h = MHA − Z_h W_O,h

and in the last layer only the tokens that the classifier reads are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import linear

from hydrasurgeon.anatomy.layers import (
    Hidden,
    after_attention,
    attention_input,
    layer_bias,
    merge,
    mixed,
    queries_keys_values,
    related,
    silent,
)
from hydrasurgeon.anatomy.parts import Anatomy, Prompted, Stack
from hydrasurgeon.criteria.circuits.objective import Held, Problem
from hydrasurgeon.heads import Head


class CircuitEngine:
    """A live model without the heads removed so far, and each of its candidates."""

    def __init__(self, anatomy: Anatomy, *, together: int) -> None:
        self.anatomy = anatomy
        self.together = together
        """Number of sequences that run at once."""
        self.removed: frozenset[Head] = frozenset()

    def remove(self, heads: Sequence[Head]) -> None:
        """Set the present circuit to the model without these heads."""
        self.removed = frozenset(heads)

    def present(self, inputs: Any) -> Float[Tensor, "batch klass"]:
        """Return the logits of the present circuit."""
        stack = self.anatomy.embed(inputs)
        return self._finish(stack.hidden, stack.bias, 0)

    def without_each(
        self, inputs: Any, candidates: Sequence[Head]
    ) -> Float[Tensor, "candidate batch klass"]:
        """Return the logits of the present circuit without each of these heads."""
        stack = self.anatomy.embed(inputs)
        hidden, size = stack.hidden, max(1, self.together // len(stack.hidden))
        logits_of: dict[Head, Tensor] = {}
        for at, block in enumerate(self.anatomy.blocks):
            site = block.attention
            heads, attended = self._attention(at, hidden, stack.bias)
            joined_heads = attended.flatten(0, 1)
            branches = [h for h in candidates if (h.tower, h.layer) == (site.tower, site.layer)]
            for start in range(0, len(branches), size):
                group = branches[start : start + size]
                less = []
                for i in (site.heads.index(head.number) for head in group):
                    weight = site.out.weight[:, i * site.width : (i + 1) * site.width]
                    less.append(
                        torch.addmm(joined_heads, heads[:, i].flatten(0, 1), weight.T, alpha=-1)
                    )
                branched = torch.stack(less).unflatten(1, attended.shape[:2])
                logits = self._finish(
                    after_attention(block, hidden, branched).flatten(0, 1), stack.bias, at + 1
                )
                logits_of.update(zip(group, logits.unflatten(0, (len(group), -1)), strict=True))
            if len(logits_of) == len(candidates):
                break
            hidden = after_attention(block, hidden, attended)
        return torch.stack([logits_of[head] for head in candidates])

    def _finish(self, hidden: Hidden, bias: Tensor | None, start: int) -> Float[Tensor, "b klass"]:
        """Run the layers from `start` on, and the classifier."""
        bias = _for_each(bias, len(hidden))
        for at, block in enumerate(self.anatomy.blocks[start:], start):
            _, attended = self._attention(at, hidden, bias)
            hidden = after_attention(block, hidden, attended)
        return self.anatomy.readout(Stack(hidden, bias))

    def _attention(
        self, at: int, hidden: Hidden, bias: Tensor | None
    ) -> tuple[Float[Tensor, "batch head token width"], Hidden]:
        """Return every head's output, zero for removed ones, and that of the attention."""
        block = self.anatomy.blocks[at]
        site, x = block.attention, attention_input(block, hidden)
        tokens = self.anatomy.reads if at == len(self.anatomy.blocks) - 1 else None
        if not site.heads:
            return x.new_zeros(0), silent(site, x, tokens)
        q, k, v = queries_keys_values(site, x, tokens)
        mask = related(site, layer_bias(site, x, bias, site.heads, tokens), q, k, site.heads)
        heads = mixed(site, q, k, v, mask)
        here = [Head(site.tower, site.layer, number) not in self.removed for number in site.heads]
        if not all(here):
            heads = heads * torch.tensor(here, device=x.device)[:, None, None]
        return heads, linear(merge(heads), site.out.weight, site.out.bias)


def _for_each(bias: Tensor | None, sequences: int) -> Tensor | None:
    """Repeat a batch's bias for candidates that run one after another on that batch."""
    if bias is None or bias.shape[0] in (1, sequences):
        return bias
    return bias.repeat(sequences // bias.shape[0], 1, 1, 1)


NUMBER = "number"
"""Name under which inputs carry their sample number."""


def numbered(id_inputs: Held, ood_inputs: Held) -> tuple[Held, Held]:
    """Return the inputs with their number among all samples."""

    def with_places(held: Held, first: int) -> Held:
        places = torch.arange(first, first + len(held))
        parts = {name or "pixel_values": part for name, part in held.parts.items()}
        return replace(held, parts={**parts, NUMBER: places}, named=True) if len(held) else held

    return with_places(id_inputs, 0), with_places(ood_inputs, len(id_inputs))


def circuit_engine(problem: Problem) -> CircuitEngine:
    """Return the engine of the candidates' tower; one of both towers if some are in the second."""
    reached = {block.attention.tower for block in problem.anatomy.blocks}
    prompted = problem.anatomy.prompted
    if prompted is None or all(head.tower in reached for head in problem.candidates):
        return CircuitEngine(problem.anatomy, together=problem.together)
    return TwoTowerEngine(problem, prompted)


class TwoTowerEngine(CircuitEngine):
    """The engine of the image tower, with that of the text tower inside; problem.world shares what
    is common.
    """

    def __init__(self, problem: Problem, prompted: Prompted) -> None:
        images = replace(problem.anatomy, readout=prompted.features)
        super().__init__(images, together=problem.together)
        self.problem, self.prompted = problem, prompted
        self.texts = CircuitEngine(prompted.tower, together=problem.together)
        self._image_towers = {block.attention.tower for block in images.blocks}
        self._see()
        self._name()

    def remove(self, heads: Sequence[Head]) -> None:
        """Remove heads, and recompute only the tower whose heads changed."""
        image = frozenset(head for head in heads if head.tower in self._image_towers)
        text = frozenset(heads) - image
        if image != self.removed:
            self.removed = image
            self._see()
        if text != self.texts.removed:
            self.texts.removed = text
            self._name()

    def present(self, inputs: Any) -> Float[Tensor, "batch klass"]:
        return self.prompted.compare(self._features[inputs[NUMBER]], self._classes)

    def without_each(
        self, inputs: Any, candidates: Sequence[Head]
    ) -> Float[Tensor, "candidate batch klass"]:
        image = [head for head in candidates if head.tower in self._image_towers]
        text = [head for head in candidates if head.tower not in self._image_towers]
        logits_of: dict[Head, Tensor] = {}
        if image:
            features = super().without_each(inputs, image)
            logits_of |= zip(image, self.prompted.compare(features, self._classes), strict=True)
        if text:
            classes = torch.stack([self._without[head] for head in text])
            logits = self.prompted.compare(self._features[inputs[NUMBER]][None], classes)
            logits_of |= zip(text, logits, strict=True)
        return torch.stack([logits_of[head] for head in candidates])

    @torch.inference_mode()
    def _see(self) -> None:
        """Compute the features of all images, without the removed image heads."""
        sets = [self.problem.id_inputs]
        if self.problem.objective.needs_ood:
            sets.append(self.problem.ood_inputs)
        size = self.problem.batch_size
        parts = [(held, index) for held in sets for index in torch.arange(len(held)).split(size)]
        present = super().present
        self._features = torch.cat(self._shared(parts, lambda part: present(part[0].take(part[1]))))

    @torch.inference_mode()
    def _name(self) -> None:
        """Compute class features without the removed text heads, and without each other text head."""
        left = [
            h for h in self.problem.left(self.texts.removed) if h.tower not in self._image_towers
        ]
        device = self.problem.id_inputs.device
        prompts_by_class = self.prompted.prompts.to(device).unflatten(0, (self.prompted.count, -1))

        def classes(part: Tensor) -> Tensor:
            texts = part.flatten(0, 1)
            features = self.texts.present(texts)[None]
            if left:
                features = torch.cat([features, self.texts.without_each(texts, left)])
            return self.prompted.classes(features.unflatten(1, part.shape[:2]))

        parts = prompts_by_class.split(max(1, self.together // prompts_by_class.shape[1]))
        present, *without = torch.cat(self._shared(parts, classes), dim=1)
        self._classes, self._without = present, dict(zip(left, without, strict=True))

    def _shared(self, parts: Sequence[Any], make: Callable[[Any], Tensor]) -> list[Tensor]:
        tensors = self.problem.world.shared(parts, lambda part: make(part).cpu())
        return [tensor.to(self.problem.id_inputs.device) for tensor in tensors]
