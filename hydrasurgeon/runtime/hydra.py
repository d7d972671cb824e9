"""The fused runtime: M members in one forward pass (paper section 4.2).

The trunk runs once on the plain batch. From there members go on stacked (`batched`,
best where one leaves the device idle) or apart (one after the other; training and compilation too),
and compute the same. Where the classifier looks at the first tokens only, the last layer computes
keys and values for all tokens and everything else for those few.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hydrasurgeon.anatomy.layers import Hidden, run_block
from hydrasurgeon.anatomy.parts import Anatomy, Stack
from hydrasurgeon.anatomy.word_logits import WORDS, of_words
from hydrasurgeon.runtime.batched import CannotGroup, Grouped
from hydrasurgeon.runtime.parameters import captured, same

Mode = Literal["auto", "stacked", "apart"]
Biases = Sequence[Tensor | None]
"""One for each member: paddings are alike, tuned tables of relative positions are not."""

# Numbers in one member's hidden states (batch × token × embed) from which it fills the device, so
# that stacking only costs copies. The CPU's was measured on two cores; the
# other is a guess.
FULL = {"cpu": 2**18, "cuda": 2**22}


@dataclass(frozen=True)
class Started:
    """State from which members go on: the trunk's output, or the inputs if members embed
    differently.
    """

    inputs: Any
    stack: Stack | None

    def at(self, rows: Tensor) -> Started:
        """Return the state of some samples of the batch."""
        if self.stack is None:
            if isinstance(self.inputs, Mapping):
                return Started({name: value[rows] for name, value in self.inputs.items()}, None)
            return Started(self.inputs[rows], None)
        hidden, bias = self.stack.hidden, self.stack.bias
        alike = bias is None or bias.shape[0] != hidden.shape[0]
        return Started(None, Stack(hidden[rows], bias if bias is None or alike else bias[rows]))


class Hydra(nn.Module):
    """M modules of one family that share parameters where they are equal; `trunk` leading layers
    run once.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        anatomy: Callable[[nn.Module], Anatomy],
        *,
        trunk: int = 0,
        mode: Mode = "auto",
    ) -> None:
        super().__init__()
        self.members = nn.ModuleList(modules)
        self.trunk = trunk
        self.mode = mode
        self._anatomy = anatomy
        self.anatomies = anatomies = tuple(anatomy(module) for module in modules)
        stacks = list(zip(*(a.blocks for a in anatomies), strict=True))
        self._one_embed = same([a.embed_parts for a in anatomies])
        self._one_readout = same([a.readout_parts for a in anatomies])
        self._trunk = [blocks[0] for blocks in stacks[:trunk]]
        self._member_blocks = [a.blocks[trunk:] for a in anatomies]
        self._parting = stacks[trunk:]
        self.tokens: list[int | None] = [None] * len(self._parting)
        """Number of leading tokens that each layer behind the trunk hands on; None for all of them.
        """
        self.tokens[-1:] = [anatomies[0].reads] * len(self.tokens[-1:])
        self._grouped: Grouped | None = None
        self.why_apart = ""
        """Why members cannot run as one batched product, once that was tried."""
        self._grouping = threading.Lock()
        self._parts: dict[tuple[int, ...], Hydra] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuild a copy from its own modules, so that it does not run those of the original."""
        rebuild = partial(Hydra, trunk=self.trunk, mode=self.mode)
        return rebuild, (list(self.members), self._anatomy), {"training": self.training}

    @property
    def copies(self) -> list[Tensor]:
        """Tensors that are held besides the parameters: rows that were filled up from them."""
        parts = [copy for part in self._parts.values() for copy in part.copies]
        return [*parts, *([] if self._grouped is None else self._grouped.copies)]

    def forward(self, inputs: Any) -> Float[Tensor, "batch member klass"]:
        logits = self.finish(self.start(inputs))
        if isinstance(inputs, Mapping) and WORDS in inputs:
            return of_words(logits, inputs[WORDS])
        return logits

    def start(self, inputs: Any) -> Started:
        """Run what all members share: embedding and trunk, if members embed alike."""
        self._forget_where_recorded()
        if not self._one_embed:
            return Started(inputs, None)
        stack = self.anatomies[0].embed(inputs)
        hidden, bias = stack.hidden, stack.bias
        for block in self._trunk:
            hidden = run_block(block, hidden, bias)
        return Started(None, Stack(hidden, bias))

    def part(self, members: Sequence[int]) -> Hydra:
        """Return some members, in this order, as a hydra that goes on from the result of `start`."""
        chosen = tuple(members)
        if chosen not in self._parts:
            modules = [self.members[i] for i in chosen]
            # Not a submodule: its parameters are the members' own.
            self._parts[chosen] = Hydra(modules, self._anatomy, trunk=self.trunk)
        part = self._parts[chosen]
        part.mode = "apart" if len(chosen) == 1 else self.mode
        # Its modules are this one's: `train` would walk through all of them in every pass.
        part.training = self.training
        return part

    def finish(self, started: Started) -> Float[Tensor, "batch member klass"]:
        """Run everything behind `start`."""
        if started.stack is None and self._one_embed:
            started = self.start(started.inputs)
        if started.stack is not None:
            hidden, bias = started.stack.hidden, started.stack.bias
            parted, biases = [hidden] * len(self.members), [bias] * len(self.members)
        else:
            stacks = [anatomy.embed(started.inputs) for anatomy in self.anatomies]
            parted, biases = [s.hidden for s in stacks], [s.bias for s in stacks]
        grouped = self._in_groups(biases) if self._stacks(parted[0]) else None
        if grouped is None:
            return torch.stack(self._apart(parted, biases), dim=1)
        return self._read(grouped(torch.stack(parted), biases[0]), biases)

    def _forget_where_recorded(self) -> None:
        """Keep nothing that was made of parameters that a step may move: fused AdamW leaves no
        trace of writing.
        """
        if torch.is_grad_enabled() and not captured():
            for hydra in (self, *self._parts.values()):
                hydra._grouped = None

    def _stacks(self, hidden: Hidden) -> bool:
        if self.mode != "auto":
            return self.mode == "stacked"
        return hidden.numel() < FULL.get(hidden.device.type, FULL["cuda"])

    def _apart(
        self, parted: Sequence[Hidden], biases: Biases
    ) -> list[Float[Tensor, "batch klass"]]:
        """Run member after member."""
        logits = []
        for i, anatomy in enumerate(self.anatomies):
            hidden = parted[i]
            for block, tokens in zip(self._member_blocks[i], self.tokens, strict=True):
                hidden = run_block(block, hidden, biases[i], tokens)
            logits.append(anatomy.readout(Stack(hidden, biases[i])))
        return logits

    def _read(
        self, stacked: Float[Tensor, "member batch token embed"], biases: Biases
    ) -> Float[Tensor, "batch member klass"]:
        members = len(self.anatomies)
        if self._one_readout:
            bias = biases[0]
            if bias is not None and bias.shape[0] > 1:
                bias = bias.repeat(members, 1, 1, 1)
            logits = self.anatomies[0].readout(Stack(stacked.flatten(0, 1), bias))
            return logits.unflatten(0, (stacked.shape[0], -1)).transpose(0, 1)
        logits_of_members = [
            anatomy.readout(Stack(hidden, bias))
            for anatomy, hidden, bias in zip(self.anatomies, stacked, biases, strict=True)
        ]
        return torch.stack(logits_of_members, dim=1)

    def _in_groups(self, biases: Biases) -> Grouped | None:
        """Return the layers as batched products; None in training, under tracing, or if members do
        not allow it.
        """
        if torch.is_grad_enabled() or self.training or captured() or self.why_apart:
            return None
        if biases[0] is not None and biases[0].shape[1] > 1:
            return None
        # Threads that share a model must not lay its parameters side by side at the same time.
        with self._grouping:
            if self._grouped is None or not self._grouped.holds:
                try:
                    self._grouped = Grouped(self._parting, self.tokens)
                except CannotGroup as error:
                    self._grouped, self.why_apart = None, str(error)
            return self._grouped
