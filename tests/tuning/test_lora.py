"""Low-rank tuning: attention's matrices move by changes of that rank, the classifier moves, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_families import FAMILIES, KINDS, Family, thoroughly

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.errors import SurgeryError
from hydrasurgeon.runtime.classifier import live_module
from hydrasurgeon.tuning import lora
from hydrasurgeon.tuning.recipes import load_recipe

LoraLayer = pytest.importorskip("peft.tuners.lora").LoraLayer
PACKED = {"EVA02", "DINOv3 with biases and SwiGLU"}
"""Their attention runs one matrix of q, k and v without a linear layer."""
FIELDS = {"steps": "3", "batch_size": "8", "lr": "0.05"}


def pruned(family: Family, folder: Path) -> Path:
    """A backbone without some heads, another number in each layer."""
    family.write(folder / "backbone")
    rows = [[0, 2], [0, 1, 2, 3], [1]]
    (folder / "mask.json").write_text(json.dumps(family.both(rows)))
    return hs.prune(folder / "backbone", mask=folder / "mask.json", out=folder / "member").path


@pytest.mark.parametrize("family", thoroughly(*sorted({*KINDS} - PACKED)))
def test_only_attention_and_the_classifier_move(family: Family, tmp_path: Path) -> None:
    """In every family each of attention's matrices changes by the rank that was asked for."""
    start, data = pruned(family, tmp_path), family.data(tmp_path)
    fields = FIELDS | {"lora_rank": "2"}
    tuned = hs.finetune(
        start, data=data, recipe="lora", set=fields, out=tmp_path / "m", device="cpu"
    ).path
    before, after = load_file(start), load_file(tuned)
    weights = open_checkpoint(tuned).weights
    assert before.keys() == after.keys()
    for name, weight in weights.items():
        moved = (
            (after[name].double() - before[name].double())
            if weight.part != "classifier"
            else torch.zeros(1)
        )
        if lora.changeable(weight) and before[name].numel():
            assert torch.linalg.matrix_rank(moved, rtol=1e-4) == 2
        else:
            assert not moved.any()


def test_what_is_written_is_what_peft_merges(tmp_path: Path) -> None:
    """peft's own sum of the same adapters, which it computes in float32."""
    family = FAMILIES["timm ViT"]
    opened = open_checkpoint(pruned(family, tmp_path))
    model = opened.manifest.model
    recipe = load_recipe("lora", {"lora_rank": "3", "lora_alpha": "5"})

    def attached() -> torch.nn.Module:
        module = live_module(opened)
        torch.manual_seed(0)
        lora.attach(
            module,
            recipe,
            family=opened.family,
            model=model,
            weights=opened.weights,
            trainable=lambda _: True,
        )
        for name, parameter in module.named_parameters():
            if ".lora_B" in name:
                torch.nn.init.normal_(parameter)
        return module

    before, theirs = live_module(opened), attached()
    for part in theirs.modules():
        if isinstance(part, LoraLayer):
            part.merge()
    ours = attached()
    lora.merge(ours)
    assert ours.state_dict().keys() == before.state_dict().keys()
    names = [name for name, weight in opened.weights.items() if lora.changeable(weight)]
    assert len(names) == 6
    for name in names:
        merged = theirs.get_parameter(name.replace(".weight", ".base_layer.weight"))
        assert (merged - before.get_parameter(name)).abs().max() > 0.5
        torch.testing.assert_close(ours.get_parameter(name), merged, rtol=1e-5, atol=1e-5)


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(tmp_path: Path) -> None:
    family = FAMILIES["timm ViT"]
    start, data = pruned(family, tmp_path), family.data(tmp_path)

    def tuned(name: str, seed: int) -> bytes:
        made = hs.finetune(
            start,
            data=data,
            recipe="lora",
            set=FIELDS,
            seed=seed,
            out=tmp_path / name,
            device="cpu",
        )
        return made.path.read_bytes()

    assert tuned("a", 1) == tuned("b", 1) != tuned("c", 2)


@pytest.mark.parametrize("name", sorted(PACKED))
def test_attention_without_linear_layers_is_refused(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    family.write(tmp_path / "eva")
    with pytest.raises(SurgeryError, match="does not run as such"):
        hs.finetune(
            tmp_path / "eva",
            data=family.data(tmp_path),
            recipe="lora",
            set=FIELDS,
            out=tmp_path / "t",
            device="cpu",
        )
    assert not (tmp_path / "t.safetensors").exists()
