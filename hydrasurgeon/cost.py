"""What a model costs: parameters, multiply-adds of one sample, latency of one batch."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from hydrasurgeon.report import Cost

__all__ = ["cost_of", "macs", "parameters"]


def parameters(model: nn.Module) -> int:
    """Each distinct parameter once, so that what members share is not counted twice."""
    return sum(p.numel() for p in model.parameters())


def _first(inputs: Any) -> Any:
    """One sample of a batch, whether it is a tensor or a dict of them."""
    if isinstance(inputs, Mapping):
        return {name: value[:1] for name, value in inputs.items()}
    return inputs[:1]


@torch.no_grad()
def macs(model: nn.Module, inputs: Any) -> int:
    """Multiply-adds of matrix products, convolutions and attention for one sample."""
    # What is computed once, a zero-shot model's class features, is no cost of a sample.
    model(_first(inputs))
    with FlopCounterMode(display=False) as counter:
        model(_first(inputs))
    return int(counter.get_total_flops()) // 2


@torch.inference_mode()
def latency_ms(model: nn.Module, inputs: Any, repeats: int = 7) -> float:
    """Median over a few runs of one batch, after a warm-up."""
    times = []
    for _ in range(repeats + 2):
        start = time.perf_counter()
        model(inputs)
        if next(model.parameters()).is_cuda:
            torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times[2:])


def cost_of(models: list[Any], inputs: Any) -> Cost:
    """The cost of running these models one after another: one for a hydra, M for a Deep Ensemble."""
    return Cost(
        params=sum(parameters(model) for model in models),
        macs=sum(macs(model, inputs) for model in models),
        latency_ms=sum(latency_ms(model, inputs) for model in models),
    )
