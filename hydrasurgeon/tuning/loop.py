"""One training loop on accelerate: one device or many, mixed precision, resumable to the same bits.

Everything random in step s is seeded by (seed, s), augmentation of sample i by (seed, epoch, i): a run
that was interrupted continues exactly as if it had not been.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import cross_entropy

from hydrasurgeon.data import Batch, Batches, moved
from hydrasurgeon.errors import UsageError
from hydrasurgeon.run import Progress
from hydrasurgeon.tuning.recipes import Recipe
from hydrasurgeon.tuning.state import State

__all__ = [
    "CrossEntropy",
    "Objective",
    "Trained",
    "epoch_order",
    "learning_rate",
    "train",
]

EpochBatches = Callable[[int, int, int, int], Batches]
"""(epoch, rank, world, batches to skip) → this process's batches."""


class Objective(Protocol):
    """What one optimizer step follows."""

    def backward(self, accelerator: Any, model: nn.Module, parts: Sequence[Batch]) -> float:
        """Leave the gradients of these batches in the model; the loss."""
        ...

    def settle(self) -> None:
        """After the optimizer's step."""
        ...


@dataclass(frozen=True)
class Trained:
    steps: int
    loss: float
    """Mean training loss of the last epoch."""
    log: tuple[dict[str, float], ...]
    """One entry per finished epoch: epoch, loss, and accuracy and nll where there is a validation set."""
    is_main: bool = True


def epoch_order(
    n: int, *, seed: int, epoch: int, rank: int = 0, world: int = 1
) -> NDArray[np.int64]:
    """This process's share of a fresh permutation; every process gets equally many."""
    order = np.random.default_rng((seed, epoch)).permutation(n)
    padded = np.resize(order, math.ceil(n / world) * world)
    return padded[rank::world]


def learning_rate(recipe: Recipe, step: int, total: int) -> float:
    """Linear warm-up over the first steps (the first step is not zero), then the schedule."""
    warmup = round(recipe.warmup * total) if recipe.warmup < 1 else round(recipe.warmup)
    if step < warmup:
        return recipe.lr * (step + 1) / warmup
    share = (step - warmup) / max(1, total - warmup)
    if recipe.schedule == "cosine":
        return recipe.lr * (
            recipe.floor + (1 - recipe.floor) * 0.5 * (1 + math.cos(math.pi * share))
        )
    return recipe.lr * (1 - share) if recipe.schedule == "linear" else recipe.lr


def train(
    model: nn.Module,
    *,
    recipe: Recipe,
    epoch_batches: EpochBatches,
    trainable: Callable[[str], bool],
    seed: int,
    device: str,
    dtype: str,
    state: State,
    objective: Objective | None = None,
    save_every: int | None = None,
    resume: bool = False,
    validation: Batches | None = None,
    progress: Progress | None = None,
) -> Trained:
    """Train `model` in place; it comes back unwrapped, in eval mode, in float32 on the CPU."""
    accelerator = _accelerator(device, dtype)
    rank, world = accelerator.process_index, accelerator.num_processes
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trainable(name))
    optimizer = _optimizer(model, recipe)
    objective = objective or CrossEntropy(recipe.label_smoothing)
    batches = len(epoch_batches(0, rank, world, 0))
    if batches < recipe.accumulate:
        raise UsageError(
            f"finetune: a step accumulates {recipe.accumulate} batches, the data has {batches}",
            hint="Give more data, or --set accumulate=1 or a smaller --batch-size.",
        )
    per_epoch = batches // recipe.accumulate
    total = recipe.steps or max(1, round((recipe.epochs or 0) * per_epoch))
    run = _Run(step=0)
    model.to(accelerator.device)
    # What else decides the bits of the next step.
    place = {"dtype": dtype, "device": accelerator.device.type, "processes": world}
    state = replace(state, identity={**state.identity, **place})
    if resume and (position := state.read(model, optimizer)) is not None:
        run = _Run(**position.model_dump())
    elif accelerator.is_main_process:
        state.clear()
    wrapped, optimizer = accelerator.prepare(model, optimizer)
    every = save_every or per_epoch
    while run.step < total:
        wrapped.train()
        epoch, done = divmod(run.step, per_epoch)
        for parts in _grouped(
            epoch_batches(epoch, rank, world, done * recipe.accumulate), recipe.accumulate
        ):
            lr = learning_rate(recipe, run.step, total)
            for group in optimizer.param_groups:
                group["lr"] = lr
            torch.manual_seed(
                int(np.random.SeedSequence((seed, run.step, rank)).generate_state(1)[0])
            )
            loss = _step(accelerator, wrapped, optimizer, parts, objective, recipe.clip)
            if not math.isfinite(loss):
                raise UsageError(
                    f"finetune: the loss is {loss} in step {run.step + 1} (lr {lr:g})",
                    hint="Lower the learning rate: --set lr=…"
                    if run.step
                    else "Nothing was learnt yet: the model overflows on this data. Use --dtype float32, and check it with eval.",
                )
            run.step += 1
            run.loss_sum += loss
            run.loss_count += 1
            if progress is not None and accelerator.is_main_process:
                progress(f"training, loss {run.loss_sum / run.loss_count:.3f}", run.step, total)
            if run.step % per_epoch == 0 or run.step == total:
                run.close_epoch(per_epoch, _validate(accelerator, wrapped, validation))
            if run.step % every == 0 and run.step < total and accelerator.is_main_process:
                state.write(accelerator.unwrap_model(wrapped), optimizer.optimizer, run.position())
            if run.step == total or run.step % per_epoch == 0:
                break
    accelerator.wait_for_everyone()
    # accelerate leaves its mixed-precision wrapper on the forward method.
    accelerator.unwrap_model(wrapped, keep_fp32_wrapper=False).to("cpu").eval()
    model.requires_grad_(False)
    last = run.log[-1] if run.log else {"loss": math.nan}
    return Trained(run.step, last["loss"], tuple(run.log), accelerator.is_main_process)


