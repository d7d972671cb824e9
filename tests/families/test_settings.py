"""What a manifest or a library's config may say: typed, bounded, in agreement with itself, and nothing else reaches a
library."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tiny_families import FAMILIES

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.errors import CheckpointError, ManifestError, UsageError
from hydrasurgeon.families import family_of
from hydrasurgeon.families.base import BareCheckpoint
from hydrasurgeon.families.settings import Images, parse
from hydrasurgeon.families.timm_vit.family import TimmViT
from hydrasurgeon.files.manifest import Manifest, Model, parse_manifest
from hydrasurgeon.files.tensors import TensorInfo


@pytest.fixture(scope="module")
def stocks(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The directory of a family, made once; tests only read it."""
    home = tmp_path_factory.mktemp("stocks")

    def stock(name: str) -> Path:
        if not (home / name).exists():
            FAMILIES[name].write(home / name)
        return home / name

    return stock


opened = cache(open_checkpoint)


def manifest_of(stock: Path) -> dict[str, Any]:
    return json.loads(opened(stock).manifest.to_json())


def checked(manifest: dict[str, Any], where: str = "m.heads.json") -> Manifest:
    """Through both boundaries: the manifest's, and the family's."""
    parsed = parse_manifest(json.dumps(manifest), where)
    family_of(parsed.model).check(parsed.model, parsed.towers, where)
    return parsed


