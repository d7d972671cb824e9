"""Directories of pruned transformers and hydras in the library's own hands: saved again, trained by its Trainer,
resumed."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_families import FAMILIES, thoroughly
from tiny_members import KEPTS, member, tune

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
    parts = [
        member(folder / "source", family, rows, folder / f"m{i}.safetensors")
        for i, rows in enumerate(KEPTS)
    ]
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


@pytest.mark.parametrize("family", thoroughly("BERT", "ModernBERT", "ViT", "DistilBERT", "MPNet"))
@pytest.mark.parametrize("tuned", [(), (0, 1, 2), (1,)], ids=["shared", "tuned", "one tuned"])
def test_a_hydra_is_saved_and_opened_again(family: Any, tuned: Any, tmp_path: Path) -> None:
    model = opened(hydra(tmp_path, family.name, tuned=tuned), family.is_text)
    inputs = family.inputs()
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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_trainer_resumes_a_hydra(tmp_path: Path) -> None:
    """Two steps, and two more after a resume, are four steps."""
    import accelerate
    import transformers

    if "keep_torch_compile" not in signature(accelerate.Accelerator.unwrap_model).parameters:
        pytest.skip("accelerate is older than what transformers' Trainer calls")

    folder = hydra(tmp_path, "BERT", tuned=(1,))
    inputs = FAMILIES["BERT"].inputs(rows=4)
    rows = [
        {**{name: tensor[i % 4] for name, tensor in inputs.items()}, "labels": i % 3}
        for i in range(16)
    ]

    def trained(out: str, steps: int, resume: str | None = None) -> Any:
        model = opened(folder)
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path / out),
            max_steps=steps,
            save_steps=2,
            per_device_train_batch_size=4,
            report_to=[],
            learning_rate=1e-2,
            lr_scheduler_type="constant",
            use_cpu=True,
            disable_tqdm=True,
            seed=0,
        )
        for part in model.modules():
            if isinstance(part, torch.nn.Dropout):
                part.p = 0.0
        trainer = transformers.Trainer(model=model, args=arguments, train_dataset=rows)
        trainer.train(resume_from_checkpoint=resume)
        return model

    whole = trained("whole", 4)
    trained("halves", 2)
    first = str(tmp_path / "halves" / "checkpoint-2")
    resumed = trained("halves", 4, resume=first)
    for name, parameter in whole.named_parameters():
        torch.testing.assert_close(
            dict(resumed.named_parameters())[name], parameter, rtol=0, atol=1e-6
        )
    start = dict(opened(folder).named_parameters())
    assert any(
        not torch.equal(parameter, start[name]) for name, parameter in whole.named_parameters()
    )
    saved = opened(tmp_path / "halves" / "checkpoint-4")
    torch.testing.assert_close(answers(saved, inputs), answers(whole, inputs), rtol=0, atol=1e-5)
