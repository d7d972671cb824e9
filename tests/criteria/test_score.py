"""Criteria against slow, obvious versions of their formulas, and the names of scores in manifests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy

import hydrasurgeon as hs
from hydrasurgeon.criteria import ScoreKey, score_key
from hydrasurgeon.data import Batches, open_data
from hydrasurgeon.errors import SurgeryError, UsageError

MAKE = Callable[..., Path]
SPEC = Callable[..., str]
HEAD_DIM, HEADS, DIM = 8, 4, 32


def all_data(path: Path, spec: str) -> tuple[hs.load, torch.Tensor, torch.Tensor]:  # type: ignore[valid-type]
    model = hs.load(path, device="cpu")
    samples = open_data(spec)
    (batch,) = Batches(samples, model.transform, batch_size=len(samples))
    return model.module.requires_grad_(True), batch.inputs, batch.labels


def taylor_by_the_paper(module: torch.nn.Module, layer: int) -> list[float]:
    """D.1.1, written out: s_h = (q_h + k_h + v_h) / 3."""
    qkv = module.blocks[layer].attn.qkv
    weights, gradients = qkv.weight.detach().double(), qkv.weight.grad.double()
    scores = []
    for head in range(weights.shape[0] // (3 * HEAD_DIM)):
        parts = []
        for block in range(3):
            start = block * (weights.shape[0] // 3) + head * HEAD_DIM
            rows = slice(start, start + HEAD_DIM)
            parts.append(float((weights[rows] * gradients[rows]).abs().sum()) / (HEAD_DIM * DIM))
        scores.append(sum(parts) / 3)
    return scores


def test_taylor_is_the_papers(tiny: MAKE, images: SPEC) -> None:
    path, spec = tiny(), images()
    module, x, y = all_data(path, spec)
    cross_entropy(module(x), y).backward()
    found = hs.score(path, method="taylor", data=spec, batch_size=7).result.values["vision"]
    for layer in range(3):
        assert found[layer] == pytest.approx(taylor_by_the_paper(module, layer), rel=1e-4)


def test_sequential_taylor_decides_layer_after_layer(tiny: MAKE, images: SPEC) -> None:
    """Slow version: zero the output columns of what is gone, take new gradients, go on."""
    path, spec = tiny(), images()
    module, x, y = all_data(path, spec)
    expected, plain = [], hs.score(path, method="taylor", data=spec).result.values["vision"]
    for layer in range(3):
        module.zero_grad()
        cross_entropy(module(x), y).backward()
        scores = taylor_by_the_paper(module, layer)
        expected.append(scores)
        with torch.no_grad():
            for head in sorted(range(HEADS), key=lambda h: scores[h])[: HEADS - 1]:
                module.blocks[layer].attn.proj.weight[
                    :, head * HEAD_DIM : (head + 1) * HEAD_DIM
                ] = 0
    found = hs.score(path, method="taylor", data=spec, keep=1, batch_size=16).result.values[
        "vision"
    ]
    for layer in range(3):
        assert found[layer] == pytest.approx(expected[layer], rel=1e-4)
    assert found[0] == pytest.approx(plain[0], rel=1e-4)
    assert found[2] != pytest.approx(plain[2], rel=1e-4)


def test_magnitude_by_hand(tiny: MAKE) -> None:
    path = tiny()
    weight = load_file(path)["blocks.1.attn.qkv.weight"].double()
    expected = weight.view(3, HEADS, HEAD_DIM * DIM).abs().mean(dim=(0, 2))
    found = hs.score(path, method="magnitude").result.values["vision"][1]
    assert found == pytest.approx(expected.tolist(), rel=1e-9)


@pytest.mark.slow
def test_scoring_a_bare_file_leaves_it_alone(bare: MAKE, images: SPEC) -> None:
    path = bare(num_classes=5)
    before = path.read_bytes()
    found = hs.score(path, method="taylor", data=images(), limit=4)
    assert path.read_bytes() == before
    assert found.manifest.model.arch == "vit_tiny_patch16_224"
    pruned = hs.prune(path, method="taylor", keep=2)
    assert pruned.path.name == "vit-taylor-k2.safetensors"
    for layer, row in enumerate(pruned.manifest.kept["vision"]):
        scores = found.result.values["vision"][layer]
        assert row == tuple(sorted(sorted(range(3), key=lambda h: scores[h])[1:]))


def test_prune_says_which_taylor_it_is(tiny: MAKE, images: SPEC, tmp_path: Path) -> None:
    """In one go from scores without --keep; layer after layer, as in the paper, with --keep or --data."""
    path, data = tiny(), images()
    about = {"method": "taylor", "keep": 2, "compensate": "none"}
    hs.score(path, method="taylor", data=data)
    at_once = hs.prune(path, **about, out=tmp_path / "once.safetensors")
    assert any("score --keep 2 or prune --data D" in note for note in at_once.notes)
    by_data = hs.prune(path, **about, data=data, out=tmp_path / "data.safetensors")
    hs.score(path, method="taylor", keep=2, data=data)
    by_score = hs.prune(path, **about, out=tmp_path / "score.safetensors")
    assert by_score.manifest.kept == by_data.manifest.kept
    for layered in (by_data, by_score):
        assert not any("the paper" in note for note in layered.notes)
    repaired = hs.prune(path, method="taylor", keep=2, data=data, out=tmp_path / "r.safetensors")
    assert any("--compensate none" in note for note in repaired.notes)


def test_removal_in_all_goes_by_score(tiny: MAKE, tmp_path: Path) -> None:
    path = tiny()
    values = hs.score(path, method="random", seed=4).result.values["vision"]
    order = sorted((values[la][h], la, h) for la in range(3) for h in range(4))
    pruned = hs.prune(path, method="random", remove=5, out=tmp_path / "m.safetensors")
    gone = {(la, h) for _, la, h in order[:5]}
    assert pruned.manifest.kept["vision"] == tuple(
        tuple(h for h in range(4) if (la, h) not in gone) for la in range(3)
    )
    late = hs.prune(path, method="random", remove=2, layers="2", out=tmp_path / "late.safetensors")
    assert [len(row) for row in late.manifest.kept["vision"]] == [4, 4, 2]


def test_pruning_keeps_to_the_layers_that_were_scored(
    tiny: MAKE, images: SPEC, tmp_path: Path
) -> None:
    """So that a trunk is left; unless other layers are named."""
    path, data = tiny(), images()
    hs.score(path, method="taylor", data=data, layers="2")
    hs.score(path, method="taylor", part="neurons", data=data, layers="1-2")
    for amount in ({"keep": 2}, {"remove": 2}, {"sample": "2/3"}):
        member = hs.prune(path, method="taylor", out=tmp_path / "m", force=True, **amount)
        assert [len(row) for row in member.manifest.kept["vision"]] == [4, 4, 2]
    assert member.notes[1:] == ("the taylor scores are of --layers 2, and only those lose heads",)
    hs.score(path, method="cahp", data=data)
    everywhere = hs.prune(path, method="cahp", keep="auto", out=tmp_path / "c")
    assert not any("--layers" in note for note in everywhere.notes)
    neurons = hs.prune(path, neurons=0.5, out=tmp_path / "n").manifest.kept_neurons
    assert neurons is not None
    assert [len(row) for row in neurons["vision"]] == [128, 64, 64]
    early = hs.prune(path, method="taylor", keep=3, layers="0-1", out=tmp_path / "e")
    assert [len(row) for row in early.manifest.kept["vision"]] == [3, 3, 4]
    assert len(early.notes) == 2  # in one go, and nothing was refitted


def test_samples_differ_by_seed_and_stay_in_the_pool(tiny: MAKE, tmp_path: Path) -> None:
    path = tiny()
    values = hs.score(path, method="random", seed=4).result.values["vision"]
    pool = {
        (la, h)
        for _, la, h in sorted((values[la][h], la, h) for la in range(3) for h in range(4))[:8]
    }
    seen = set()
    for seed in range(4):
        pruned = hs.prune(
            path, method="random", sample="5/8", seed=seed, out=tmp_path / f"{seed}.safetensors"
        )
        gone = {
            (la, h)
            for la in range(3)
            for h in range(4)
            if h not in pruned.manifest.kept["vision"][la]
        }
        assert len(gone) == 5
        assert gone <= pool
        seen.add(tuple(sorted(gone)))
    assert len(seen) > 1
    with pytest.raises(SurgeryError, match="0 < N ≤ P"):
        hs.prune(path, method="random", sample="5/13", out=tmp_path / "x.safetensors")


def test_keys() -> None:
    assert str(score_key("circuit")) == "circuit-avg"
    assert score_key("circuit", "ood") == score_key("circuit-ood") == ScoreKey("circuit", "ood")
    assert score_key("circuit", recorded=("circuit-ood", "taylor")) == ScoreKey("circuit", "ood")
    with pytest.raises(UsageError, match="circuit-acc and circuit-ood"):
        score_key("circuit", recorded=("circuit-ood", "circuit-acc"))


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("circuit-acc", ScoreKey("circuit", "acc")),
        ("neurons-magnitude", ScoreKey("magnitude", part="neurons")),
        ("my-own", ScoreKey("my-own")),
    ],
)
def test_a_key_and_its_text(text: str, key: ScoreKey) -> None:
    assert ScoreKey.parse(text) == key
    assert str(key) == text
    method, *objective = key.words  # what is printed to be typed
    assert score_key(method, *objective[1:]) == key
