"""Directories of pruned transformers and hydras in the library's own hands: saved again, trained by its Trainer,
resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_families import FAMILIES, thoroughly
from tiny_members import logits, members_of, tune

import hydrasurgeon as hs

pytestmark = pytest.mark.usefixtures("own_module_cache")


def opened(folder: Path, text: bool = True) -> Any:
    import transformers

    auto = getattr(transformers, f"AutoModelFor{'Sequence' if text else 'Image'}Classification")
    return auto.from_pretrained(folder, trust_remote_code=True)


def hydra(folder: Path, name: str, *, tuned: tuple[int, ...] = ()) -> Path:
    """A hydra; the members whose numbers are in `tuned` have weights of their own, the others share."""
    family = FAMILIES[name]
    family.write(folder / "source")
    parts = members_of(folder / "source", family, folder)
    parts = [
        tune(p, folder / f"t{i}.safetensors", seed=i) if i in tuned else p
        for i, p in enumerate(parts)
    ]
    return hs.fuse(parts, out=f"{folder}/h/", mlp="separate").path


def answers(model: Any, inputs: Any) -> torch.Tensor:
    with torch.inference_mode():
        return model.eval()(
            **inputs if isinstance(inputs, dict) else {"pixel_values": inputs}
        ).logits


@pytest.mark.slow
@pytest.mark.parametrize("family", thoroughly("BERT", "ModernBERT", "ViT", "DistilBERT", "MPNet"))
@pytest.mark.parametrize("tuned", [(), (0, 1, 2), (1,)], ids=["shared", "tuned", "one tuned"])
def test_a_hydra_is_saved_and_opened_again(family: Any, tuned: Any, tmp_path: Path) -> None:
    folder = hydra(tmp_path, family.name, tuned=tuned)
    model, inputs = opened(folder, family.is_text), family.inputs()
    with torch.inference_mode():
        each = model.member_logits(**inputs) if family.is_text else model.member_logits(inputs)
    torch.testing.assert_close(each, logits(folder, inputs), rtol=0, atol=1e-5)
    expected = answers(model, inputs)
    model.save_pretrained(tmp_path / "saved")
    again = opened(tmp_path / "saved", family.is_text)
    torch.testing.assert_close(answers(again, inputs), expected, rtol=0, atol=0)
    stored = load_file(tmp_path / "saved" / "model.safetensors")
    assert all(name.startswith("members.") for name in stored)
    if not tuned:
        # Only what belongs to heads differs: the embeddings of all members are one tensor.
        assert sum("embeddings" in name and name.startswith("members.1.") for name in stored) == 0
        count = sum(p.numel() for p in model.parameters())
        assert sum(tensor.numel() for tensor in stored.values()) == count
        assert sum(p.numel() for p in again.parameters()) == count
