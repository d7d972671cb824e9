"""transformers' encoders with a classifier: BERT, RoBERTa, DistilBERT, ELECTRA, MPNet, ViT, DeiT, DINOv2."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from importlib.resources import files as package_files
from typing import TYPE_CHECKING, Any

from hydrasurgeon.anatomy.parts import Anatomy
from hydrasurgeon.errors import CheckpointError, ManifestError, SurgeryError, UsageError
from hydrasurgeon.families.base import Identified, Usage
from hydrasurgeon.families.hf_encoder.architectures import (
    KINDS,
    Kind,
    canonical,
    class_name,
    has_pooler,
    sizes,
    tensor_shapes,
)
from hydrasurgeon.files.manifest import Manifest, Model, Tower
from hydrasurgeon.slicing import HeadTensor

if TYPE_CHECKING:
    import torch
    from torch import nn

    from hydrasurgeon.files.tensors import TensorInfo
    from hydrasurgeon.heads import Kept

__all__ = ["HFEncoder", "check_config"]

SUPPORTED = f"Supported model types: {', '.join(KINDS)}."
CLIP = "CLIP is read as OpenCLIP stores it: give open_clip:ViT-B-32/openai (or another of its names) for the same weights."
LAYER = re.compile(r"\.layers?\.(\d+)\.")
VISION = re.compile(r"(?:^|\.)(?:vit|deit|dinov2)\.")
MLP = re.compile(r"\.layers?\.\d+\.(?:intermediate|output|mlp|ffn)\.(?!LayerNorm)")
CLASSIFIER = ("classifier.", "pre_classifier.", "cls_classifier.", "distillation_classifier.")
# Facts about a file or a training run rather than about the architecture; others follow from the manifest.
DROPPED = {
    "_name_or_path", "architectures", "auto_map", "dtype", "finetuning_task", "id2label", "label2id",
    "num_labels", "problem_type", "torch_dtype", "transformers_version",
}  # fmt: skip
TOKENIZER = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
SLOW_TOKENIZER = ("vocab.txt", "vocab.json", "merges.txt")
"""Needed only where there is no tokenizer.json, which holds all of it."""
IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
HALVES = {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}
RESAMPLE = {0: "nearest", 2: "bilinear", 3: "bicubic"}


USAGE = """
from transformers import {auto}, pipeline

