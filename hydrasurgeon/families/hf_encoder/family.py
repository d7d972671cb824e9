"""transformers' encoders with a classifier: BERT, RoBERTa and its namesakes, DistilBERT, ELECTRA,
MPNet, ViT, DeiT, DINOv2.
"""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple
from functools import partial
from importlib.resources import files as package_files
from typing import TYPE_CHECKING, Any, ClassVar

from hydrasurgeon.errors import CheckpointError, HydraError, ManifestError, SurgeryError
from hydrasurgeon.families import families
from hydrasurgeon.families.base import BareCheckpoint, Family, Usage
from hydrasurgeon.families.hf_encoder.architectures import (
    KINDS,
    UNCLASSIFIED,
    Dinov2Config,
    EncoderConfig,
    Facts,
    ImageEncoder,
    Kind,
    TextEncoder,
    canonical,
    class_name,
    config_of,
    pooled,
    stock_config,
    weights,
)
from hydrasurgeon.families.hf_encoder.companions import (
    PREPROCESSOR,
    check_files,
    check_recorded,
    check_size,
    companions,
    files_sha256,
    image_processor,
    load_tokenizer,
    padded_right,
    preprocess,
    white_behind,
)
from hydrasurgeon.families.hf_encoder.embedders import (
    LIMITS,
    MODULES,
    POOLING,
    longest,
    pooling_of,
)
from hydrasurgeon.families.hf_encoder.tokenizer_files import closed, trimmed_files
from hydrasurgeon.families.settings import Images, TextPreprocess, parse, pick_fields
from hydrasurgeon.families.weights import all_neurons
from hydrasurgeon.files.manifest import OF_WORDS, Manifest, Model, TaskName, Tower
from hydrasurgeon.heads import NEURONS, Layers, even
from hydrasurgeon.lookup import nearest

if TYPE_CHECKING:
    import torch
    from torch import nn

    from hydrasurgeon.data.pictures import Pictures
    from hydrasurgeon.families.weights import Weight
    from hydrasurgeon.files.tensors import TensorInfo

TASK = re.compile(
    r"For(?!MaskedLM|PreTraining|MaskedImageModeling|(?:Sequence|Image|Token)Classification)([A-Z]\w*)$"
)
"""Pattern of class names for other tasks than to classify an input, or to pretrain."""
WHOLE = "Supported: classifiers that choose one class, say yes or no, or name any number of labels, for a whole input or for each of its words."
"""The hint where a model is made for another task."""
OTHERS: tuple[tuple[str, Any, str], ...] = (
    ("position_embedding_type", "absolute", "relative positions in every layer"),
    ("add_cross_attention", False, "cross-attention"),
    ("use_swiglu_ffn", False, "a packed SwiGLU MLP (DINOv2 giant)"),
)
"""Settings of config.json, what they must be, and what other values ask for."""
LAYER = re.compile(r"\.layers?\.(\d+)\.(.*)")
"""Pattern of names of modules within a layer, with their name there."""
TOKENS = re.compile(r"\.(word_embeddings|tok_embeddings|embed_tokens)\.weight$")
"""The name of the table of tokens."""

MODELLING = "modeling_hydrasurgeon"
"""Name of the module that transformers runs for a cut model."""
TEMPLATE = f'ARCH = "{KINDS["bert"].classes[0]}"'
"""The line of the modelling file in which the class stands that it builds on."""
OWN_TYPE = "hydrasurgeon_"
"""Prefix of the `model_type` of a config.json whose weights stock transformers would not recognise.
"""
STOCK = "load with trust_remote_code=True"
"""Stands there as the name of the weight file, so that transformers' own classes raise."""

PROBLEM_TYPES = {
    "single_label": "single_label_classification",
    "multi_label": "multi_label_classification",
    "regression": "regression",
}
"""Tasks as config.json calls them; for one logit it has no word that means yes or no."""

TOLD: dict[str | None, TaskName] = {
    "multi_label_classification": "multi_label",
    "regression": "regression",
}
"""Those that the number of outputs does not tell."""

USAGE = """
from transformers import {auto}, pipeline
{warning}
model = {auto}.from_pretrained("DIR"{trust})
classify = pipeline("{task}", model="DIR"{trust})
"""
"""Code in a model card that runs the model with transformers."""
CUT = """
# Without trust_remote_code=True transformers raises: it has no class of its own for these heads.
"""
"""The line in it where it has not."""


