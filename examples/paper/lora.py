"""A member of a LoRA-Ensemble (paper C.1.4), by peft: three seeds make the ensemble.

    python lora.py single.safetensors TRAIN lora-1.safetensors 1 [steps]
    hydrasurgeon eval --ensemble lora-1 lora-2 lora-3 --data TEST

Changes of rank 4 and alpha 8 of attention's projections, and the classifier. The paper names neither
rate nor steps: these are ours. What is written is the sum of weights and changes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from writing import write

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.data import Batches, fit_classes, moved, open_data
from hydrasurgeon.families.weights import by_name

RANK, ALPHA, RATE, SIZE = 4, 8, 1e-3, 32


def attach(module: nn.Module, weights: dict[str, Any]) -> None:
    """Put changes beside attention's linear layers; they and the classifier train."""
    import peft

    stored = getattr(module, "disk_name", str)
    attention = [
        name
        for name, part in module.named_modules()
        if isinstance(part, nn.Linear)
        if (weight := weights.get(stored(f"{name}.weight")))
        if weight.part in ("attention", "output") and weight.heads is not None
    ]
    peft.inject_adapter_in_model(
        peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=attention), module
    )
    for name, parameter in module.named_parameters():
        weight = weights.get(stored(name))
        trains = "lora_" in name or (weight is not None and weight.part == "classifier")
        parameter.requires_grad_(trains)


def merge(module: nn.Module) -> None:
    """Add the changes to the weights, and leave the module as it was built."""
    from peft.tuners.lora import LoraLayer

    changed = {n: part for n, part in module.named_modules() if isinstance(part, LoraLayer)}
    for name, part in changed.items():
        part.merge()
        place, _, last = name.rpartition(".")
        setattr(module.get_submodule(place), last, part.get_base_layer())


def train(checkpoint: Path, spec: str, out: Path, seed: int, steps: int = 1000) -> None:
    opened = open_checkpoint(checkpoint)
    model, family = opened.manifest.model, opened.family
    device = "cuda" if torch.cuda.is_available() else "cpu"
    module = hs.load(checkpoint, device=device).module
    torch.manual_seed(seed)
    attach(module, by_name(family.weights(model)))
    module.train()
    samples = fit_classes(open_data(spec), model)
    transform = family.transform(model, {}, files=opened.files)
    tuned = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(tuned, lr=RATE)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)
    done = 0
    while done < steps:
        order = torch.randperm(len(samples)).numpy()
        for batch in Batches(samples, transform, batch_size=SIZE, order=order):
            loss = cross_entropy(module(moved(batch.inputs, device)), batch.labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(tuned, 1.0)
            optimizer.step()
            schedule.step()
            done += 1
            if done == steps:
                break
    merge(module)
    write(checkpoint, module, out)


if __name__ == "__main__":
    source, data, target, *numbers = sys.argv[1:]
    train(Path(source), data, Path(target), *map(int, numbers))
