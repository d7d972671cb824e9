"""examples/paper: rows of the paper's tables that the package itself does not make."""

from __future__ import annotations

import json
from pathlib import Path

import centroids
import lit
import lora
import mc_dropout
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from tiny_families import FAMILIES, NAMES

import hydrasurgeon as hs
from hydrasurgeon.data import Batches, open_data


def changed(before: Path, after: Path) -> set[str]:
    first, second = load_file(before), load_file(after)
    assert first.keys() == second.keys()
    return {name for name in first if not torch.equal(first[name], second[name])}


@pytest.mark.slow
def test_lit(tmp_path: Path) -> None:
    """The image tower stays as it is, pruned heads stay away, and a hydra stores it once."""
    FAMILIES["OpenCLIP"].write(tmp_path / "clip")
    start = tmp_path / "start.safetensors"
    hs.prune(tmp_path / "clip", method="random", keep=2, tower="vision", out=start)
    random = np.random.default_rng(0)
    lines = []
    for at in range(6):
        pixels = random.integers(0, 255, (28, 28, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{at}.png")
        lines.append(json.dumps({"image": f"{at}.png", "text": f"a {NAMES[at % 3]}"}))
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines))
    outs = [tmp_path / f"lit-{steps}.safetensors" for steps in (2, 3)]
    for out, steps in zip(outs, (2, 3), strict=True):
        lit.train(start, tmp_path / "pairs.jsonl", out, steps, 4)
    moved = changed(start, outs[0])
    assert any(name.startswith("transformer.") for name in moved)
    assert not [name for name in moved if name.startswith("visual.")]
    fused = hs.fuse(outs, mlp="separate", out=tmp_path / "hydra.safetensors")
    assert fused.bytes_stored < fused.bytes_members


@pytest.mark.slow
def test_lora(tmp_path: Path) -> None:
    """What is written is an ordinary checkpoint, of whose layers attention's alone moved."""
    family = FAMILIES["BERT"]
    family.write(tmp_path / "bert")
    outs = [tmp_path / f"lora-{seed}.safetensors" for seed in (1, 2)]
    data = family.data(tmp_path)
    for seed, out in enumerate(outs, 1):
        lora.train(tmp_path / "bert", data, out, seed, 3)
    moved = changed(tmp_path / "bert" / "model.safetensors", outs[0])
    assert all("attention" in name or "classifier" in name for name in moved)
    assert any("attention" in name for name in moved)
    assert changed(*outs)
    (row,) = hs.evaluate(outs, data=data, ensemble=True, device="cpu").report.results
    assert row.members == 2


def test_mc_dropout(tmp_path: Path) -> None:
    """Passes are members, they differ, and the same command gives the same answers."""
    family = FAMILIES["BERT"]
    family.write(tmp_path / "bert")
    data = family.data(tmp_path)
    outs = [tmp_path / f"{name}.safetensors" for name in "ab"]
    for out in outs:
        mc_dropout.run(str(tmp_path / "bert"), 3, out, data, [f"near:other={data}"])
    assert outs[0].read_bytes() == outs[1].read_bytes()
    logits = load_file(outs[0])["logits"]
    assert logits.shape == (24, 3, 3)
    assert not torch.equal(logits[:, 0], logits[:, 1])
    (row,) = hs.evaluate(predictions_in=outs[:1]).report.results
    assert row.members == 3
    assert [(each.name, each.group) for each in row.ood] == [("other", "near")]
    FAMILIES["timm ViT"].write(tmp_path / "vit")
    with pytest.raises(SystemExit, match="no layer drops anything"):
        mc_dropout.run(str(tmp_path / "vit"), 3, outs[0], data, [])


@pytest.mark.slow
def test_centroids(tmp_path: Path) -> None:
    """Distances in the last layer's heads, by hand."""
    family = FAMILIES["timm ViT"]
    family.write(tmp_path / "vit")
    data = family.data(tmp_path)
    model = hs.load(tmp_path / "vit", device="cpu")
    attention = model.module.blocks[-1].attn
    means, covariances = [], []
    for spec in (data, "demo:textures"):
        rows: list[torch.Tensor] = []
        hook = attention.proj.register_forward_pre_hook(
            lambda _, inputs, rows=rows: rows.append(inputs[0][:, 0].double())
        )
        with torch.inference_mode():
            for batch in Batches(open_data(spec), model.transform, batch_size=64):
                model.module(batch.inputs)
        hook.remove()
        heads = torch.cat(rows).numpy().reshape(-1, attention.num_heads, attention.head_dim)
        means.append(heads.mean(axis=0))
        covariances.append([np.cov(head, rowvar=False) for head in heads.swapaxes(0, 1)])
    apart = means[0] - means[1]
    euclidean = np.linalg.norm(apart, axis=1).mean()
    squares = [
        row @ np.linalg.solve(cov, row) for row, cov in zip(apart, covariances[0], strict=True)
    ]
    measured = centroids.measure(
        tmp_path / "vit", data, [f"near:same={data}", "far:other=demo:textures"]
    )
    assert measured["euclidean_near"] == measured["mahalanobis_near"] == 0
    assert measured["euclidean_far"] == pytest.approx(euclidean, rel=1e-4)
    assert measured["mahalanobis_far"] == pytest.approx(np.sqrt(squares).mean(), rel=1e-3)
    assert measured["euclidean_all"] == pytest.approx(euclidean / 2, rel=1e-4)
