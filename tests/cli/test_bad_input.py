"""What cannot be read or cut ends in one message that says what, where and what next, and nothing is written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from fake_hub import FakeHub, Repo, fake_hub
from tiny_families import FAMILIES

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.cli.app import run
from hydrasurgeon.errors import CheckpointError, HydraError, SurgeryError

LIST = "bert, roberta, xlm-roberta, camembert, electra, distilbert, mpnet, vit, deit, dinov2, dinov2_with_registers"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with fake_hub(tmp_path, monkeypatch) as found:
        yield found


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def published(hub: FakeHub, name: str, folder: Path, **config: object) -> Repo:
    """A tiny BERT on the hub, with changes to its config."""
    FAMILIES["BERT"].write(folder)
    told = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**told, **config}))
    hub.repos[name] = Repo(files={path.name: path.read_bytes() for path in folder.iterdir()})
    return hub.repos[name]


@pytest.mark.parametrize(
    ("spec", "says", "hint"),
    [
        ("hf:me/gone", "the hub has no me/gone (or it is private)", "HF_TOKEN"),
        ("hf:me/secret", "the hub has no me/secret (or it is private)", "HF_TOKEN"),
        ("hf:me/gated", "me/gated is gated", "hf auth login"),
        ("hf:me/open@v9", "has no revision 'v9'", ""),
        ("timm:vit_gone_patch16_224", "the hub has no timm/vit_gone_patch16_224", "HF_TOKEN"),
        ("open_clip:ViT-B-32/gone", "the hub has no ViT-B-32/gone", "HF_TOKEN"),
        ("hf:a/b/c", "is not a repository name", "hf:google-bert/bert-base-uncased"),
    ],
)
def test_hub_ids_that_lead_nowhere(
    hub: FakeHub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    spec: str,
    says: str,
    hint: str,
) -> None:
    """Through huggingface_hub's own client, without a token."""
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
    monkeypatch.setattr("huggingface_hub.constants.HF_STORED_TOKENS_PATH", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)
    for name in ("me/secret", "me/gated", "me/open"):
        published(hub, name, tmp_path / name.replace("/", "-"))
    hub.repos["me/secret"].private = True
    hub.repos["me/gated"].gated = True
    assert run(["prune", "--method", "random", "--keep", "2", spec, "-o", "out"]) == 3
    said = capsys.readouterr().err
    assert says in said.replace("\n", " ")
    assert hint in said.replace("\n", " ")
    assert "Traceback" not in said
    assert not (tmp_path / "out.safetensors").exists()


def test_a_private_repository_opens_with_the_token_and_not_with_another(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(hub, "me/secret", tmp_path / "s").private = True
    opened = open_checkpoint("hf:me/secret")
    assert opened.hub_id == f"hf:me/secret@{hub.repos['me/secret'].sha}"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "empty"))
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(CheckpointError, match="the hub does not know the token"):
        open_checkpoint("hf:me/secret")


@pytest.mark.parametrize(
    ("change", "says", "hint"),
    [
        (
            {"model_type": "t5", "architectures": ["T5EncoderModel"]},
            "transformers:t5 is not supported",
            f"The nearest is bert. Supported model types: {LIST}",
        ),
        (
            {"model_type": "deberta"},
            "transformers:deberta is not supported",
            "The nearest is deberta-v2.",
        ),
        (
            {"model_type": "dinov3_vit", "image_size": 224},
            "dinov3_vit is not supported",
            "The nearest is dinov2.",
        ),
        ({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}, "gpt2 is a decoder", LIST),
        (
            {"position_embedding_type": "relative_key_query"},
            "relative positions in every layer",
            LIST,
        ),
        (
            {
                "model_type": "siglip2",
                "vision_config": {},
                "architectures": ["Siglip2ForImageClassification"],
            },
            "transformers:siglip2 is not supported",
            "The nearest is siglip.",
        ),
        (
            {"model_type": "new", "auto_map": {"AutoModel": "modeling.New"}},
            "trust_remote_code",
            LIST,
        ),
        (
            {"auto_map": {"AutoModel": "modeling.Mine"}},
            "trust_remote_code",
            "take auto_map out of its config.json",
        ),
    ],
)
def test_transformers_models_that_are_refused(
    tmp_path: Path, change: dict[str, object], says: str, hint: str
) -> None:
    FAMILIES["BERT"].write(tmp_path / "b")
    told = json.loads((tmp_path / "b" / "config.json").read_text())
    (tmp_path / "b" / "config.json").write_text(json.dumps({**told, **change}))
    before = listing(tmp_path)
    with pytest.raises(SurgeryError, match=says) as refused:
        hs.prune(tmp_path / "b", method="random", keep=2, out=tmp_path / "m.safetensors")
    assert str(tmp_path / "b") in refused.value.message
    assert hint in str(refused.value.hint)
    assert listing(tmp_path) == before


