"""What holds members or pruned heads is loaded by our code or not at all; cuts that leave the same sizes in every layer
are models of their own library."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_families
import torch
from tiny_families import CLASSIFIERS, DIM, FAMILIES, HEADS, LAYERS, Family, thoroughly
from tiny_members import KEPTS, RAGGED, member, tuned_of

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.errors import CheckpointError

HF = [name for name in tiny_families.KINDS if FAMILIES[name].library == "transformers"]
KINDS = ("pruned", "hydra", "tuned hydra")
# transformers' own tokenizer of Qwen 2 adds a word to any that is not Qwen's.
SPELT_ALIKE = [name for name in tiny_families.NAMESAKES if name != "Qwen2"]


pytestmark = pytest.mark.usefixtures("own_module_cache")


def directory(home: Path, family: Family, kind: str) -> Path:
    if not (home / "source").exists():
        home.mkdir(exist_ok=True)
        family.write(home / "source")
    name = kind.replace(" ", "-")
    out = f"{home / name}/"
    if kind == "pruned":
        return member(home / "source", family, RAGGED, out)
    parts = [
        member(home / "source", family, rows, home / f"{name}-m{i}.safetensors")
        for i, rows in enumerate(KEPTS)
    ]
    if kind == "tuned hydra":
        parts = tuned_of(parts, home)
    return hs.fuse(parts, out=out).path


def stock_ways(family: Family, folder: Path) -> list[Callable[[], object]]:
    """Each way in which its library loads a directory without our code."""
    if family.library == "timm":
        import timm

        return [lambda: timm.create_model(f"local-dir:{folder}", pretrained=True)]
    if family.library == "open_clip":
        import open_clip

        return [lambda: open_clip.create_model(f"local-dir:{folder}")]
    import transformers

    kind = "Sequence" if family.is_text else "Image"
    auto = getattr(transformers, f"AutoModelFor{kind}Classification")
    task = f"{'text' if family.is_text else 'image'}-classification"
    own = getattr(
        transformers, json.loads((folder / "config.json").read_text())["architectures"][0]
    )
    return [
        lambda: auto.from_pretrained(folder),
        lambda: transformers.AutoModel.from_pretrained(folder),
        lambda: transformers.AutoModel.from_pretrained(folder, trust_remote_code=True),
        lambda: transformers.pipeline(task, model=str(folder)),
        lambda: own.from_pretrained(folder),
    ]


@pytest.mark.usefixtures("labels_need_not_fit")
@pytest.mark.parametrize(
    ("kind", "decided"), [("pruned", False), ("hydra", True), ("tuned hydra", False)]
)
@pytest.mark.parametrize("family", thoroughly(*HF, "OpenCLIP"))
def test_stock_libraries_raise(family: Family, kind: str, decided: bool, tmp_path: Path) -> None:
    folder = directory(tmp_path, family, kind)
    if decided:
        data = family.data(tmp_path, rows=60)
        folder = hs.calibrate(folder, data=data, out=f"{tmp_path / 'decided'}/").path
    for load in stock_ways(family, folder):
        with pytest.raises((ValueError, OSError, RuntimeError)):
            load()


@pytest.mark.slow
def test_stock_timm_raises(tmp_path: Path) -> None:
    """In one process that does not know us."""
    import subprocess

    folders = [
        str(directory(tmp_path / name, FAMILIES[name], kind))
        for name in ("timm ViT", "DINOv3")
        for kind in KINDS
    ]
    code = f"""
import sys; sys.modules["hydrasurgeon"] = None
import timm
for folder in {folders!r}:
    try:
        timm.create_model("local-dir:" + folder)
    except RuntimeError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["Unknown model (hydrasurgeon_vit)"] * len(folders)


