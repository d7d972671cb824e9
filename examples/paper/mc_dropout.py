"""MC Dropout (Gal & Ghahramani, 2016; paper Table 2) as a predictions file, whose passes are members.

    python mc_dropout.py single.safetensors 10 mc.safetensors TEST near:yelp=YELP far:trec=TREC … [--rate 0.1]
    hydrasurgeon eval --predictions-in mc.safetensors

Pass m draws its masks from seed m, anew for every batch. They are those of the dropout that the model was built with; --rate sets that of
the layers' residual branches, as the recipe's `dropout` did while it was tuned. A ViT's file does not say with which rate that was.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch
from numpy import ndarray
from torch import nn

import hydrasurgeon as hs
from hydrasurgeon.data import Batches, fit_classes, moved, open_data
from hydrasurgeon.families import family_of
from hydrasurgeon.measuring.predictions import Predictions, write_predictions
from hydrasurgeon.tasks import task_of
from hydrasurgeon.tasks.base import Outputs


def dropping(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers that drop, and those that pass their rate to fused attention while they
    train.
    """
    for part in module.modules():
        held = any(isinstance(child, nn.Dropout) and child.p > 0 for child in part.children())
        chance = getattr(part, "attention_dropout", getattr(part, "dropout_prob", 0.0))
        drops = isinstance(part, nn.Dropout) and part.p > 0
        if drops or held or (isinstance(chance, float) and chance > 0):
            yield part


def answers(model: hs.Classifier, spec: str, passes: int, device: str) -> tuple[ndarray, ndarray]:
    """Return the logits [sample, pass, class], and the labels."""
    samples = open_data(spec)
    if samples.labels is not None:
        samples = fit_classes(samples, model.manifest.model)
    logits, labels = [], []
    for batch in Batches(samples, model.transform, batch_size=64):
        inputs, pass_logits = moved(batch.inputs, device), []
        for number in range(passes):
            torch.manual_seed(number)
            pass_logits.append(model.module(inputs).float().cpu())
        logits.append(torch.stack(pass_logits, dim=1))
        labels.append(batch.labels if batch.labels is not None else torch.zeros(len(batch.index)))
    return torch.cat(logits).numpy(), torch.cat(labels).numpy()


@torch.no_grad()
def run(
    checkpoint: str, passes: int, out: Path, data: str, ood: list[str], rate: float | None = None
) -> None:
    """Write the passes' logits on the test data and on each OOD set."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = hs.load(checkpoint, device=device)
    if rate is not None:
        for dropout in family_of(model.manifest.model).dropouts(model.module):
            dropout.p = rate
    on = list(dropping(model.module))
    if not on:
        raise SystemExit(f"{checkpoint}: no layer drops anything. Give --rate.")
    for part in on:
        part.training = True
    logits, labels = answers(model, data, passes, device)
    sets, near = {}, []
    for entry in ood:
        name, _, spec = entry.partition("=")
        group, _, name = name.rpartition(":")
        sets[name] = Outputs(answers(model, spec, passes, device)[0], None)
        near += [name] * (group == "near")
    predictions = Predictions(
        name=f"{Path(checkpoint).stem}-mc-dropout",
        kind="ensemble",
        outputs=Outputs(logits, None, labels),
        ood=sets,
        near=near,
        task=task_of(model.manifest.model),
    )
    write_predictions(predictions, out)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint")
    parser.add_argument("passes", type=int)
    parser.add_argument("out", type=Path)
    parser.add_argument("data")
    parser.add_argument("ood", nargs="*", metavar="near:NAME=D")
    parser.add_argument("--ood", dest="more", action="extend", nargs=1, default=[])
    parser.add_argument("--rate", type=float)
    options = parser.parse_intermixed_args()
    run(
        options.checkpoint,
        options.passes,
        options.out,
        options.data,
        [*options.ood, *options.more],
        options.rate,
    )


if __name__ == "__main__":
    main()
