"""Cost of a model: parameters and multiply-adds of one sample; for a cascade, of each stage.

Matrix products, convolutions and attention count, by formulas of our own: torch's own counter knows
attention under some names only, and which name it runs under depends on torch's version, the device
and the dtype.

    expected = first + share · rest        where `share` is the fraction of rows that go on
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from hydrasurgeon.data import Batches, Samples, first_batch, moved
from hydrasurgeon.data.batches import unreadable
from hydrasurgeon.deadline import check_deadline
from hydrasurgeon.errors import DataError
from hydrasurgeon.measuring.results import Cost, summed_costs
from hydrasurgeon.options.shared import Run
from hydrasurgeon.runtime.answering import Engine
from hydrasurgeon.runtime.hydra import Hydra
from hydrasurgeon.runtime.threads import threads

LEFT_FACTOR = {
    "mm": 0,
    "bmm": 0,
    "mv": 0,
    "dot": 0,
    "matmul": 0,
    "linear": 0,
    "addmm": 1,
    "baddbmm": 1,
    "addmv": 1,
}
"""Position of the left factor by operator; each number of the result sums over the factor's last
dimension.
"""
CONVOLUTIONS = ("conv1d", "conv2d", "conv3d", "convolution", "_convolution")
"""torch's operators that convolve."""
ATTENTION = ("scaled_dot_product_attention", "_scaled_dot_product_")
"""Prefixes of attention operators: the first in inference mode; with gradients the second, followed
by a part that depends on device, version and dtype. Attention that is written as matrix products
counts as those.
"""
TIMED = 16
"""Samples in the batch whose time the table shows."""


class MultiplyAdds(TorchDispatchMode):
    """Context manager that adds the multiply-adds of each operator to `count`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        attends = name.startswith(ATTENTION)
        if name in LEFT_FACTOR or name in CONVOLUTIONS or attends:
            result = func(*args, **kwargs)
            if (
                attends
            ):  # q kᵀ and the maps times v: every query meets every key, whatever a mask then hides
                query, key, value = args[:3]
                self.count += (
                    prod(query.shape[:-1]) * key.shape[-2] * (query.shape[-1] + value.shape[-1])
                )
            elif name in LEFT_FACTOR:
                self.count += result.numel() * args[LEFT_FACTOR[name]].shape[-1]
            else:
                self.count += result.numel() * prod(args[1].shape[1:])
            return result
        with self:  # what others are made of, einsum for one, may multiply
            result = func.decompose(*args, **kwargs)
        return func(*args, **kwargs) if result is NotImplemented else result


def parameters(model: nn.Module) -> int:
    """Count parameters; one that members share counts once."""
    return sum(p.numel() for p in model.parameters())


def first_sample(inputs: Any) -> Any:
    """Return the first sample of a batch, which is a tensor or a dict of tensors."""
    if isinstance(inputs, Mapping):
        return {name: value[:1] for name, value in inputs.items()}
    return inputs[:1]


def tokens_of(inputs: Any) -> int | None:
    """Return the length of texts in tokens, on which multiply-adds depend; None for images."""
    ids = inputs.get("input_ids") if isinstance(inputs, Mapping) else None
    return None if ids is None else int(ids.shape[1])


@torch.inference_mode()  # attention is then one operator, not yet what a device makes of it
def macs(model: nn.Module, inputs: Any, *, all_tokens: bool = False) -> int:
    """Count multiply-adds of matrix products, convolutions and attention for one sample.

    The last layer computes only the tokens that the classifier reads. With `all_tokens` it computes
    all of them, which is how papers count.
    """
    with without_padding(model), whole_layers(model) if all_tokens else nullcontext():
        return _counted(lambda: model(first_sample(inputs)))[1]


@contextmanager
def whole_layers(model: nn.Module) -> Iterator[None]:
    """Let every layer compute all tokens within the block."""
    hydras = _hydras(model)
    before = [hydra.tokens for hydra in hydras]
    for hydra in hydras:
        hydra.tokens = [None] * len(hydra.tokens)
    try:
        yield
    finally:
        for hydra, tokens in zip(hydras, before, strict=True):
            hydra.tokens = tokens


@contextmanager
def without_padding(model: nn.Module) -> Iterator[None]:
    """Run members one by one within the block, because fused members with fewer heads are
    padded.
    """
    hydras = _hydras(model)
    modes = [hydra.mode for hydra in hydras]
    for hydra in hydras:
        hydra.mode = "apart"
    try:
        yield
    finally:
        for hydra, mode in zip(hydras, modes, strict=True):
            hydra.mode = mode


def cost_of(engines: Iterable[Any], inputs: Any) -> Cost:
    """Return the cost of running models one after another: one for a hydra, M for a Deep Ensemble.

    Time is measured later, once all models of the table are loaded.
    """
    return summed_costs([_cost_of_one(engine, inputs) for engine in engines])


def _cost_of_one(engine: Any, inputs: Any) -> Cost:
    """Return the cost of one model; that of an exported graph comes from its file."""
    graph, tokens = getattr(engine, "costs", None), tokens_of(inputs)
    if graph is not None:
        return Cost(
            params=graph.params,
            macs=graph.macs_of(tokens),
            macs_all_tokens=graph.macs_all_tokens_of(tokens),
            tokens=tokens,
        )
    model = getattr(engine, "live", engine)
    return Cost(
        params=parameters(model),
        macs=macs(model, inputs),
        macs_all_tokens=macs(model, inputs, all_tokens=True),
        tokens=tokens,
    )


@dataclass(frozen=True)
class StageMacs:
    """Multiply-adds of one sample in a cascade."""

    first: float
    rest: float
    """Multiply-adds that remain for a sample that goes on."""

    def expected(self, share: float) -> float:
        """Return the average cost if this fraction of the rows goes on."""
        return self.first + share * self.rest


@torch.inference_mode()
def stage_macs(model: Engine, inputs: Any) -> StageMacs:
    """Count the multiply-adds of each stage on the batch's first sample, in the live model."""
    assert model.first is not None
    if not isinstance(model, nn.Module):  # a graph, behind words, which multiply next to nothing
        return StageMacs(0.0, float(_cost_of_one(model, inputs).macs))
    reader, sample = model.first, first_sample(inputs)
    with without_padding(model):
        (_, go_on), first = _counted(lambda: reader(sample, False))
        _, rest = _counted(lambda: go_on(torch.tensor([0])))
    return StageMacs(first, rest)