@dataclass
class _Run:
    """Where training stands."""

    step: int
    loss_sum: float = 0.0
    loss_count: int = 0
    log: list[dict[str, float]] = field(default_factory=list)

    def close_epoch(self, per_epoch: int, measured: dict[str, float]) -> None:
        loss = self.loss_sum / max(1, self.loss_count)
        self.log.append({"epoch": self.step / per_epoch, "loss": loss, **measured})
        self.loss_sum, self.loss_count = 0.0, 0

    def position(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "loss_sum": self.loss_sum,
            "loss_count": self.loss_count,
            "log": self.log,
        }


def _accelerator(device: str, dtype: str) -> Any:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    precision = {"float32": "no", "bfloat16": "bf16", "float16": "fp16"}
    if dtype not in precision:
        raise UsageError(f"--dtype {dtype}: training knows {', '.join(precision)}")
    if dtype == "float16" and not torch.cuda.is_available():
        raise UsageError(
            "--dtype float16: training in half precision needs a GPU", hint="Use --dtype bfloat16."
        )
    # The state is process-wide and remembers the first precision it was asked for.
    AcceleratorState._reset_state(reset_partial_state="WORLD_SIZE" not in os.environ)
    return Accelerator(cpu=device == "cpu", mixed_precision=precision[dtype])


def _optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    tuned = [p for p in model.parameters() if p.requires_grad]
    if not tuned:
        raise UsageError("finetune: nothing is left to train", hint="Freeze less.")
    groups = [
        {"params": [p for p in tuned if p.ndim >= 2], "weight_decay": recipe.weight_decay},
        {"params": [p for p in tuned if p.ndim < 2], "weight_decay": 0.0},
    ]
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=recipe.lr, momentum=recipe.momentum)
    return torch.optim.AdamW(groups, lr=recipe.lr, betas=recipe.betas, eps=recipe.eps)


def _grouped(batches: Batches, size: int) -> Iterator[list[Batch]]:
    """As many batches as one optimizer step accumulates; an incomplete last group is left out."""
    group: list[Batch] = []
    for batch in batches:
        group.append(batch)
        if len(group) == size:
            yield group
            group = []


def _step(
    accelerator: Any,
    model: nn.Module,
    optimizer: Any,
    parts: Sequence[Batch],
    objective: Objective,
    clip: float | None,
) -> float:
    loss = objective.backward(accelerator, model, parts)
    if clip is not None:
        accelerator.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    objective.settle()
    optimizer.zero_grad(set_to_none=True)
    return loss


@dataclass(frozen=True)
class CrossEntropy:
    """On labels."""

    label_smoothing: float = 0.0

    def backward(self, accelerator: Any, model: nn.Module, parts: Sequence[Batch]) -> float:
        total = 0.0
        for i, batch in enumerate(parts):
            with accelerator.no_sync(model) if i + 1 < len(parts) else nullcontext():
                logits = model(moved(batch.inputs, accelerator.device))
                assert batch.labels is not None
                labels = batch.labels.to(accelerator.device)
                loss = cross_entropy(
                    logits.float(), labels, label_smoothing=self.label_smoothing
                ) / len(parts)
                accelerator.backward(loss)
                total += float(loss.detach())
        return total

    def settle(self) -> None:
        pass


@torch.no_grad()
def _validate(accelerator: Any, model: nn.Module, batches: Batches | None) -> dict[str, float]:
    """Every process measures the whole set: validation sets are small, and no result has to be gathered."""
    if batches is None:
        return {}
    model.eval()
    right, loss, rows = 0.0, 0.0, 0
    for batch in batches:
        assert batch.labels is not None
        labels = batch.labels.to(accelerator.device)
        logits = model(moved(batch.inputs, accelerator.device)).float()
        right += float((logits.argmax(dim=-1) == labels).sum())
        loss += float(cross_entropy(logits, labels, reduction="sum"))
        rows += len(labels)
    return {"val_accuracy": right / rows, "val_nll": loss / rows}