class OfImages(Family):
    """Families whose images are prepared as transformers' processors do it."""

    def pictures(self, model: Model, *, files: Mapping[str, str]) -> Pictures:
        from hydrasurgeon.data.pictures import InTransformers

        return InTransformers(model.preprocess, white=white_behind(self.config(model), files))

    @abstractmethod
    def config(self, model: Model) -> Any:
        """Return the record of a manifest's config, of the image tower if there are two."""


class HFEncoder(OfImages):
    name = "transformers"
    scheme = "hf"
    graph_clients = True
    example_id = "hf:google-bert/bert-base-uncased"
    layout = ("config.json", f"{MODELLING}.py")
    descriptions = (MODULES, POOLING, LIMITS)
    needs_config = True
    refuses_by_config = True
    companions = staticmethod(companions)
    check_files = staticmethod(check_recorded)
    padded_right = staticmethod(padded_right)
    kinds: ClassVar[Mapping[str, Kind]] = KINDS
    """Layouts of config.json and of tensor names, by model type."""
    reader: ClassVar[str] = "AutoTokenizer"
    """The class of transformers that reads tokenizers."""
    modules = "hydrasurgeon.families.hf_encoder.modules"

    def identify(self, bare: BareCheckpoint) -> tuple[Model, str | None]:
        tensors, files, where = bare.tensors, bare.files, bare.where
        config = self.required_config(bare)
        self.check_config(config, where)
        facts = parse(Facts, pick_fields(Facts, config), f"{where}: config.json")
        read = stock_config(config, f"{where}: config.json", self.kinds)
        check_files(files, where)
        kind = self.kinds[read.model_type]
        names = canonical(kind, tensors)
        named = (facts.architectures or kind.classes)[0]
        of_words = named == kind.of_words
        classifier = "classifier" if of_words else kind.classifier[-1][0]
        classes = 0
        if named in kind.all_classes:
            classes = _classes(classifier, names, tensors)
        prepared, pooling = preprocess(read, files, where), None
        if not classes:
            read = self.unclassified(read, names)
            pooling = pooling_of(bare.described, where) if self.pools(read) else None
        elif of_words:
            pooling = OF_WORDS
        if pooling is not None and (limit := longest(bare.described, where)) is not None:
            prepared["max_length"] = min(prepared["max_length"], limit)
        model = Model(
            family="transformers",
            arch=named if classes and named in kind.all_classes else kind.classes[0],
            config=read.written(),
            num_classes=classes,
            labels=_labels(facts, classes),
            preprocess=prepared,
            pooling=pooling,
            **_task(facts, classes, of_words=of_words),
        )
        notes = []
        if not classes:
            notes.append(f"{named} has no classifier: `finetune` on labelled data gives it one")
        weight_names = {weight.name for weight in self.weights(model)}
        extra = sorted(
            name for name in names if name not in weight_names and not name.endswith("_ids")
        )
        if extra:
            notes.append(
                f"{len(extra)} tensors that a classifier does not use are left out ({extra[0]}, …)"
            )
        if isinstance(read, ImageEncoder) and PREPROCESSOR not in files:
            notes.append(f"no {PREPROCESSOR}: {read.model_type}'s usual preprocessing is assumed")
        return model, f"{where}: {'; '.join(notes)}" if notes else None

    def check(self, model: Model, towers: Mapping[str, Tower], where: str) -> None:
        config = self.config(model, f"{where}: model.config")
        classes = self.kinds[config.model_type].all_classes
        if model.arch not in classes:
            message = f"{where}: model.arch: {model.arch[:60]!r} is not a classifier of type {config.model_type!r}"
            raise ManifestError(message, hint=f"Known: {', '.join(classes)}.")
        super().check(model, towers, where)
        pooled = model.pooling not in (None, OF_WORDS)
        words = model.arch == self.kinds[config.model_type].of_words
        if words != by_words(model) or (pooled and not self.pools(config)):
            raise ManifestError(f"{where}: model.pooling: does not fit {model.arch}")
        at = f"{where}: model.preprocess"
        if isinstance(config, ImageEncoder):
            check_size(
                config, parse(Images, model.preprocess, at, error=ManifestError), at, ManifestError
            )
            return
        assert isinstance(config, TextEncoder)
        length = parse(TextPreprocess, model.preprocess, at, error=ManifestError).max_length
        if length > config.longest:
            raise ManifestError(
                f"{at}: max_length: {length} tokens, the model has positions for {config.longest}"
            )

    def pools(self, config: EncoderConfig) -> bool:
        """Return True if its texts may be pooled as a sentence embedder's are."""
        return isinstance(config, TextEncoder)

    def unclassified(self, config: EncoderConfig, names: Collection[str]) -> EncoderConfig:
        """Return the record of a file without a classifier.

        The file may hold parts of a classifier's input nevertheless.
        """
        kind = self.kinds[config.model_type]
        if (
            kind.pooler
            and config.add_pooling_layer
            and f"{kind.prefix}.pooler.dense.weight" not in names
        ):
            # A new classifier brings a new pooler with it.
            return config.model_copy(update={"add_pooling_layer": False})
        return config

    def recognises(self, bare: BareCheckpoint) -> bool:
        return bare.config is not None and "model_type" in bare.config

    def covers(self, model: Model) -> bool:
        kind = model.config.get("model_type")
        return isinstance(kind, str) and kind in self.kinds

    def check_config(self, config: Mapping[str, Any], where: str) -> None:
        facts = parse(Facts, pick_fields(Facts, config), f"{where}: config.json")
        names, kind = facts.architectures or [], str(config.get("model_type"))[:60]
        decoder = config.get("is_decoder") or any(
            "CausalLM" in name or "LMHeadModel" in name for name in names
        )
        layouts = [
            f"{reason} ({key}={str(config[key])[:60]})"
            for key, fine, reason in OTHERS
            if config.get(key, fine) not in (fine, None)
        ]
        task = TASK.search(names[0]) if names else None
        error: type[HydraError] = SurgeryError
        hint = supported(config)
        if config.get("auto_map"):
            reason = "runs code of its own (auto_map, trust_remote_code), which is not executed"
            if kind in self.kinds:
                hint = f"If transformers' own {kind} model runs it as well, take auto_map out of its config.json."
        elif decoder:
            reason = f"{kind} is a decoder of a type that is not supported"
        elif kind not in self.kinds:
            reason = f"transformers:{kind} is not supported"
        elif layouts:
            reason = f"has {layouts[0]}, which is not supported"
        elif task is not None:
            words = re.sub("(?<=[a-z])(?=[A-Z])", " ", task[1]).lower()
            reason = f"{names[0][:80]} is made for {words[:80]}, which is not supported"
            error, hint = CheckpointError, WHOLE
        else:
            return
        raise error(f"{where}: {reason}", hint=hint)

    def config(self, model: Model, where: str = "model.config") -> EncoderConfig:
        """Return the record of a manifest's config."""
        return config_of(model, where, self.kinds)

    def kind(self, model: Model) -> Kind:
        return self.kinds[self.config(model).model_type]

    def names(self, model: Model, stored: Iterable[str]) -> Mapping[str, str]:
        weight_names = {weight.name for weight in self.weights(model)}
        return {
            name: where
            for name, where in canonical(self.kind(model), stored).items()
            if name in weight_names
        }

    def towers(self, model: Model) -> dict[str, Tower]:
        config = self.config(model)
        return {self.kinds[config.model_type].tower: config.tower}

    def weights(self, model: Model) -> Iterator[Weight]:
        config, classes = self.config(model), model.num_classes
        table = self.table_of(config, model)
        if model.pooling is None or (by_words(model) and self.kind(model).word_head):
            return table
        return pooled(table, config.hidden_size, classes)

    def table_of(self, config: EncoderConfig, model: Model) -> Iterator[Weight]:
        """Yield the tensors of the architecture as its library has it."""
        return weights(config, model.arch, model.num_classes)

    def with_classes(
        self, model: Model, count: int, labels: tuple[str, ...] | None, *, words: bool = False
    ) -> Model:
        config = {key: value for key, value in model.config.items() if key not in UNCLASSIFIED}
        changes: dict[str, Any] = {"num_classes": count, "labels": labels, "config": config}
        kind = self.kind(model)
        if words and kind.of_words is not None:
            changes |= {"arch": kind.of_words, "pooling": OF_WORDS}
        elif words:
            return super().with_classes(model, count, labels, words=True)
        elif by_words(model):
            changes |= {"arch": kind.classes[0], "pooling": None}
        return model.model_copy(update=changes)

    def directory(self, manifest: Manifest) -> dict[str, str]:
        model = manifest.model
        record = self.config(model).model_copy(update=self.stock_sizes(manifest) or {})
        labels = model.labels or tuple(f"LABEL_{i}" for i in range(model.num_classes))
        config = {
            **{key: value for key, value in record.library().items() if key not in UNCLASSIFIED},
            "architectures": [model.arch],
            "id2label": {str(i): label for i, label in enumerate(labels)},
            "label2id": {label: i for i, label in enumerate(labels)},
        }
        if model.task in PROBLEM_TYPES:
            config["problem_type"] = PROBLEM_TYPES[model.task]
        heads = self._heads(manifest)
        texts = {}
        if heads is not None:
            name = "HydraModel" if manifest.kind == "hydra" else "PrunedModel"
            line = f'ARCH = "{class_name(self.kind(model), model)}"'
            file = package_files("hydrasurgeon.families.hf_encoder") / f"{MODELLING}.py"
            texts[file.name] = file.read_text(encoding="utf-8").replace(TEMPLATE, line)
            config |= {"hydrasurgeon": heads, "auto_map": {_auto(model): f"{MODELLING}.{name}"}}
            if self._cut(manifest):
                config["auto_map"]["AutoConfig"] = f"{MODELLING}.Config"
                config |= {
                    "model_type": OWN_TYPE + config["model_type"],
                    "transformers_weights": STOCK,
                }
        texts["config.json"] = json.dumps(config, indent=2, sort_keys=True) + "\n"
        if "input_size" in model.preprocess:
            texts[PREPROCESSOR] = image_processor(model)
        return texts

    def usage(self, manifest: Manifest) -> Usage:
        task = "text-classification" if _reads_text(manifest.model) else "image-classification"
        if by_words(manifest.model):
            task = "token-classification"
        trust = ", trust_remote_code=True" if self._heads(manifest) else ""
        warning = CUT if self._cut(manifest) else ""
        code = USAGE.format(auto=_auto(manifest.model), task=task, trust=trust, warning=warning)
        return "transformers", task, code

    def stock_sizes(self, manifest: Manifest) -> dict[str, Any] | None:
        if manifest.kind == "hydra":
            return None
        if not is_cut(manifest):
            return {}
        if _classifies_pooled(manifest.model):
            return None
        ((tower, rows),) = manifest.kept.items()
        heads, width = even(rows), None
        if manifest.kept_neurons is not None:
            width = even(manifest.kept_neurons[tower])
            if width is None:
                return None
        if not heads:
            return None
        return self.sizes_of(self.config(manifest.model), heads, width)

    def sizes_of(
        self, config: EncoderConfig, heads: int, width: int | None
    ) -> dict[str, Any] | None:
        """Return the record's fields for so many heads and neurons in every layer.

        `width` None stands for all neurons. The result is None if the library cannot build it.
        """
        sizes: dict[str, Any] = {}
        if heads != config.num_attention_heads:
            if not self.kinds[config.model_type].fewer_heads:
                return None
            head_dim = config.hidden_size // config.num_attention_heads
            sizes = {"num_attention_heads": heads, "head_dim": head_dim}
        if width is None:
            return sizes
        if not isinstance(config, Dinov2Config):
            return {**sizes, "intermediate_size": width}
        ratio, rest = divmod(width, config.hidden_size)
        if rest:  # the library's ratio is a whole number
            return None
        return {**sizes, "mlp_ratio": ratio}

    def _heads(self, manifest: Manifest) -> dict[str, Any] | None:
        """Return the settings of the modelling file; None if stock transformers builds the model."""
        ((name, tower),) = manifest.towers.items()
        if manifest.kind != "hydra":
            if not self._cut(manifest):
                return None
            return {
                "kept": manifest.kept[name],
                **_pooling(manifest.model),
                **self._neurons(manifest.model, manifest.kept_neurons, name),
            }
        first = [
            weight
            for weight in self.weights(manifest.model)
            if weight.layer == 0 and weight.heads is not None
        ]
        tensors: dict[str, dict[str, list[int]]] = {name: {}, f"{name}{NEURONS}": {}}
        for weight in first:
            assert weight.heads is not None
            tensors[weight.group][weight.name.replace(".0.", ".{}.")] = [*astuple(weight.heads)]
        settings = {
            "members": [member.kept[name] for member in manifest.members],
            "head_dim": tower.head_dim,
            "head_tensors": tensors[name],
            **_pooling(manifest.model),
        }
        if any(member.kept_neurons for member in manifest.members):
            member_neurons = [
                self._neurons(manifest.model, m.kept_neurons or {}, name) for m in manifest.members
            ]
            settings |= {
                "member_neurons": member_neurons,
                "neuron_tensors": tensors[f"{name}{NEURONS}"],
            }
        return settings

    def _neurons(
        self, model: Model, kept: Mapping[str, Layers] | None, tower: str
    ) -> dict[str, Any]:
        """Return the kept neurons of every layer, a bit for each in a hexadecimal number.

        Empty if all stay.
        """
        if kept is None:
            return {}
        (rows,) = all_neurons(self.weights(model)).values()
        bits = [f"{sum(1 << neuron for neuron in row):x}" for row in kept.get(tower, rows)]
        return {"neurons": {"width": len(rows[0]), "bits": bits}}

    def _cut(self, manifest: Manifest) -> bool:
        return is_cut(manifest) and self.stock_sizes(manifest) is None

    def transform(
        self,
        model: Model,
        augment: Mapping[str, Any] | None = None,
        *,
        files: Mapping[str, str] | None = None,
    ) -> Callable[[Any], Any]:
        config = self.config(model)
        if isinstance(config, TextEncoder):
            from hydrasurgeon.data.texts import Tokenize
            from hydrasurgeon.data.word_tokens import TokenizeWords

            load = partial(
                load_tokenizer, dict(files or {}), config.model_type, config.vocab_size, self.reader
            )
            length, kinds = model.preprocess["max_length"], getattr(config, "type_vocab_size", 0)
            if by_words(model):
                return TokenizeWords(load, max_length=length, inputs="text")
            return Tokenize(load, max_length=length, inputs=model.inputs, typed=kinds > 1)
        return super().transform(model, augment, files=files)

    def trimmed(
        self, model: Model, files: Mapping[str, str], tokenizer: Any, token_ids: Iterable[int]
    ) -> tuple[Model, dict[str, str], str, list[int]]:
        config = self.config(model)
        if not isinstance(config, TextEncoder):
            return super().trimmed(model, files, tokenizer, token_ids)
        raw = json.loads(tokenizer.backend_tokenizer.to_str())
        padding = () if config.pad_token_id is None else (config.pad_token_id,)
        around = tokenizer.backend_tokenizer.encode("", "").ids
        kept = closed(raw, (*token_ids, *around, *tokenizer.all_special_ids, *padding))
        sizes = {"vocab_size": len(kept)}
        if padding:
            sizes["pad_token_id"] = kept.index(*padding)
        smaller = config.model_copy(update=sizes)
        if smaller.longest != config.longest:
            raise SurgeryError(
                f"{model.arch}: its positions count from its pad token's id, which would change",
                hint="Its vocabulary cannot be trimmed.",
            )
        new_files = trimmed_files(raw, kept, files)
        (name,) = (w.name for w in self.weights(model) if TOKENS.search(w.name))
        prepared = {**model.preprocess, "files_sha256": files_sha256(new_files)}
        changes = {"config": smaller.written(), "preprocess": prepared}
        return model.model_copy(update=changes), new_files, name, kept

    def dropouts(self, module: nn.Module) -> Iterator[nn.Dropout]:
        from torch import nn

        kind = self.kinds[str(module.kind)]
        for name, part in module.named_modules():
            place = LAYER.search(name)
            if isinstance(part, nn.Dropout) and place and place[2] not in kind.weights_dropout:
                yield part

    def example(self, model: Model, batch: int, *, device: torch.device, dtype: torch.dtype) -> Any:
        import torch

        config = self.config(model)
        if not isinstance(config, TextEncoder):
            return super().example(model, batch, device=device, dtype=dtype)
        shape = (batch, min(128, int(model.preprocess["max_length"])))
        ids = torch.randint(0, config.vocab_size, shape, device=device)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


