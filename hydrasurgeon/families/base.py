"""Interface of a model family: facts as attributes, its weights as a table, and a few steps.

All but `build`, `anatomy`, `transform`, `example` and `dropouts` work on names and shapes and never
import torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from hydrasurgeon.errors import (
    CheckpointError,
    Disagreement,
    ManifestError,
    SurgeryError,
    UsageError,
)
from hydrasurgeon.lookup import imported

if TYPE_CHECKING:
    import torch
    from torch import nn

    from hydrasurgeon.anatomy.parts import Anatomy
    from hydrasurgeon.data.pictures import Pictures
    from hydrasurgeon.families.weights import Weight
    from hydrasurgeon.files.manifest import Manifest, Model, Tower
    from hydrasurgeon.files.tensors import TensorInfo
    from hydrasurgeon.heads import Kept

WEIGHTS = "model.safetensors"
"""Name of the weight file in most libraries' directories."""
TEXTS = ("*.json", "*.txt", "*.model")
"""Patterns of configs and tokenizers on the hub."""


@dataclass(frozen=True)
class BareCheckpoint:
    """Contents of a checkpoint without a manifest."""

    tensors: Mapping[str, TensorInfo]
    where: str
    """Named in errors."""
    arch: str | None = None
    """`--arch FAMILY:NAME`, as it was given."""
    config: Mapping[str, Any] | None = None
    """The family's config file, if there is one."""
    files: Mapping[str, str] = field(default_factory=dict)
    """The texts of its companions."""
    described: Mapping[str, str] = field(default_factory=dict)
    """The texts of the family's `descriptions`, as far as they are there."""

    @property
    def asked_family(self) -> str:
        return (self.arch or "").partition(":")[0]

    @property
    def arch_name(self) -> str | None:
        """Name that `--arch` gives behind the family; None without one."""
        return (self.arch or "").partition(":")[2] or None


Usage = tuple[str, str, str]
"""Instructions of a model card to load a directory without hydrasurgeon: library, hub task, code.
"""
USAGE = """
import hydrasurgeon as hs

model = hs.load("DIR")
"""
"""Code in a model card for a model that only hydrasurgeon can run."""