model = {auto}.from_pretrained("DIR"{trust})
classify = pipeline("{task}", model="DIR"{trust})
"""


class HFEncoder:
    family = "transformers"

    def identify(
        self,
        tensors: Mapping[str, TensorInfo],
        *,
        arch: str | None,
        config: Mapping[str, Any] | None,
        files: Mapping[str, str],
        where: str,
    ) -> Identified:
        if arch is not None:
            raise UsageError(
                f"--arch transformers:{arch}: a transformers model is known by its config.json",
                hint="Give the directory that holds config.json and the weights.",
            )
        if config is None:
            raise CheckpointError(f"{where}: has no config.json")
        kind = _kind(config, where)
        names = canonical(kind, tensors)
        named = _class_of(config, kind)
        classes = _classes(kind, names, tensors) if named in kind.classes else 0
        kept = {k: v for k, v in config.items() if k not in DROPPED and not k.startswith("__")}
        model = Model(
            family="transformers",
            arch=named if named in kind.classes else kind.classes[0],
            config=kept,
            num_classes=classes,
            labels=_labels(config, classes),
            preprocess=_preprocess(config, kind, files),
        )
        if has_pooler(kept) and not classes and f"{kind.prefix}.pooler.dense.weight" not in names:
            # transformers' own word for it; a new classifier brings a new pooler with it.
            model = model.model_copy(update={"config": {**kept, "add_pooling_layer": False}})
        return Identified(model, _towers(kept), _note(model, named, names, kind, files, where))

    def check(self, model: Model, towers: Mapping[str, Tower], where: str) -> None:
        kind = KINDS.get(str(model.config.get("model_type")))
        if kind is None or model.arch not in kind.classes:
            raise ManifestError(
                f"{where}: transformers has no {model.arch!r} of type {model.config.get('model_type')!r}",
                hint=SUPPORTED,
            )

    def companions(self, present: Collection[str]) -> tuple[str, ...]:
        wanted = ("tokenizer.json", *TOKENIZER) if "tokenizer.json" in present else (*SLOW_TOKENIZER, *TOKENIZER)  # fmt: skip
        return tuple(name for name in (*wanted, "preprocessor_config.json") if name in present)

    def check_files(self, model: Model, files: Mapping[str, str]) -> str | None:
        recorded = model.preprocess.get("files_sha256")
        if files and recorded is not None and recorded != _files_sha256(files):
            return (
                f"the manifest belongs to another tokenizer or preprocessor than {', '.join(files)}"
            )
        return None

    def names(self, model: Model, stored: Iterable[str]) -> Mapping[str, str]:
        known = canonical(KINDS[model.config["model_type"]], stored)
        ours = tensor_shapes(model.config, model.arch, model.num_classes)
        return {name: where for name, where in known.items() if name in ours}

    def head_tensors(self, model: Model, tower: str, layer: int) -> tuple[HeadTensor, ...]:
        kind = KINDS[model.config["model_type"]]
        place = f"{kind.prefix}.{kind.layer.format(layer)}"
        biased = kind.tower == "text" or sizes(model.config, "qkv_bias")
        parts = ("weight", "bias") if biased else ("weight",)
        rows = [f"{place}.{name}.{part}" for name in (kind.q, kind.k, kind.v) for part in parts]
        return (
            *(HeadTensor(name, 0) for name in rows),
            HeadTensor(f"{place}.{kind.out}.weight", 1),
        )

    def expected(self, model: Model, towers: Mapping[str, Tower]) -> Mapping[str, tuple[int, ...]]:
        return tensor_shapes(model.config, model.arch, model.num_classes)

    def is_mlp(self, name: str) -> bool:
        return MLP.search(name) is not None

    def layer_of(self, name: str) -> tuple[str, int] | None:
        match = LAYER.search(name)
        return None if match is None else ("vision" if VISION.search(name) else "text", int(match[1]))  # fmt: skip

    def embedding_of(self, name: str) -> str | None:
        if any(part in name for part in (".embeddings.", ".embeddings_project.", ".relative_attention_bias.")):  # fmt: skip
            return "vision" if VISION.search(name) else "text"
        return None

    def is_classifier(self, name: str) -> bool:
        return name.startswith(CLASSIFIER)

    def with_classes(self, model: Model, count: int, labels: tuple[str, ...] | None) -> Model:
        config = {key: value for key, value in model.config.items() if key != "add_pooling_layer"}
        return model.model_copy(update={"num_classes": count, "labels": labels, "config": config})

    def directory(self, manifest: Manifest) -> dict[str, str]:
        model = manifest.model
        config, heads = hf_config(model), self._heads(manifest)
        found = {}
        if heads is not None:
            name = "PrunedModel" if manifest.kept is not None else "HydraModel"
            config |= {
                "hydrasurgeon": heads,
                "auto_map": {_auto(model): f"modeling_hydrasurgeon.{name}"},
            }
            found["modeling_hydrasurgeon.py"] = _modelling(model)
        found["config.json"] = json.dumps(config, indent=2, sort_keys=True) + "\n"
        if "input_size" in model.preprocess:
            found["preprocessor_config.json"] = json.dumps(_processor(model), indent=2) + "\n"
        return found

    def usage(self, manifest: Manifest) -> Usage:
        task = "text-classification" if _reads_text(manifest.model) else "image-classification"
        trust = ", trust_remote_code=True" if self._heads(manifest) else ""
        code = USAGE.format(auto=_auto(manifest.model), task=task, trust=trust)
        return Usage(library="transformers", task=task, code=code)

    def _heads(self, manifest: Manifest) -> dict[str, Any] | None:
        """What the generated modelling file must know; None where stock transformers builds the model."""
        ((name, tower),) = manifest.towers.items()
        if manifest.members is not None:
            specs = self.head_tensors(manifest.model, name, 0)
            return {
                "members": [member.kept[name] for member in manifest.members],
                "head_dim": tower.head_dim,
                "head_tensors": {LAYER.sub(r".layer.{}.", spec.name): spec.axis for spec in specs},
            }
        rows = (manifest.kept or {})[name]
        pruned = any(len(row) != tower.heads for row in rows)
        return {"kept": rows} if pruned else None

    def build(
        self, model: Model, towers: Mapping[str, Tower], kept: Kept, *, fresh: bool = False
    ) -> nn.Module:
        from hydrasurgeon.families.hf_encoder.modules import Encoder

        return Encoder.build(model, kept[KINDS[model.config["model_type"]].tower], fresh=fresh)

    def anatomy(self, module: nn.Module) -> Anatomy:
        from hydrasurgeon.families.hf_encoder.modules import Encoder, anatomy

        assert isinstance(module, Encoder)
        return anatomy(module)

    def transform(
        self,
        model: Model,
        augment: Mapping[str, Any] | None = None,
        *,
        files: Mapping[str, str] | None = None,
    ) -> Callable[[Any], Any]:
        if "max_length" in model.preprocess:
            from hydrasurgeon.data.texts import Tokenize

            return Tokenize(
                files or {},
                model_type=model.config["model_type"],
                max_length=model.preprocess["max_length"],
            )
        from hydrasurgeon.data.transforms import eval_transform, train_transform

        if augment is not None:
            return train_transform(model.preprocess, augment)
        return eval_transform(model.preprocess)

    def example(self, model: Model, batch: int, *, device: torch.device, dtype: torch.dtype) -> Any:
        import torch

        if "max_length" not in model.preprocess:
            return torch.randn(batch, *model.preprocess["input_size"], device=device, dtype=dtype)
        shape = (batch, min(128, int(model.preprocess["max_length"])))
        ids = torch.randint(0, int(sizes(model.config, "vocab_size")), shape, device=device)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def hf_config(model: Model) -> dict[str, Any]:
    """config.json of the unpruned classification model."""
    labels = model.labels or tuple(f"LABEL_{i}" for i in range(model.num_classes))
    return {
        **{key: value for key, value in model.config.items() if key != "add_pooling_layer"},
        "architectures": [model.arch],
        "id2label": {str(i): label for i, label in enumerate(labels)},
        "label2id": {label: i for i, label in enumerate(labels)},
        "problem_type": "single_label_classification",
    }


def _reads_text(model: Model) -> bool:
    return "max_length" in model.preprocess


def _auto(model: Model) -> str:
    """The auto class that loads a directory."""
    return f"AutoModelFor{'Sequence' if _reads_text(model) else 'Image'}Classification"


def _modelling(model: Model) -> str:
    """The modelling file for a directory: the template, with the class it builds on."""
    text = (
        package_files("hydrasurgeon.families.hf_encoder") / "modeling_hydrasurgeon.py"
    ).read_text(encoding="utf-8")
    template = f"ARCH = {KINDS['bert'].classes[0]!r}".replace("'", '"')
    assert template in text
    return text.replace(template, f'ARCH = "{class_name(model)}"')


def check_config(config: Mapping[str, Any], where: str) -> None:
    """SurgeryError for a model that cannot be cut, told from its config.json alone."""
    _kind(config, where)


def _kind(config: Mapping[str, Any], where: str) -> Kind:
    """The table's row for a config; SurgeryError says why a model cannot be cut."""
    found = str(config.get("model_type"))
    names = [str(name) for name in config.get("architectures") or []]
    if config.get("auto_map"):
        raise SurgeryError(
            f"{where}: runs code of its own (auto_map, trust_remote_code), which is not executed",
            hint=f"If transformers' own {found} model runs it as well, take auto_map out of its config.json."
            if found in KINDS
            else SUPPORTED,
        )
    decoder = config.get("is_decoder") or any("CausalLM" in n or "LMHeadModel" in n for n in names)
    if decoder:
        raise SurgeryError(f"{where}: {found} is a decoder, not a classifier", hint=SUPPORTED)
    if found not in KINDS:
        hint = CLIP if found == "clip" else SUPPORTED
        raise SurgeryError(f"{where}: transformers:{found} is not supported", hint=hint)
    for key, fine, what in (
        ("position_embedding_type", "absolute", "relative positions in every layer"),
        ("add_cross_attention", False, "cross-attention"),
        ("use_swiglu_ffn", False, "a packed SwiGLU MLP (DINOv2 giant)"),
    ):
        if config.get(key, fine) not in (fine, None):
            raise SurgeryError(
                f"{where}: has {what} ({key}={config[key]}), which is not supported", hint=SUPPORTED
            )
    if config.get("problem_type") in ("regression", "multi_label_classification"):
        raise SurgeryError(
            f"{where}: is made for {config['problem_type'].replace('_', ' ')}",
            hint="A hydra averages class probabilities: only single-label classifiers are supported.",
        )
    dim, heads = sizes(config, "hidden_size"), sizes(config, "num_attention_heads")
    if dim % heads:
        raise CheckpointError(f"{where}: dim {dim} is not a multiple of {heads} heads")
    return KINDS[found]