class HFVariant(HFEncoder):
    """Types of models whose table of weights and live modules lie in a folder of their own."""

    table: ClassVar[Callable[..., Iterator[Weight]]]
    """A record and the number of classes → all tensors."""

    def recognises(self, bare: BareCheckpoint) -> bool:
        return bare.config is not None and stock(bare.config)["model_type"] in [*self.kinds]

    def pools(self, config: EncoderConfig) -> bool:
        return False

    def table_of(self, config: EncoderConfig, model: Model) -> Iterator[Weight]:
        return self.table(config, model.num_classes)


ROTATED = ("rope_scaling", "rope_parameters")
"""Keys of config.json with the rotation of positions: once, or by the type of layer."""


def check_rotation(config: Mapping[str, Any], where: str, fine: Sequence[str]) -> None:
    """Refuse rotary positions that are stretched in other ways than these."""
    records = [value for key in ROTATED if isinstance(value := config.get(key), Mapping)]
    for scaling in (
        *records,
        *(one for record in records for one in record.values() if isinstance(one, Mapping)),
    ):
        kind = scaling.get("rope_type", scaling.get("type"))
        if kind not in (None, *fine):
            reason = f"stretches its rotary positions by the length of a text ({str(kind)[:60]})"
            hint = f"Supported: rope_type {', '.join(fine)}."
            raise SurgeryError(f"{where}: {reason}, which is not supported", hint=hint)


