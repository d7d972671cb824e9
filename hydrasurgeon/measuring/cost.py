"""What a model costs: parameters, multiply-adds of one sample, launches of one batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from hydrasurgeon.measuring.multiply_adds import MultiplyAdds
from hydrasurgeon.measuring.report import Cost
from hydrasurgeon.runtime.hydra import Hydra


def parameters(model: nn.Module) -> int:
    """Each distinct parameter once, so that what members share is not counted twice."""
    return sum(p.numel() for p in model.parameters())


def first_sample(inputs: Any) -> Any:
    """One sample of a batch, whether it is a tensor or a dict of them."""
    if isinstance(inputs, Mapping):
        return {name: value[:1] for name, value in inputs.items()}
    return inputs[:1]


def tokens_of(inputs: Any) -> int | None:
    """How long texts are, which multiply-adds grow with; None for images."""
    ids = inputs.get("input_ids") if isinstance(inputs, Mapping) else None
    return None if ids is None else int(ids.shape[1])


@torch.inference_mode()  # attention is then one operator, not yet what a device makes of it
def macs(model: nn.Module, inputs: Any) -> int:
    """Multiply-adds of matrix products, convolutions and attention for one sample."""
    with without_padding(model):
        # What each member computes once, a zero-shot model's class features, is no cost of a sample.
        model(first_sample(inputs))
        with MultiplyAdds() as counter:
            model(first_sample(inputs))
    return counter.count


@contextmanager
def without_padding(model: nn.Module) -> Iterator[None]:
    """Members one by one: side by side, those with fewer heads than others are padded."""
    hydras = [module for module in model.modules() if isinstance(module, Hydra)]
    modes = [hydra.mode for hydra in hydras]
    for hydra in hydras:
        hydra.mode = "apart"
    try:
        yield
    finally:
        for hydra, mode in zip(hydras, modes, strict=True):
            hydra.mode = mode


@torch.no_grad()
def launches(model: nn.Module, inputs: Any) -> int:
    """Kernel launches of one pass: the launch overhead that a small batch is dominated by."""
    model(inputs)  # what is settled once is no part of a pass
    with _Launches() as counter:
        model(inputs)
    return counter.count


class _Launches(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        views = any(r.alias_info and not r.alias_info.is_write for r in func._schema.returns)
        self.count += not views and func is not torch.ops.aten._unsafe_view.default
        return func(*args, **(kwargs or {}))


def cost_of(models: Iterable[nn.Module], inputs: Any) -> Cost:
    """The cost of running these models one after another: one for a hydra, M for a Deep Ensemble.

    Their time is measured once the models that they stand beside are there too.
    """
    models = list(models)
    return Cost(
        params=sum(parameters(model) for model in models),
        macs=sum(macs(model, inputs) for model in models),
        latency_ms=None,
        tokens=tokens_of(inputs),
    )