def _class_of(config: Mapping[str, Any], kind: Kind) -> str:
    """The class that wrote the file, or the one it would be."""
    names = config.get("architectures") or [kind.classes[0]]
    return str(names[0])


def _classes(kind: Kind, names: Mapping[str, str], tensors: Mapping[str, TensorInfo]) -> int:
    """How many classes the file's classifier tells apart; 0 where there is none."""
    for name in (f"{kind.classifier[-1][0]}.weight", "cls_classifier.weight"):
        if name in names:
            return tensors[names[name]].shape[0]
    return 0


def _labels(config: Mapping[str, Any], classes: int) -> tuple[str, ...] | None:
    given = config.get("id2label") or {}
    names = tuple(str(given.get(str(i), "")) for i in range(classes))
    real = names and all(names) and any(name != f"LABEL_{i}" for i, name in enumerate(names))
    return names if real else None


def _towers(config: Mapping[str, Any]) -> dict[str, Tower]:
    kind = KINDS[str(config["model_type"])]
    dim, heads = sizes(config, "hidden_size"), sizes(config, "num_attention_heads")
    layers = sizes(config, "num_hidden_layers")
    return {kind.tower: Tower(layers=layers, heads=heads, head_dim=dim // heads, dim=dim)}


def _note(
    model: Model, named: str, names: Mapping[str, str], kind: Kind, files: Mapping[str, str], where: str
) -> str | None:  # fmt: skip
    """What the user should know about how the file was read."""
    notes = []
    if not model.num_classes:
        notes.append(f"{named} has no classifier: `finetune` on labelled data gives it one")
    ours = tensor_shapes(model.config, model.arch, model.num_classes)
    extra = sorted(name for name in names if name not in ours and not name.endswith("_ids"))
    if extra:
        notes.append(f"{len(extra)} tensors that a classifier does not use are left out ({extra[0]}, …)")  # fmt: skip
    if kind.tower == "vision" and "preprocessor_config.json" not in files:
        notes.append(f"no preprocessor_config.json: {model.config['model_type']}'s usual preprocessing is assumed")  # fmt: skip
    return f"{where}: {'; '.join(notes)}" if notes else None


def _files_sha256(files: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(dict(files), sort_keys=True).encode()).hexdigest()


def _preprocess(config: Mapping[str, Any], kind: Kind, files: Mapping[str, str]) -> dict[str, Any]:
    recorded = {"files_sha256": _files_sha256(files)} if files else {}
    if kind.tower == "text":
        return {"max_length": _max_length(config, files), **recorded}
    given = json.loads(files.get("preprocessor_config.json", "{}"))
    return {**_sizing(config, given), **_colours(config, given), **recorded}


def _max_length(config: Mapping[str, Any], files: Mapping[str, str]) -> int:
    """As many tokens as there are positions, or as the tokenizer allows."""
    positions = int(sizes(config, "max_position_embeddings"))
    if config["model_type"] in ("roberta", "mpnet"):
        positions -= 2  # their positions count from padding_idx + 1
    allowed = json.loads(files.get("tokenizer_config.json", "{}")).get("model_max_length")
    return min(positions, int(allowed)) if isinstance(allowed, int | float) else positions


def _sizing(config: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Resizing and cropping of a preprocessor_config.json, in the words of timm's data configs."""
    kind = str(config["model_type"])
    image = sizes(config, "image_size")
    # DINOv2 was trained at 518 and is used at 224, and so are the others with the size they have.
    crop = 224 if kind == "dinov2" and image >= 224 else image
    usual: Mapping[str, Any] = {"size": {"height": crop, "width": crop}}
    if kind != "vit":
        edge = round(crop * 256 / 224)
        usual = {
            "size": {"shortest_edge": edge}
            if kind == "dinov2"
            else {"height": edge, "width": edge},
            "crop_size": {"height": crop, "width": crop},
        }
    wanted = given if "size" in given else usual
    size = wanted["size"]
    if isinstance(size, int):
        size = {"shortest_edge": size} if kind == "dinov2" else {"height": size, "width": size}
    crops = wanted.get("crop_size") if given.get("do_center_crop", True) else None
    if isinstance(crops, int):
        crops = {"height": crops, "width": crops}
    squash = "shortest_edge" not in size
    edge = size["height"] if squash else size["shortest_edge"]
    target = crops or {"height": edge, "width": size["width"] if squash else edge}
    # Half a pixel keeps timm's floor(crop / crop_pct) at the edge.
    share = 1.0 if target["height"] == edge else target["height"] / (edge + 0.5)
    return {
        "input_size": [int(sizes(config, "num_channels")), target["height"], target["width"]],
        "interpolation": RESAMPLE.get(given.get("resample", 2 if kind == "vit" else 3), "bicubic"),
        "crop_pct": share,
        "crop_mode": "squash" if squash else "center",
    }


def _colours(config: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    channels = int(sizes(config, "num_channels"))
    if given.get("do_normalize") is False:
        return {"mean": [0.0] * channels, "std": [1.0] * channels}
    usual = HALVES if config["model_type"] == "vit" or channels != 3 else IMAGENET
    mean, std = given.get("image_mean", usual["mean"]), given.get("image_std", usual["std"])
    return {"mean": mean[:1] * channels if len(mean) != channels else mean,
            "std": std[:1] * channels if len(std) != channels else std}  # fmt: skip


def _processor(model: Model) -> dict[str, Any]:
    """A preprocessor_config.json for a checkpoint that came without one."""
    told = model.preprocess
    _, height, width = told["input_size"]
    edge = round(height / told["crop_pct"] - (0 if told["crop_pct"] == 1.0 else 0.5))
    squash = told["crop_mode"] == "squash"
    return {
        "image_processor_type": "BitImageProcessor" if not squash else "DeiTImageProcessor",
        "do_resize": True, "do_rescale": True, "do_normalize": True, "do_center_crop": edge != height,
        "size": {"height": edge, "width": edge} if squash else {"shortest_edge": edge},
        "crop_size": {"height": height, "width": width},
        "resample": next(n for n, name in RESAMPLE.items() if name == told["interpolation"]),
        "rescale_factor": 1 / 255, "image_mean": told["mean"], "image_std": told["std"],
    }  # fmt: skip