def test_code_that_comes_along_is_asked_for_by_taking_auto_map_out(tmp_path: Path) -> None:
    """The hint's way: transformers' own class runs the weights, the code beside them never runs."""
    family = FAMILIES["BERT"]
    family.write(tmp_path / "b")
    told = json.loads((tmp_path / "b" / "config.json").read_text())
    (tmp_path / "b" / "config.json").write_text(
        json.dumps({**told, "auto_map": {"AutoModel": "m.M"}})
    )
    (tmp_path / "b" / "m.py").write_text("raise SystemExit('it ran')\n")
    with pytest.raises(SurgeryError):
        hs.load(tmp_path / "b", device="cpu")
    (tmp_path / "b" / "config.json").write_text(json.dumps(told))
    inputs = family.inputs()
    found = hs.load(tmp_path / "b", device="cpu")(inputs)[:, 0].detach()
    torch.testing.assert_close(found, family.stock(tmp_path / "b")(inputs), rtol=0, atol=1e-6)


def test_pickled_directories(tmp_path: Path) -> None:
    FAMILIES["BERT"].write(tmp_path / "b")
    (tmp_path / "b" / "model.safetensors").rename(tmp_path / "b" / "pytorch_model.bin")
    with pytest.raises(HydraError, match=r"pytorch_model\.bin: pickled checkpoints are not read"):
        open_checkpoint(tmp_path / "b")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "score vit --method tayler --data demo:val",
            "--method tayler: no such criterion (did you mean taylor?)",
        ),
        ("finetune vit --data demo:train --recipe imag -o o", "--recipe imag: no such recipe"),
        (
            "eval vit --data demo:val --dtype float99",
            "--dtype float99: expected float32, bfloat16, float16 or float64",
        ),
        ("monitor nothere.jsonl --against vit", "nothere.jsonl: no such file"),
        (
            "prune ivt --method taylor --keep 2",
            "ivt: no such checkpoint (did you mean vit.safetensors?)",
        ),
    ],
)
def test_what_needs_no_torch_is_refused_before_a_stage_is_imported(
    line: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("vit.safetensors").touch()
    monkeypatch.setattr(
        "hydrasurgeon.cli.typer_commands.imported", lambda name: pytest.fail(f"{name} is imported")
    )
    assert run(line.split()) in (2, 3, 5)
    assert message in capsys.readouterr().err
    assert listing(tmp_path) == ["vit.safetensors"]


BYTES = os.fsdecode(b"b\xff")
"""A file's name that is not UTF-8."""


@pytest.mark.parametrize(
    "line",
    [
        ["score", BYTES, "--method", "random"],
        ["prune", BYTES, "--method", "random", "--keep", "2"],
        ["finetune", BYTES, "--data", "demo:train", "-o", "o"],
        ["finetune", "vit", "--data", "demo:train", "--teacher", BYTES, "-o", "o"],
        ["fuse", BYTES, "vit", "-o", "o"],
        ["fuse", "vit", "vit", "-o", BYTES],
        ["calibrate", BYTES, "--data", "demo:val", "-o", "o"],
        ["calibrate", "vit", "--data", "demo:val", "-o", BYTES],
        ["calibrate", "vit", "--data", f"{BYTES}.npz", "-o", "o"],
        ["build", BYTES, "--data", "demo:train", "--val", "demo:val", "-o", "o"],
        ["export", BYTES, "-o", "o.onnx"],
    ],
    ids=" ".join,
)
def test_names_that_no_manifest_can_hold(
    line: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("vit.safetensors", f"{BYTES}.safetensors", f"{BYTES}.npz"):
        Path(name).touch()
    assert run(line) == 2
    said = capsys.readouterr().err
    assert r"b\udcff" in said
    assert "is not UTF-8" in said


def test_a_name_that_is_not_utf8_answers(
    tiny: Callable[..., Path], images: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tiny()
    path.rename(path.with_name(f"{BYTES}.safetensors"))
    line = ["predict", str(path.with_name(BYTES)), "--data", images(), "-q", "--device", "cpu"]
    assert run(line) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])["id"] == 0
