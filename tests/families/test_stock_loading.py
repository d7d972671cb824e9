"""What holds members or pruned heads is loaded by our code or not at all: a stock class would answer at random."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_families
import torch
from tiny_families import CLASSIFIERS, FAMILIES, Family, thoroughly
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
