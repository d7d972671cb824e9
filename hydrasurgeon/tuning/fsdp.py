"""FSDP: every process holds a part of each weight, of its gradient and of what the optimizer keeps.

`accelerate launch --use_fsdp` asks for it, and torch's `fully_shard` (FSDP2) does it: the same on
GPUs and on CPUs, which accelerate itself does not spread over. A linear layer's weight is whole
only while the layer runs; everything else is small, and whole while the model runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hydrasurgeon.files.processes import is_main_process, process_count

PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""What linear layers compute in, by accelerate's names: weights travel in it, too."""


def is_spread() -> bool:
    """Whether the launcher asked for FSDP."""
    wanted = os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"
    return wanted and process_count() > 1


def units(model: nn.Module) -> Iterator[nn.Linear]:
    """The linear layers that can gather their own weight, because it is read in no other way.

    A module with parameters of its own (as MultiheadAttention) may read those of its parts.
    """
    for module in model.modules():
        if next(module.parameters(recurse=False), None) is not None:
            continue
        for part in module.children():
            if isinstance(part, nn.Linear) and part.weight.numel():
                yield part


def spread(model: nn.Module, accelerator: Any) -> None:
    """Leave each process its part of the model, in place and on its device."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, OffloadPolicy, fully_shard

    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    settings: dict[str, Any] = {
        "mesh": init_device_mesh(accelerator.device.type, (accelerator.num_processes,)),
        "offload_policy": getattr(plugin, "cpu_offload", None) or OffloadPolicy(),
    }
    precision = PRECISIONS.get(accelerator.mixed_precision)
    policy = MixedPrecisionPolicy(param_dtype=precision, reduce_dtype=torch.float32)
    for linear in units(model):
        fully_shard(linear, mp_policy=policy, **settings)
    fully_shard(model, **settings)
    if precision is not None:
        model.forward = accelerator.autocast()(model.forward)


def rest(model: nn.Module) -> None:
    """Forget the whole weights that a pass without gradients leaves behind."""
    for part in model.modules():
        if hasattr(part, "reshard"):
            part.reshard()  # type: ignore[operator]


def part_of(tensor: Tensor, like: Any) -> Tensor:
    """This process's part of a whole tensor, where a parameter is spread; else the tensor."""
    if not _is_part(like):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    # Every process has the whole: nothing is sent, so they need not ask in the same order.
    here = tensor.to(like.device)
    return distribute_tensor(here, like.device_mesh, like.placements, src_data_rank=None)


@torch.no_grad()
def whole(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with the spread ones put together, on the CPU of the main process.

    All processes must call it; the others get tensors without content.
    """
    return {
        name: _whole(tensor) if _is_part(tensor) else tensor for name, tensor in tensors.items()
    }


def gather(model: nn.Module) -> None:
    """Undo `spread`, on the main process: the others' parameters have no content."""
    rest(model)
    model.__dict__.pop("forward", None)
    for part in model.modules():
        for name, parameter in whole(dict(part.named_parameters(recurse=False))).items():
            part._parameters[name] = nn.Parameter(parameter)


def _whole(tensor: Any) -> Tensor:
    if not tensor.numel():  # a layer without heads, which torch cannot put together
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    made: Tensor = tensor.detach().full_tensor()
    return made.cpu() if is_main_process() else made.to("meta")


def _is_part(tensor: Any) -> bool:
    return hasattr(tensor, "placements")