def stock(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config.json, ours or another's, with the `model_type` that transformers knows."""
    kind = config.get("model_type")
    return {**config, "model_type": kind.removeprefix(OWN_TYPE) if isinstance(kind, str) else kind}


def is_cut(manifest: Manifest) -> bool:
    """Return True if these weights are not those of a model that transformers knows."""
    if manifest.kind == "hydra" or manifest.kept_neurons is not None:
        return True
    if _classifies_pooled(manifest.model):
        return True
    return any(
        len(row) != manifest.towers[name].heads
        for name, rows in manifest.kept.items()
        for row in rows
    )


def by_words(model: Model) -> bool:
    """Return True if a model answers for every word."""
    return model.pooling == OF_WORDS


def _classifies_pooled(model: Model) -> bool:
    """Return True if a linear layer reads pooled tokens, for which transformers has no class."""
    return model.pooling not in (None, OF_WORDS) and model.num_classes > 0


def _pooling(model: Model) -> dict[str, Any]:
    """Return the pooling for a directory's config.json."""
    if model.pooling is None or by_words(model):
        return {}
    return {"pooling": model.pooling.model_dump()}


def _reads_text(model: Model) -> bool:
    return "max_length" in model.preprocess


def _auto(model: Model) -> str:
    """Return the name of the auto class that loads a directory."""
    if by_words(model):
        return "AutoModelForTokenClassification"
    return f"AutoModelFor{'Sequence' if _reads_text(model) else 'Image'}Classification"


def supported(config: Mapping[str, Any]) -> str:
    """Return a hint with all supported model types, and the one most like a config's."""
    kinds = {
        name: kind
        for family in families()
        if isinstance(family, HFEncoder)
        for name, kind in family.kinds.items()
    }
    tower, usual = (
        ("vision", "vit")
        if {"image_size", "num_channels", "vision_config"} & {*config}
        else ("text", "bert")
    )
    alike = nearest(
        str(config.get("model_type"))[:60],
        [name for name, kind in kinds.items() if kind.tower == tower],
    )
    return f"The nearest is {[*alike, usual][0]}. Supported model types: {', '.join(kinds)}."


def _task(facts: Facts, classes: int, *, of_words: bool) -> dict[str, Any]:
    """Return the task, where the number of outputs does not determine it."""
    if not classes:
        return {}
    if of_words:
        return {"task": "token_classification"}
    return {"task": TOLD[facts.problem_type]} if facts.problem_type in TOLD else {}


def _classes(classifier: str, names: Mapping[str, str], tensors: Mapping[str, TensorInfo]) -> int:
    """Return the number of classes of the file's classifier; 0 without one."""
    for name in (f"{classifier}.weight", "cls_classifier.weight"):
        if name in names:
            return next(iter(tensors[names[name]].shape), 0)
    return 0


def _labels(facts: Facts, classes: int) -> tuple[str, ...] | None:
    labels = facts.id2label or {}
    # As many as there are names: a file may claim any number of classes.
    names = (
        tuple(str(labels.get(str(i), "")) for i in range(classes)) if len(labels) >= classes else ()
    )
    real = names and all(names) and any(name != f"LABEL_{i}" for i, name in enumerate(names))
    return names if real else None
