"""Directories of sentence-transformers: their pooling is what a classifier reads, wherever the model goes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_families import CLASSES, DIM, FAMILIES, TEXT, tokenizer, transformers_model
from torch import Tensor

import hydrasurgeon as hs
from hydrasurgeon.anatomy.layers import run_block
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.errors import CheckpointError, ManifestError, SurgeryError
from hydrasurgeon.families import family_of
from hydrasurgeon.files.manifest import Pooling

pytestmark = pytest.mark.usefixtures("own_module_cache")

KINDS = {
    "BERT": ("BertModel", {}),
    "RoBERTa": ("RobertaModel", {"max_position_embeddings": 64}),
    "DistilBERT": ("DistilBertModel", {"dim": DIM, "n_layers": 3, "n_heads": 4, "hidden_dim": 48}),
    "MPNet": ("MPNetModel", {"max_position_embeddings": 64}),
    "Qwen3": ("Qwen3Model", {"num_key_value_heads": 4, "head_dim": 8}),
    "ModernBERT": ("ModernBertModel", {"local_attention": 4, "reference_compile": False}),
}


def embedder(
    folder: Path, kind: str = "BERT", mode: str = "mean", *, normalize: bool = True
) -> Path:
    """A body as sentence-transformers writes it."""
    cls, more = KINDS[kind]
    transformers_model(cls, TEXT | more).save_pretrained(folder)
    tokenizer(folder)
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "", "type": f"s.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": mode}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 20}))
    return folder


def embedded(folder: Path, mode: str, *, normalize: bool) -> Callable[[Any], Tensor]:
    """By its own library, one text at a time and without padding."""
    import transformers

    body = transformers.AutoModel.from_pretrained(folder).eval()

    def of(inputs: Any) -> Tensor:
        rows = []
        for ids, mask in zip(inputs["input_ids"], inputs["attention_mask"], strict=True):
            with torch.inference_mode():
                hidden = body(input_ids=ids[mask == 1][None]).last_hidden_state[0]
            rows.append(
                {"mean": hidden.mean(dim=0), "cls": hidden[0], "lasttoken": hidden[-1]}[mode]
            )
        vectors = torch.stack(rows)
        return vectors / vectors.norm(dim=-1, keepdim=True) if normalize else vectors

    return of


@pytest.mark.parametrize(
    ("kind", "mode", "normalize"),
    [
        *((kind, "mean", True) for kind in KINDS),
        *(("BERT", mode, False) for mode in ("mean", "cls", "lasttoken")),
        ("ModernBERT", "cls", True),
        ("Qwen3", "lasttoken", True),
    ],
)
def test_what_is_read(tmp_path: Path, kind: str, mode: str, normalize: bool) -> None:
    folder = embedder(tmp_path / "body", kind, mode, normalize=normalize)
    model = hs.load(folder, device="cpu")
    assert model.manifest.model.pooling == Pooling(
        mode="last" if mode == "lasttoken" else mode, normalize=normalize
    )
    assert model.manifest.model.preprocess["max_length"] == 20
    inputs = FAMILIES["BERT"].inputs()
    with torch.inference_mode():
        vectors = model(inputs)[:, 0]
    expected = embedded(folder, mode, normalize=normalize)(inputs)
    torch.testing.assert_close(vectors, expected, rtol=1e-4, atol=1e-5)
    # The parts of the model, from which hydras and circuits are run.
    anatomy = model.anatomy
    stack = anatomy.embed(inputs)

    with torch.inference_mode():
        for block in anatomy.blocks:
            stack = replace(stack, hidden=run_block(block, stack.hidden, stack.bias))
        torch.testing.assert_close(anatomy.readout(stack), vectors, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["BERT", "RoBERTa", "Qwen3", "ModernBERT"])
def test_one_model_everywhere(tmp_path: Path, kind: str) -> None:
    """Tuned, pruned and fused; in a directory by stock transformers and its pipeline, and by parts."""
    import transformers

    folder = embedder(tmp_path / "body", kind)
    data = FAMILIES["BERT"].data(tmp_path)
    probe = hs.finetune(
        folder, data=data, recipe="probe", out=f"{tmp_path / 'probe'}/", device="cpu"
    )
    inputs = FAMILIES["BERT"].inputs()
    weights = load_file(probe.path / "model.safetensors")
    vectors = embedded(folder, "mean", normalize=True)(inputs)
    expected = vectors @ weights["classifier.weight"].T + weights["classifier.bias"]
    torch.testing.assert_close(
        hs.load(probe.path, device="cpu")(inputs)[:, 0], expected, rtol=1e-4, atol=1e-4
    )
    still = {"epochs": "1", "batch_size": "8"}
    members = [
        hs.prune(
            probe.path, method="random", keep=2, neurons=0.5, seed=s, out=tmp_path / f"m{s}"
        ).path
        for s in (0, 1)
    ]
    tuned = hs.finetune(
        members[0], data=data, recipe="text", set=still, out=f"{tmp_path / 'tuned'}/", device="cpu"
    ).path
    hydra = hs.fuse([tuned, members[1]], mlp="separate", out=f"{tmp_path / 'hydra'}/").path
    parts = [hs.load(path, device="cpu").predict(inputs) for path in (tuned, members[1])]
    torch.testing.assert_close(
        torch.as_tensor(hs.load(hydra, device="cpu").predict(inputs)),
        torch.stack([torch.as_tensor(part) for part in parts]).mean(dim=0),
        rtol=0,
        atol=1e-6,
    )
    load = transformers.AutoModelForSequenceClassification.from_pretrained
    for path in (probe.path, tuned, hydra):
        with pytest.raises((OSError, ValueError, KeyError)):
            load(path)
        model = load(path, trust_remote_code=True).eval()
        with torch.inference_mode():
            probs = model(**inputs).logits.softmax(dim=-1)
        ours = hs.load(path, device="cpu")
        torch.testing.assert_close(probs, torch.as_tensor(ours.predict(inputs)), rtol=0, atol=1e-5)
        classify = transformers.pipeline(
            "text-classification", model=str(path), trust_remote_code=True, top_k=None
        )
        answers = {row["label"]: row["score"] for row in classify("good film")[0]}
        (row,) = ours.predict("good film")
        assert answers == pytest.approx(
            {f"LABEL_{name}": p for name, p in row["top"]}
            if "LABEL_0" in answers
            else dict(row["top"]),
            abs=1e-5,
        )
        with torch.inference_mode():
            loss = model(**inputs, labels=torch.arange(5) % CLASSES).loss
        expected = torch.nn.functional.nll_loss(probs.log(), torch.arange(5) % CLASSES)
        assert float(loss) == pytest.approx(float(expected), abs=1e-4)


@pytest.mark.parametrize(
    ("modules", "pooling", "error"),
    [
        (["Transformer", "Pooling", "Dense"], {"pooling_mode": "mean"}, SurgeryError),
        (["Transformer", "Pooling"], {"pooling_mode": "max"}, SurgeryError),
        (["Transformer", "Pooling"], {"pooling_mode": ["mean", "cls"]}, SurgeryError),
        (["Transformer", "Pooling"], {}, SurgeryError),
        (["Transformer", "Pooling"], [], CheckpointError),
        ("x", {"pooling_mode": "mean"}, CheckpointError),
    ],
)
def test_what_is_refused(
    tmp_path: Path, modules: Any, pooling: Any, error: type[Exception]
) -> None:
    folder = embedder(tmp_path / "body")
    if isinstance(modules, list):
        modules = [{"type": f"sentence_transformers.models.{kind}"} for kind in modules]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    with pytest.raises(error):
        open_checkpoint(folder)


def test_a_vision_model_pools_by_itself(tmp_path: Path) -> None:
    FAMILIES["ViT"].write(tmp_path / "source")
    manifest = open_checkpoint(tmp_path / "source").manifest
    model = manifest.model.model_copy(update={"pooling": Pooling(mode="mean")})
    with pytest.raises(ManifestError, match=r"does not fit"):
        family_of(model).check(model, manifest.towers, "d")
