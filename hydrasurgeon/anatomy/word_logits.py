"""Words: what a token classifier answers for, by the first token of each.

A batch of its inputs holds windows of texts, and under `words` where each word of each text stands
among their tokens: [text, word], window · length + token, −1 where a text has no such word. Logits of
tokens become logits of words, [text, member, word, class], which then are what every task
has: one row a sample. A place without a word holds `NOTHING` in all classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hydrasurgeon.statistics.padded_words import NOTHING

WORDS = "words"
"""The input that says where words stand."""


def of_words(
    tokens: Float[Tensor, "window *member token klass"], words: Int[Tensor, "text word"]
) -> Float[Tensor, "text *member word klass"]:
    """Gather the logits of each word's first token."""
    by_member = tokens.movedim(0, -3)
    flat = by_member.flatten(-3, -2)
    nothing = flat.new_full((*flat.shape[:-2], 1, flat.shape[-1]), NOTHING)
    held = torch.cat([flat, nothing], dim=-2)
    # −1 is the last place.
    places = torch.where(words < 0, held.shape[-2] - 1, words)
    picked = held.index_select(-2, places.flatten())
    return picked.unflatten(-2, tuple(words.shape)).movedim(-3, 0)


def samples_of(inputs: Any, count: int) -> Int[Tensor, " row"]:
    """Return the sample that each row of a batch belongs to; a long text has several windows."""
    if not isinstance(inputs, Mapping) or WORDS not in inputs:
        return torch.arange(count)
    words = inputs[WORDS]
    windows, length = next(tensor.shape for name, tensor in inputs.items() if name != WORDS)
    text, _ = (words >= 0).nonzero(as_tuple=True)
    owners = words.new_zeros(windows)
    owners[words[words >= 0] // length] = text
    # The windows of a text follow each other; one in which no word is looked up may be among them.
    return owners.cummax(dim=0).values


def are_there(logits: Float[Tensor, "*any word klass"]) -> Bool[Tensor, "*any word"]:
    """Mark the places that hold a word."""
    return (logits != NOTHING).any(dim=-1)


def mean_of_words(
    values: Float[Tensor, "text *member word width"],
) -> Float[Tensor, "text *member width"]:
    """Average over words; return zeros for a text without words."""
    there = are_there(values)[..., None]
    count = there.sum(dim=-2).clamp_min(1)
    return (values * there).sum(dim=-2) / count


def widened(values: Tensor, count: int, axis: int) -> Tensor:
    """Pad to so many words: NOTHING in logits, −1 in labels, False in flags."""
    lacking = count - values.shape[axis]
    if lacking <= 0:
        return values
    fill = NOTHING if values.is_floating_point() else 0 if values.dtype == torch.bool else -1
    shape = [*values.shape]
    shape[axis] = lacking
    return torch.cat([values, values.new_full(shape, fill)], dim=axis)
