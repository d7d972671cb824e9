"""How far two models' outputs are apart: a pruned one and its masked parent, a hydra and its
members.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hydrasurgeon.anatomy.hooks import ablated, silenced
from hydrasurgeon.checkpoints.reading import Checkpoint, Single
from hydrasurgeon.data import Batches, moved, open_data
from hydrasurgeon.families import family_of
from hydrasurgeon.heads import all_heads
from hydrasurgeon.options.shared import Run
from hydrasurgeon.runtime.answering import fed
from hydrasurgeon.runtime.classifier import Classifier, as_classifier
from hydrasurgeon.runtime.tensors import device_of, dtype_of

TOLERANCE = {"float64": 1e-12, "float32": 1e-5}
"""What rounding may amount to, as a share of the largest output (or of 1): sums run in another
order.
"""


@dataclass(frozen=True)
class Difference:
    """Difference between the outputs of two models for the same inputs."""

    largest: float
    scale: float
    """The largest output; 1 where all are smaller."""
    samples: int

    @property
    def relative(self) -> float:
        return self.largest / self.scale


@dataclass(frozen=True)
class Inputs:
    """What models are compared on: samples of a data set, or as many random inputs as `limit` says."""

    data: str | None
    run: Run

    def batches(self, model: Classifier) -> Iterator[Any]:
        run = self.run
        device, dtype = device_of(run.device), dtype_of(run.dtype)
        if self.data is None:
            facts = model.manifest.model
            with torch.random.fork_rng():
                torch.manual_seed(run.seed)
                # Made on the CPU: the same inputs whatever the device.
                inputs = family_of(facts).example(
                    facts, run.limit or 4, device=torch.device("cpu"), dtype=dtype
                )
            yield moved(inputs, device, dtype)
            return
        samples = open_data(self.data, limit=run.limit, seed=run.seed)
        batches = Batches(
            samples, model.transform, batch_size=run.batch_size, skip_bad=run.skip_bad
        )
        yield from (batch.inputs for batch in fed(batches, run, module=model))

    @torch.inference_mode()
    def difference(self, model: Classifier, reference: Callable[[Any], Tensor]) -> Difference:
        """Between a model and what should answer alike."""
        largest, scale = torch.tensor(0.0).double(), torch.tensor(1.0).double()
        samples = 0
        for batch in self.batches(model):
            a, b = model(batch).double().cpu(), reference(batch).double().cpu()
            # torch's maximum, not Python's: it hands NaN on.
            largest = torch.maximum(largest, (a - b).abs().max())
            scale = torch.maximum(scale, b.abs().max())
            samples += len(a)
        return Difference(float(largest), float(scale), samples)

    def open(self, checkpoint: Checkpoint) -> Classifier:
        return as_classifier(checkpoint, device=self.run.device, dtype=self.run.dtype)


def masked_difference(child: Single, parent: Single, inputs: Inputs) -> Difference:
    """Between a pruned model and its parent with the same heads and neurons off."""
    pruned, whole = inputs.open(child), inputs.open(parent)
    kept = set(all_heads(child.manifest.kept))
    removed = [head for head in all_heads(parent.manifest.kept) if head not in kept]
    anatomy = whole.anatomy

    def masked(batch: Any) -> Tensor:
        with ablated(anatomy.sites, removed), silenced(anatomy.layers, parent.kept, child.kept):
            return whole(batch)

    return inputs.difference(pruned, masked)


def fused_difference(
    hydra: Checkpoint, members: Sequence[Checkpoint], inputs: Inputs
) -> Difference:
    """Between a hydra and its members, each run by itself."""
    alone = [inputs.open(member) for member in members]
    return inputs.difference(
        inputs.open(hydra), lambda batch: torch.cat([model(batch) for model in alone], dim=1)
    )
