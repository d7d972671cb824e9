"""One training loop on accelerate: one device or many, mixed precision, resumable to the same bits.

Everything random in step s is seeded by (seed, s), augmentation of sample i by (seed, epoch, i): a
run that was interrupted continues exactly as if it had not been.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hydrasurgeon.data import Batch, Batches, moved
from hydrasurgeon.errors import UsageError
from hydrasurgeon.files.torchrun import is_launched
from hydrasurgeon.options.shared import Run
from hydrasurgeon.statistics.padded_words import joined
from hydrasurgeon.tasks import SINGLE
from hydrasurgeon.tasks.base import Task
from hydrasurgeon.tuning.learning import Learning
from hydrasurgeon.tuning.recipes import Recipe
from hydrasurgeon.tuning.tracking import Tracking
from hydrasurgeon.tuning.training_state import TrainingPosition, TrainingState, quality

EpochBatches = Callable[[int, int, int, int], Any]
"""(epoch, rank, world, batches to skip) → this process's batches, of which it is known how many
they are.
"""


@dataclass(frozen=True)
class Training:
    """The recipe, the batches and the loss of a training."""

    recipe: Recipe
    epoch_batches: EpochBatches
    trainable: Callable[[str], bool]
    """Function that returns True for the name of a parameter that is trained."""
    loss: Learning
    """Leaves the gradients of some batches in the model and tells their loss."""
    validation: Batches | None = None
    pace: Callable[[str], float] = lambda name: 1.0
    """Function from a parameter's name to its learning rate relative to lr."""
    task: Task = SINGLE
    """Task by which the logits on validation data are measured."""
    begin: Callable[[], None] = lambda: None
    """Done to the model after the start is measured and before the first step."""
    start: Mapping[str, float] | None = None
    """Figures of the start on the validation data, if they are known."""
    label: str = "training"
    """Name of the training in progress lines."""


@dataclass(frozen=True)
class Trained:
    steps: int
    loss: float | None
    """Mean training loss of the last epoch; None without a step."""
    log: tuple[dict[str, float], ...]
    """One entry per finished epoch: epoch, loss, and accuracy and nll where there is a validation
    set; then the first entry is that of the start, epoch 0, which has no loss.
    """
    kept_epoch: float | None = None
    """After how many epochs the weights that are written stood, 0 for the start; None: after all.
    """
    stopped_early: bool = False
    """True if the recipe's patience ended the training."""
    is_main: bool = True

    def reached(self, recipe: Recipe) -> float:
        """Return the validation figure of the written weights, higher is better; NaN without one."""
        written = [epoch for epoch in self.log if self.kept_epoch in (None, epoch["epoch"])]
        return quality(written[-1], recipe.select) if written else math.nan


class Diverged(UsageError):
    """Raised where the training loss is no finite number."""


class BestEpoch:
    """A copy of what is trained, as it was after the best epoch."""

    def __init__(self, model: nn.Module, recipe: Recipe, *, validated: bool) -> None:
        self.live = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.recipe = recipe
        self.choosing = validated and recipe.keep == "best"
        self.kept: Mapping[str, Tensor] | None = None
        """A tensor for each parameter that is trained, by its name."""

    def expected(self, position: TrainingPosition) -> bool:
        """Return True if a saved training at this position has a copy."""
        return self.choosing and position.best_epoch(self.recipe) is not None

    def restore(self, kept: Mapping[str, Tensor] | None) -> None:
        """Take over the copy of an interrupted training."""
        if kept is not None:
            kept = {name: tensor.to(self.live[name].device) for name, tensor in kept.items()}
        self.kept = kept

    def close_epoch(self, position: TrainingPosition) -> None:
        """Keep what was just measured, where it is the best."""
        if self.choosing and position.best_epoch(self.recipe) == len(position.log) - 1:
            self.kept = {name: tensor.detach().clone() for name, tensor in self.live.items()}

    def settle(self) -> None:
        """Put the best weights into the model."""
        for name, tensor in (self.kept or {}).items():
            self.live[name].data.copy_(tensor)


def epoch_order(
    n: int, *, seed: int, epoch: int, rank: int = 0, world: int = 1
) -> NDArray[np.int64]:
    """Return this process's part of a fresh permutation; every process gets equally many."""
    order = np.random.default_rng((seed, epoch)).permutation(n)
    padded = np.resize(order, math.ceil(n / world) * world)
    return padded[rank::world]


