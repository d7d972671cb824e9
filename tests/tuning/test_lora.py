"""Low-rank tuning: what comes out is the start, a pair beside each of attention's matrices, and another classifier."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from low_rank import sums
from safetensors.torch import load_file
from tiny_families import FAMILIES, Family, thoroughly
from tiny_members import logits

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.errors import SurgeryError, UsageError
from hydrasurgeon.families.lowrank import changeable, halves
from hydrasurgeon.runtime.classifier import live_module
from hydrasurgeon.stages.replay import replay
from hydrasurgeon.stages.verify import verify
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


@pytest.mark.parametrize("family", thoroughly(*sorted(FAMILIES.keys() - PACKED)))
def test_only_pairs_and_the_classifier_move(family: Family, tmp_path: Path) -> None:
    """Of every family: W is the start's, each of attention's matrices has a pair of the rank, and a hydra has W
    once."""
    start = pruned(family, tmp_path)
    data = family.data(tmp_path)
    fields = FIELDS | {"lora_rank": "2"}
    members = [
        hs.finetune(
            start, data=data, recipe="lora", set=fields, seed=seed, out=tmp_path / f"m{seed}", device="cpu"
        ).path
        for seed in (1, 2)
    ]
    before, after = load_file(start), load_file(members[0])
    weights = open_checkpoint(members[0]).weights
    pairs = {name for name, weight in weights.items() if weight.part == "pair"}
    changed = {w.name for w in open_checkpoint(start).weights.values() if changeable(w) and before[w.name].numel()}
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert pairs == {half for name in changed for half in halves(name)} == after.keys() - before.keys()
    assert all(min(after[name].shape) == 2 for name in pairs)
    assert {weights[name].part for name in moved} <= {"classifier"}
    assert all(after[f"{name}.lora_b"].any() for name in changed)
    for name, total in sums(members[0]).items():
        assert (name in changed) == (not torch.equal(total, after[name])), name
    hydra = hs.fuse(members, out=tmp_path / "hydra").path
    own = {name.split(".", 2)[2] for name in load_file(hydra) if name.startswith("members.")}
    assert own == pairs | moved
    inputs = family.inputs(dtype=torch.float64)
    expected = torch.cat([logits(path, inputs, "float64") for path in members], dim=1)
    torch.testing.assert_close(logits(hydra, inputs, "float64"), expected, rtol=0, atol=1e-10)


def test_what_is_written_is_what_peft_merges(tmp_path: Path) -> None:
    """peft's own sum of the same adapters, which it computes in float32."""
    family = FAMILIES["timm ViT"]
    opened = open_checkpoint(pruned(family, tmp_path))
    model = opened.manifest.model
    recipe = load_recipe("lora", {"lora_rank": "3", "lora_alpha": "5"})

    def attached() -> torch.nn.Module:
        module = live_module(opened)
        torch.manual_seed(0)
        lora.attach(module, recipe, family=opened.family, model=model, weights=opened.weights, trainable=lambda _: True)
        for name, parameter in module.named_parameters():
            if ".lora_B" in name:
                torch.nn.init.normal_(parameter)
        return module

    theirs = attached()
    for part in theirs.modules():
        if isinstance(part, LoraLayer):
            part.merge()
    ours = attached()
    pairs = lora.detach(ours)
    assert ours.state_dict().keys() == live_module(opened).state_dict().keys()
    assert len(pairs) == 12
    for name, (a, b) in {
        n.removesuffix(".lora_a"): halves(n.removesuffix(".lora_a")) for n in pairs if n.endswith("a")
    }.items():
        merged = theirs.get_parameter(name.replace(".weight", ".base_layer.weight"))
        total = ours.get_parameter(name).double() + pairs[b].double() @ pairs[a].double()
        assert (total - ours.get_parameter(name)).abs().max() > 0.5
        torch.testing.assert_close(total.float(), merged, rtol=1e-5, atol=1e-5)


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(tmp_path: Path) -> None:
    family = FAMILIES["timm ViT"]
    start, data = pruned(family, tmp_path), family.data(tmp_path)

    def tuned(name: str, seed: int) -> bytes:
        made = hs.finetune(start, data=data, recipe="lora", set=FIELDS, seed=seed, out=tmp_path / name, device="cpu")
        return made.path.read_bytes()

    assert tuned("a", 1) == tuned("b", 1) != tuned("c", 2)