class Family(ABC):
    """One model family; stateless, one instance per process."""

    name: ClassVar[str]
    """`model.family` in manifests, and `--arch NAME:…`."""
    scheme: ClassVar[str | None] = None
    """Hub ids: `SCHEME:REPOSITORY`; None for a family that is read from disk only."""
    example_id: ClassVar[str | None] = None
    """Such a hub id, for messages."""
    downloads: ClassVar[tuple[str, ...]] = ("*.safetensors", *TEXTS)
    """Patterns of the files of a repository to download."""
    config_file: ClassVar[str] = "config.json"
    """The file in a directory that says which model it is."""
    needs_config: ClassVar[bool] = False
    """True if tensors alone do not identify the model.

    The config beside a weight file is then read too.
    """
    weight_files: ClassVar[tuple[str, ...]] = (WEIGHTS,)
    """Names of weight files in a directory; the first is the one that is written."""
    descriptions: ClassVar[tuple[str, ...]] = ()
    """Further files that say which model a directory holds; once read, the manifest says it."""
    layout: ClassVar[tuple[str, ...]] = ()
    """The names that `directory` may give."""
    refuses_by_config: ClassVar[bool] = False
    """True if `check_config` runs before the weights are downloaded."""
    fresh_spec: ClassVar[str | None] = None
    """Form of `init:` specs, if `fresh_model` reads them."""
    graph_clients: ClassVar[bool] = False
    """True if optimum and similar clients read its config beside a graph."""
    modules: ClassVar[str]
    """The module that has `build` and `anatomy`, which import torch."""
    named_classes: ClassVar[bool] = False
    """True if a tower of the model makes the classifier from class names and prompts."""

    # --- a family's own: names and shapes ---

    @abstractmethod
    def identify(self, bare: BareCheckpoint) -> tuple[Model, str | None]:
        """Identify the model behind bare tensors, and return a note on assumptions.

        Raises CheckpointError if the model cannot be identified.
        """

    @abstractmethod
    def towers(self, model: Model) -> dict[str, Tower]:
        """Return the sizes of the model's towers, the one that inputs run through first."""

    @abstractmethod
    def weights(self, model: Model) -> Iterable[Weight]:
        """Yield all tensors of the unpruned model; in each layer q, k, v before W_O."""

    # --- a family's own: torch ---

    def build(self, model: Model, kept: Kept, *, fresh: bool = False) -> nn.Module:
        """Build the family's module with these heads; parameters are on meta unless `fresh`."""
        return imported(f"{self.modules}:build")(self, model, kept, fresh=fresh)

    def module(
        self,
        model: Model,
        kept: Kept,
        *,
        fresh: bool = False,
        files: Mapping[str, str] | None = None,
    ) -> nn.Module:
        """Build the family's module with these heads and neurons; `files` are the companions."""
        from hydrasurgeon.anatomy.projections import resize

        built: Any = self.build(model, kept, fresh=fresh)
        table = {
            w.name: w
            for w in self.weights(model)
            if w.part == "mlp" and w.heads and w.group in kept
        }
        disk_name: Callable[[str], str] = getattr(built, "disk_name", lambda name: name)
        for name, part in built.named_modules():
            weight = table.get(disk_name(f"{name}.weight"))
            if weight is not None and weight.heads is not None:
                count = len(kept[weight.group][weight.layer or 0]) * weight.heads.blocks
                resize(part, **{"columns" if weight.heads.axis else "rows": count})
        return built

    def anatomy(self, module: nn.Module) -> Anatomy:
        """Return the parts of a module."""
        return imported(f"{self.modules}:anatomy")(module)

    # --- which checkpoints are its own ---

    def required_config(self, bare: BareCheckpoint) -> Mapping[str, Any]:
        """Return the config of a bare checkpoint; refuse one without it."""
        if bare.arch_name is not None:
            message = (
                f"--arch {bare.arch}: a model of {self.name} is known by its {self.config_file}"
            )
            raise UsageError(message, hint="Give the directory that holds it and the weights.")
        if bare.config is None:
            raise CheckpointError(f"{bare.where}: has no {self.config_file}")
        return bare.config

    def recognises(self, bare: BareCheckpoint) -> bool:
        """Return True if a bare checkpoint, or its config alone, is this family's.

        It distinguishes families with the same `name`.
        """
        return False

    def covers(self, model: Model) -> bool:
        """Return True if a recorded model is this family's.

        It distinguishes families with the same `name`.
        """
        return False

    def check(self, model: Model, towers: Mapping[str, Tower], where: str) -> None:
        """Raise ManifestError if a recorded model is not one of this family, or its parts disagree."""
        from pydantic import ValidationError

        from hydrasurgeon.files.manifest import first_mistake

        try:
            described = self.towers(model)
        except ValidationError as error:
            raise ManifestError(f"{where}: model.config: {first_mistake(error)}") from error
        sizes = [
            {f"{n}.{size}": v for n, t in entry.items() for size, v in t.model_dump().items()}
            for entry in (towers, described)
        ]
        for name in {**sizes[1], **sizes[0]}:
            says, is_ = (entry.get(name) for entry in sizes)
            if says != is_:
                raise Disagreement(f"{where}: towers.{name} is {says}, model.config says {is_}")

    def check_config(self, config: Mapping[str, Any], where: str) -> None:  # noqa: B027
        """Refuse a model that cannot be cut by its config alone."""

    def repository(self, name: str) -> str:
        """Return the hub's repository behind a name of the library."""
        return name

    # --- files ---

    def names(self, model: Model, stored: Iterable[str]) -> Mapping[str, str] | None:
        """Map our names to the file's, for the tensors of the model; None if files use our names."""
        return None

    def companions(self, present: Collection[str]) -> tuple[str, ...]:
        """Return the files in a directory that live data needs (a tokenizer's).

        They travel with the checkpoint.
        """
        return ()

    def check_files(self, model: Model, files: Mapping[str, str], where: str) -> None:
        """Raise CheckpointError for companions that differ from the record, or say what they may
        not.
        """
        assert not files  # there are no companions

    def padded_right(
        self, model: Model, files: Mapping[str, str]
    ) -> tuple[Model, Mapping[str, str]]:
        """Return a model and its companions with a tokenizer that pads on the right."""
        return model, files

    def directory(self, manifest: Manifest) -> dict[str, str]:
        """Return the text files beside the weights in the family's own directory layout."""
        return {}

    def stock_sizes(self, manifest: Manifest) -> dict[str, Any] | None:
        """Return the settings with which its library builds a pruned model as one of its own.

        They are empty for an unpruned model, and None if the library cannot build it.
        """
        return None

    def usage(self, manifest: Manifest) -> Usage:
        """Return the instructions of a model card to load such a directory."""
        return "hydrasurgeon", "image-classification", USAGE

    # --- classes ---

    def with_classes(
        self, model: Model, count: int, labels: tuple[str, ...] | None, *, words: bool = False
    ) -> Model:
        """Return the model with a new classifier for these classes.

        With `words` it is one for every word of a text.
        """
        if words:
            raise SurgeryError(
                f"{model.arch} cannot classify tokens",
                hint="Start from an encoder of texts: BERT, RoBERTa, ELECTRA, DeBERTa, ModernBERT.",
            )
        return model.model_copy(update={"num_classes": count, "labels": labels})

    def trimmed(
        self, model: Model, files: Mapping[str, str], tokenizer: Any, token_ids: Iterable[int]
    ) -> tuple[Model, dict[str, str], str, list[int]]:
        """Trim a model's vocabulary to the wanted tokens and those that the tokenizer needs.

        Returns model, companions, the name of the table of tokens, and its rows that stay.
        """
        raise SurgeryError(
            f"{model.arch} has no vocabulary that can be trimmed",
            hint="Only text models in transformers' layout have one.",
        )

    def fresh_model(self, arch: str) -> Model | None:
        """Return the model that `init:NAME:ARCH` describes, for training from scratch."""
        return None

    # --- live models and data ---

    def transform(
        self,
        model: Model,
        augment: Mapping[str, Any] | None = None,
        *,
        files: Mapping[str, str] | None = None,
    ) -> Callable[[Any], Any]:
        """Return the function from a raw sample to the model's input.

        With `augment` it is the training transform.

        `files` are the companions.
        """
        from hydrasurgeon.families.transforms import eval_transform, train_transform

        pictures = self.pictures(model, files=files or {})
        return eval_transform(pictures) if augment is None else train_transform(pictures, augment)

    def pictures(self, model: Model, *, files: Mapping[str, str]) -> Pictures:
        """Return the preparation of its images as arrays, without its library."""
        from hydrasurgeon.data.pictures import InTimm

        return InTimm(model.preprocess)

    def example(self, model: Model, batch: int, *, device: torch.device, dtype: torch.dtype) -> Any:
        """Return random inputs of the right shape, for measuring cost."""
        from torch import randn

        return randn(batch, *model.preprocess["input_size"], device=device, dtype=dtype)

    def dropouts(self, module: nn.Module) -> Iterable[nn.Dropout]:
        """Return the dropout of the layers' residual branches, which a recipe may set.

        The dropout of attention is not included.
        """
        return ()
