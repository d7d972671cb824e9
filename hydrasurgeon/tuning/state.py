"""Where an interrupted training continues: weights, optimizer and position in one safetensors file, believed only where
they fit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from hydrasurgeon.files.atomic import replacing
from hydrasurgeon.files.resumable import Resumable, Work, there
from hydrasurgeon.files.tensors import Planned, TensorFile, digest, weights_sha256, whole, write_tensors
from hydrasurgeon.runtime.tensors import SAFETENSORS, TORCH, to_raw, to_tensor

if TYPE_CHECKING:
    from hydrasurgeon.files.tensors import Parts

TRAINING = Work("training", "hydrasurgeon.training", 2)
"""What the state of a training calls itself; the second version is hashed whole."""
# Of what a state says of itself in its header.
MAX_TEXT = 16 << 20
SLOT = re.compile(r"optimizer\.(\d{1,9})\.([a-z_]+)")
"""What a state of the optimizer is called: the number of the parameter, and its name there."""


class TrainingPosition(BaseModel):
    """Where a training stood, as its file says."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    step: int = Field(strict=True, ge=0, lt=2**53)
    loss_sum: float = Field(strict=True)
    loss_count: int = Field(strict=True, ge=0, lt=2**53)
    log: list[dict[str, Annotated[float, Field(strict=True)]]]


@dataclass(frozen=True)
class TrainingState(Resumable):
    """The state of one training."""

    work: ClassVar[Work] = TRAINING

    def write(self, model: nn.Module, optimizer: torch.optim.Optimizer, position: dict[str, Any]) -> None:
        tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
        for index, slots in optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{key}": value for key, value in slots.items() if isinstance(value, Tensor)}
        planned = [
            Planned(name, SAFETENSORS[tensor.dtype], tuple(tensor.shape), partial(_parts, tensor))
            for name, tensor in tensors.items()
        ]
        with replacing(self.path) as (part,):
            # The hash of the tensors is known when they are written; what stands in its place before is as long.
            write_tensors(part, planned, lambda sha256: self.texts(position, sha256 or ""))

    def read(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> TrainingPosition | None:
        """Put everything back; None when there is nothing to continue."""
        if not there(self.path):
            return None
        with self.judged():
            file = TensorFile(self.path)
            arrays = {name: file.read(name) for name in file.infos}
            texts = dict(file.metadata)
            if texts.pop("format", None) != "pt":
                raise ValueError("it does not say what a state says")
            digests = {name: digest(array) for name, array in arrays.items()}
            recorded = self.position(texts, weights_sha256(file.infos, digests), most=MAX_TEXT)
            position = TrainingPosition.model_validate(recorded)
            tensors = {}
            for name, array in arrays.items():
                if (dtype := file.infos[name].dtype) not in TORCH:
                    raise ValueError(f"tensor {name[:100]} is {dtype}")
                tensors[name] = to_tensor(array, dtype)
            weights = {n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")}
            _check(weights, model.state_dict())
            slots = _slots(tensors, optimizer)
        model.load_state_dict(weights)
        optimizer.load_state_dict({"state": slots, "param_groups": optimizer.state_dict()["param_groups"]})
        return position


def _parts(tensor: Tensor) -> Parts:
    return whole(to_raw(tensor)[0])


def _check(weights: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """The model's own tensors, and finite ones."""
    if weights.keys() != expected.keys():
        name = min(weights.keys() ^ expected.keys())
        raise ValueError(f"tensor {name[:100]} is missing, or there for nothing")
    for name, tensor in weights.items():
        if tensor.shape != expected[name].shape or tensor.dtype != expected[name].dtype:
            raise ValueError(f"tensor {name} is {tensor.dtype} {tuple(tensor.shape)}")
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise ValueError(f"tensor {name} holds values that are not finite")


def _slots(tensors: Mapping[str, Tensor], optimizer: torch.optim.Optimizer) -> dict[int, dict[str, Tensor]]:
    """What the optimizer keeps of each parameter: all of it, in the parameter's shape."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    names = _names(optimizer)
    slots: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        match = SLOT.fullmatch(name)
        if match is None:
            if not name.startswith("model."):
                raise ValueError(f"tensor {name[:100]} is there for nothing")
            continue
        index, key = int(match[1]), match[2]
        fits = key in names and index < len(parameters) and tensor.is_floating_point()
        shape = torch.Size() if key == "step" or not fits else parameters[index].shape
        if not fits or tensor.shape != shape or not torch.isfinite(tensor).all():
            raise ValueError(f"tensor {name[:100]} does not fit its parameter")
        slots.setdefault(index, {})[key] = tensor
    if any(slot.keys() != names for slot in slots.values()):
        raise ValueError("misses a part of the optimizer's state")
    return slots


def _names(optimizer: torch.optim.Optimizer) -> set[str]:
    """What this optimizer keeps of a parameter."""
    if isinstance(optimizer, torch.optim.AdamW):
        return {"step", "exp_avg", "exp_avg_sq"}
    return {"momentum_buffer"} if optimizer.param_groups[0]["momentum"] else set()
