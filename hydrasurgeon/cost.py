"""What a model costs: parameters, multiply-adds of one sample, latency of one batch."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from hydrasurgeon.report import Cost

__all__ = ["cost_of", "macs", "parameters"]


def parameters(model: nn.Module) -> int:
    """Each distinct parameter once, so that what members share is not counted twice."""
    return sum(p.numel() for p in model.parameters())


@torch.no_grad()
def macs(model: nn.Module, inputs: Tensor) -> int:
    """Multiply-adds of matrix products, convolutions and attention for one sample."""
    with FlopCounterMode(display=False) as counter:
        model(inputs[:1])
    return int(counter.get_total_flops()) // 2


@torch.inference_mode()
def latency_ms(model: nn.Module, inputs: Tensor, repeats: int = 7) -> float:
    """Median over a few runs of one batch, after a warm-up."""
    times = []
    for _ in range(repeats + 2):
        start = time.perf_counter()
        model(inputs)
        if inputs.is_cuda:
            torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times[2:])


def cost_of(models: list[Any], inputs: Tensor) -> Cost:
    """The cost of running these models one after another: one for a hydra, M for a Deep Ensemble."""
    return Cost(
        params=sum(parameters(model) for model in models),
        macs=sum(macs(model, inputs) for model in models),
        latency_ms=sum(latency_ms(model, inputs) for model in models),
    )
