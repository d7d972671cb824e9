"""A model that is too large for one device: the inner matrices of its MLPs lie where there is room.

What surgery reads and trains (attention, the MLPs' outputs, embeddings, norms) lies on the main
device. The rest, half of a large decoder, lies there too, in other GPUs or in memory, or stays in
the checkpoint's file; accelerate's hooks bring each matrix for the time of its product. For
gradients a product is computed again, so that they hold no more of them at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as remade
from torch.utils.checkpoint import set_checkpoint_early_stop

from hydrasurgeon.checkpoints.reading import Single
from hydrasurgeon.runtime.tensors import assign, device_of, to_weights

SHARE = 0.8
"""Of what a device has free; the rest is for activations and gradients."""


def room() -> dict[int | str, int]:
    """Bytes that are free, in each GPU by its number and in memory ("cpu")."""
    from accelerate.utils import get_max_memory

    return {place: int(SHARE * free) for place, free in get_max_memory().items()}


@dataclass(frozen=True)
class InFile(Mapping[str, Tensor]):
    """Weights of a layer that are read whenever they are asked for."""

    checkpoint: Single
    names: Mapping[str, str]
    """The layer's name of each → the file's."""
    dtype: torch.dtype

    def __getitem__(self, name: str) -> Tensor:
        stored, tensors, path = self.names[name], self.checkpoint.tensors, self.checkpoint.path
        # No name holds on to what was read.
        weights = to_weights(tensors.read(stored), tensors[stored].dtype, name=stored, path=path)
        return weights.to(self.dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def spread_module(checkpoint: Single, dtype: torch.dtype) -> nn.Module:
    """The family's own module of a backbone or member, wherever there is room for it."""
    manifest, main = checkpoint.manifest, device_of("auto")
    module = checkpoint.family.module(
        manifest.model, manifest.towers, checkpoint.kept, files=checkpoint.files
    )
    files = {id(parameter): name for name, parameter in module.named_parameters()}
    inner = {}
    for block in checkpoint.family.anatomy(module).layers:
        for part in block.mlp.modules():
            if isinstance(part, nn.Linear) and part is not block.out:
                names = {n: files[id(p)] for n, p in part.named_parameters()}
                inner[part] = InFile(checkpoint, names, dtype)
    places = _places(module, inner, main, dtype)
    away = {
        name
        for layer, weights in inner.items()
        if places[layer] != main
        for name in weights.names.values()
    }
    everything = InFile(checkpoint, {name: name for name in module.state_dict()}, dtype)
    state = {
        name: meta if name in away else everything[name].to(main)
        for name, meta in module.state_dict().items()
    }
    assign(module, state, checkpoint.path)
    module.to(dtype=dtype)._apply(lambda tensor: tensor if tensor.is_meta else tensor.to(main))
    for layer, weights in inner.items():
        if places[layer] != main:
            _lend(layer, weights, places[layer], main)
    return module.eval()


def _places(
    module: nn.Module, inner: Mapping[nn.Linear, InFile], main: torch.device, dtype: torch.dtype
) -> dict[nn.Linear, torch.device | None]:
    """Where each layer goes: the main device, other GPUs, memory; None: it stays in the file."""

    def size(part: nn.Module) -> int:
        return sum(parameter.numel() for parameter in part.parameters()) * dtype.itemsize

    free = {torch.device(place): left for place, left in room().items()}
    main = torch.device(main.type, 0) if main.type == "cuda" else main
    free[main] = free.get(main, 0) - size(module) + sum(size(layer) for layer in inner)
    places: dict[nn.Linear, torch.device | None] = {}
    for layer in inner:
        place = next((place for place, left in free.items() if left >= size(layer)), None)
        if place is not None:
            free[place] -= size(layer)
        places[layer] = device_of("auto") if place == main else place
    return places


def _lend(
    layer: nn.Linear, weights: InFile, place: torch.device | None, main: torch.device
) -> None:
    """Let accelerate bring what the layer needs, wherever it lies, and take it away again."""
    from accelerate.hooks import AlignDevicesHook, add_hook_to_module

    if place is not None and place.type != "cpu":  # another GPU: there inputs go, and come back
        assign(layer, {name: weights[name].to(place) for name in weights}, weights.checkpoint.path)
        add_hook_to_module(layer, AlignDevicesHook(place, io_same_device=True))
        return
    held: Mapping[str, Any] = weights if place is None else dict(weights)
    add_hook_to_module(layer, AlignDevicesHook(main, offload=True, weights_map=held))
    layer.forward = partial(_computed_again, layer.forward)  # type: ignore[method-assign]


def _computed_again(forward: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
    """The product, of which autograd keeps nothing; it ends when it is computed again, too."""
    with set_checkpoint_early_stop(False):
        product: Tensor = remade(forward, inputs, use_reentrant=False, preserve_rng_state=False)
    return product
