"""What a cascade costs: multiply-adds that every row takes, and those that going on adds.

    expected = first + share · rest        of rows, the share that goes on

`CostModel.steps` tells the same of a hydra that is planned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hydrasurgeon.measuring.cost import first_sample, macs, without_padding
from hydrasurgeon.measuring.multiply_adds import MultiplyAdds
from hydrasurgeon.runtime.classifier import Classifier
from hydrasurgeon.runtime.hydra import Hydra


@dataclass(frozen=True)
class StepMacs:
    """Multiply-adds of one sample in a cascade of two steps."""

    first: int
    """The trunk and the first members."""
    rest: int
    """The other members, behind the trunk."""

    def expected(self, share: float) -> float:
        """On average, where such a share of the rows goes on."""
        return self.first + share * self.rest


@torch.inference_mode()
def step_macs(model: Classifier, inputs: Any, starters: Sequence[int]) -> StepMacs:
    """Counted in a live hydra, of the batch's first sample, with these members first."""
    hydra = model.module
    assert isinstance(hydra, Hydra)
    followers = [i for i in range(len(hydra.members)) if i not in starters]
    sample = first_sample(inputs)
    with without_padding(model):
        started, start = _counted(lambda: hydra.start(sample))
        _, first = _counted(lambda: hydra.part(starters).finish(started))
        _, rest = _counted(lambda: hydra.part(followers).finish(started))
    return StepMacs(start + first, rest)


def _counted(call: Any) -> tuple[Any, int]:
    """What a call gives, and its multiply-adds; what is computed once is no cost of a sample."""
    call()
    with MultiplyAdds() as counter:
        result = call()
    return result, counter.count


@torch.inference_mode()
def single_macs(model: Classifier, inputs: Any) -> int:
    """Those of the single model that keeps all heads: of the hydra's first member, and of the heads that it lost.

    u heads of width d, at t of T tokens of width E: u·d·((2t + 2T)·E + 2·t·T), as in `planned_cost`.
    """
    hydra = model.module
    assert isinstance(hydra, Hydra)
    sample, alone = first_sample(inputs), hydra.part([0])
    with without_padding(model):
        total = macs(alone, sample)
    anatomy = hydra.anatomies[0]
    tokens, width = anatomy.embed(sample).hidden.shape[1:]
    for layer, block in enumerate(anatomy.blocks):
        site = block.attention
        lost = model.manifest.towers[site.tower].heads - len(site.heads)
        last = layer == len(anatomy.blocks) - 1 and anatomy.reads is not None
        read = (anatomy.reads or tokens) if last else tokens
        total += lost * site.head_dim * ((2 * read + 2 * tokens) * width + 2 * read * tokens)
    return total
