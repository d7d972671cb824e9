"""The parts of a live transformer that surgery, circuits and the fused runtime need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

    from hydrasurgeon.anatomy.projections import Biased


def _as_it_is() -> nn.Module:
    from torch.nn import Identity

    return Identity()


@dataclass(frozen=True, kw_only=True)
class Attention:
    """One attention site of a live module."""

    tower: str
    layer: int
    heads: tuple[int, ...]
    """The heads present, numbered in the original model, in the order in which they lie in the
    weights.
    """
    head_dim: int
    project: tuple[nn.Linear | Biased, ...]
    """Either one linear that packs q, k and v, or three."""
    out: nn.Linear
    """W_O: its input is the concatenation of the heads' outputs, its bias belongs to the layer."""
    scale: float
    q_norm: nn.Module = field(default_factory=_as_it_is)
    k_norm: nn.Module = field(default_factory=_as_it_is)
    rotate: Callable[[Tensor], Tensor] | None = None
    """Rotary positions: turns queries or keys, [batch, head, token, head_dim], of the leading
    tokens; no parameters.
    """
    bias: Callable[[Tensor], Tensor] | None = None
    """Term that only this layer adds to the attention logits, equal for all heads and inputs, [1, 1,
    token, token]. It is a function of the layer's input (number of tokens, dtype, device) without
    parameters.
    """
    relative: Callable[[Tensor, Tensor, Sequence[int]], Tensor] | None = None
    """Relative-position term of the attention logits: a function of the queries and keys of some heads,
    [batch, head, token, head_dim], and of these heads' numbers. Its parameters lie in the layer and
    the embedding.
    """
    queries: int = 1
    """Number of queries that share one key and one value; together they are one head."""
    softcap: float | None = None
    """Attention logits stay below it: softcap · tanh(logits / softcap)."""

    @property
    def width(self) -> int:
        """Number of W_O's inputs that belong to one head."""
        return self.queries * self.head_dim

    @property
    def rows(self) -> tuple[int, ...]:
        """Number of rows of one head in each of `project`, or in each third of a packed projection."""
        return (self.width, self.head_dim, self.head_dim)[: len(self.project)]


@dataclass(frozen=True)
class Block:
    """One transformer layer: two residual branches, normalised before (pre-norm) or after
    (post-norm).
    """

    norm1: nn.Module
    attention: Attention
    scale1: nn.Module
    norm2: nn.Module
    mlp: nn.Module
    scale2: nn.Module
    prenorm: bool = True
    sandwiched: bool = False
    """True if scale1 and scale2 are norms; a branch of half the length then counts no less."""

    @property
    def out(self) -> nn.Linear:
        """W_2, the last linear of the MLP: what goes into it are the neurons."""
        from torch.nn import Linear

        return [module for module in self.mlp.modules() if isinstance(module, Linear)][-1]


@dataclass(frozen=True)
class Stack:
    """Hidden states between the layers, and the attention bias that every layer receives."""

    hidden: Tensor
    bias: Tensor | None = None
    """Added to the attention logits: padding or causal mask, broadcastable to [batch, 1, token,
    token]; or, where it differs between heads, [batch, head, token, token] over the heads of the
    original model.
    """


@dataclass(frozen=True)
class Anatomy:
    """A classifier taken apart: logits = readout(blocks(embed(inputs)))."""

    embed: Callable[[Any], Stack]
    embed_parts: tuple[nn.Module | nn.Parameter, ...]
    blocks: tuple[Block, ...]
    readout: Callable[[Stack], Tensor]
    """From what the last layer hands on; padding, which `bias` hides, is told there too."""
    readout_parts: tuple[nn.Module | nn.Parameter, ...]
    reads: int | None = None
    """Number of leading tokens that the readout reads (1: a class token); None: all."""
    beside: tuple[Attention, ...] = ()
    """Sites that inputs do not run through: of the text tower that makes a zero-shot classifier,
    which is a part of `readout`.
    """
    prompted: Prompted | None = None
    """That classifier taken apart in turn."""

    @property
    def layers(self) -> tuple[Block, ...]:
        """Every layer, tower by tower."""
        return (*self.blocks, *(self.prompted.tower.blocks if self.prompted is not None else ()))

    @property
    def sites(self) -> tuple[Attention, ...]:
        """Every attention site, tower by tower."""
        return (*(block.attention for block in self.blocks), *self.beside)


@dataclass(frozen=True)
class Prompted:
    """A classifier made of texts by a tower of its own: logits = compare(features(hidden),
    classes(tower(prompts))).
    """

    prompts: Tensor
    """Token ids: class after class, equally many for each."""
    count: int
    """Number of classes."""
    tower: Anatomy
    """From token ids to the features of each text."""
    classes: Callable[[Tensor], Tensor]
    """[…, class, template, embed], features of the prompts, to [class, embed]."""
    features: Callable[[Stack], Tensor]
    """Function from the last layer's output on inputs to features."""
    compare: Callable[[Tensor, Tensor], Tensor]
    """[…, input, embed] and [class, embed] to logits."""
