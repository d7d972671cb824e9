"""Many one-head removals in one pass: what they have in common runs once (paper D.1.2, the same
numbers for less).

A removal in layer l leaves all layers before it as they are, so candidates branch off the present
circuit where they differ from it. Within a layer they share one attention pass: W_O acts on each
head by itself,

    MHA without h = MHA − Z_h W_O,h

and in the last layer only the tokens that the classifier reads are computed. Heads that are gone
are cut out of the weights instead of being masked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

from hydrasurgeon.anatomy.layers import (
    after_attention,
    attention_input,
    layer_bias,
    merge,
    mixed,
    placed,
    related,
    shared,
    side_by_side,
    split_heads,
)
from hydrasurgeon.anatomy.parts import Anatomy, Block, Prompted, Stack
from hydrasurgeon.criteria.circuits.objective import Held, Problem
from hydrasurgeon.heads import Head, HeadAxis, positions, take_heads

Hidden = Float[Tensor, "batch token embed"]
SHORT = 64
"""So many tokens are few: the fused kernel's set-up for each head then costs more than the
attention.
"""
LARGE = 60.0
"""exp of this, and of its negative, are far from float32's limits."""


@dataclass
class Work:
    """What ran, in samples × layers."""

    layers: int = 0
    parts: int = 0
    """Layers of which only a part ran: behind the shared attention, or for the classifier's token
    alone.
    """


