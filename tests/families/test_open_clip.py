"""OpenCLIP: two towers, class names, and a hydra of M image and M text encoders; all against open_clip itself."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_families import CLIP, HEADS, LAYERS, NAMES, write_clip
from torch.nn.functional import cross_entropy

import hydrasurgeon as hs
from hydrasurgeon.anatomy.hooks import ablated
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.errors import DataError, SurgeryError, UsageError
from hydrasurgeon.families.open_clip.family import OpenCLIP, stock_config, weights
from hydrasurgeon.families.weights import shapes_of
from hydrasurgeon.runtime.hydra import Hydra

TEMPLATES = ("A photo of a {label}.", "{label}, drawn badly")
FULL = [[0, 1, 2, 3]] * LAYERS
TEXT_ROWS = ([[0, 1, 2, 3], [1], [0, 3]], [[0, 1, 2, 3], [], [1, 2, 3]])


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    """OpenCLIP's layout with nothing beside it: no class names are known."""
    write_clip(tmp_path / "clip")
    (tmp_path / "clip" / "heads.json").unlink()
    return tmp_path / "clip"


def stock(folder: Path) -> Any:
    import open_clip

    return open_clip.create_model(f"local-dir:{folder}").eval()


def pictures(rows: int = 5, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(rows, 3, 28, 28, generator=torch.Generator().manual_seed(3)).to(dtype)


def data(folder: Path, *, names: bool = False) -> str:
    """Twelve images in three class folders, or the same as an array without names."""
    from PIL import Image

    images = np.random.default_rng(0).integers(0, 255, (12, 28, 28, 3), dtype=np.uint8)
    if not names:
        np.savez(folder / "data.npz", images=images, labels=np.arange(12) % 3)
        return str(folder / "data.npz")
    for i, image in enumerate(images):
        home = folder / "data" / sorted(NAMES)[i % 3]
        home.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(home / f"{i:02}.png")
    return str(folder / "data")


def cut(source: Path, out: Path, **rows: Any) -> Path:
    mask = out.with_suffix(".json")
    mask.write_text(json.dumps({"vision": FULL, "text": FULL} | rows))
    return hs.prune(source, mask=mask, out=out).path


def named(path: Path, *, dtype: str = "float32") -> Any:
    return hs.load(path, classes=",".join(NAMES), device="cpu", dtype=dtype)


def test_both_encoders_equal_open_clips(clip: Path) -> None:
    theirs, ours = stock(clip), named(clip).module
    texts = torch.randint(1, 400, (7, 12), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        for found, right in (
            (ours.model.encode_image(pictures()), theirs.encode_image(pictures())),
            (ours.model.encode_text(texts), theirs.encode_text(texts)),
        ):
            assert right.std() > 0.1
            torch.testing.assert_close(found, right, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"init_logit_bias": -10.0},
        {"nonscalar_logit_scale": True, "quick_gelu": True},
        {"vision_cfg": {"ls_init_value": 0.1, "no_ln_pre": True, "mlp_ratio": 3.0}},
        {"vision_cfg": {"image_size": [28, 14], "pool_type": "avg", "final_ln_after_pool": True}},
        {"text_cfg": {"proj_bias": True, "no_causal_mask": True, "pool_type": "last"}},
    ],
)
def test_every_variant_is_read_and_runs_alike(tmp_path: Path, changes: dict[str, Any]) -> None:
    import open_clip

    config = deepcopy(CLIP)
    for key, value in changes.items():
        config[key] = {**config[key], **value} if isinstance(value, dict) else value
    write_clip(tmp_path / "c", config=config)
    theirs = stock(tmp_path / "c")
    assert shapes_of(weights(stock_config(config, "x"))) == {
        n: tuple(p.shape) for n, p in theirs.state_dict().items()
    }
    height, width = (28, 14) if "image_size" in changes.get("vision_cfg", {}) else (28, 28)
    images = pictures()[..., :height, :width]
    read = open_clip.get_tokenizer(f"local-dir:{tmp_path / 'c'}")
    classes = open_clip.build_zero_shot_classifier(theirs, read, NAMES, ["A photo of a {}."])
    with torch.no_grad():
        expected = theirs.logit_scale.exp() * theirs.encode_image(images, normalize=True) @ classes
        expected += 0 if theirs.logit_bias is None else theirs.logit_bias
        found = hs.load(tmp_path / "c", device="cpu")(images)[:, 0]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"vision_cfg": {"timm_model_name": "vit_tiny_patch16_224"}}, "timm_model_name"),
        ({"vision_cfg": {"layers": [3, 4, 6, 3]}}, "ResNet"),
        ({"vision_cfg": {"attentional_pool": True}}, "attentional_pool"),
        ({"text_cfg": {"hf_model_name": "roberta-base"}}, "hf_model_name"),
        ({"text_cfg": {"hf_tokenizer_name": "someone/x"}}, "hf_tokenizer_name"),
        ({"text_cfg": {"qk_norm": True}}, "qk_norm"),
        ({"multimodal_cfg": {"width": 32}}, "multimodal_cfg"),
        ({"custom_text": True}, "custom_text"),
    ],
)
def test_other_towers_are_refused(clip: Path, change: dict[str, Any], said: str) -> None:
    config = deepcopy(CLIP)
    for key, value in change.items():
        config[key] = {**config.get(key, {}), **value} if isinstance(value, dict) else value
    (clip / "open_clip_config.json").write_text(json.dumps({"model_cfg": config}))
    with pytest.raises(SurgeryError, match=said) as caught:
        open_checkpoint(clip)
    assert "ViT-B-32" in str(caught.value.hint)