def learning_rate(recipe: Recipe, step: int, total: int) -> float:
    """Return the learning rate of a step: a linear warm-up, whose first step is not zero, then the
    schedule.
    """
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
    training: Training,
    run: Run,
    state: TrainingState,
    *,
    save_every: int | None = None,
    resume: bool = False,
    tracking: Tracking | None = None,
) -> Trained:
    """Train `model` in place; it comes back unwrapped, in eval mode, in float32 on the CPU."""
    accelerator = _accelerator(run.device, run.dtype, tracking)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(training.trainable(name))
    model.to(accelerator.device)
    optimizer = _optimizer(model, training, accelerator.device)
    per_epoch, total = _steps(training, accelerator)
    standing = TrainingPosition()
    best = BestEpoch(model, training.recipe, validated=training.validation is not None)
    state = _placed(state, run, accelerator)
    if resume and (before := state.read(model, optimizer, best.expected)) is not None:
        standing = before[0]
        best.restore(before[1])
    elif accelerator.is_main_process:
        state.clear()
    wrapped, optimizer = accelerator.prepare(model, optimizer)
    loop = _Loop(accelerator, wrapped, optimizer, training, run.seed, per_epoch, total)
    if tracking is not None:
        tracking.begin(accelerator, training.recipe)
    if training.validation is not None and not standing.log:
        figures = loop.validate() if training.start is None else training.start
        standing.log.append({"epoch": 0.0, **figures})
        check_selection(standing.log[0], training.recipe)
        best.close_epoch(standing)
        run.note(_line(standing.log[0]))
        accelerator.log(standing.log[0], step=0)
    if standing.step == 0 and total:
        training.begin()
    while standing.step < total and not standing.waited(training.recipe):
        wrapped.train()
        for parts in loop.batches(standing.step):
            standing.add(loop.step(standing.step, parts))
            if accelerator.is_main_process:
                run.tick(f"{training.label}, loss {standing.mean_loss:.3f}", standing.step, total)
            ended = standing.step % per_epoch == 0 or standing.step == total
            if ended:
                standing.close_epoch(per_epoch, loop.validate())
                best.close_epoch(standing)
                run.note(_line(standing.log[-1]))
                accelerator.log(standing.log[-1], step=standing.step)
            if standing.step % (save_every or per_epoch) == 0 and standing.step < total:
                state.write(
                    accelerator.unwrap_model(wrapped),
                    optimizer.optimizer,
                    standing.model_dump(),
                    best.kept,
                )
            if ended:
                break
    accelerator.wait_for_everyone()
    for tracker in accelerator.trackers:  # end_training would end the processes' group too
        tracker.finish()
    best.settle()
    kept_epoch = None
    if best.kept is not None:
        kept_epoch = standing.log[standing.best_epoch(training.recipe) or 0]["epoch"]
    # accelerate leaves its mixed-precision wrapper on the forward method.
    accelerator.unwrap_model(wrapped, keep_fp32_wrapper=False).to("cpu")
    model.eval()
    model.requires_grad_(False)
    return Trained(
        standing.step,
        standing.log[-1]["loss"] if standing.step else None,
        tuple(standing.log),
        kept_epoch=kept_epoch,
        stopped_early=standing.step < total,
        is_main=accelerator.is_main_process,
    )


def check_selection(start: Mapping[str, float], recipe: Recipe) -> None:
    """Refuse to choose epochs by a figure that the task does not have."""
    if len(start) > 1 and recipe.select == "accuracy" and "val_accuracy" not in start:
        raise UsageError(
            "--select accuracy is not possible for this task, which has no accuracy",
            hint="Leave it out.",
        )


def _placed(state: TrainingState, run: Run, accelerator: Any) -> TrainingState:
    """Return the state with the settings that decide the bits of the next step."""
    place = {
        "dtype": run.dtype,
        "device": accelerator.device.type,
        "processes": accelerator.num_processes,
    }
    return replace(state, identity={**state.identity, **place})


def _line(entry: Mapping[str, float]) -> str:
    """Return an epoch's figures as a line for people."""
    figures = [f"{key.replace('_', ' ')} {entry[key]:.4f}" for key in entry if key != "epoch"]
    return f"epoch {entry['epoch']:.3g}: {', '.join(figures)}"