def _counted(call: Any) -> tuple[Any, int]:
    """Return the result of a call and its multiply-adds.

    The first call is not counted: it computes what a member needs only once, such as the class
    features of a zero-shot model.
    """
    call()
    with MultiplyAdds() as counter:
        result = call()
    return result, counter.count


HELD = 4 * 2**30
"""Maximum bytes of weights of all models of a table that are timed; `bench` has no such limit."""
ROUNDS = 5
"""Rounds in which a table's models are timed."""
SAMPLES, IN_STAGES = 16, 256
"""Number of timed samples of real data, evenly spaced (at least one batch); more where the
computation depends on the samples.
"""


class InTurn(nn.Module):
    """Models run one after another on the same inputs: unfused members, or a Deep Ensemble."""

    def __init__(self, models: Sequence[Callable[[Any], Any]]) -> None:
        super().__init__()
        self.models = models
        self.live = nn.ModuleList(model for model in models if isinstance(model, nn.Module))

    def forward(self, inputs: Any) -> list[Any]:
        return [model(inputs) for model in self.models]


def together(models: Sequence[Any]) -> nn.Module:
    """Return models as one module; an exported graph, which is no module, is wrapped."""
    if len(models) == 1 and isinstance(models[0], nn.Module):
        return models[0]
    return InTurn(models)


