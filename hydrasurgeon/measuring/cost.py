"""What a model costs: parameters, multiply-adds of one sample, launches of one batch; and a cascade, by its steps.

Matrix products, convolutions and attention count, by formulas of our own: torch's own counter knows attention under
some names only, and which name it runs under depends on torch's version, the device and the dtype.

    expected = first + share · rest        of rows, the share that goes on
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from hydrasurgeon.measuring.results import Cost
from hydrasurgeon.runtime.classifier import Classifier
from hydrasurgeon.runtime.features import LiveModel
from hydrasurgeon.runtime.hydra import Hydra

LEFT_FACTOR = {"mm": 0, "bmm": 0, "mv": 0, "dot": 0, "matmul": 0, "linear": 0, "addmm": 1, "baddbmm": 1, "addmv": 1}
"""Operator → where its left factor stands; each number of the result sums over the factor's last dimension."""
CONVOLUTIONS = ("conv1d", "conv2d", "conv3d", "convolution", "_convolution")
"""torch's operators that convolve."""
ATTENTION = ("scaled_dot_product_attention", "_scaled_dot_product_")
"""How operators of attention begin; the first in inference mode. With gradients, the second is followed by what device,
version and dtype choose. Written out as products, it counts as those."""


class MultiplyAdds(TorchDispatchMode):
    """Within the block, `count` grows by what each operator multiplies and adds."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name in LEFT_FACTOR:
            result = func(*args, **kwargs)
            self.count += result.numel() * args[LEFT_FACTOR[name]].shape[-1]
        elif name in CONVOLUTIONS:
            result = func(*args, **kwargs)
            self.count += result.numel() * prod(args[1].shape[1:])
        elif name.startswith(ATTENTION):
            result = func(*args, **kwargs)
            self.count += _attention(*args[:3])
        else:
            with self:  # what others are made of, einsum for one, may multiply
                result = func.decompose(*args, **kwargs)
            if result is NotImplemented:
                result = func(*args, **kwargs)
        return result


def _attention(query: Tensor, key: Tensor, value: Tensor) -> int:
    """q kᵀ and the maps times v: every query meets every key, whatever a mask then hides."""
    queries, keys = prod(query.shape[:-1]), key.shape[-2]
    return queries * keys * (query.shape[-1] + value.shape[-1])


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


@dataclass(frozen=True)
class StepMacs:
    """Multiply-adds of one sample in a cascade of two steps."""

    first: int
    """The trunk and the first members."""
    rest: int
    """The other members, behind the trunk."""

    def expected(self, share: float) -> float:
        """On average, where such a share of the rows goes on."""
        return self.first + share * self.rest


@torch.inference_mode()
def step_macs(model: LiveModel, inputs: Any, starters: Sequence[int]) -> StepMacs:
    """Counted in a live hydra, of the batch's first sample, with these members first."""
    hydra = model.module
    assert isinstance(hydra, Hydra)
    followers = [i for i in range(len(hydra.members)) if i not in starters]
    sample = first_sample(inputs)
    with without_padding(model):
        started, start = _counted(lambda: hydra.start(sample))
        _, first = _counted(lambda: hydra.part(starters).finish(started))
        _, rest = _counted(lambda: hydra.part(followers).finish(started))
    return StepMacs(start + first, rest)


def _counted(call: Any) -> tuple[Any, int]:
    """What a call gives, and its multiply-adds; what is computed once is no cost of a sample."""
    call()
    with MultiplyAdds() as counter:
        result = call()
    return result, counter.count


@torch.inference_mode()
def single_macs(model: Classifier, inputs: Any) -> int:
    """Those of the single model that keeps all heads: of the hydra's first member, and of the heads that it lost.

    u heads of width d, at t of T tokens of width E: u·d·((2t + 2T)·E + 2·t·T), as in `planned_cost`.
    """
    hydra = model.module
    assert isinstance(hydra, Hydra)
    sample, alone = first_sample(inputs), hydra.part([0])
    with without_padding(model):
        total = macs(alone, sample)
    anatomy = hydra.anatomies[0]
    tokens, width = anatomy.embed(sample).hidden.shape[1:]
    for layer, block in enumerate(anatomy.blocks):
        site = block.attention
        lost = model.manifest.towers[site.tower].heads - len(site.heads)
        last = layer == len(anatomy.blocks) - 1 and anatomy.reads is not None
        read = (anatomy.reads or tokens) if last else tokens
        total += lost * site.head_dim * ((2 * read + 2 * tokens) * width + 2 * read * tokens)
    return total
