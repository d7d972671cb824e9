"""Engines, which compute answers: one file or folder each, and its line in the list. `auto` chooses
one.

An engine is one verb (`runtime.answering.Engine.ask`): a batch of inputs → what the members say. The
decision state then means the same, whatever computed it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hydrasurgeon.engines.base import EngineKind, Parts
from hydrasurgeon.engines.int8 import Int8
from hydrasurgeon.engines.onnx import Onnx
from hydrasurgeon.engines.torch import Torch
from hydrasurgeon.errors import CheckpointError, UsageError
from hydrasurgeon.lookup import find_named, need

if TYPE_CHECKING:
    from hydrasurgeon.checkpoints.checkpoint import Checkpoint
    from hydrasurgeon.options.shared import Engines
    from hydrasurgeon.runtime.answering import Engine

ENGINES: tuple[EngineKind, ...] = (
    Torch(),
    Onnx(),
    Int8(),
)
"""Every engine."""
INEXACT = {kind.name for kind in ENGINES if not kind.exact}
"""Names of engines whose answers are not float32's."""


def engine_named(name: str, *, option: str = "--engine") -> EngineKind:
    """Return an engine; refuse a name that none has."""
    return find_named(name, ENGINES, option=option, noun="engine")


def _reader_of(spec: str | Path) -> EngineKind | None:
    """Return the engine that reads an exported file or folder; None for checkpoints."""
    return next((kind for kind in ENGINES if kind.reads(str(spec))), None)


def open_any(spec: str | Path, *, arch: str | None = None, engine: str = "auto") -> Checkpoint:
    """Open any checkpoint, or what `export` wrote for an engine."""
    from hydrasurgeon.checkpoints.checkpoint import open_checkpoint

    kind = _reader_of(spec)
    if kind is None:
        return open_checkpoint(spec, arch=arch)
    need(*kind.packages, purpose=str(spec))
    if arch is not None:
        raise UsageError(f"--arch {arch} conflicts with {spec}, which says what it is")
    return kind.open(str(spec), engine)


def open_models(
    specs: Sequence[str | Path], *, arch: str | None, engine: str = "auto"
) -> list[Checkpoint]:
    """Open several checkpoints. `--arch` applies to those without a manifest."""
    from hydrasurgeon.checkpoints.checkpoint import open_checkpoint

    if len(specs) < 2:
        return [open_any(spec, arch=arch, engine=engine) for spec in specs]
    return [
        open_checkpoint(spec, arch=arch, arch_of_bare=True)
        if _reader_of(spec) is None
        else open_any(spec, engine=engine)
        for spec in specs
    ]


def fitted_otherwise(checkpoint: Checkpoint, engine: str) -> str | None:
    """Return a note if the decision state was fitted to another engine's outputs, else None. The
    outputs of exact engines are alike.
    """
    decision = checkpoint.manifest.decision
    if decision is None or decision.engine == (engine if engine in INEXACT else None):
        return None
    return (
        f"{checkpoint.name}: its decision state was fitted to another engine's outputs; "
        f"run calibrate --engine {engine}"
    )


def check_engine(options: Engines, dtype: str) -> None:
    """Raise UsageError if there is no such engine, or if it does not support the options;
    MissingDependency if it lacks a package.
    """
    if options.engine == "auto":
        return
    kind = engine_named(options.engine)
    if not kind.graph:
        return
    if dtype != "float32":
        raise UsageError(
            f"--engine {options.engine} conflicts with --dtype {dtype}", hint="Leave it out."
        )
    need(*kind.packages, purpose=f"--engine {options.engine}")


def chosen(
    checkpoint: Checkpoint, engine: str, *, device: str, dtype: str, rows: int | None = None
) -> str:
    """Return the engine that `auto` stands for.

    On a GPU it is torch. On the processor it is the engine that the decision state was fitted for,
    else a graph in float32 if there is one, or if so many `rows` pay for making it. Without `rows`
    no graph is looked for: answers are torch's to the last digit.
    """
    from hydrasurgeon.data.batches import has_gpu

    if checkpoint.engine is not None and device == "cuda":
        raise UsageError(f"--device cuda: {checkpoint.name} is a graph, which runs on the CPU")
    if engine != "auto":
        return engine
    decision = checkpoint.manifest.decision
    fitted = _fitted_for(checkpoint)
    if checkpoint.engine is not None:
        return checkpoint.engine
    if device == "cuda" or (device == "auto" and has_gpu()) or dtype != "float32":
        return Torch.name
    if fitted is not None and fitted.installed:
        return fitted.name
    if rows is None:
        return Torch.name
    if decision is not None and decision.cascade is not None and decision.words is None:
        return Torch.name  # a graph answers whole
    return next((kind.name for kind in ENGINES if kind.pays(checkpoint, rows)), Torch.name)


def _fitted_for(checkpoint: Checkpoint) -> EngineKind | None:
    """Return the engine that the decision state was fitted for, if it is not exact; refuse a state
    whose engine is not here.
    """
    decision = checkpoint.manifest.decision
    if decision is None or decision.engine is None:
        return None
    names = {kind.name: kind for kind in ENGINES}
    if decision.engine not in names:
        raise CheckpointError(
            f"{checkpoint.name}: its decision state was fitted for the engine {decision.engine}, "
            "which is not here",
            hint=f"Calibrate it with --engine {' or '.join(names)}, which are here.",
        )
    return names[decision.engine]


def engine_of(
    checkpoint: Checkpoint,
    *,
    engine: str = "auto",
    device: str = "auto",
    dtype: str = "float32",
    keep: bool = True,
    rows: int | None = None,
) -> Engine:
    """Return the engine of an opened checkpoint. `keep` leaves its graph in the cache, and `auto`
    is chosen for so many `rows`.

    `runtime.answering.collected([engine], samples, run)` gives its logits on data, and
    `measuring.cost.interleaved({name: engine}, inputs, runs=9)` the seconds of a batch.
    """
    name = chosen(checkpoint, engine, device=device, dtype=dtype, rows=rows)
    kind, only = engine_named(name), checkpoint.engine
    if only not in (None, name):
        raise UsageError(
            f"--engine {name} conflicts with {checkpoint.path}, which is a graph for {only}",
            hint="Leave it out, or give the checkpoint that the graph was exported from.",
        )
    return kind.load(checkpoint, device=device, dtype=dtype, keep=keep, parts=None)


def runnable(spec: str | Path, *, arch: str | None = None) -> dict[str, Checkpoint]:
    """Open a checkpoint for every engine that can run it on this processor, by the engine's name."""
    if _reader_of(spec) is None:
        opened = open_any(spec, arch=arch)
        return {kind.name: opened for kind in ENGINES if kind.takes_weights}
    names = [kind.name for kind in ENGINES if kind.holds(str(spec))]
    several = {name: open_any(spec, arch=arch, engine=name) for name in names}
    if several:
        return several
    opened = open_any(spec, arch=arch)
    return {str(opened.engine): opened}


def engines_of(
    checkpoint: Checkpoint, names: Sequence[str], *, device: str, keep: bool = False
) -> dict[str, Engine]:
    """Return several engines of a checkpoint, whose graph is captured once."""
    parts: Parts = {}
    return {
        name: engine_named(name).load(
            checkpoint, device=device, dtype="float32", keep=keep, parts=parts
        )
        for name in names
    }