@torch.inference_mode()
def interleaved(calls: Mapping[str, Callable[[], object]], *, runs: int) -> dict[str, float]:
    """Return the median seconds of each call.

    Calls take turns, so that a slow moment of the machine affects all alike. With one thread,
    processor time is measured, which excludes other processes.
    """
    alone = threads() == 1 and not torch.cuda.is_available()
    now = time.process_time if alone else time.perf_counter
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for run in range(runs + 1):
        for name, call in calls.items():
            check_deadline()
            start = now()
            call()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if run:  # 0 is the warm-up
                seconds[name].append(now() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


def answer(engines: Iterable[Engine], batches: Iterable[Sequence[Any]]) -> None:
    """Answer batches with one engine after another: everything from samples to decisions except
    reading and writing.
    """
    for batch in batches:
        for engine in engines:
            engine.answered(engine.prepared(batch))


def timed_samples(
    samples: Samples, engines: Iterable[Engine], batch: int, *, skip_bad: bool = False
) -> list[list[Any]]:
    """Return the batches of real samples that are timed, evenly spaced."""
    most = SAMPLES
    for engine in engines:
        Batches(samples, engine.transform, batch_size=batch, skip_bad=skip_bad)  # may refuse them
        if engine.in_stages(None):
            most = IN_STAGES
    count = min(max(1, most // batch), len(samples) // batch)
    if count == 0:
        raise DataError(
            f"{samples.spec}: has {len(samples)} samples, fewer than the batch of {batch} to be timed",
            hint="Give a smaller --batch.",
        )
    places = np.linspace(0, len(samples) - 1, count * batch).round().astype(int)
    read = []
    for place in places:
        with suppress(*[DataError] * skip_bad):
            read.append(samples.read(int(place)))
    if not read:
        raise unreadable(samples)
    return [read[at : at + batch] for at in range(0, len(read), batch)]


def seconds_of(
    models: Mapping[str, Sequence[Engine]], batches: Sequence[Sequence[Any]], *, runs: int
) -> dict[str, float]:
    """Return the seconds that each model takes to answer a batch."""
    calls = {name: partial(answer, engines, batches) for name, engines in models.items()}
    return {name: total / len(batches) for name, total in interleaved(calls, runs=runs).items()}


class SideBySide:
    """Models of one table, kept until all of them can be timed in turn."""

    def __init__(self) -> None:
        self._passes: list[Callable[[], object]] = []
        self._sizes: list[int] = []
        self._bytes = 0

    def add(self, model: nn.Module, inputs: Any) -> int:
        """Keep a model and a batch of its inputs; return its place among those that are timed."""
        self._sizes.append(rows_of(inputs))
        self._bytes += sum(p.nbytes for p in model.parameters())
        self._passes.append(partial(model, inputs))
        if self.too_large:
            self._passes.clear()
        return len(self._sizes) - 1

    @property
    def too_large(self) -> bool:
        """True if the models do not fit into memory together, and none is timed."""
        return len(self._sizes) > 1 and self._bytes > HELD

    def times(self) -> list[dict[str, Any]]:
        """Time one batch of each model; return the latency fields of each cost."""
        if self.too_large:
            return [{} for _ in self._sizes]
        passes = {str(at): call for at, call in enumerate(self._passes)}
        seconds = interleaved(passes, runs=ROUNDS).values()
        return [
            {"latency_ms": 1000 * duration, "latency_batch": size}
            for duration, size in zip(seconds, self._sizes, strict=True)
        ]


def rows_of(inputs: Any) -> int:
    """Count the samples of a batch, whether it is a tensor or a dict of them."""
    return len(next(iter(inputs.values())) if isinstance(inputs, Mapping) else inputs)


@torch.inference_mode()
def peak_bytes(model: nn.Module, call: Callable[[], object]) -> int:
    """Return the bytes of weights, of a hydra's copies of them, and of the peak of one pass."""
    parameters = {p.data_ptr(): p.nbytes for p in (*model.parameters(), *model.buffers())}
    before, most = _copied(model), _peak_of_pass(model, call)
    if _copied(model) != before:  # what is settled once is no part of a pass
        most = _peak_of_pass(model, call)
    return sum(parameters.values()) + _copied(model) + most


def _copied(model: nn.Module) -> int:
    return sum(copy.nbytes for hydra in _hydras(model) for copy in hydra.copies)


def _hydras(model: nn.Module) -> list[Hydra]:
    return [module for module in model.modules() if isinstance(module, Hydra)]


def _peak_of_pass(model: nn.Module, call: Callable[[], object]) -> int:
    if any(parameter.is_cuda for parameter in model.parameters()):
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler talks about missing GPUs
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    results: Any = profiler.profiler
    events = [e for e in results.kineto_results.events() if e.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


def machine(device: torch.device) -> dict[str, Any]:
    """Return a description of the machine that figures are measured on."""
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


def first_inputs(model: Any, samples: Any, run: Run, count: int = TIMED) -> Any:
    """Return the first samples as a batch of inputs for this model, at most its batch size."""
    size = min(run.batch_size or TIMED, count)
    few = first_batch(samples, model.transform, size, skip_bad=run.skip_bad)
    for weight in getattr(model, "parameters", tuple)():  # a graph has none
        return moved(few, weight.device, weight.dtype)
    return few