def test_zero_shot_equals_open_clips(clip: Path, tmp_path: Path) -> None:
    """Class names from folders, two templates; features are averaged as open_clip averages them."""
    import open_clip

    spec = data(tmp_path, names=True)
    (tmp_path / "templates.txt").write_text("\n".join(TEMPLATES))
    found = tmp_path / "p.safetensors"
    report = hs.evaluate(
        [clip],
        data=spec,
        template=[str(tmp_path / "templates.txt")],
        predictions=found,
        device="cpu",
    )
    from safetensors.torch import load_file

    theirs, labels = stock(clip), sorted(NAMES)
    read = open_clip.get_tokenizer(f"local-dir:{clip}")
    classes = open_clip.build_zero_shot_classifier(
        theirs, read, labels, [t.replace("{label}", "{}") for t in TEMPLATES]
    )
    from hydrasurgeon.data import open_data

    samples = open_data(spec)
    prepare = named(clip).transform
    images = torch.stack([prepare(samples.read(i)) for i in range(len(samples))])
    with torch.no_grad():
        right = theirs.logit_scale.exp() * theirs.encode_image(images, normalize=True) @ classes
    torch.testing.assert_close(load_file(found)["logits"][:, 0], right, rtol=0, atol=1e-5)
    (result,) = report.report.results
    assert result.id is not None
    assert result.id.accuracy == (right.argmax(1) == torch.tensor(samples.labels)).float().mean()
    assert len(report.report.settings["templates_sha256"]) == 64


def test_class_names_are_recorded_and_go_along(clip: Path, tmp_path: Path) -> None:
    spec = data(tmp_path)
    with pytest.raises(UsageError, match="needs class names"):
        hs.score(clip, method="taylor", data=spec)
    assert not (clip / "heads.json").exists()
    (tmp_path / "names.txt").write_text("\n".join(NAMES) + "\n")
    scored = hs.score(
        clip,
        method="taylor",
        data=spec,
        device="cpu",
        classes=str(tmp_path / "names.txt"),
        template=[TEMPLATES[1]],
    )
    assert scored.manifest.model.labels == NAMES
    assert scored.manifest.model.config["zero_shot"]["templates"] == [TEMPLATES[1]]
    assert scored.manifest.history[-1].args["classes"] == "names.txt"
    hashed = scored.manifest.model.config["zero_shot"]["sha256"]
    assert scored.result.settings["templates_sha256"] == hashed
    members = [
        hs.prune(clip, method="taylor", keep=k, out=tmp_path / f"m{k}.safetensors").path
        for k in (2, 3)
    ]
    fused = hs.fuse(members, out=tmp_path / "h.safetensors", check=spec, tolerance=1e-6)
    assert fused.manifest.model.labels == NAMES
    (result,) = hs.evaluate([fused.path], data=spec, device="cpu").report.results
    assert result.members == 2
    # Other classes on the same file: the eval is another one, the file stays as it is.
    (other,) = hs.evaluate([fused.path], data=spec, classes="a,b,c", device="cpu").report.results
    assert result.id is not None
    assert other.id is not None
    assert result.id.nll != other.id.nll
    with pytest.raises(DataError):
        hs.evaluate([fused.path], data=spec, classes="a,b", device="cpu")


