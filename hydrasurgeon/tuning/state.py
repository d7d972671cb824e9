"""Where an interrupted training continues: weights, optimizer and position in one file, believed only where they fit."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

from hydrasurgeon.errors import CheckpointError, OutputError, UsageError
from hydrasurgeon.files.atomic import sweep, write_bytes
from hydrasurgeon.files.foreign import parse_json
from hydrasurgeon.files.tensors import TensorFile

__all__ = ["State", "check_state"]

STATE, FORMAT = "hydrasurgeon.state", "hydrasurgeon.training/1"
"""Header entry by which a state is told from other files."""

# Of what a state says of itself in its header.
MAX_TEXT = 16 << 20
SLOT = re.compile(r"optimizer\.(\d{1,9})\.([a-z_]+)")


class Position(BaseModel):
    """Where a training stood, as its file says."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    step: int = Field(strict=True, ge=0, lt=2**53)
    loss_sum: float = Field(strict=True)
    loss_count: int = Field(strict=True, ge=0, lt=2**53)
    log: list[dict[str, Annotated[float, Field(strict=True)]]]


@dataclass
class State:
    """Where an interrupted run continues: weights, optimizer and position in one safetensors file."""

    path: Path
    identity: dict[str, Any]
    """What must be the same for the file to be used: source weights, data, recipe, seed."""

    def write(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, position: dict[str, Any]
    ) -> None:
        tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
        for index, slots in optimizer.state_dict()["state"].items():
            tensors |= {
                f"optimizer.{index}.{key}": value
                for key, value in slots.items()
                if isinstance(value, Tensor)
            }
        # Cloned: safetensors refuses tensors that share memory.
        content = save(
            {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()},
            metadata={
                "format": "pt",
                STATE: FORMAT,
                "identity": json.dumps(self.identity, sort_keys=True),
                "position": json.dumps(position),
            },
        )
        write_bytes(self.path, content)

    def read(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Position | None:
        """Put everything back; None when there is nothing to continue."""
        if not os.path.lexists(self.path):
            return None
        about = TensorFile(self.path).metadata
        where = f"--resume: {self.path.name}"
        identity = parse_json(about.get("identity", ""), where, most=MAX_TEXT, error=UsageError)
        if not isinstance(identity, dict):
            raise self._unfit("has no identity")
        self._same(identity)
        position = parse_json(about.get("position", ""), where, most=MAX_TEXT, error=UsageError)
        try:
            found = Position.model_validate(position)
        except ValidationError as error:
            first = error.errors()[0]
            raise self._unfit(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
        with safe_open(str(self.path), framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        weights = {
            n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")
        }
        self._check(weights, model.state_dict())
        slots = self._slots(tensors, optimizer)
        model.load_state_dict(weights)
        optimizer.load_state_dict(
            {"state": slots, "param_groups": optimizer.state_dict()["param_groups"]}
        )
        return found

    def _check(self, weights: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
        """The model's own tensors, and finite ones."""
        if weights.keys() != expected.keys():
            name = min(weights.keys() ^ expected.keys())
            raise self._unfit(f"tensor {name[:100]} is missing, or there for nothing")
        for name, tensor in weights.items():
            if tensor.shape != expected[name].shape or tensor.dtype != expected[name].dtype:
                raise self._unfit(f"tensor {name} is {tensor.dtype} {tuple(tensor.shape)}")
            if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                raise self._unfit(f"tensor {name} holds values that are not finite")

    def _slots(
        self, tensors: Mapping[str, Tensor], optimizer: torch.optim.Optimizer
    ) -> dict[int, dict[str, Tensor]]:
        """What the optimizer keeps of each parameter: all of it, in the parameter's shape."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        names = _names(optimizer)
        slots: dict[int, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            found = SLOT.fullmatch(name)
            if found is None:
                if not name.startswith("model."):
                    raise self._unfit(f"tensor {name[:100]} is there for nothing")
                continue
            index, key = int(found[1]), found[2]
            fits = key in names and index < len(parameters) and tensor.is_floating_point()
            shape = torch.Size() if key == "step" or not fits else parameters[index].shape
            if not fits or tensor.shape != shape or not torch.isfinite(tensor).all():
                raise self._unfit(f"tensor {name[:100]} does not fit its parameter")
            slots.setdefault(index, {})[key] = tensor
        if any(slot.keys() != names for slot in slots.values()):
            raise self._unfit("misses a part of the optimizer's state")
        return slots

    def _unfit(self, why: str) -> UsageError:
        return UsageError(
            f"--resume: {self.path.name}: not the state of this training ({why[:300]})",
            hint="Start over with --force.",
        )

    def _same(self, found: dict[str, Any]) -> None:
        wanted = json.loads(json.dumps(self.identity))
        differing = [key for key in wanted if wanted[key] != found.get(key)]
        if differing:
            raise UsageError(
                f"--resume: {self.path.name} was made with another {' and '.join(differing)}",
                hint="Resume with the same arguments, or start over without --resume.",
            )

    def clear(self) -> None:
        if is_state(self.path):
            self.path.unlink()


def is_state(path: Path) -> bool:
    """Whether an interrupted run wrote this file."""
    with suppress(CheckpointError):
        return TensorFile(path).metadata.get(STATE) == FORMAT
    return False


def check_state(path: Path, *, resume: bool, force: bool) -> bool:
    """Whether there is a state to continue from; refused before the work where it, or something else, would be lost."""
    sweep(path)
    if not os.path.lexists(path):
        return False
    if not is_state(path):
        raise OutputError(
            f"{path}: is no state of an interrupted run, and would stand where one is kept",
            hint="Move it away, or give another -o.",
        )
    if not (resume or force):
        raise OutputError(
            f"{path}: an interrupted run left its state",
            hint="Continue it with --resume, or start over with --force.",
        )
    return True


def _names(optimizer: torch.optim.Optimizer) -> set[str]:
    """What this optimizer keeps of a parameter."""
    if isinstance(optimizer, torch.optim.AdamW):
        return {"step", "exp_avg", "exp_avg_sq"}
    return {"momentum_buffer"} if optimizer.param_groups[0]["momentum"] else set()
