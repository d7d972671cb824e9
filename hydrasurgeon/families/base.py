"""What a model family is: facts as attributes, its weights as a table, and the few steps that only
it knows.

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
"""What most libraries call the weights in a directory."""
TEXTS = ("*.json", "*.txt", "*.model")
"""What configs and tokenizers are called on the hub."""


@dataclass(frozen=True)
class Bare:
    """What there is of a checkpoint without a manifest."""

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
    def asked(self) -> str | None:
        """What `--arch` says behind the family; None where it says nothing."""
        return (self.arch or "").partition(":")[2] or None


Usage = tuple[str, str, str]
"""What a model card says of loading a directory without us: the library, the hub's name of the
task, the code.
"""
USAGE = """
import hydrasurgeon as hs

model = hs.load("DIR")
"""
"""How a model card says to run it where no other library can."""


class Family(ABC):
    """One model family; stateless, one instance per process."""

    name: ClassVar[str]
    """`model.family` in manifests, and `--arch NAME:…`."""
    scheme: ClassVar[str | None] = None
    """Hub ids: `SCHEME:REPOSITORY`; None for a family that is read from disk only."""
    example_id: ClassVar[str | None] = None
    """Such a hub id, for messages."""
    downloads: ClassVar[tuple[str, ...]] = ("*.safetensors", *TEXTS)
    """What is fetched of a repository."""
    config_file: ClassVar[str] = "config.json"
    """The file in a directory that says which model it is."""
    needs_config: ClassVar[bool] = False
    """Whether tensors alone do not tell the model: then the config beside a weight file is read
    too.
    """
    weight_files: ClassVar[tuple[str, ...]] = (WEIGHTS,)
    """What weights are called in a directory; the first is what is written."""
    descriptions: ClassVar[tuple[str, ...]] = ()
    """Further files that say which model a directory holds; once read, the manifest says it."""
    layout: ClassVar[tuple[str, ...]] = ()
    """The names that `directory` may give."""
    refuses_by_config: ClassVar[bool] = False
    """Whether `check_config` is asked before the weights are downloaded."""
    fresh_spec: ClassVar[str | None] = None
    """What `init:` specs look like, where `fresh_model` reads them."""
    graph_clients: ClassVar[bool] = False
    """Whether optimum and the like read its config beside a graph."""
    modules: ClassVar[str]
    """The module that has `build` and `anatomy`, which import torch."""
    named_classes: ClassVar[bool] = False
    """Whether the classifier is made of class names and prompts, by a tower of the model."""

    # --- a family's own: names and shapes ---

    @abstractmethod
    def identify(self, bare: Bare) -> tuple[Model, str | None]:
        """The model behind bare tensors, and what was assumed; CheckpointError when it cannot be
        told.
        """

    @abstractmethod
    def towers(self, model: Model) -> dict[str, Tower]:
        """The sizes of its towers, the one that inputs run through first."""

    @abstractmethod
    def weights(self, model: Model) -> Iterable[Weight]:
        """All tensors of the unpruned model; in each layer q, k, v before W_O."""

    # --- a family's own: torch ---

    def build(self, model: Model, kept: Kept, *, fresh: bool = False) -> nn.Module:
        """The family's own module with these heads; parameters on the meta device unless `fresh`."""
        return imported(f"{self.modules}:build")(self, model, kept, fresh=fresh)

    def module(
        self,
        model: Model,
        kept: Kept,
        *,
        fresh: bool = False,
        files: Mapping[str, str] | None = None,
    ) -> nn.Module:
        """The family's own module with these heads and neurons; `files` are the companions."""
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
        """The module taken apart."""
        return imported(f"{self.modules}:anatomy")(module)

    # --- which checkpoints are its own ---

    def required_config(self, bare: Bare) -> Mapping[str, Any]:
        """The config of a bare checkpoint that nothing else describes."""
        if bare.asked is not None:
            what = f"--arch {bare.arch}: a model of {self.name} is known by its {self.config_file}"
            raise UsageError(what, hint="Give the directory that holds it and the weights.")
        if bare.config is None:
            raise CheckpointError(f"{bare.where}: has no {self.config_file}")
        return bare.config

    def recognises(self, bare: Bare) -> bool:
        """Whether a bare checkpoint (or its config alone) is this family's rather than its
        namesake's.
        """
        return False

    def covers(self, model: Model) -> bool:
        """Whether a recorded model is this family's rather than that of another with the same
        `name`.
        """
        return False

    def check(self, model: Model, towers: Mapping[str, Tower], where: str) -> None:
        """ManifestError unless a recorded model is one this family has and its parts agree with
        each other.
        """
        from pydantic import ValidationError

        from hydrasurgeon.files.manifest import first_mistake

        try:
            described = self.towers(model)
        except ValidationError as error:
            raise ManifestError(f"{where}: model.config: {first_mistake(error)}") from error
        sizes = [
            {f"{n}.{size}": v for n, t in each.items() for size, v in t.model_dump().items()}
            for each in (towers, described)
        ]
        for name in {**sizes[1], **sizes[0]}:
            says, is_ = (each.get(name) for each in sizes)
            if says != is_:
                raise Disagreement(f"{where}: towers.{name} is {says}, model.config says {is_}")

    def check_config(self, config: Mapping[str, Any], where: str) -> None:  # noqa: B027
        """Refuse a model that cannot be cut by its config alone."""

    def repository(self, name: str) -> str:
        """The hub's repository behind a name that is the library's own."""
        return name

    # --- files ---

    def names(self, model: Model, stored: Iterable[str]) -> Mapping[str, str] | None:
        """Our name → the file's, for the tensors that belong to the model; None where files use our
        names.
        """
        return None

    def companions(self, present: Collection[str]) -> tuple[str, ...]:
        """The files in a directory that live data needs (a tokenizer's): they travel with the
        checkpoint.
        """
        return ()

    def check_files(self, model: Model, files: Mapping[str, str], where: str) -> None:
        """CheckpointError for companions that are not the ones the manifest speaks of, or say what
        they may not.
        """
        assert not files  # there are no companions

    def padded_right(
        self, model: Model, files: Mapping[str, str]
    ) -> tuple[Model, Mapping[str, str]]:
        """Return a model and its companions with a tokenizer that pads on the right."""
        return model, files

    def directory(self, manifest: Manifest) -> dict[str, str]:
        """The text files that sit beside the weights in the family's own directory layout."""
        return {}

    def stock_sizes(self, manifest: Manifest) -> dict[str, Any] | None:
        """The settings by which its library builds a pruned model as one of its own, none for an
        unpruned one; None where it cannot.
        """
        return None

    def usage(self, manifest: Manifest) -> Usage:
        """How such a directory is loaded: what a model card says."""
        return "hydrasurgeon", "image-classification", USAGE

    # --- classes ---

    def with_classes(
        self, model: Model, count: int, labels: tuple[str, ...] | None, *, words: bool = False
    ) -> Model:
        """The model with a new classifier for these classes; `words`: one for every word of a text."""
        if words:
            raise SurgeryError(
                f"{model.arch} cannot classify tokens",
                hint="Start from an encoder of texts: BERT, RoBERTa, ELECTRA, DeBERTa, ModernBERT.",
            )
        return model.model_copy(update={"num_classes": count, "labels": labels})

    def trimmed(
        self, model: Model, files: Mapping[str, str], tokenizer: Any, wanted: Iterable[int]
    ) -> tuple[Model, dict[str, str], str, list[int]]:
        """The model and its companions without the tokens that are not wanted and that the tokenizer
        can do without; the name of the table of tokens, and which of its rows stay.
        """
        raise SurgeryError(
            f"{model.arch} has no vocabulary that can be trimmed",
            hint="Only text models in transformers' layout have one.",
        )

    def fresh_model(self, arch: str) -> Model | None:
        """The model that `init:NAME:ARCH` describes, for training from scratch."""
        return None

    # --- live models and data ---

    def transform(
        self,
        model: Model,
        augment: Mapping[str, Any] | None = None,
        *,
        files: Mapping[str, str] | None = None,
    ) -> Callable[[Any], Any]:
        """Raw sample → model input; with `augment` the training transform. `files` are the
        companions.
        """
        from hydrasurgeon.families.transforms import eval_transform, train_transform

        pictures = self.pictures(model, files=files or {})
        return eval_transform(pictures) if augment is None else train_transform(pictures, augment)

    def pictures(self, model: Model, *, files: Mapping[str, str]) -> Pictures:
        """How its images are prepared: arrays, without its library."""
        from hydrasurgeon.data.pictures import InTimm

        return InTimm(model.preprocess)

    def example(self, model: Model, batch: int, *, device: torch.device, dtype: torch.dtype) -> Any:
        """Random inputs of the right shape, for measuring cost."""
        from torch import randn

        return randn(batch, *model.preprocess["input_size"], device=device, dtype=dtype)

    def dropouts(self, module: nn.Module) -> Iterable[nn.Dropout]:
        """The dropout of the layers' residual branches, which a recipe may set; not that of
        attention.
        """
        return ()
