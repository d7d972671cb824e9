"""Neurons cut out of MLPs: as if they were masked, in every family, alone and in a hydra."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stacked_system import inputs_of
from tiny_families import FAMILIES, thoroughly
from tiny_members import logits
from torch import Tensor
from torch.nn.functional import cross_entropy

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_single
from hydrasurgeon.cli.app import run
from hydrasurgeon.errors import Disagreement, ManifestError
from hydrasurgeon.families.weights import all_neurons

MAKE = Callable[..., Path]
SPEC = Callable[..., str]
WITHIN = "EVA02 with separate projections"
"""Has a norm over its neurons."""
WHOLE = 128
"""Neurons of a layer of the tiny ViT."""


def masked_logits(source: Path, kept: dict[str, Any], inputs: Any) -> Tensor:
    """The unpruned model with zeros in place of the neurons that are gone."""
    model = hs.load(source, device="cpu", dtype="float64")
    prompted = model.anatomy.prompted
    for anatomy in (model.anatomy, *([prompted.tower] if prompted else [])):
        for block in anatomy.blocks:
            mask = torch.zeros(block.out.in_features, dtype=torch.float64)
            mask[list(kept[block.attention.tower][block.attention.layer])] = 1
            block.out.register_forward_pre_hook(lambda _, args, mask=mask: (args[0] * mask,))
    with torch.inference_mode():
        return model(inputs)


@pytest.mark.parametrize("family", thoroughly(*(name for name in FAMILIES if name != WITHIN)))
def test_pruned_is_masked_and_a_hydra_is_its_members(family: Any, tmp_path: Path) -> None:
    source = tmp_path / "source"
    family.write(source)
    whole = all_neurons(open_single(source).weights.values())
    inputs, members = family.inputs(dtype=torch.float64), []
    for seed, share in enumerate((0.3, 0.5)):
        done = hs.prune(
            source,
            method="random",
            neurons=share,
            seed=seed,
            keep=3,
            out=tmp_path / f"m{seed}",
        )
        sizes = [len(row) for rows in done.manifest.kept_neurons.values() for row in rows]
        assert sizes == [round(share * len(row)) for rows in whole.values() for row in rows]
        members.append(done.path)
    half = hs.prune(source, method="random", neurons=0.5, out=tmp_path / "half")
    expected = masked_logits(source, half.manifest.kept_neurons, inputs)
    torch.testing.assert_close(logits(half.path, inputs, "float64"), expected, rtol=0, atol=1e-12)
    again = hs.prune(half.path, method="random", neurons=0.5, layers="0", out=tmp_path / "again")
    expected = masked_logits(source, again.manifest.kept_neurons, inputs)
    torch.testing.assert_close(logits(again.path, inputs, "float64"), expected, rtol=0, atol=1e-12)
    hydra = hs.fuse(members, mlp="separate", out=tmp_path / "hydra")
    for dtype, near in (("float64", 1e-12), ("float32", 1e-5)):
        told = family.inputs(dtype=getattr(torch, dtype))
        each = torch.cat([logits(path, told, dtype) for path in members], dim=1)
        torch.testing.assert_close(logits(hydra.path, told, dtype), each, rtol=0, atol=near)
    assert hydra.bytes_stored < hydra.bytes_members  # the union is stored once


def test_scores_are_the_masks_gradients(tiny: MAKE, images: SPEC, tmp_path: Path) -> None:
    """Slow version: a mask for each sample, one sample at a time; magnitude by hand."""
    path, data = tiny(), images(rows=12)
    model = hs.load(path, device="cpu")
    labels = torch.from_numpy(np.load(data)["labels"])
    block = model.module.blocks[1].mlp
    rows = []
    for x, label in zip(inputs_of(path, data).float(), labels, strict=True):
        mask = torch.ones(WHOLE, requires_grad=True)
        hook = block.fc2.register_forward_pre_hook(lambda _, args, mask=mask: (args[0] * mask,))
        cross_entropy(model(x[None])[0], label[None]).backward()
        hook.remove()
        rows.append(mask.grad.double())
    gradients = torch.stack(rows)
    into, out = (
        block.fc1.weight.detach().abs().mean(dim=1),
        block.fc2.weight.detach().abs().mean(dim=0),
    )
    for method, expected in (
        ("taylor", gradients.abs().mean(dim=0)),
        ("magnitude", into * out),
    ):
        scored = hs.score(
            path, method=method, part="neurons", data=data, batch_size=5, out=tmp_path / method
        )
        values = torch.tensor(
            scored.manifest.scores[f"neurons-{method}"].values["vision"][1], dtype=torch.float64
        )
        torch.testing.assert_close(values, expected.double(), rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--neurons", "0"], 2),
        (["--neurons", "1.5"], 2),
        (["--neurons", "0.5", "--layers", "9"], 4),
        (["--keep", "2", "--remove", "3", "--neurons", "0.5"], 2),
        ([], 2),
    ],
)
def test_what_cannot_be_pruned(words: list[str], code: int, tiny: MAKE, tmp_path: Path) -> None:
    assert (
        run(["prune", str(tiny()), "--method", "magnitude", *words, "-o", str(tmp_path / "m")])
        == code
    )
    assert not (tmp_path / "m.safetensors").exists()


def test_a_norm_over_neurons_keeps_them_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    FAMILIES[WITHIN].write(tmp_path / "source")
    command = [
        "prune",
        str(tmp_path / "source"),
        "--method",
        "magnitude",
        "--neurons",
        "0.5",
        "-o",
        str(tmp_path / "m"),
    ]
    assert run(command) == 4
    assert "normalise over all neurons" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("row", [[3, 1], [0, WHOLE], []])
def test_a_manifest_with_other_neurons(row: list[int], tiny: MAKE, tmp_path: Path) -> None:
    done = hs.prune(tiny(), method="magnitude", neurons=0.5, out=tmp_path / "m")
    beside = tmp_path / "m.heads.json"
    manifest = json.loads(beside.read_text())
    manifest["kept_neurons"]["vision"][0] = row
    beside.write_text(json.dumps(manifest))
    with pytest.raises((ManifestError, Disagreement)):
        open_single(done.path)


def test_members_with_other_neurons_are_fused_without_a_check(tiny: MAKE, tmp_path: Path) -> None:
    """Their MLPs differ in size and stay; a note says so."""
    cut = hs.prune(tiny(), method="magnitude", neurons=0.5, out=tmp_path / "cut").path
    fused = hs.fuse([tiny(), cut], out=tmp_path / "hydra")
    assert fused.notes == (
        "members keep other neurons in some layers: MLPs of these stay as they are",
    )


def test_the_command_that_follows_scores_of_neurons_runs(
    tiny: MAKE, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "scored.safetensors"
    words = ["score", str(tiny()), "--method", "magnitude", "--part", "neurons", "-o", str(out)]
    assert run(words) == 0
    said = capsys.readouterr()
    assert max(map(len, said.out.splitlines())) < 300, "neurons are not shown one by one"
    (line,) = [line for line in said.err.splitlines() if line.startswith("next: hydrasurgeon ")]
    assert run(line.removeprefix("next: hydrasurgeon ").split()) == 0
