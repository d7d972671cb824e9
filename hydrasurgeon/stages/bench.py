"""bench: what a hydra costs on this machine, beside its members run one by one and the single model."""

from __future__ import annotations

import json as json_
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from hydrasurgeon.checkpoints.reading import Checkpoint, open_checkpoint
from hydrasurgeon.errors import UsageError
from hydrasurgeon.files.atomic import output_file, write_text
from hydrasurgeon.files.locks import releases_claims
from hydrasurgeon.run import Progress

__all__ = ["Benched", "Point", "bench"]

DTYPES = ("float32", "bfloat16", "float16")


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


@releases_claims
def bench(
    checkpoints: Sequence[str | Path],
    *,
    vs: Sequence[str | Path] = (),
    backbone: str | Path | None = None,
    batch: str = "1,4,16",
    dtype: str = "float32",
    compile: bool = False,
    runs: int = 7,
    device: str = "auto",
    seed: int = 0,
    arch: str | None = None,
    json: str | Path | None = None,
    plot: str | Path | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Benched:
    """Measure latency, throughput, memory, multiply-adds and parameters; all contenders in turn."""
    from hydrasurgeon.files.plots import check_plot

    batches, dtypes = _batches(batch), _dtypes(dtype)
    inputs = [*checkpoints, *vs, backbone]
    target = None if plot is None else check_plot(Path(plot), force=force, inputs=inputs)
    report = (
        None if json is None else output_file(json, option="--json", force=force, inputs=inputs)
    )
    if runs < 1:
        raise UsageError(f"--runs {runs}: must be at least 1")
    entries = _entries(checkpoints, vs, backbone, arch)
    _alike(entries)

    import torch

    from hydrasurgeon.families import backend as backend_of
    from hydrasurgeon.measuring.cost import macs, parameters
    from hydrasurgeon.measuring.timing import Sequence as InTurn
    from hydrasurgeon.measuring.timing import interleaved, machine, peak_bytes
    from hydrasurgeon.runtime.classifier import as_classifier
    from hydrasurgeon.runtime.tensors import device_of, dtype_of

    where = device_of(device)
    if where.type == "cuda" and "bfloat16" in dtypes and not torch.cuda.is_bf16_supported():
        raise UsageError("--dtype bfloat16: this device lacks it", hint="Use float16 or float32.")
    torch.manual_seed(seed)
    model = entries[0].checkpoints[0].manifest.model
    family = backend_of(model.family)
    sizes: dict[str, tuple[int, int]] = {}
    points: dict[str, list[Point]] = {entry.name: [] for entry in entries}
    notes: list[str] = []
    steps = len(dtypes) * len(batches)
    for i, name in enumerate(dtypes):
        models: dict[str, Any] = {}
        for entry in entries:
            loaded = [
                as_classifier(c, device=device, dtype=name, lean=True) for c in entry.checkpoints
            ]
            models[entry.name] = loaded[0] if len(loaded) == 1 else InTurn(list(loaded))
            if entry.name not in sizes:
                one = family.example(model, 1, device=where, dtype=dtype_of(name))
                sizes[entry.name] = (
                    sum(parameters(m) for m in loaded), sum(macs(m, one) for m in loaded)
                )  # fmt: skip
        for j, count in enumerate(batches):
            inputs = family.example(model, count, device=where, dtype=dtype_of(name))
            peaks = {key: peak_bytes(module, inputs) for key, module in models.items()}
            ready = _compiled(models, inputs, notes) if compile else models
            seconds = interleaved(ready, inputs, runs=runs)
            single = next((seconds[e.name] for e in entries if e.kind == "single"), None)
            for key, taken in seconds.items():
                points[key].append(Point(
                    batch=count, dtype=name, latency_ms=1000 * taken, throughput=count / taken,
                    peak_bytes=peaks[key], ratio=None if single is None else taken / single,
                ))  # fmt: skip
            if progress is not None:
                progress(f"{name}, batch {count}", i * len(batches) + j + 1, steps)
    least = next((sizes[e.name][1] for e in entries if e.kind == "single"), None)
    found = Benched(
        machine=machine(where),
        settings={"batch": batches, "dtype": dtypes, "compile": compile, "runs": runs, "seed": seed},
        results=tuple(
            Contender(
                name=e.name, kind=e.kind, params=sizes[e.name][0], macs=sizes[e.name][1],
                macs_ratio=None if least is None else sizes[e.name][1] / least,
                points=tuple(points[e.name]),
            )
            for e in entries
        ),
        notes=tuple(dict.fromkeys(notes)),
    )  # fmt: skip
    if report is not None:
        write_text(report, json_.dumps(found.model_dump(), indent=1) + "\n")
    if target is not None:
        _plot(found, target)
    return found


def _batches(text: str) -> list[int]:
    sizes = [part.strip() for part in text.split(",")]
    if not all(size.isdigit() and int(size) > 0 for size in sizes):
        raise UsageError(f"--batch {text}: not a list of positive numbers", hint="Write 1,4,16.")
    return [int(size) for size in sizes]


def _dtypes(text: str) -> list[str]:
    names = [part.strip() for part in text.split(",")]
    for name in names:
        if name not in DTYPES:
            raise UsageError(f"--dtype {name}: not known", hint=f"Use any of {', '.join(DTYPES)}.")
    return names


def _entries(
    checkpoints: Sequence[str | Path],
    vs: Sequence[str | Path],
    backbone: str | Path | None,
    arch: str | None,
) -> list[_Entry]:
    def opened(path: str | Path) -> Checkpoint:
        checkpoint = open_checkpoint(path, arch=arch)
        checkpoint.digests()
        return checkpoint

    entries = []
    if backbone is not None:
        single = opened(backbone)
        entries.append(_Entry(_short(single), "single", (single,)))
    if vs:
        members = tuple(opened(path) for path in vs)
        entries.append(_Entry(" + ".join(map(_short, members)), "in sequence", members))
    for path in checkpoints:
        one = opened(path)
        entries.append(_Entry(_short(one), one.manifest.kind, (one,)))
    if not entries:
        raise UsageError("bench: nothing to measure", hint="Give checkpoints.")
    names = [entry.name for entry in entries]
    if len(set(names)) < len(names):
        raise UsageError("bench: the same checkpoint is named twice")
    return entries


def _short(checkpoint: Checkpoint) -> str:
    return checkpoint.name.removesuffix(".safetensors")


def _alike(entries: Sequence[_Entry]) -> None:
    """All contenders must read the same inputs."""
    opened = [c for entry in entries for c in entry.checkpoints]
    first = opened[0].manifest.model
    for other in opened[1:]:
        model = other.manifest.model
        if (model.family, model.preprocess.get("input_size")) != (
            first.family,
            first.preprocess.get("input_size"),
        ):
            raise UsageError(
                f"bench: {opened[0].name} and {other.name} do not read the same inputs",
                hint="Measure them one by one.",
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
            notes.append(
                f"{name}: torch.compile failed ({type(error).__name__}); measured without it"
            )
            compiled = model
        ready[name] = compiled
    return ready


def _plot(found: Benched, path: Path) -> None:
    """Latency over batch size, one line for each contender and dtype."""
    from hydrasurgeon.files.plots import figure, save_figure

    drawn = figure()
    axes = drawn.subplots()
    for contender in found.results:
        for dtype in found.settings["dtype"]:
            mine = [p for p in contender.points if p.dtype == dtype]
            axes.plot(
                [p.batch for p in mine],
                [p.ratio if p.ratio is not None else p.latency_ms for p in mine],
                marker="o", label=f"{contender.name} ({contender.kind}), {dtype}",
            )  # fmt: skip
    axes.set(xlabel="batch size", ylabel="time / single model" if _has_single(found) else "ms")
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="small")
    save_figure(drawn, path)


def _has_single(found: Benched) -> bool:
    return any(c.kind == "single" for c in found.results)
