"""What a model family must tell us: names of head tensors, how to build the module, how to walk through it.

The first half of `Backend` works on names and shapes alone and never imports torch, so that `inspect`,
`prune` and `fuse` stay file operations. The second half hands out the family's own module, and an
`Anatomy` of it: the few places that surgery, circuits and the fused runtime need.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from hydrasurgeon.anatomy.parts import Anatomy

if TYPE_CHECKING:
    import torch
    from torch import nn

    from hydrasurgeon.files.manifest import Manifest, Model, Tower
    from hydrasurgeon.files.tensors import TensorInfo
    from hydrasurgeon.heads import Kept
    from hydrasurgeon.slicing import HeadTensor

__all__ = ["Backend", "Identified", "Usage"]


@dataclass(frozen=True)
class Identified:
    """What a backend recognised in a bare file or a directory."""

    model: Model
    towers: dict[str, Tower]
    note: str | None = None
    """What was assumed, for the user to read."""


@dataclass(frozen=True)
class Usage:
    """What a model card says of loading a directory without us."""

    library: str
    task: str
    """The hub's name of it (pipeline_tag)."""
    code: str


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

    def check_files(self, model: Model, files: Mapping[str, str], where: str) -> None:
        """CheckpointError for companions that are not the ones the manifest speaks of, or say what they may not."""
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

    def usage(self, manifest: Manifest) -> Usage:
        """How the family's library loads such a directory: what a model card says."""
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