def test_a_hydra_has_all_members_image_and_text_encoders(clip: Path, tmp_path: Path) -> None:
    """Members that differ in both towers, then only in the text tower, whose images then run once."""
    vision = ([[0, 1, 2, 3], [0, 2], []], [[0, 1, 2, 3], [1], [0, 3]])
    apart = [
        cut(clip, tmp_path / f"m{i}.safetensors", vision=v, text=t)
        for i, (v, t) in enumerate(zip(vision, TEXT_ROWS, strict=True))
    ]
    texts = [cut(clip, tmp_path / f"t{i}.safetensors", text=t) for i, t in enumerate(TEXT_ROWS)]
    images = pictures(dtype=torch.float64)
    for members, trunk in ((apart, 1), (texts, LAYERS)):
        out = tmp_path / f"hydra{trunk}.safetensors"
        fused = hs.fuse(members, out=out, classes=",".join(NAMES))
        assert fused.manifest.fusion is not None
        assert fused.manifest.fusion.trunk == trunk
        assert fused.bytes_stored <= open_checkpoint(clip).tensors.nbytes
        with torch.inference_mode():
            expected = torch.cat([named(m, dtype="float64")(images) for m in members], dim=1)
            model = hs.load(out, device="cpu", dtype="float64")
            assert isinstance(model.module, Hydra)
            for mode in ("stacked", "apart"):
                model.module.mode = mode
                torch.testing.assert_close(model(images), expected, rtol=0, atol=1e-10)
            assert (expected[:, 0] - expected[:, 1]).abs().max() > 1e-2
            probs = torch.stack([named(m, dtype="float64").predict(images) for m in members])
        torch.testing.assert_close(model.predict(images), probs.mean(0), rtol=0, atol=1e-6)


def test_class_features_follow_what_changes_them(clip: Path) -> None:
    """They are kept between passes, but not when text heads go off, weights move or gradients are asked for."""
    model, images = named(clip), pictures()
    sites = OpenCLIP().anatomy(model.module).sites
    gone = [h for h in _heads("text") if h.number < 2]
    with torch.inference_mode():
        before = model(images)
        first = model.module.class_features()
        assert model.module.class_features() is first
        with ablated(sites, gone):
            assert (model(images) - before).abs().max() > 1e-2
            assert model.module.class_features() is model.module.class_features()
        torch.testing.assert_close(model(images), before, rtol=0, atol=0)
    with torch.no_grad():
        model.module.model.ln_final.weight[:8] += 1
        assert (model(images) - before).abs().max() > 1e-2
    loss = cross_entropy(model(images)[:, 0], torch.tensor([0, 1, 2, 0, 1]))
    loss.backward()
    assert model.module.model.transformer.resblocks[0].attn.in_proj.weight.grad.abs().sum() > 0
    double = model.to(torch.float64)
    with torch.inference_mode():
        assert double(images.double()).dtype == torch.float64


def _heads(tower: str) -> list[Any]:
    from hydrasurgeon.heads import all_heads

    return all_heads({tower: tuple(map(tuple, FULL))})


@pytest.mark.parametrize("method", ["random", "magnitude", "taylor"])
def test_a_selection_stays_in_its_tower(clip: Path, tmp_path: Path, method: str) -> None:
    spec = None if method in ("random", "magnitude") else data(tmp_path)
    options: dict[str, Any] = {"classes": ",".join(NAMES), "device": "cpu"}
    both = hs.score(clip, method=method, data=spec, **options).result
    text = hs.score(clip, method=method, data=spec, tower="text", **options).result
    assert both.values is not None
    assert text.values is not None
    assert set(text.values) == {"text"}
    torch.testing.assert_close(torch.tensor(text.values["text"]), torch.tensor(both.values["text"]))
    full = tuple(map(tuple, FULL))
    pruned = hs.prune(clip, method=method, remove=5, out=tmp_path / "t.safetensors")
    assert pruned.manifest.kept is not None
    assert pruned.manifest.kept["vision"] == full  # only the text tower was scored
    assert sum(map(len, pruned.manifest.kept["text"])) == LAYERS * HEADS - 5
    with pytest.raises(UsageError, match="only text was scored"):
        hs.prune(clip, method=method, keep=2, tower="vision")
    hs.score(clip, method=method, data=spec, tower="both", **options)
    late = hs.prune(
        clip, method=method, keep=1, tower="vision", layers="1-2", out=tmp_path / "v.safetensors"
    )
    assert late.manifest.kept is not None
    assert [len(row) for row in late.manifest.kept["vision"]] == [4, 1, 1]
    assert late.manifest.kept["text"] == full
    everywhere = hs.prune(clip, method=method, remove=14, out=tmp_path / "b.safetensors")
    assert everywhere.removed == 14