@dataclass(frozen=True)
class _Loop:
    """The steps of an epoch, and the validation at its end."""

    accelerator: Any
    model: nn.Module
    optimizer: Any
    training: Training
    seed: int
    per_epoch: int
    total: int

    def batches(self, step: int) -> Iterator[tuple[Batch, ...]]:
        """Return the remaining batches of the epoch that this step falls into, in groups of one
        optimizer step.
        """
        epoch, done = divmod(step, self.per_epoch)
        accumulate, accelerator = self.training.recipe.accumulate, self.accelerator
        rank, world = accelerator.process_index, accelerator.num_processes
        left = iter(self.training.epoch_batches(epoch, rank, world, done * accumulate))
        # An incomplete last group is left out.
        return zip(*[left] * accumulate, strict=False)

    def step(self, number: int, parts: Sequence[Batch]) -> float:
        """Take one optimizer step, and return its loss."""
        recipe = self.training.recipe
        lr = learning_rate(recipe, number, self.total)
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group["pace"]
        seeds = np.random.SeedSequence((self.seed, number, self.accelerator.process_index))
        torch.manual_seed(int(seeds.generate_state(1)[0]))
        loss = self.training.loss.backward(self.accelerator, self.model, parts)
        if self.accelerator.num_processes > 1:
            everyone = torch.tensor(loss, device=self.accelerator.device)
            loss = float(self.accelerator.reduce(everyone, "mean"))
        if recipe.clip is not None:
            self.accelerator.unscale_gradients()
            nn.utils.clip_grad_norm_(self.model.parameters(), recipe.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if not math.isfinite(loss):
            raise Diverged(
                f"finetune: the loss is {loss} in step {number + 1} (lr {lr:g})",
                hint="Lower the learning rate: --set lr=…"
                if number
                else (
                    "The model overflows on this data: use --dtype float32, and check it with eval."
                ),
            )
        self.accelerator.log({"step_loss": loss, "lr": lr}, step=number + 1)
        return loss

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Measure the validation set. Every process measures all of it, which is small, and uses
        the first one's figures, so that all stop together.
        """
        if self.training.validation is None:
            return {}
        from accelerate.utils import broadcast_object_list

        self.model.eval()
        task = self.training.task
        device = self.accelerator.device
        logits_of_batches, truth = list[NDArray[Any]](), list[NDArray[Any]]()
        for batch in self.training.validation:
            assert batch.labels is not None
            logits_of_batches.append(self.model(moved(batch.inputs, device)).float().cpu().numpy())
            truth.append(np.asarray(batch.labels))
        logits, figures = joined(logits_of_batches), dict[str, float]()
        if np.isfinite(logits).all():
            values = task.validated(logits, joined(truth))
            figures = {f"val_{name}": value for name, value in values.items()}
        everyone = [figures]
        broadcast_object_list(everyone)
        return everyone[0]


def _steps(training: Training, accelerator: Any) -> tuple[int, int]:
    """Return the optimizer steps in an epoch and in total; raise UsageError if an epoch holds none."""
    recipe = training.recipe
    rank, world = accelerator.process_index, accelerator.num_processes
    batches = len(training.epoch_batches(0, rank, world, 0))
    per_epoch, total = recipe.steps_of(batches)
    if batches < recipe.accumulate and total:
        raise UsageError(
            f"finetune: accumulate={recipe.accumulate} needs as many batches, but the data has {batches}",
            hint="Give more data, or --set accumulate=1 or a smaller --batch-size.",
        )
    return per_epoch, total


def _accelerator(device: str, dtype: str, tracking: Tracking | None) -> Any:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    precision = {"float32": "no", "bfloat16": "bf16", "float16": "fp16"}
    able = [name for name in precision if name != "float16" or torch.cuda.is_available()]
    if dtype not in able:
        raise UsageError(f"--dtype {dtype}: training on this machine supports {', '.join(able)}")
    if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true":
        raise UsageError(
            "finetune does not support FSDP: every process needs the whole model",
            hint="Launch it without --use_fsdp.",
        )
    # The state is process-wide and remembers the first precision it was asked for.
    AcceleratorState._reset_state(reset_partial_state=not is_launched())
    make = Accelerator if tracking is None else tracking.accelerator
    # Else accelerate lets processes without GPUs each train for itself.
    on_cpu = device == "cpu" or (is_launched() and not torch.cuda.is_available())
    return make(cpu=on_cpu, mixed_precision=precision[dtype])


def _optimizer(model: nn.Module, training: Training, on: torch.device) -> torch.optim.Optimizer:
    """Return the optimizer, with a learning rate and a weight decay for each group of parameters."""
    recipe = training.recipe
    paced: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        pace, decay = training.pace(name), recipe.weight_decay
        if parameter.ndim < 2:
            decay = 0.0
        elif pace > 1:  # what learns faster decays no faster
            decay /= pace
        paced.setdefault((pace, decay), []).append(parameter)
    if not paced:
        raise UsageError("finetune: all parameters are frozen", hint="Freeze less.")
    groups = [
        {"params": parameters, "weight_decay": decay, "pace": pace}
        for (pace, decay), parameters in paced.items()
    ]
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=recipe.lr, momentum=recipe.momentum)
    # On a CPU the fused step takes a tenth of the time: a third of a small model's step.
    fused = on.type == "cpu"
    return torch.optim.AdamW(groups, lr=recipe.lr, betas=recipe.betas, eps=recipe.eps, fused=fused)
