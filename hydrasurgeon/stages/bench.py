"""bench: what a hydra costs on this machine, beside its members run one by one and the single
model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Literal

import numpy as np
import torch
from pydantic import BaseModel

from hydrasurgeon.checkpoints.checkpoint import Checkpoint
from hydrasurgeon.data import Samples, open_data
from hydrasurgeon.engines import (
    check_engine,
    chosen,
    engine_of,
    fitted_otherwise,
    open_models,
    runnable,
)
from hydrasurgeon.errors import UsageError
from hydrasurgeon.families import family_of
from hydrasurgeon.files.atomic import output_file, write_text
from hydrasurgeon.files.untrusted import portable
from hydrasurgeon.lookup import whole_number
from hydrasurgeon.measuring.cost import (
    answer,
    cost_of,
    interleaved,
    machine,
    peak_bytes,
    seconds_of,
    timed_samples,
    together,
)
from hydrasurgeon.measuring.results import Cost
from hydrasurgeon.measuring.sets import by_path, name_of
from hydrasurgeon.options.base import stage
from hydrasurgeon.options.measuring import BenchOptions
from hydrasurgeon.runtime.answering import Engine
from hydrasurgeon.runtime.torch_tensors import device_of, dtype_of

DTYPES = ("float32", "bfloat16", "float16")
"""Dtypes that models can be measured in."""


class Point(BaseModel, frozen=True, extra="forbid"):
    """One contender at one batch size and dtype."""

    batch: int
    dtype: str
    latency_ms: float
    """Median time of one batch."""
    throughput: float
    """Samples in a second."""
    peak_bytes: int
    """Weights, and the most that a forward pass holds besides."""
    ratio: float | None
    """Latency over the single model's; None without a single model."""


class Contender(BaseModel, frozen=True, extra="forbid"):
    name: str
    kind: str
    params: int
    macs: int
    macs_all_tokens: int | None = None
    """`macs` if every layer computed all tokens; None of graphs that do not say."""
    macs_ratio: float | None
    tokens: int | None = None
    """Length of the random texts, the longest that the model reads; None for images."""
    points: tuple[Point, ...]


class Timed(BaseModel, frozen=True, extra="forbid"):
    """One engine."""

    engine: str
    ms: dict[str, float]
    """Median milliseconds of a sample, by batch size."""
    difference: float | None
    """The largest difference of a probability from the first engine's; None of numbers."""


