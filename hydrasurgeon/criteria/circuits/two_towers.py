"""Circuits of a model whose classifier is made of texts by a second tower (paper D.3: heads of both, pruned jointly).

    logits = scale · image features · class featuresᵀ

A removal in one tower leaves the other's features as they are. Image features of the present circuit are
computed once for each set of image heads that are gone; a text head then costs one pass of the prompts and
one product with them, an image head is searched as in any other model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from hydrasurgeon.anatomy.parts import Prompted
from hydrasurgeon.criteria.circuits.engine import Engine, Work
from hydrasurgeon.criteria.circuits.inputs import Held
from hydrasurgeon.criteria.circuits.problem import Problem
from hydrasurgeon.heads import Head

NUMBER = "number"
"""Under which name inputs say which of all samples they are."""


def numbered(id_inputs: Held, ood_inputs: Held) -> tuple[Held, Held]:
    """The same inputs, which know their place among all of them."""

    def with_places(held: Held, first: int) -> Held:
        places = torch.arange(first, first + len(held))
        parts = {name or "pixel_values": part for name, part in held.parts.items()}
        return replace(held, parts={**parts, NUMBER: places}, named=True) if len(held) else held

    return with_places(id_inputs, 0), with_places(ood_inputs, len(id_inputs))


def engine_of(problem: Problem) -> Engine:
    """One for both towers where heads of the second are candidates."""
    reached = {block.attention.tower for block in problem.anatomy.blocks}
    prompted = problem.anatomy.prompted
    if prompted is None or all(head.tower in reached for head in problem.candidates):
        return Engine(problem.anatomy, together=problem.together)
    return Towers(problem, prompted)


class Towers(Engine):
    """The engine of the image tower, with that of the text tower inside; problem.world shares what is common."""

    def __init__(self, problem: Problem, prompted: Prompted) -> None:
        images = replace(problem.anatomy, readout=prompted.features)
        super().__init__(images, together=problem.together)
        self.problem, self.prompted = problem, prompted
        self.texts = Engine(prompted.tower, together=problem.together)
        self._own = {block.attention.tower for block in images.blocks}
        self._gone: dict[bool, list[Head]] = {True: [], False: []}
        self._see()
        self._name()

    def remove(self, heads: Sequence[Head]) -> None:
        """What the last head changes is counted as work: a search that was resumed makes the rest anew."""
        before, last = replace(self.work), heads[-1:]
        for image, renew in ((True, self._see), (False, self._name)):
            gone = [head for head in heads if (head.tower in self._own) is image]
            if gone == self._gone[image]:
                continue
            self._gone[image] = gone
            super().remove(gone) if image else self.texts.remove(gone)
            renew()
            if last != gone[-1:]:
                self.work = replace(before)
            before = replace(self.work)

    def present(self, inputs: Any) -> Float[Tensor, "batch klass"]:
        return self.prompted.compare(self._features[inputs[NUMBER]], self._classes)

    def without_each(self, inputs: Any, candidates: Sequence[Head]) -> Float[Tensor, "candidate batch klass"]:
        image = [head for head in candidates if head.tower in self._own]
        text = [head for head in candidates if head.tower not in self._own]
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
        """Features of all images, without the image heads that are gone."""
        sets = [self.problem.id_inputs]
        if self.problem.objective.needs_ood:
            sets.append(self.problem.ood_inputs)
        size = self.problem.batch_size
        parts = [(held, index) for held in sets for index in torch.arange(len(held)).split(size)]
        present = super().present

        def features(i: int) -> Tensor:
            held, index = parts[i]
            return present(held.take(index))

        self._features = torch.cat(self._shared(len(parts), features))

    @torch.inference_mode()
    def _name(self) -> None:
        """Class features without the text heads that are gone, and without each other one."""
        left = [h for h in self.problem.left(self._gone[False]) if h.tower not in self._own]
        device = self.problem.id_inputs.device
        each = self.prompted.prompts.to(device).unflatten(0, (self.prompted.count, -1))
        parts = each.split(max(1, self.together // each.shape[1]))

        def classes(i: int) -> Tensor:
            texts = parts[i].flatten(0, 1)
            features = self.texts.present(texts)[None]
            if left:
                features = torch.cat([features, self.texts.without_each(texts, left)])
            return self.prompted.classes(features.unflatten(1, parts[i].shape[:2]))

        present, *without = torch.cat(self._shared(len(parts), classes), dim=1)
        self._classes, self._without = present, dict(zip(left, without, strict=True))
        self.work.layers += self.texts.work.layers
        self.work.parts += self.texts.work.parts
        self.texts.work = Work()

    def _shared(self, count: int, make: Callable[[int], Tensor]) -> list[Tensor]:
        """The first `count` results, each made by one process."""
        world, device = self.problem.world, self.problem.id_inputs.device
        mine = [(i, make(i)) for i in range(world.rank, count, world.size)]
        if world.size == 1:
            return [made for _, made in mine]
        everyone = world.gather([(i, made.cpu()) for i, made in mine])
        results = sorted((pair for part in everyone for pair in part), key=lambda pair: pair[0])
        return [made.to(device) for _, made in results]
