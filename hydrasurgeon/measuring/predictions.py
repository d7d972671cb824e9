"""The predictions file: logits of one model on all data sets, as safetensors, so that metrics need no model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from hydrasurgeon.errors import DataError
from hydrasurgeon.files.atomic import write_bytes
from hydrasurgeon.measuring.report import Cost

__all__ = ["OodSet", "Predictions", "ShiftSet", "read_predictions", "write_predictions"]

Group = Literal["near", "far"]


@dataclass(frozen=True)
class OodSet:
    name: str
    group: Group
    logits: Float[Tensor, "sample member klass"]


@dataclass(frozen=True)
class ShiftSet:
    name: str
    severity: int | None
    logits: Float[Tensor, "sample member klass"]
    labels: Int[Tensor, " sample"]


@dataclass(frozen=True)
class Predictions:
    """What one model said about an ID set, OOD sets and shifted sets."""

    name: str
    kind: str
    logits: Float[Tensor, "sample member klass"]
    labels: Int[Tensor, " sample"]
    ood: tuple[OodSet, ...] = ()
    shift: tuple[ShiftSet, ...] = ()
    cost: Cost | None = None

    @property
    def members(self) -> int:
        return self.logits.shape[1]


def write_predictions(predictions: Predictions, path: Path) -> None:
    tensors = {"logits": predictions.logits, "labels": predictions.labels}
    tensors |= {f"ood.{s.name}.logits": s.logits for s in predictions.ood}
    for s in predictions.shift:
        tensors |= {f"shift.{_key(s)}.logits": s.logits, f"shift.{_key(s)}.labels": s.labels}
    about: dict[str, Any] = {
        "name": predictions.name,
        "kind": predictions.kind,
        "ood": [[s.name, s.group] for s in predictions.ood],
        "shift": [[s.name, s.severity] for s in predictions.shift],
    }
    if predictions.cost is not None:
        # A time is true of one machine at one moment, and would change the file on every run.
        about["cost"] = {"params": predictions.cost.params, "macs": predictions.cost.macs}
    content = save(
        {name: tensor.contiguous().clone() for name, tensor in tensors.items()},
        metadata={"format": "pt", "hydrasurgeon.predictions": json.dumps(about)},
    )
    write_bytes(path, content)


def _key(shift: ShiftSet) -> str:
    return shift.name if shift.severity is None else f"{shift.name}.{shift.severity}"


def read_predictions(path: Path) -> Predictions:
    """Our own file, or anyone's with `logits`, `labels` and perhaps `ood.<name>.logits`."""
    try:
        with safe_open(str(path), framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            about = json.loads((file.metadata() or {}).get("hydrasurgeon.predictions", "{}"))
    except (OSError, SafetensorError, ValueError) as error:
        raise DataError(
            f"{path}: not a readable predictions file ({error})",
            hint="Write one with eval --predictions.",
        ) from error
    labels = tensors.get("labels")
    logits = _logits(path, tensors, "logits")
    if labels is None or labels.shape != logits.shape[:1] or labels.is_floating_point():
        raise DataError(
            f"{path}: needs integer labels, one for each of the {len(logits)} rows of logits"
        )
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < logits.shape[-1]:
        raise DataError(f"{path}: labels must lie in 0-{logits.shape[-1] - 1}")
    groups = dict(about.get("ood", []))
    names = [
        name[4:-7]
        for name in sorted(tensors)
        if name.startswith("ood.") and name.endswith(".logits")
    ]
    order = [*groups, *(name for name in names if name not in groups)]
    severities = [tuple(entry) for entry in about.get("shift", [])]
    shifts = []
    for name, severity in severities:
        key = name if severity is None else f"{name}.{severity}"
        shifts.append(
            ShiftSet(
                name,
                severity,
                _logits(path, tensors, f"shift.{key}.logits"),
                tensors[f"shift.{key}.labels"],
            )
        )
    return Predictions(
        name=about.get("name", path.name.removesuffix(".safetensors")),
        kind=about.get("kind", "unknown"),
        logits=logits,
        labels=labels.long(),
        ood=tuple(
            OodSet(n, groups.get(n, "far"), _logits(path, tensors, f"ood.{n}.logits"))
            for n in order
        ),
        shift=tuple(shifts),
        cost=Cost(**about["cost"], latency_ms=None) if "cost" in about else None,
    )


def _logits(path: Path, tensors: dict[str, Tensor], name: str) -> Tensor:
    tensor = tensors.get(name)
    if tensor is None:
        raise DataError(f"{path}: tensor {name} is missing")
    if tensor.dim() == 2:
        tensor = tensor[:, None]
    if tensor.dim() != 3 or not tensor.is_floating_point() or not len(tensor):
        raise DataError(
            f"{path}: {name} must be floating-point [sample, member, class], found {tensor.dtype} {tuple(tensor.shape)}"
        )
    if not torch.isfinite(tensor).all():
        raise DataError(f"{path}: {name} holds values that are not finite")
    return tensor