class Benched(BaseModel, frozen=True, extra="forbid"):
    format: Literal["hydrasurgeon.bench/1"] = "hydrasurgeon.bench/1"
    machine: dict[str, Any]
    settings: dict[str, Any]
    results: tuple[Contender, ...] = ()
    engines: tuple[Timed, ...] = ()
    """Timings of `--engine all`, which leaves `results` empty."""
    use: str | None = None
    """The engine that takes least in the largest batches."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Entry:
    """Checkpoints that are measured as one contender."""

    name: str
    kind: str
    checkpoints: tuple[Checkpoint, ...]


@stage(BenchOptions)
def bench(options: BenchOptions) -> Benched:
    """Measure latency, throughput, memory, multiply-adds and parameters; all contenders in turn."""
    batches = [whole_number(part.strip()) or 0 for part in options.batch.split(",")]
    if not all(batches):
        raise UsageError(
            f"--batch {options.batch}: not a list of positive numbers", hint="Write 1,4,16."
        )
    dtypes = [part.strip() for part in options.dtype.split(",")]
    if not {*dtypes} <= {*DTYPES}:
        raise UsageError(
            f"--dtype {options.dtype}: not known", hint=f"Use any of {', '.join(DTYPES)}."
        )
    for dtype in dtypes:
        if options.engine != "all":
            check_engine(options, dtype)
    report = None
    if options.json_ is not None:
        report = output_file(
            options.json_, option="--json", force=options.force, inputs=options.sources
        )
    if options.engine == "all":
        benched = _every_engine(options, batches, dtypes)
    else:
        benched = _side_by_side(options, batches, dtypes)
    if report is not None:
        write_text(report, json.dumps(benched.model_dump(), indent=1) + "\n")
    return benched


def _side_by_side(options: BenchOptions, batches: Sequence[int], dtypes: Sequence[str]) -> Benched:
    """Measure every contender at every dtype and batch size."""
    entries, device = _entries(options), device_of(options.device)
    checkpoints = [checkpoint for entry in entries for checkpoint in entry.checkpoints]
    _check_alike(checkpoints)
    if device.type == "cuda" and "bfloat16" in dtypes and not torch.cuda.is_bf16_supported():
        raise UsageError("--dtype bfloat16: this device lacks it", hint="Use float16 or float32.")
    torch.manual_seed(options.seed)
    model = checkpoints[0].manifest.model
    samples = (
        None if options.data is None else open_data(options.data, seed=options.seed, labelled=False)
    )
    notes = [checkpoint.note for checkpoint in checkpoints]
    costs: dict[str, Cost] = {}
    points: dict[str, list[Point]] = {entry.name: [] for entry in entries}
    single = next((entry.name for entry in entries if entry.kind == "single"), None)
    for i, dtype in enumerate(dtypes):
        example = partial(family_of(model).example, model, device=device, dtype=dtype_of(dtype))
        models = {
            entry.name: [
                engine_of(checkpoint, engine=options.engine, device=options.device, dtype=dtype)
                for checkpoint in entry.checkpoints
            ]
            for entry in entries
        }
        costs = costs or {name: cost_of(engines, example(1)) for name, engines in models.items()}
        for j, count in enumerate(batches):
            times, calls = _time_batch(models, samples, example, count, options.runs)
            for name, seconds in times.items():
                point = Point(
                    batch=count,
                    dtype=dtype,
                    latency_ms=1000 * seconds,
                    throughput=count / seconds,
                    peak_bytes=peak_bytes(together(models[name]), calls[name]),
                    ratio=None if single is None else seconds / times[single],
                )
                points[name].append(point)
            if options.progress is not None:
                options.progress(
                    f"{dtype}, batch {count}", i * len(batches) + j + 1, len(dtypes) * len(batches)
                )
        notes += [
            note for engines in models.values() for engine in engines for note in engine.notes
        ]
        for checkpoint in checkpoints:
            engine = chosen(checkpoint, options.engine, device=options.device, dtype=dtype)
            if engine not in ("torch", options.engine):
                notes.append(
                    f"{checkpoint.name}: runs in {engine}, which --engine auto takes for it"
                )
    results = []
    for entry in entries:
        cost = costs[entry.name]
        contender = Contender(
            name=entry.name,
            kind=entry.kind,
            params=cost.params,
            macs=cost.macs,
            macs_all_tokens=cost.macs_all_tokens,
            macs_ratio=cost.macs / costs[single].macs if single else None,
            tokens=cost.tokens,
            points=tuple(points[entry.name]),
        )
        results.append(contender)
    return Benched(
        machine=machine(device),
        settings=_settings(options, batches, dtypes),
        results=tuple(results),
        notes=tuple(dict.fromkeys(filter(None, notes))),
    )


def _settings(
    options: BenchOptions, batches: Sequence[int], dtypes: Sequence[str]
) -> dict[str, Any]:
    """Return the settings that influence the time, for the report."""
    return {
        "batch": batches,
        "dtype": dtypes,
        **{name: getattr(options, name) for name in ("runs", "seed")},
        **({} if options.data is None else {"data": portable(options.data)}),
    }


def _every_engine(options: BenchOptions, batches: Sequence[int], dtypes: Sequence[str]) -> Benched:
    """Measure one checkpoint in every engine that this processor can run it in."""
    if len(options.checkpoints) != 1 or options.vs or options.backbone is not None:
        hint = "Give one, without --vs and --backbone."
        raise UsageError("--engine all measures one checkpoint", hint=hint)
    if options.dtype != "float32" or options.device == "cuda":
        hint = "Leave --dtype and --device out."
        raise UsageError("--engine all measures engines of the processor", hint=hint)
    opened = runnable(options.checkpoints[0], arch=options.arch)
    first = next(iter(opened.values()))
    first.check_weights()
    live = {
        name: engine_of(checkpoint, engine=name, device="cpu")
        for name, checkpoint in opened.items()
    }
    samples = (
        None if options.data is None else open_data(options.data, seed=options.seed, labelled=False)
    )
    model, cpu = first.manifest.model, torch.device("cpu")
    torch.manual_seed(options.seed)
    ms: dict[str, dict[str, float]] = {name: {} for name in live}
    example = partial(first.family.example, model, device=cpu, dtype=torch.float32)
    contenders = {name: [engine] for name, engine in live.items()}
    for at, count in enumerate(batches):
        times, _ = _time_batch(contenders, samples, example, count, options.runs)
        for name, seconds in times.items():
            ms[name][str(count)] = 1000 * seconds / count
        if options.progress is not None:
            options.progress(f"batch {count}", at + 1, len(batches))
    if samples is None:
        inputs = dict.fromkeys(live, example(max(batches)))
    else:
        real, *_ = timed_samples(samples, live.values(), max(batches))
        inputs = {name: engine.prepared(real) for name, engine in live.items()}
    probabilities = [
        getattr(engine.answered(inputs[name], cascade=False), "probabilities", None)
        for name, engine in live.items()
    ]
    timed = [
        Timed(
            engine=name,
            ms=ms[name],
            difference=None
            if probabilities[0] is None
            else float(np.abs(answer - probabilities[0]).max()),
        )
        for name, answer in zip(live, probabilities, strict=True)
    ]
    best = min(timed, key=lambda timing: timing.ms[str(max(batches))]).engine
    notes = [first.note, fitted_otherwise(opened[best], best)]
    return Benched(
        machine=machine(cpu),
        settings=_settings(options, batches, dtypes),
        engines=tuple(timed),
        use=best,
        notes=tuple(filter(None, notes)),
    )


def _time_batch(
    models: Mapping[str, Sequence[Engine]],
    samples: Samples | None,
    example: Callable[[int], Any],
    count: int,
    runs: int,
) -> tuple[Mapping[str, float], Mapping[str, Callable[[], object]]]:
    """Return the seconds that one batch takes, by contender, and calls that run one input each.

    With samples, the time includes everything that answering them takes.
    """
    if samples is None:
        inputs = example(count)
        calls = {name: partial(together(engines), inputs) for name, engines in models.items()}
        return interleaved(calls, runs=runs), calls
    real = timed_samples(samples, chain(*models.values()), count)
    one = {name: partial(answer, engines, real[:1]) for name, engines in models.items()}
    return seconds_of(models, real, runs=runs), one


def _entries(options: BenchOptions) -> list[_Entry]:
    """Return the contenders, each under a name of its own."""
    groups = [
        [] if options.backbone is None else [options.backbone],
        options.vs,
        options.checkpoints,
    ]
    paths = [path for group in groups for path in group]
    opened = open_models(paths, arch=options.arch)
    for checkpoint in opened:
        checkpoint.check_weights()
    checkpoints = iter(by_path(opened, paths))
    single, members, rest = ([next(checkpoints) for _ in group] for group in groups)
    entries = [_Entry(name_of([checkpoint]), "single", (checkpoint,)) for checkpoint in single]
    if members:
        entries.append(_Entry(name_of(members), "in sequence", tuple(members)))
    for one in rest:
        name = name_of([one])
        entries.append(_Entry(name, one.manifest.kind, (one,)))
    if len({entry.name for entry in entries}) < max(1, len(entries)):
        raise UsageError("bench: give at least one checkpoint, and each only once")
    return entries


def _check_alike(checkpoints: Sequence[Checkpoint]) -> None:
    """Raise UsageError where contenders read different inputs."""
    first, *rest = checkpoints
    about = first.manifest.model
    for other in rest:
        model = other.manifest.model
        if (model.family, model.preprocess.get("input_size")) != (
            about.family,
            about.preprocess.get("input_size"),
        ):
            raise UsageError(
                f"bench: {first.name} and {other.name} read different inputs",
                hint="Measure them one by one.",
            )
