"""Raw safetensors integers ↔ torch tensors, and where and in which dtype they live."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hydrasurgeon.errors import CheckpointError, UsageError
from hydrasurgeon.files.tensors import Planned, spoiled

TORCH = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""The dtypes of safetensors that tensors are read as here."""
SAFETENSORS = {dtype: name for name, dtype in TORCH.items()}
"""The same, the other way."""


def to_tensor(array: np.ndarray[Any, Any], dtype: str) -> Tensor:
    """Convert raw safetensors bytes (as unsigned integers) to a tensor of their own dtype."""
    contiguous = np.ascontiguousarray(array).reshape(
        array.shape
    )  # numpy makes a vector of a scalar
    return torch.from_numpy(contiguous).view(TORCH[dtype])


def to_weights(array: np.ndarray[Any, Any], dtype: str, *, name: str, path: Path) -> Tensor:
    """Convert raw safetensors bytes to a finite float32 tensor."""
    weights = to_tensor(array, dtype).float()
    # isfinite would make copies, of which an embedding's takes gigabytes.
    if weights.numel() and not all(map(torch.isfinite, weights.aminmax())):
        raise spoiled(name, path)
    return weights


def to_raw(tensor: Tensor) -> tuple[np.ndarray[Any, Any], str]:
    """Convert a tensor to raw unsigned integers and the safetensors name of its dtype."""
    plain = tensor.detach().cpu().contiguous()
    width = plain.element_size()
    return plain.view(getattr(torch, f"uint{8 * width}")).numpy(), SAFETENSORS[plain.dtype]


def assign(module: nn.Module, state: Mapping[str, Tensor], path: Path) -> None:
    """Make these tensors the module's own, by their names in files; all of them, and no others."""
    missing, unexpected = module.load_state_dict(dict(state), strict=False, assign=True)
    if missing or unexpected:
        name = (missing or unexpected)[0]
        raise CheckpointError(
            f"{path}: tensor {name} "
            f"{'is missing' if missing else 'does not belong to the architecture'}"
        )


def device_of(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    why = (
        "torch sees no CUDA device"
        if name.startswith("cuda") and not torch.cuda.is_available()
        else "not a device"
    )
    try:
        device = torch.device(name)
        if device.type != "cuda" or torch.cuda.is_available():
            return device
    except RuntimeError:
        pass
    raise UsageError(f"--device {name}: {why}", hint="Use auto, cpu or cuda.")


def dtype_of(name: str) -> torch.dtype:
    dtypes = {
        "float32": torch.float32,
        "bfloat16": torch.bfloat16,
        "float16": torch.float16,
        "float64": torch.float64,
    }
    if name not in dtypes:
        raise UsageError(f"--dtype {name}: not known", hint=f"Use one of {', '.join(dtypes)}.")
    return dtypes[name]


def plan_tensors(tensors: Mapping[str, Tensor]) -> list[Planned]:
    """Plan how tensors are written, by name."""

    def plan(name: str, tensor: Tensor) -> Planned:
        return Planned(
            name, SAFETENSORS[tensor.dtype], tuple(tensor.shape), lambda: [to_raw(tensor)[0]]
        )

    return [plan(name, tensor) for name, tensor in tensors.items()]