@pytest.mark.slow
@pytest.mark.parametrize("family", thoroughly(*CLASSIFIERS, *SPELT_ALIKE))
def test_pipelines_that_trust_our_code_answer_as_we_do(family: Family, tmp_path: Path) -> None:
    from PIL import Image
    from transformers import pipeline

    inputs: list[Any] = ["good film", "a very very bad film"]
    if not family.is_text:
        pixels = torch.randint(
            0, 256, (2, 28, 28, 3), generator=torch.Generator().manual_seed(5)
        ).to(torch.uint8)
        inputs = [Image.fromarray(each.numpy()) for each in pixels]
    for kind in KINDS:
        folder = directory(tmp_path, family, kind)
        task = f"{'text' if family.is_text else 'image'}-classification"
        classify = pipeline(task, model=str(folder), trust_remote_code=True, top_k=None)
        rows = [sorted(each, key=lambda row: row["label"]) for each in classify(inputs)]
        answers = torch.tensor([[row["score"] for row in each] for each in rows])
        model = hs.load(folder, device="cpu")
        ready = (
            model.transform.collate(inputs)
            if family.is_text
            else torch.stack([*map(model.transform, inputs)])
        )
        torch.testing.assert_close(answers, model.predict(ready), rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_what_transformers_saves_again_is_no_stock_model_either(kind: str, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification as Auto

    family = FAMILIES["BERT"]
    folder = directory(tmp_path, family, kind)
    model = Auto.from_pretrained(folder, trust_remote_code=True)
    model.save_pretrained(tmp_path / "again")
    first, second = (
        json.loads((place / "config.json").read_text()) for place in (folder, tmp_path / "again")
    )
    for key in ("model_type", "transformers_weights", "auto_map", "hydrasurgeon"):
        assert first[key] == second[key]
    for load in stock_ways(family, tmp_path / "again"):
        with pytest.raises((ValueError, OSError)):
            load()
    again = Auto.from_pretrained(tmp_path / "again", trust_remote_code=True)
    inputs = family.inputs()
    with torch.inference_mode():
        assert torch.equal(again(**inputs).logits, model(**inputs).logits)


def test_verify_names_a_config_that_stock_libraries_would_take(tmp_path: Path) -> None:
    for name, key, value in (
        ("BERT", "model_type", "bert"),
        ("timm ViT", "architecture", "vit_tiny_patch16_224"),
    ):
        folder = directory(tmp_path / key, FAMILIES[name], "pruned")
        assert hs.verify(folder).holds
        place = folder / "config.json"
        place.write_text(json.dumps({**json.loads(place.read_text()), key: value}))
        broken = [check for check in hs.verify(folder).checks if check.holds is False]
        assert [check.name for check in broken] == ["config.json"]
        assert f"{key} is '{value}' there, 'hydrasurgeon_" in broken[0].detail


@pytest.mark.parametrize("name", ["BERT", "ViT", "timm ViT"])
def test_one_logit_is_what_its_own_library_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tiny_families

    monkeypatch.setattr(tiny_families, "CLASSES", 1)
    FAMILIES[name].write(tmp_path / "one")
    assert open_checkpoint(tmp_path / "one").manifest.model.task == "binary"
    inputs = FAMILIES[name].inputs()
    ours = hs.load(tmp_path / "one", device="cpu")(inputs)[:, 0]
    assert torch.allclose(ours, FAMILIES[name].stock(tmp_path / "one")(inputs), atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"architectures": ["BertForQuestionAnswering"]},
            "BertForQuestionAnswering is made for question answering",
        ),
        ({"architectures": ["BertForMultipleChoice"]}, "made for multiple choice"),
        ({"architectures": ["BertForNextSentencePrediction"]}, "made for next sentence prediction"),
    ],
)
def test_models_for_other_tasks(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    FAMILIES["BERT"].write(tmp_path / "it")
    place = tmp_path / "it" / "config.json"
    place.write_text(json.dumps({**json.loads(place.read_text()), **change}))
    with pytest.raises(CheckpointError, match=message) as caught:
        open_checkpoint(tmp_path / "it")
    assert caught.value.exit_code == 3


SIZED = ("ViT", "DeiT", "DeiT distilled", "DINOv2", "DINOv2 with registers")
"""Image encoders of transformers, which take any number of heads."""
WHOLE = ("DINOv2", "DINOv2 with registers")
"""Their ratio is a whole number."""


def cut(source: Path, out: Path, **amount: Any) -> Path:
    return hs.prune(source, method="magnitude", out=f"{out}/", **amount).path


def settings(folder: Path) -> dict[str, Any]:
    made: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return made


def is_stock(folder: Path) -> bool:
    config = settings(folder)
    ours = str(config.get("model_type", config.get("architecture"))).startswith("hydrasurgeon")
    return not ours and "auto_map" not in config and not [*folder.glob("*.py")]


def check_alike(family: Family, folder: Path, source: Path) -> None:
    inputs = family.inputs()
    found = family.stock(folder)(inputs)
    with torch.inference_mode():
        expected = hs.load(folder, device="cpu")(inputs)[:, 0]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert (family.stock(source)(inputs) - found).abs().max() > 1e-2
    assert hs.verify(folder).holds


@pytest.mark.parametrize(
    "family", thoroughly(*(name for name in CLASSIFIERS if name != "OpenCLIP"))
)
def test_fewer_neurons_are_a_smaller_width(family: Family, tmp_path: Path) -> None:
    family.write(tmp_path / "source")
    folder = cut(tmp_path / "source", tmp_path / "m", neurons=0.5)
    assert is_stock(folder)
    card = (folder / "README.md").read_text()
    assert "trust_remote_code" not in card
    assert "import hydrasurgeon, timm" not in card
    check_alike(family, folder, tmp_path / "source")


@pytest.mark.parametrize("name", SIZED)
def test_image_encoders_may_have_fewer_heads(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    family.write(tmp_path / "source")
    rows = [[0, 2], [1, 3], [2, 3]]
    folder = member(tmp_path / "source", family, rows, f"{tmp_path / 'm'}/")
    assert is_stock(folder)
    config = settings(folder)
    assert (config["num_attention_heads"], config["head_dim"]) == (2, DIM // HEADS)
    check_alike(family, folder, tmp_path / "source")


@pytest.mark.parametrize("name", ["BERT", "DistilBERT", "ModernBERT", "CLIP", "timm ViT"])
def test_others_need_our_code_for_fewer_heads(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    family.write(tmp_path / "source")
    folder = member(tmp_path / "source", family, [[0, 2]] * LAYERS, f"{tmp_path / 'm'}/")
    assert not is_stock(folder)


@pytest.mark.parametrize("name", WHOLE)
def test_a_width_that_the_ratio_cannot_say_needs_our_code(name: str, tmp_path: Path) -> None:
    FAMILIES[name].write(tmp_path / "source")
    folder = cut(tmp_path / "source", tmp_path / "m", neurons=0.4)
    assert not is_stock(folder)


@pytest.mark.parametrize("width", [1, 47, 64, 100, 127])
def test_timm_rounds_its_ratio_to_the_width(width: int, tmp_path: Path) -> None:
    family = FAMILIES["timm ViT"]
    family.write(tmp_path / "source")
    folder = cut(tmp_path / "source", tmp_path / "m", neurons=width / 128)
    assert int(settings(folder)["model_args"]["mlp_ratio"] * DIM) == width
    check_alike(family, folder, tmp_path / "source")