def changed(value: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A copy with values at dotted places (double underscores) replaced, or taken away by `...`."""
    value = deepcopy(value)
    for path, new in changes.items():
        *steps, last = path.split("__")
        inner = value
        for step in steps:
            inner = inner[step]
        if new is ...:
            del inner[last]
        else:
            inner[last] = new
    return value


@pytest.mark.parametrize("name", FAMILIES)
def test_what_was_recognised_passes(stocks: Callable[[str], Path], name: str) -> None:
    manifest = manifest_of(stocks(name))
    assert checked(manifest).model.config == manifest["model"]["config"]


CONTRADICTIONS = [
    (
        "timm ViT",
        {"model__config__model_args__num_heads": 2},
        r"towers\.vision\.heads is 4, model\.config says 2",
    ),
    ("timm ViT", {"model__config__model_args__depth": 2}, r"towers\.vision\.layers is 3"),
    ("timm ViT", {"model__labels": ["a", "b"]}, "2 labels for 3 classes"),
    (
        "timm ViT",
        {"model__preprocess__input_size": [1, 28, 28]},
        "mean and std must be 1 numbers, one for each channel",
    ),
    ("timm ViT", {"model__preprocess__input_size": [3, 56, 56]}, "the model reads 3×28×28"),
    (
        "timm ViT",
        {"model__config__model_args__embed_dim": 30},
        "embed_dim 30 is not a multiple of num_heads 4",
    ),
    ("timm ViT", {"model__config__model_args__class_token": False}, "global_pool is token"),
    (
        "BERT",
        {"towers__text__heads": 8, "towers__text__head_dim": 4},
        r"towers\.text\.heads is 8, model\.config says 4",
    ),
    ("BERT", {"model__config__num_attention_heads": 2}, r"towers\.text\.heads is 4"),
    ("BERT", {"model__config__hidden_size": 30}, "dim 30 is not a multiple of 4 heads"),
    ("BERT", {"model__config__model_type": "roberta"}, "is not a classifier of type 'roberta'"),
    (
        "BERT",
        {"model__arch": "RobertaForSequenceClassification"},
        "is not a classifier of type 'bert'",
    ),
    ("BERT", {"model__preprocess__max_length": 33}, "33 tokens, the model has positions for 32"),
    ("BERT", {"model__config__pad_token_id": 14}, "pad_token_id 14 is none of 14 words"),
    ("RoBERTa", {"model__preprocess__max_length": 31}, "the model has positions for 30"),
    ("RoBERTa", {"model__config__pad_token_id": None}, "pad_token_id"),
    ("DistilBERT", {"model__config__n_heads": 2}, r"towers\.text\.heads is 4"),
    ("ViT", {"model__preprocess__input_size": [3, 56, 56]}, "the model reads 3×28×28"),
    ("ViT", {"model__config__patch_size": 56}, "has 0 patches"),
    ("OpenCLIP", {"towers__text__layers": 4}, r"towers\.text\.layers is 4"),
    ("OpenCLIP", {"model__config__text_cfg__heads": 2}, r"towers\.text\.heads is 4"),
    ("OpenCLIP", {"model__labels": ["cat", "dog"]}, "2 labels for 3 classes"),
    ("OpenCLIP", {"model__labels": None}, "without names of classes"),
    ("OpenCLIP", {"model__config__zero_shot": ...}, "without names of classes and templates"),
    (
        "OpenCLIP",
        {"model__config__zero_shot__templates": ["{label}"]},
        "sha256 is not that of the templates",
    ),
    ("OpenCLIP", {"model__config__zero_shot__templates": ["a photo"]}, "has no {label}"),
    ("OpenCLIP", {"model__preprocess__input_size": [3, 14, 14]}, "the model reads"),
]


@pytest.mark.parametrize(("name", "changes", "says"), CONTRADICTIONS)
def test_a_manifest_that_contradicts_itself_is_refused(
    stocks: Callable[[str], Path], name: str, changes: dict[str, Any], says: str
) -> None:
    manifest = changed(manifest_of(stocks(name)), **changes)
    manifest["scores"] = {}
    for tower, rows in manifest["kept"].items():  # what the manifest's own boundary compares
        sizes = manifest["towers"][tower]
        manifest["kept"][tower] = [list(range(sizes["heads"]))] * sizes["layers"]
        assert rows
    with pytest.raises(ManifestError, match=says) as refused:
        checked(manifest)
    assert "m.heads.json" in refused.value.message


def test_opening_asks_the_family(stocks: Callable[[str], Path], tmp_path: Path) -> None:
    """A model of four heads that says it has two ran with other heads, silently."""
    path = hs.prune(
        stocks("timm ViT"), method="magnitude", keep=4, out=tmp_path / "m.safetensors"
    ).path
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    manifest = changed(json.loads(metadata["hydrasurgeon"]), model__config__model_args__num_heads=2)
    path.with_suffix(".heads.json").unlink()
    save_file(load_file(path), path, metadata={**metadata, "hydrasurgeon": json.dumps(manifest)})
    for use in (open_checkpoint, hs.load, lambda p: hs.prune(p, method="magnitude", keep=1)):
        with pytest.raises(ManifestError, match=r"towers\.vision\.heads is 4") as refused:
            use(path)
        assert str(path) in refused.value.message


# What would make a library open a file, ask the hub, or run code; and what is of another type than a size.
LOADERS = [
    ("timm ViT", "model_args", {"checkpoint_path": "/tmp/evil.pth"}),
    ("timm ViT", "model_args", {"pretrained": True}),
    ("timm ViT", "model_args", {"pretrained_cfg": {"url": "https://evil"}}),
    ("timm ViT", "model_args", {"cache_dir": "/tmp"}),
    ("timm ViT", "model_args", {"scriptable": True}),
    ("BERT", "", {"attn_implementation": "owner/kernel"}),
    ("BERT", "", {"_attn_implementation": "owner/kernel"}),
    ("BERT", "", {"quantization_config": {"quant_method": "x"}}),
    ("BERT", "", {"name_or_path": "owner/model", "_name_or_path": "owner/model"}),
    ("BERT", "", {"torch_dtype": "float16", "dtype": "float16"}),
    ("BERT", "", {"trust_remote_code": True}),
    ("BERT", "", {"experts_implementation": "owner/kernel", "use_kernels": True}),
    ("ViT", "", {"backbone": "x", "use_timm_backbone": True}),
]


@pytest.mark.parametrize(("name", "place", "extra"), LOADERS)
def test_what_makes_a_library_load_is_left_out_of_a_stock_config_and_refused_in_a_manifest(
    stocks: Callable[[str], Path], tmp_path: Path, name: str, place: str, extra: dict[str, Any]
) -> None:
    plain = open_checkpoint(stocks(name)).manifest
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    for path in stocks(name).iterdir():
        (hostile / path.name).write_bytes(path.read_bytes())
    config = json.loads((hostile / "config.json").read_text())
    (config[place] if place else config).update(extra)
    (hostile / "config.json").write_text(json.dumps(config))
    assert open_checkpoint(hostile).manifest == plain
    manifest = json.loads(plain.to_json())
    inner = manifest["model"]["config"]
    (inner[place] if place else inner).update(extra)
    with pytest.raises(ManifestError, match="is not a setting that is known here") as refused:
        checked(manifest)
    assert any(key in refused.value.message for key in extra)


def test_timm_gets_the_tables_name_and_known_arguments_only(
    stocks: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    import timm

    path = stocks("timm ViT")
    stock, calls = timm.create_model, []

    def watched(name: str, **arguments: Any) -> Any:
        calls.append((name, arguments))
        return stock(name, **arguments)

    monkeypatch.setattr(timm, "create_model", watched)
    hs.load(path, device="cpu")
    sizes = {"img_size": 28, "patch_size": 7, "embed_dim": 32, "depth": 3, "num_heads": 4}
    assert calls == [("vit_tiny_patch16_224", {"pretrained": False, "num_classes": 3, **sizes})]


@pytest.mark.parametrize(
    "extra",
    [
        {"norm_layer": "__import__"},
        {"act_layer": "os.system"},
        {"norm_layer": "batchnorm2d"},
        {"block_fn": "Block"},
        {"features_only": True},
        {"drop_rate": 1},
        {"patch_size": True},
        {"img_size": [28]},
        {"init_values": 0},
    ],
)
def test_arguments_of_timm_that_are_not_in_the_table(
    stocks: Callable[[str], Path], extra: dict[str, Any]
) -> None:
    (key,) = extra
    config = json.loads((stocks("timm ViT") / "config.json").read_text())
    config["model_args"] |= extra
    with pytest.raises(CheckpointError, match=rf"here: config\.json: model_args: {key}"):
        identified(stocks("timm ViT"), config)
    words = ",".join(f"{name}={json.dumps(value)}" for name, value in extra.items())
    if "," not in words:
        with pytest.raises(UsageError, match=key):
            open_checkpoint(
                stocks("timm ViT") / "model.safetensors", arch=f"timm:vit_tiny_patch16_224,{words}"
            )


def identified(stock: Path, config: Any) -> Model:
    """What timm's family makes of a directory with another config."""
    checkpoint = opened(stock)
    tensors: dict[str, TensorInfo] = dict(checkpoint.tensors.items())
    bare = BareCheckpoint(tensors, "here", config=config, files=checkpoint.files)
    return TimmViT().identify(bare)[0]


HUGE = [
    ("timm ViT", "config__model_args__depth", 10**7),
    ("timm ViT", "config__model_args__img_size", 10**6),
    ("timm ViT", "config__model_args__depth", True),
    ("timm ViT", "config__model_args__depth", 3.0),
    ("BERT", "config__num_hidden_layers", 10**9),
    ("BERT", "config__vocab_size", 2**62),
    ("BERT", "config__layer_norm_eps", "1e-12"),
    ("ViT", "config__image_size", [2, 10**9]),
    ("OpenCLIP", "config__vision_cfg__head_width", 0),
    ("timm ViT", "preprocess__input_size", [3, 100_000, 100_000]),
    ("timm ViT", "preprocess__crop_pct", 1e-9),
    ("timm ViT", "preprocess__std", [0.5, 0.0, 0.5]),
    ("timm ViT", "preprocess__mean", [0.5]),
    ("timm ViT", "preprocess__interpolation", "random"),
    ("timm ViT", "preprocess__unknown", 1),
    ("BERT", "preprocess__max_length", 10**12),
    ("BERT", "preprocess__files_sha256", "x"),
]


@pytest.mark.parametrize(("name", "place", "value"), HUGE)
def test_sizes_are_bounded_before_anything_is_counted(
    stocks: Callable[[str], Path], name: str, place: str, value: Any
) -> None:
    """Ten million layers took minutes to list."""
    manifest = manifest_of(stocks(name))
    last = place.rpartition("__")[2]
    with pytest.raises(ManifestError, match=last):
        checked(changed(manifest, **{f"model__{place}": value}))


def test_no_number_of_a_preprocess_record_is_nan() -> None:
    for bad in (float("nan"), float("inf")):
        with pytest.raises(
            CheckpointError, match=r"here: mean\.\d: Input should be a finite number"
        ):
            parse(Images, {"input_size": [3, 8, 8], "mean": [bad] * 3, "std": [1.0] * 3}, "here")
