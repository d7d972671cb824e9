"""bench: what a hydra costs on this machine, beside its members run one by one and the single model."""

from __future__ import annotations

import json as json_
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict

from hydrasurgeon.checkpoints.reading import Checkpoint, open_checkpoint
from hydrasurgeon.errors import UsageError
from hydrasurgeon.files.atomic import output_file, write_text
from hydrasurgeon.lookup import whole_number
from hydrasurgeon.measuring.cascades.run import FULL, check_cascades
from hydrasurgeon.measuring.running import by_path, name_of
from hydrasurgeon.measuring.sets import portable_entry as portable
from hydrasurgeon.options.base import stage
from hydrasurgeon.options.measuring import BenchOptions
from hydrasurgeon.stages.bench_data import CASCADE, Real, Through, check_cascade, expected_macs

if TYPE_CHECKING:
    import torch

DTYPES = ("float32", "bfloat16", "float16")
"""What models are measured in."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Point(_Record):
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


class Contender(_Record):
    name: str
    kind: str
    params: int
    macs: int
    macs_ratio: float | None
    tokens: int | None = None
    """Of the random texts, which are as long as the model reads them; None for images."""
    points: tuple[Point, ...]


class Benched(_Record):
    format: Literal["hydrasurgeon.bench/1"] = "hydrasurgeon.bench/1"
    machine: dict[str, Any]
    settings: dict[str, Any]
    results: tuple[Contender, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Entry:
    name: str
    kind: str
    checkpoints: tuple[Checkpoint, ...]


@dataclass
class _Figures:
    """What was measured so far, by the contender's name."""

    params: dict[str, int] = field(default_factory=dict)
    macs: dict[str, int] = field(default_factory=dict)
    tokens: dict[str, int | None] = field(default_factory=dict)
    points: dict[str, list[Point]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@stage(BenchOptions)
def bench(arguments: BenchOptions) -> Benched:
    """Measure latency, throughput, memory, multiply-adds and parameters; all contenders in turn."""
    checkpoints = arguments.checkpoints
    batches, dtypes = _batches(arguments.batch), _dtypes(arguments.dtype)
    if arguments.cascade:
        check_cascade(data=arguments.data, compiled=arguments.compile)
    picture, report = _outputs(checkpoints, arguments)
    if arguments.runs < 1:
        raise UsageError(f"--runs {arguments.runs}: must be at least 1")
    entries = _entries(checkpoints, arguments)
    _alike(entries)

    from hydrasurgeon.measuring.timing import machine
    from hydrasurgeon.runtime.tensors import device_of

    device = device_of(arguments.device)
    said = [each.note for entry in entries for each in entry.checkpoints if each.note]
    figures = _measured(entries, batches, dtypes, device, arguments)
    single = next((figures.macs[e.name] for e in entries if e.kind == "single"), None)
    benched = Benched(
        machine=machine(device),
        settings={
            "batch": batches,
            "dtype": dtypes,
            "compile": arguments.compile,
            "runs": arguments.runs,
            "seed": arguments.seed,
            **({} if arguments.data is None else {"data": portable(arguments.data)}),
        },
        results=tuple(
            Contender(
                name=e.name,
                kind=e.kind,
                params=figures.params[e.name],
                macs=figures.macs[e.name],
                macs_ratio=None if single is None else figures.macs[e.name] / single,
                tokens=figures.tokens[e.name],
                points=tuple(figures.points[e.name]),
            )
            for e in entries
        ),
        notes=tuple(dict.fromkeys([*said, *figures.notes])),
    )
    if report is not None:
        write_text(report, json_.dumps(benched.model_dump(), indent=1) + "\n")
    if picture is not None:
        _plot(benched, picture)
    return benched


def _outputs(checkpoints: Sequence[str | Path], arguments: BenchOptions) -> tuple[Path | None, Path | None]:
    """Where the picture and the report go, both this command's to write."""
    from hydrasurgeon.files.plots import check_plot

    inputs = [*checkpoints, *arguments.vs, arguments.backbone]
    picture = report = None
    if arguments.plot is not None:
        picture = check_plot(Path(arguments.plot), force=arguments.force, inputs=inputs)
    if arguments.json_ is not None:
        report = output_file(arguments.json_, option="--json", force=arguments.force, inputs=inputs)
    return picture, report


def _measured(
    entries: Sequence[_Entry],
    batches: Sequence[int],
    dtypes: Sequence[str],
    device: torch.device,
    arguments: BenchOptions,
) -> _Figures:
    """Every contender at every dtype and batch size."""
    import torch

    from hydrasurgeon.families import family_of
    from hydrasurgeon.runtime.tensors import dtype_of

    if device.type == "cuda" and "bfloat16" in dtypes and not torch.cuda.is_bf16_supported():
        raise UsageError("--dtype bfloat16: this device lacks it", hint="Use float16 or float32.")
    torch.manual_seed(arguments.seed)
    model = entries[0].checkpoints[0].manifest.model
    family = family_of(model)
    figures = _Figures()
    real = None if arguments.data is None else Real(arguments.data, seed=arguments.seed)
    steps = len(dtypes) * len(batches)
    for i, dtype in enumerate(dtypes):
        example = partial(family.example, model, device=device, dtype=dtype_of(dtype))
        models = {e.name: _loaded(e, dtype, example, figures, arguments.device) for e in entries}
        for j, count in enumerate(batches):
            inputs = [example(count)]
            if real is not None:
                inputs = real.batches(models[entries[0].name], count)
                figures.macs |= expected_macs(models, inputs)
            row = _points(entries, models, dtype, count, inputs, figures.notes, arguments)
            for name, point in row.items():
                figures.points.setdefault(name, []).append(point)
            if arguments.progress is not None:
                arguments.progress(f"{dtype}, batch {count}", i * len(batches) + j + 1, steps)
    return figures


def _loaded(entry: _Entry, dtype: str, example: Callable[[int], Any], figures: _Figures, device: str) -> Any:
    """A contender as one module; its size is measured the first time."""
    from hydrasurgeon.measuring.cost import macs, parameters, tokens_of
    from hydrasurgeon.measuring.timing import InTurn
    from hydrasurgeon.runtime.cascaded import Cascading
    from hydrasurgeon.runtime.classifier import as_classifier

    loaded: list[Any] = [as_classifier(c, device=device, dtype=dtype, lean=True) for c in entry.checkpoints]
    if entry.name not in figures.params:
        one = example(1)
        figures.params[entry.name] = sum(parameters(m) for m in loaded)
        figures.macs[entry.name] = sum(macs(m, one) for m in loaded)
        figures.tokens[entry.name] = tokens_of(one)
    if entry.kind == CASCADE:
        return Cascading(loaded[0])
    return loaded[0] if len(loaded) == 1 else InTurn(loaded)


def _points(
    entries: Sequence[_Entry],
    models: dict[str, Any],
    dtype: str,
    batch: int,
    inputs: Sequence[Any],
    notes: list[str],
    arguments: BenchOptions,
) -> dict[str, Point]:
    """Every batch through every contender, in turn."""
    from hydrasurgeon.measuring.timing import interleaved, peak_bytes

    peaks = {name: peak_bytes(module, inputs[0]) for name, module in models.items()}
    ready = _compiled(models, inputs[0], notes) if arguments.compile else models
    taken_by = interleaved({name: Through(each) for name, each in ready.items()}, inputs, runs=arguments.runs)
    seconds = {name: taken / len(inputs) for name, taken in taken_by.items()}
    single = next((seconds[e.name] for e in entries if e.kind == "single"), None)
    return {
        name: Point(
            batch=batch,
            dtype=dtype,
            latency_ms=1000 * taken,
            throughput=batch / taken,
            peak_bytes=peaks[name],
            ratio=None if single is None else taken / single,
        )
        for name, taken in seconds.items()
    }


def _batches(text: str) -> list[int]:
    sizes = [whole_number(part.strip()) or 0 for part in text.split(",")]
    if not all(sizes):
        raise UsageError(f"--batch {text}: not a list of positive numbers", hint="Write 1,4,16.")
    return sizes


def _dtypes(text: str) -> list[str]:
    names = [part.strip() for part in text.split(",")]
    for name in names:
        if name not in DTYPES:
            raise UsageError(f"--dtype {name}: not known", hint=f"Use any of {', '.join(DTYPES)}.")
    return names


def _entries(checkpoints: Sequence[str | Path], arguments: BenchOptions) -> list[_Entry]:
    """Everything that is measured, each under a name of its own."""

    def opened(path: str | Path) -> Checkpoint:
        checkpoint = open_checkpoint(path, arch=arguments.arch)
        checkpoint.digests()
        return checkpoint

    groups = [[] if arguments.backbone is None else [arguments.backbone], arguments.vs, checkpoints]
    paths = [path for group in groups for path in group]
    every = iter(by_path([opened(path) for path in paths], paths))
    single, members, rest = ([next(every) for _ in group] for group in groups)
    entries = [_Entry(name_of([each]), "single", (each,)) for each in single]
    if members:
        entries.append(_Entry(name_of(members), "in sequence", tuple(members)))
    for one in rest:
        name = name_of([one])
        if arguments.cascade:
            check_cascades([one])
            entries.append(_Entry(name, CASCADE, (one,)))
            name += FULL
        entries.append(_Entry(name, one.manifest.kind, (one,)))
    if not entries:
        raise UsageError("bench: nothing to measure", hint="Give checkpoints.")
    names = [entry.name for entry in entries]
    if len(set(names)) < len(names):
        raise UsageError("bench: the same checkpoint is named twice")
    return entries


def _alike(entries: Sequence[_Entry]) -> None:
    """All contenders must read the same inputs."""
    opened = [c for entry in entries for c in entry.checkpoints]
    first = opened[0].manifest.model
    for other in opened[1:]:
        model = other.manifest.model
        if (model.family, model.preprocess.get("input_size")) != (first.family, first.preprocess.get("input_size")):
            raise UsageError(
                f"bench: {opened[0].name} and {other.name} do not read the same inputs", hint="Measure them one by one."
            )


def _compiled(models: dict[str, Any], inputs: Any, notes: list[str]) -> dict[str, Any]:
    """torch.compile of each; what cannot be compiled runs as it is, and a note says so."""
    import torch

    ready: dict[str, Any] = {}
    for name, model in models.items():
        compiled: Any = torch.compile(model)
        try:
            with torch.inference_mode():
                compiled(inputs)
        except Exception as error:  # whatever the compiler raises, the model itself still runs
            notes.append(f"{name}: torch.compile failed ({type(error).__name__}); measured without it")
            compiled = model
        ready[name] = compiled
    return ready


def _plot(benched: Benched, path: Path) -> None:
    """Latency over batch size, one line for each contender and dtype."""
    from hydrasurgeon.files.plots import figure, save_figure

    drawn = figure()
    axes = drawn.subplots()
    for contender in benched.results:
        for dtype in benched.settings["dtype"]:
            mine = [p for p in contender.points if p.dtype == dtype]
            axes.plot(
                [p.batch for p in mine],
                [p.ratio if p.ratio is not None else p.latency_ms for p in mine],
                marker="o",
                label=f"{contender.name} ({contender.kind}), {dtype}",
            )
    axes.set(xlabel="batch size", ylabel="time / single model" if _has_single(benched) else "ms")
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="small")
    save_figure(drawn, path)


def _has_single(benched: Benched) -> bool:
    return any(c.kind == "single" for c in benched.results)
