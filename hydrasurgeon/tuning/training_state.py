"""State of an interrupted training: weights, optimizer and position in one safetensors file, which
is used only if it fits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from hydrasurgeon.files.atomic import replacing
from hydrasurgeon.files.resumable import Resumable, Work, there
from hydrasurgeon.files.tensors import TensorFile, digest, weights_sha256, write_tensors
from hydrasurgeon.files.torchrun import is_main_process
from hydrasurgeon.runtime.torch_tensors import TORCH, plan_tensors, to_tensor

if TYPE_CHECKING:
    from hydrasurgeon.tuning.recipes import Recipe

SELECTED_BY = {"nll": ("val_calibrated_nll", "val_nll"), "accuracy": ("val_accuracy",)}
"""`--select` → the figures of an epoch's log that choose it, the first that is there. NLL is the
calibrated one: what `calibrate` makes of a model counts.
"""

TRAINING = ("training", "hydrasurgeon.training/3")
"""Kind and format of the state file. The third version may hold the best epoch's weights."""
MAX_TEXT = 16 << 20
"""Characters of what a state says of itself in its header."""


def quality(entry: Mapping[str, float], select: str) -> float:
    """Return the validation figure that chooses an epoch, higher is better; NaN if it has none."""
    names = SELECTED_BY[select]
    value = next((entry[name] for name in names if name in entry), math.nan)
    return value if select == "accuracy" else -value


class TrainingPosition(BaseModel):
    """Position of a training: its step, the loss so far, and the log of finished epochs."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    step: int = Field(0, strict=True, ge=0, lt=2**53)
    loss_sum: float = Field(0.0, strict=True)
    loss_count: int = Field(0, strict=True, ge=0, lt=2**53)
    log: list[dict[str, Annotated[float, Field(strict=True)]]] = []

    def best_epoch(self, recipe: Recipe) -> int | None:
        """Return the place in the log of the best epoch: the last that improved by more than `min_delta`."""
        best, highest = None, -math.inf
        for place, entry in enumerate(self.log):
            value = quality(entry, recipe.select)
            if math.isfinite(value) and (best is None or value > highest + recipe.min_delta):
                best, highest = place, value
        return best

    def waited(self, recipe: Recipe) -> bool:
        """Return True if the recipe's patience is over: so many epochs brought no better one."""
        best = self.best_epoch(recipe)
        if not recipe.patience or best is None:
            return False
        return len(self.log) - 1 - best >= recipe.patience

    @property
    def mean_loss(self) -> float:
        """Mean loss of this epoch's steps so far."""
        return self.loss_sum / max(1, self.loss_count)

    def add(self, loss: float) -> None:
        """Add one step's loss."""
        self.step += 1
        self.loss_sum += loss
        self.loss_count += 1

    def close_epoch(self, per_epoch: int, measured: dict[str, float]) -> None:
        """Log the end of an epoch, or of all steps."""
        self.log.append({"epoch": self.step / per_epoch, "loss": self.mean_loss, **measured})
        self.loss_sum, self.loss_count = 0.0, 0


@dataclass(frozen=True)
class TrainingState(Resumable):
    """The state of one training."""

    work: Work = TRAINING
    continued_by: ClassVar = {"finetune": ("--resume",)}

    def write(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        position: dict[str, Any],
        best: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Write the state, in the main process. `best` are the weights of the best epoch so far."""
        if not is_main_process():
            return
        tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
        tensors |= {f"best.{name}": tensor for name, tensor in (best or {}).items()}
        for index, slots in optimizer.state_dict()["state"].items():
            tensors |= {
                f"optimizer.{index}.{key}": value
                for key, value in slots.items()
                if isinstance(value, Tensor)
            }
        planned = plan_tensors(tensors)
        with replacing(self.path) as (part,):
            # The hash of the tensors is known when they are written; what stands in its place
            # before is as long.
            write_tensors(part, planned, lambda sha256: self.texts(position, sha256 or ""))
        self.noted()

    def read(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        expected: Callable[[TrainingPosition], bool] = lambda position: False,
    ) -> tuple[TrainingPosition, dict[str, Tensor] | None] | None:
        """Put everything back; the position and the best weights, where they are `expected`; None
        when there is nothing to continue.
        """
        if not there(self.path):
            return None
        with self.judged():
            file = TensorFile(self.path)
            arrays = {name: file.read(name) for name in file.infos}
            texts = dict(file.metadata)
            if texts.pop("format", None) != "pt":
                raise ValueError("it is incomplete")
            digests = {name: digest(array) for name, array in arrays.items()}
            recorded = self.position(texts, weights_sha256(file.infos, digests), most=MAX_TEXT)
            position = TrainingPosition.model_validate(recorded)
            kinds = {name: info.dtype for name, info in file.infos.items()}
            tensors = {
                name: to_tensor(array, kinds[name])
                for name, array in arrays.items()
                if kinds[name] in TORCH
            }
            best = {}
            if expected(position):
                tuned = (name for name, p in model.named_parameters() if p.requires_grad)
                best = {name: f"best.{name}" for name in tuned}
            weights, slots = _fitting(tensors, model, optimizer, best)
        model.load_state_dict(weights)
        optimizer.load_state_dict(
            {"state": slots, "param_groups": optimizer.state_dict()["param_groups"]}
        )
        return position, {name: tensors[at] for name, at in best.items()} or None


def _fitting(
    tensors: Mapping[str, Tensor],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    best: Mapping[str, str],
) -> tuple[dict[str, Tensor], dict[int, dict[str, Tensor]]]:
    """Return the model's tensors, and the optimizer's tensors of each parameter. Raise ValueError
    if one is missing, not finite, or of another shape.
    """
    state_dict, names = model.state_dict(), _names(optimizer)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    slots: dict[int, dict[str, Tensor]] = {}
    shapes = {f"model.{name}": (tensor.shape, tensor.dtype) for name, tensor in state_dict.items()}
    live = dict(model.named_parameters())  # which may have other names than what is stored of them
    shapes |= {at: (live[name].shape, live[name].dtype) for name, at in best.items()}
    wrong = next((name for name in shapes if name not in tensors), None)
    for index, parameter in enumerate(parameters):
        stored = {key: f"optimizer.{index}.{key}" for key in names}
        shapes |= {
            n: (torch.Size() if k == "step" else parameter.shape, torch.float32)
            for k, n in stored.items()
        }
        present = {key: tensors[name] for key, name in stored.items() if name in tensors}
        if present:
            slots[index] = present
    for name, tensor in tensors.items():
        if shapes.get(name) != (tensor.shape, tensor.dtype) or not torch.isfinite(tensor).all():
            wrong = name
    wrong = next((f"optimizer.{i}" for i, slot in slots.items() if slot.keys() != names), wrong)
    if wrong is not None:
        raise ValueError(f"{wrong[:100]}: is missing, does not fit the model, or is not finite")
    return {name: tensors[f"model.{name}"] for name in state_dict}, slots


def _names(optimizer: torch.optim.Optimizer) -> set[str]:
    """Return the names of the tensors that this optimizer keeps for a parameter."""
    if isinstance(optimizer, torch.optim.AdamW):
        return {"step", "exp_avg", "exp_avg_sq"}
    return {"momentum_buffer"} if optimizer.param_groups[0]["momentum"] else set()
