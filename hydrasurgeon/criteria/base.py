"""Interface of criteria: what they read and what they return."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydrasurgeon.files.manifest import DataRecord
from hydrasurgeon.options.shared import Run, Scoring

if TYPE_CHECKING:
    from numpy import ndarray
    from torch import Tensor

    from hydrasurgeon.anatomy.parts import Attention
    from hydrasurgeon.checkpoints.checkpoint import Single
    from hydrasurgeon.criteria import ScoreKey
    from hydrasurgeon.data import Batches, Samples
    from hydrasurgeon.heads import HeadAxis
    from hydrasurgeon.tasks.base import Task

HeadScores = dict[tuple[str, int], list[float]]
"""(tower, layer) → one score for each head present, in the order of the kept heads."""


@dataclass(frozen=True)
class Verdict:
    """Scores, and settings that a later choice of heads needs."""

    scores: HeadScores
    settings: dict[str, Any]


@dataclass(frozen=True)
class Criterion:
    """Entry of a criterion in the table: places (`module:function`), needs and abilities."""

    score: str
    """Subject → HeadScores, Verdict, or the Score of a criterion that ranks heads by removing them.
    """
    neurons: str | None = None
    """Place of the function that scores neurons; None if there is none."""
    needs_data: bool = True
    """True if it runs the model on labelled data; others look at the weights, or at nothing."""
    choose: str = "hydrasurgeon.criteria.selection:choose"
    """Manifest, Score and amounts → the heads that stay, and notes."""
    own_number: bool = False
    """True if the criterion itself determines how many heads stay (`--keep auto`)."""
    uses: tuple[str, ...] = ()
    in_turn: bool = False
    """True if batches must hold the samples in the order of the data.

    Otherwise batches of texts hold texts of similar length.
    """
    clear: str | None = None
    """Output and key → None: deletes what an interrupted scoring left, once the scores are written."""


@dataclass(frozen=True)
class Subject:
    """A checkpoint to be scored: its live model and the batches that run through it, for criteria
    that need them.
    """

    checkpoint: Single
    run: Run
    key: ScoreKey
    scoring: Scoring
    output: Path
    """Beside which an interrupted search leaves its state."""
    towers: tuple[str, ...]
    layers: frozenset[int]
    keep: int | None = None
    """Number of heads that each layer will keep, if it is known beforehand."""
    module: Any = None
    sites: tuple[Attention, ...] = ()
    loaders: tuple[Batches, ...] = ()
    records: tuple[DataRecord, ...] = ()
    batch_size: int = 0

    def matrices(self, group: str, layer: int) -> Iterator[tuple[HeadAxis, ndarray]]:
        """Yield the matrices of a layer that hold the heads of a tower, or its neurons, in float.

        The axis says where: rows of q, k, v and W_1, columns of W_O and W_2.
        """
        from hydrasurgeon.files.tensors import as_float

        tensors = self.checkpoint.tensors
        for weight in self.checkpoint.weights.values():
            place = weight.group, weight.layer, len(weight.shape)
            if weight.heads is not None and place == (group, layer, 2):
                stored = tensors.read(weight.name)
                yield weight.heads, as_float(stored, tensors[weight.name].dtype)

    def fed(self, samples: Samples, ood: Sequence[str], *, in_turn: bool = False) -> Subject:
        """Return the subject with the live model, the data and the OOD sets."""
        from hydrasurgeon.data import Batches, by_length, fit_classes, read_data
        from hydrasurgeon.runtime.classifier import live_module
        from hydrasurgeon.runtime.processes import own_device
        from hydrasurgeon.runtime.torch_tensors import device_of, dtype_of

        checkpoint, run = self.checkpoint, self.run
        model, family = checkpoint.manifest.model, checkpoint.family
        sets = [fit_classes(samples, model)]
        sets += [read_data(spec, run, labelled=False) for spec in ood]
        device = device_of(own_device(run.device))
        size = run.batch_size or (256 if device.type == "cuda" else 64)
        dtype = dtype_of(run.dtype)
        module = live_module(checkpoint, dtype).to(device=device, dtype=dtype)
        transform = family.transform(model, files=checkpoint.files)
        orders = [None if in_turn else by_length(data_set) for data_set in sets]
        loaders = [
            Batches(data_set, transform, batch_size=size, order=order, skip_bad=run.skip_bad)
            for data_set, order in zip(sets, orders, strict=True)
        ]
        return replace(
            self,
            module=module,
            sites=tuple(s for s in family.anatomy(module).sites if s.tower in self.towers),
            loaders=tuple(loaders),
            batch_size=size,
            records=tuple(DataRecord(**data_set.fingerprint()) for data_set in sets),
        )

    @property
    def samples(self) -> int:
        return len(self.loaders[0].samples)

    @property
    def task(self) -> Task:
        """Task, which says how logits are read."""
        from hydrasurgeon.tasks import task_of

        return task_of(self.checkpoint.manifest.model)

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of each sample, by the model's task."""
        from hydrasurgeon.tuning.losses import losses_of

        return losses_of(self.task).losses(logits.float(), labels)

    def batches(self, name: str) -> Iterator[tuple[Any, Tensor]]:
        """Yield all (inputs, labels) once, on the model's device; `name` labels the progress."""
        from hydrasurgeon.runtime.answering import fed

        for batch in fed(self.loaders[0], self.run, module=self.module, name=name):
            assert batch.labels is not None  # the classes are fitted
            yield batch.inputs, batch.labels.to(next(self.module.parameters()).device)

    def ood_inputs(self, name: str) -> Iterator[Any]:
        """Yield the inputs of the OOD sets once."""
        from hydrasurgeon.runtime.answering import fed

        for loader in self.loaders[1:]:
            yield from (batch.inputs for batch in fed(loader, self.run, name=name))
