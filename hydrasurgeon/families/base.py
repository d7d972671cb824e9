"""What a model family must tell us: names of head tensors, how to build the module, how to walk through it.

The first half of `Backend` works on names and shapes alone and never imports torch, so that `inspect`,
`prune` and `fuse` stay file operations. The second half hands out the family's own module, and an
`Anatomy` of it: the few places that surgery, circuits and the fused runtime need.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from hydrasurgeon.files.manifest import Manifest, Model, Tower
    from hydrasurgeon.files.tensors import TensorInfo
    from hydrasurgeon.heads import Kept
    from hydrasurgeon.slicing import HeadTensor

__all__ = ["Anatomy", "Attention", "Backend", "Block", "Identified", "Prompted", "Stack"]


@dataclass(frozen=True)
class Identified:
    """What a backend recognised in a bare file or a directory."""

    model: Model
    towers: dict[str, Tower]
    note: str | None = None
    """What was assumed, for the user to read."""


@dataclass(frozen=True)
class Attention:
    """One attention site of a live module."""

    tower: str
    layer: int
    heads: tuple[int, ...]
    """The heads present, numbered in the original model, in the order in which they lie in the weights."""
    head_dim: int
    project: tuple[nn.Linear, ...]
    """Either one linear that packs q, k and v, or three."""
    out: nn.Linear
    """W_O: its input is the concatenation of the heads' outputs, its bias belongs to the layer."""
    q_norm: nn.Module
    k_norm: nn.Module
    scale: float


@dataclass(frozen=True)
class Block:
    """One transformer layer: two residual branches, normalised before (pre-norm) or after (post-norm)."""

    norm1: nn.Module
    attention: Attention
    scale1: nn.Module
    norm2: nn.Module
    mlp: nn.Module
    scale2: nn.Module
    prenorm: bool = True


@dataclass(frozen=True)
class Stack:
    """What flows between the layers, and what every layer is told besides."""

    hidden: Tensor
    bias: Tensor | None = None
    """Added to the attention logits: padding or causal mask, broadcastable to [batch, 1, token, token]; or,
    where it differs between heads, [batch, head, token, token] over the heads of the original model."""


@dataclass(frozen=True)
class Anatomy:
    """A classifier taken apart: logits = readout(blocks(embed(inputs)))."""

    embed: Callable[[Any], Stack]
    embed_parts: tuple[nn.Module | nn.Parameter, ...]
    blocks: tuple[Block, ...]
    readout: Callable[[Tensor], Tensor]
    readout_parts: tuple[nn.Module | nn.Parameter, ...]
    reads: int | None = None
    """How many leading tokens the readout looks at (1: a class token); None: all."""
    beside: tuple[Attention, ...] = ()
    """Sites that inputs do not run through: of the text tower that makes a zero-shot classifier, which is a
    part of `readout`."""
    prompted: Prompted | None = None
    """That classifier taken apart in turn."""

    @property
    def sites(self) -> tuple[Attention, ...]:
        """Every attention site, tower by tower."""
        return (*(block.attention for block in self.blocks), *self.beside)


@dataclass(frozen=True)
class Prompted:
    """A classifier made of texts by a tower of its own: logits = compare(features(hidden), classes(tower(prompts)))."""

    prompts: Tensor
    """Token ids: class after class, equally many for each."""
    count: int
    """How many classes there are."""
    tower: Anatomy
    """From token ids to the features of each text."""
    classes: Callable[[Tensor], Tensor]
    """[…, class, template, embed], features of the prompts, to [class, embed]."""
    features: Callable[[Tensor], Tensor]
    """Hidden states of inputs behind their last layer to features."""
    compare: Callable[[Tensor, Tensor], Tensor]
    """[…, input, embed] and [class, embed] to logits."""


class Backend(Protocol):
    """One model family; stateless, one instance per process."""

    family: str

    # --- names and shapes only, no torch ---

    def identify(
        self,
        tensors: Mapping[str, TensorInfo],
        *,
        arch: str | None,
        config: Mapping[str, Any] | None,
        files: Mapping[str, str],
        where: str,
    ) -> Identified:
        """The model behind bare tensors; CheckpointError when it cannot be told. `files` are its `companions`."""
        ...

    def check(self, model: Model, towers: Mapping[str, Tower], where: str) -> None:
        """ManifestError unless a recorded model is one this family has and its parts agree with each other."""
        ...

    def companions(self, present: Collection[str]) -> tuple[str, ...]:
        """The files in a directory that live data needs (a tokenizer's): they travel with the checkpoint."""
        ...

    def check_files(self, model: Model, files: Mapping[str, str]) -> str | None:
        """None, or why these companions are not the ones the manifest speaks of."""
        ...

    def names(self, model: Model, stored: Iterable[str]) -> Mapping[str, str] | None:
        """Our name → the file's, for the tensors that belong to the model; None where files use our names."""
        ...

    def head_tensors(self, model: Model, tower: str, layer: int) -> tuple[HeadTensor, ...]:
        """The tensors of one attention site that hold heads: q, k, v (and biases) first, W_O last."""
        ...

    def expected(self, model: Model, towers: Mapping[str, Tower]) -> Mapping[str, tuple[int, ...]]:
        """Names and shapes of all tensors of the unpruned model."""
        ...

    def is_mlp(self, name: str) -> bool:
        """Whether a tensor belongs to a layer's MLP."""
        ...

    def layer_of(self, name: str) -> tuple[str, int] | None:
        """The (tower, layer) a tensor belongs to; None for embeddings, final norm and classifier."""
        ...

    def embedding_of(self, name: str) -> str | None:
        """The tower before whose first layer a tensor acts; None for all others."""
        ...

    def is_classifier(self, name: str) -> bool:
        """Whether a tensor belongs to the classifier."""
        ...

    def directory(self, manifest: Manifest) -> dict[str, str]:
        """The text files that sit beside the weights in the family's own directory layout."""
        ...

    def with_classes(self, model: Model, count: int, labels: tuple[str, ...] | None) -> Model:
        """The model with a new classifier for these classes."""
        ...

    # --- torch ---

    def build(
        self, model: Model, towers: Mapping[str, Tower], kept: Kept, *, fresh: bool = False
    ) -> nn.Module:
        """The family's own module with these heads; parameters on the meta device unless `fresh`."""
        ...

    def anatomy(self, module: nn.Module) -> Anatomy: ...

    def transform(
        self,
        model: Model,
        augment: Mapping[str, Any] | None = None,
        *,
        files: Mapping[str, str] | None = None,
    ) -> Callable[[Any], Any]:
        """Raw sample → model input; with `augment` the training transform. `files` are the companions."""
        ...

    def example(self, model: Model, batch: int, *, device: torch.device, dtype: torch.dtype) -> Any:
        """Random inputs of the right shape, for measuring cost."""
        ...