class Engine:
    """A live model without the heads removed so far, and each of its candidates."""

    def __init__(self, anatomy: Anatomy, *, together: int) -> None:
        self.anatomy = anatomy
        self.together = together
        """How many sequences run at once."""
        self.work = Work()
        self._layers = [_Layer(block) for block in anatomy.blocks]

    def remove(self, heads: Sequence[Head]) -> None:
        """The present circuit is the model without these heads."""
        for layer in self._layers:
            layer.remove(heads)

    def present(self, inputs: Any) -> Float[Tensor, "batch klass"]:
        """Logits of the present circuit."""
        stack = self.anatomy.embed(inputs)
        return self._finish(stack.hidden, stack.bias, 0)

    def without_each(
        self, inputs: Any, candidates: Sequence[Head]
    ) -> Float[Tensor, "candidate batch klass"]:
        """Logits of the present circuit without each of these heads."""
        stack = self.anatomy.embed(inputs)
        hidden, bias = stack.hidden, stack.bias
        places = {(layer.site.tower, layer.site.layer): at for at, layer in enumerate(self._layers)}
        branching: dict[int, list[Head]] = {}
        for head in candidates:
            branching.setdefault(places[head.tower, head.layer], []).append(head)
        size = max(1, self.together // len(hidden))
        logits_of: dict[Head, Tensor] = {}
        for at, layer in enumerate(self._layers[: max(branching) + 1]):
            one = self._one_token_at(at)
            heads, attended = layer.attention(hidden, bias, one)
            branches = branching.get(at, [])
            for group in (
                branches[start : start + size] for start in range(0, len(branches), size)
            ):
                self.work.parts += len(group) * len(hidden)
                less = layer.without_each(heads, attended, group)
                logits = self._finish(
                    after_attention(layer.block, hidden, less).flatten(0, 1), bias, at + 1
                )
                logits_of.update(zip(group, logits.unflatten(0, (len(group), -1)), strict=True))
            if at < max(branching):
                self._count(at, len(hidden))
                hidden = after_attention(layer.block, hidden, attended)
        return torch.stack([logits_of[head] for head in candidates])

    def _finish(self, hidden: Hidden, bias: Tensor | None, start: int) -> Float[Tensor, "b klass"]:
        """The layers from `start` on, and the classifier."""
        for at, layer in enumerate(self._layers[start:], start):
            one = self._one_token_at(at)
            self._count(at, len(hidden))
            _, attended = layer.attention(hidden, bias, one)
            hidden = after_attention(layer.block, hidden, attended)
        return self.anatomy.readout(Stack(hidden, _for_each(bias, len(hidden))))

    def _one_token_at(self, layer: int) -> bool:
        """Whether of this layer's output only the first token is read."""
        return self.anatomy.reads == 1 and layer == len(self._layers) - 1

    def _count(self, layer: int, sequences: int) -> None:
        if self._one_token_at(layer):
            self.work.parts += sequences
        else:
            self.work.layers += sequences


class _Layer:
    """One layer with the weights of the heads it still has, q, k and v in one matrix."""

    def __init__(self, block: Block) -> None:
        self.block, self.site = block, block.attention
        self.remove(())

    def remove(self, heads: Sequence[Head]) -> None:
        site = self.site
        gone = {h.number for h in heads if (h.tower, h.layer) == (site.tower, site.layer)}
        self.heads = [number for number in site.heads if number not in gone]
        at = positions(site.heads, self.heads)
        blocks = 3 if len(site.project) == 1 else 1

        def rows(name: str) -> Tensor | None:
            parts = [getattr(project, name) for project in site.project]
            if all(part is None for part in parts):
                return None
            parts = [
                project.weight.new_zeros(project.out_features) if part is None else part
                for part, project in zip(parts, site.project, strict=True)
            ]
            spec = HeadAxis(axis=0, blocks=blocks)
            pairs = zip(parts, site.rows, strict=True)
            return torch.cat(
                [take_heads(part, at, spec=spec, head_dim=size) for part, size in pairs]
            )

        weight, self.bias = rows("weight"), rows("bias")
        assert weight is not None
        self.weight = weight
        spec = HeadAxis(axis=1)
        self.out = take_heads(site.out.weight, at, spec=spec, head_dim=site.width).contiguous()
        self.outs = self.out.T.contiguous().unflatten(0, (-1, site.width))

    def attention(
        self, hidden: Hidden, bias: Tensor | None, one: bool
    ) -> tuple[Float[Tensor, "batch head token width"], Hidden]:
        """Every head's output, and that of the attention; the first token's only if `one`."""
        x = attention_input(self.block, hidden)
        if not self.heads:
            heads = x.new_zeros(len(x), 0, 1 if one else x.shape[1], self.site.width)
        elif one:
            heads = self._first_token(x, bias)
        else:
            heads = self._all_tokens(x, bias)
        return heads, linear(merge(heads), self.out, self.site.out.bias)

    def _all_tokens(self, x: Hidden, bias: Tensor | None) -> Tensor:
        site = self.site
        sizes = [len(self.heads) * rows for rows in (site.width, site.head_dim, site.head_dim)]
        projected = linear(x, self.weight, self.bias).split(sizes, dim=-1)
        q, k, v = (split_heads(part, 1, site.head_dim)[0] for part in projected)
        q, k = placed(site, site.q_norm(q), site.k_norm(k))
        mask = related(site, self._mask(x, bias), q, k, self.heads)
        if (
            x.device.type == "cpu"
            and x.dtype == torch.float32
            and x.shape[1] <= SHORT
            and site.softcap is None
        ):
            heads = _short(q * site.scale, shared(site, k), shared(site, v), mask)
            if heads is not None:
                return side_by_side(site, heads)
        return mixed(site, q, k, v, mask)

    def _first_token(self, x: Hidden, bias: Tensor | None) -> Tensor:
        """One query needs no keys and values of its own: q·(W_K x) = (q W_K)·x and Σ a (W_V x) =
        W_V (Σ a x).

        The key's bias adds the same to all tokens, which softmax does not see.
        """
        site = self.site
        wq, wk, wv = self.weight.unflatten(0, (3, -1, site.head_dim)).unbind(0)
        bq, bk, bv = (
            (None, None, None)
            if self.bias is None
            else self.bias.unflatten(0, (3, -1, site.head_dim)).unbind(0)
        )
        flat = None if bq is None else bq.flatten()
        (q,) = split_heads(linear(x[:, :1], wq.flatten(0, 1), flat), 1, site.head_dim)
        q = site.q_norm(q)
        mask = self._mask(x, bias)
        if isinstance(site.k_norm, nn.Identity) and site.rotate is None and site.relative is None:
            weighted = torch.bmm((q.squeeze(2) * site.scale).transpose(0, 1), wk).transpose(0, 1)
            logits = torch.bmm(weighted, x.transpose(1, 2))
        else:
            keys = linear(x, wk.flatten(0, 1), None if bk is None else bk.flatten())
            (k,) = split_heads(keys, 1, site.head_dim)
            q, k = placed(site, q, site.k_norm(k))
            logits = (q * site.scale @ k.transpose(2, 3)).squeeze(2)
            mask = related(site, mask, q, k, self.heads)
        if mask is not None:
            logits = logits + mask[:, :, 0]
        read = torch.bmm(logits.softmax(dim=-1), x)
        heads = torch.bmm(read.transpose(0, 1), wv.transpose(1, 2)).transpose(0, 1)
        return (heads if bv is None else heads + bv)[:, :, None]

    def _mask(self, x: Hidden, bias: Tensor | None) -> Tensor | None:
        """The mask of a batch for these heads, and for several candidates on that batch."""
        return layer_bias(self.site, x, _for_each(bias, len(x)), self.heads)

    def without_each(
        self, heads: Float[Tensor, "batch head token width"], attended: Hidden, of: Sequence[Head]
    ) -> Float[Tensor, "candidate batch token embed"]:
        """The attention's output less Z_h W_O,h, for each of these heads."""
        at = positions(self.heads, [head.number for head in of])
        every = attended.flatten(0, 1)
        less = [torch.addmm(every, heads[:, i].flatten(0, 1), self.outs[i], alpha=-1) for i in at]
        return torch.stack(less).unflatten(1, attended.shape[:2])


def _for_each(bias: Tensor | None, sequences: int) -> Tensor | None:
    """A batch's bias for several candidates on that batch, one after another."""
    if bias is None or bias.shape[0] in (1, sequences):
        return bias
    return bias.repeat(sequences // bias.shape[0], 1, 1, 1)


def _short(
    q: Float[Tensor, "batch head token head_dim"],
    k: Float[Tensor, "batch head token head_dim"],
    v: Float[Tensor, "batch head token head_dim"],
    mask: Tensor | None,
) -> Float[Tensor, "batch head token head_dim"] | None:
    """softmax(q·k) v without the pass that looks for each row's largest logit; None where that is
    not safe.
    """
    logits = q @ k.transpose(2, 3)
    if mask is not None:
        logits += mask
    if float(logits.amax()) > LARGE:
        return None
    weights = logits.exp_()
    total = weights.sum(dim=-1, keepdim=True)
    return (weights @ v) / total if float(total.amin()) > exp(-LARGE) else None


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
    """The engine of the image tower, with that of the text tower inside; problem.world shares what
    is common.
    """

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
        """What the last head changes is counted as work: a search that was resumed makes the rest
        anew.
        """
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

    def without_each(
        self, inputs: Any, candidates: Sequence[Head]
    ) -> Float[Tensor, "candidate batch klass"]:
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
