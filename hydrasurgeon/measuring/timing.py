"""Honest timing of models side by side: runs interleaved in one process, medians, and peak memory."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hydrasurgeon.runtime.hydra import Hydra

HELD = 4 * 2**30
"""Bytes of weights that a table's models may take together to be timed in turn; `bench` knows no such limit."""
ROUNDS = 5
"""Rounds in which a table's models are timed."""


class InTurn(nn.Module):
    """Models run one after another on the same inputs: members unfused, a Deep Ensemble."""

    def __init__(self, models: list[nn.Module]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)

    def forward(self, inputs: Any) -> list[Any]:
        return [model(inputs) for model in self.models]


def interleaved(
    models: Mapping[str, Callable[[Any], object]], inputs: Any, *, runs: int, warm_up: bool = True
) -> dict[str, float]:
    """Median seconds of each, run in turn so that a slow moment of the machine hits all alike."""
    passes = {name: partial(model, inputs) for name, model in models.items()}
    return _in_turn(passes, runs=runs, warm_up=warm_up)


class SideBySide:
    """The models of one table, kept until all of them can be timed in turn."""

    def __init__(self) -> None:
        self._passes: list[Callable[[], object]] = []
        self._bytes = self._count = 0

    def add(self, model: nn.Module, inputs: Any) -> int:
        """The model's place among those that are timed."""
        self._count += 1
        self._bytes += sum(p.nbytes for p in model.parameters())
        self._passes.append(partial(model, inputs))
        if self._count > 1 and self._bytes > HELD:
            self._passes.clear()
        return self._count - 1

    def milliseconds(self) -> list[float | None]:
        """Time of one batch for each model; None where the models are too large to be held together."""
        if len(self._passes) < self._count:
            return [None] * self._count
        passes = {str(at): each for at, each in enumerate(self._passes)}
        return [1000 * taken for taken in _in_turn(passes, runs=ROUNDS).values()]


@torch.inference_mode()
def _in_turn(passes: Mapping[str, Callable[[], object]], *, runs: int, warm_up: bool = True) -> dict[str, float]:
    seconds: dict[str, list[float]] = {name: [] for name in passes}
    for run in range(0 if warm_up else 1, runs + 1):
        for name, run_once in passes.items():
            start = time.perf_counter()
            run_once()
            _wait()
            if run:  # 0 is the warm-up
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


@torch.inference_mode()
def peak_bytes(model: nn.Module, inputs: Any) -> int:
    """Weights, what a hydra holds in copies of them, and the most memory that one forward pass holds besides."""
    parameters = {p.data_ptr(): p.nbytes for p in (*model.parameters(), *model.buffers())}
    before, most = _copied(model), _peak_of_pass(model, inputs)
    if _copied(model) != before:  # what is settled once is no part of a pass
        most = _peak_of_pass(model, inputs)
    return sum(parameters.values()) + _copied(model) + most


def _copied(model: nn.Module) -> int:
    hydras = [module for module in model.modules() if isinstance(module, Hydra)]
    return sum(copy.nbytes for hydra in hydras for copy in hydra.copies)


def _peak_of_pass(model: nn.Module, inputs: Any) -> int:
    if next(model.parameters()).is_cuda:
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        model(inputs)
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler talks about missing GPUs
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        model(inputs)
    results: Any = profiler.profiler
    events = [e for e in results.kineto_results.events() if e.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def machine(device: torch.device) -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else _processor(),
        "kind": device.type,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__.partition("+")[0],
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()