def test_a_directory_has_the_sum_and_tuning_goes_on_from_it(tmp_path: Path) -> None:
    """What other libraries load is merged; a second tuning begins with the sum, and its parent can be told."""
    family = FAMILIES["timm ViT"]
    start, data = pruned(family, tmp_path), family.data(tmp_path)
    options = {"data": data, "recipe": "lora", "set": FIELDS, "device": "cpu"}
    file = hs.finetune(start, out=tmp_path / "m", **options)
    folder = hs.finetune(start, out=f"{tmp_path}/dir/", **options)
    assert not file.notes
    assert "merged" in folder.notes[-1]
    there, total = load_file(folder.path / "model.safetensors"), sums(file.path)
    assert there.keys() == total.keys()
    torch.testing.assert_close(there, total, rtol=2e-7, atol=1e-8)
    again = hs.finetune(file.path, out=tmp_path / "again", **options).path
    frozen = hs.finetune(
        file.path,
        out=tmp_path / "frozen",
        data=data,
        recipe="demo",
        set={"steps": "2", "batch_size": "8"},
        freeze="attention",
        device="cpu",
    ).path
    further, still = load_file(again), load_file(frozen)
    for name in total:
        if ".attn." in name:
            assert torch.equal(further[name], there[name])
            assert torch.equal(still[name], there[name])
    assert not any(".lora_" in name for name in still)
    for path in (file.path, folder.path, again, frozen):
        assert [c.name for c in verify(path, parents=tmp_path).checks if c.holds is False] == []


@pytest.mark.slow
def test_it_is_made_again_from_its_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    family = FAMILIES["timm ViT"]
    start, data = pruned(family, tmp_path), family.data(tmp_path)
    monkeypatch.chdir(tmp_path)
    members = [
        hs.finetune(
            start, data=Path(data).name, recipe="lora", set=FIELDS, seed=seed, out=tmp_path / f"m{seed}", device="cpu"
        ).path
        for seed in (1, 2)
    ]
    hydra = hs.fuse(members, out=tmp_path / "hydra.safetensors").path
    for member in members:
        member.unlink()
    result = replay(hydra, folder=tmp_path, out=tmp_path / "again")
    assert [check.holds for check in result.checks].count(False) == 0
    assert (tmp_path / "again" / "hydra.safetensors").read_bytes() == hydra.read_bytes()


@pytest.mark.parametrize("name", sorted(PACKED))
def test_attention_without_linear_layers_is_refused(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    family.write(tmp_path / "eva")
    with pytest.raises(SurgeryError, match="does not run as such"):
        hs.finetune(
            tmp_path / "eva", data=family.data(tmp_path), recipe="lora", set=FIELDS, out=tmp_path / "t", device="cpu"
        )
    assert not (tmp_path / "t.safetensors").exists()


def test_attention_that_is_frozen_is_named_as_the_reason(tmp_path: Path) -> None:
    """Not that the model could not be changed so."""
    family = FAMILIES["timm ViT"]
    family.write(tmp_path / "backbone")
    data = family.data(tmp_path)
    with pytest.raises(UsageError, match="changes attention, and none of it is to be trained") as caught:
        hs.finetune(
            tmp_path / "backbone",
            data=data,
            recipe="lora",
            set=FIELDS,
            freeze="attention",
            out=tmp_path / "t",
            device="cpu",
        )
    assert "Freeze less" in str(caught.value.hint)
    assert not list(tmp_path.glob("t*"))
