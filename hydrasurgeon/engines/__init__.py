"""Engines, which compute answers: `torch`; `onnx` and `int8`, where onnxruntime runs the model's
graph in float32 or in 8 bits; `auto` chooses one.

An engine is one verb (`runtime.answering.Engine.ask`): a batch of inputs → what the members say. The
decision state then means the same, whatever computed it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydrasurgeon.checkpoints.checkpoint import Checkpoint, open_checkpoint
from hydrasurgeon.checkpoints.folder import GRAPHS, GRAPHS_INT8, is_graph_folder
from hydrasurgeon.data.batches import has_gpu
from hydrasurgeon.engines.graph import Graph, as_engine, captured, open_folder, open_graph, place_of
from hydrasurgeon.errors import UsageError
from hydrasurgeon.lookup import need
from hydrasurgeon.options.shared import ENDING, Engines

if TYPE_CHECKING:
    from hydrasurgeon.runtime.answering import Engine

PACKAGES = ("onnx", "onnxscript", "onnxruntime")
"""Packages that make and run graphs."""
MANY = 4096
"""Rows from which making a graph costs less than it saves: ten seconds, against three milliseconds a
row.
"""


def open_any(spec: str | Path, *, arch: str | None = None, engine: str = "auto") -> Checkpoint:
    """Open any checkpoint, or a graph that `export` wrote, alone or in a folder."""
    file = folder = None
    if str(spec).endswith(ENDING):
        file = Path(spec)
    elif is_graph_folder(Path(spec)):
        folder = Path(spec)
    if file is None and folder is None:
        return open_checkpoint(spec, arch=arch)
    need("onnxruntime", purpose=str(spec))
    if arch is not None:
        raise UsageError(f"--arch {arch} conflicts with {spec}, which says what it is")
    return open_graph(file) if file is not None else open_folder(Path(spec), engine)


def open_models(
    specs: Sequence[str | Path], *, arch: str | None, engine: str = "auto"
) -> list[Checkpoint]:
    """Open several checkpoints. `--arch` applies to those without a manifest."""
    if len(specs) < 2:
        return [open_any(spec, arch=arch, engine=engine) for spec in specs]
    return [
        open_any(spec, engine=engine)
        if str(spec).endswith(ENDING) or is_graph_folder(Path(spec))
        else open_checkpoint(spec, arch=arch, arch_of_bare=True)
        for spec in specs
    ]


def fitted_otherwise(checkpoint: Checkpoint, engine: str) -> str | None:
    """Return a note if the decision state was fitted to another engine's outputs, else None. The
    outputs of torch and onnx are alike.
    """
    decision = checkpoint.manifest.decision
    if decision is None or decision.engine == (None if engine in ("torch", "onnx") else engine):
        return None
    return (
        f"{checkpoint.name}: its decision state was fitted to another engine's outputs; "
        f"run calibrate --engine {engine}"
    )


def check_engine(options: Engines, dtype: str) -> None:
    """Raise UsageError if an engine does not support the options or lacks a package."""
    if options.engine in ("auto", "torch"):
        return
    if dtype != "float32":
        raise UsageError(
            f"--engine {options.engine} conflicts with --dtype {dtype}", hint="Leave it out."
        )
    need("onnxruntime", purpose=f"--engine {options.engine}")


def chosen(
    checkpoint: Checkpoint, engine: str, *, device: str, dtype: str, rows: int | None = None
) -> str:
    """Return the engine that `auto` stands for.

    On a GPU it is torch. On the processor it is the engine that the decision state was fitted for,
    else a graph in float32 if there is one, or if so many `rows` pay for making it. Without `rows`
    no graph is looked for: answers are torch's to the last digit.
    """
    if isinstance(checkpoint, Graph) and device == "cuda":
        raise UsageError(f"--device cuda: {checkpoint.name} is a graph, which runs on the CPU")
    if engine != "auto":
        return engine
    decision = checkpoint.manifest.decision
    fitted = None if decision is None else decision.engine
    if find_spec("onnxruntime") is None:
        fitted = None
    if isinstance(checkpoint, Graph):
        return checkpoint.engine
    if device == "cuda" or (device == "auto" and has_gpu()) or dtype != "float32":
        return "torch"
    if fitted is not None:
        return fitted
    if rows is None or find_spec("onnxruntime") is None:
        return "torch"
    if decision is not None and decision.cascade is not None and decision.words is None:
        return "torch"  # a graph answers whole
    pays = rows >= MANY and all(map(find_spec, PACKAGES))
    return "onnx" if pays or place_of(checkpoint, "onnx").is_file() else "torch"


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
    engine = chosen(checkpoint, engine, device=device, dtype=dtype, rows=rows)
    if engine == "torch" and not isinstance(checkpoint, Graph):
        need("torch", purpose=f"{checkpoint.name}: answering in PyTorch")
        from hydrasurgeon.runtime.classifier import as_classifier

        return as_classifier(checkpoint, device=device, dtype=dtype, lean=True)
    return as_engine(checkpoint, engine, keep=keep)


def runnable(spec: str | Path, *, arch: str | None = None) -> dict[str, Checkpoint]:
    """Open a checkpoint for every engine that can run it on this processor, by the engine's name."""
    opened = open_any(spec, arch=arch, engine="onnx")
    graphs = {"onnx": opened, "int8": opened} if all(map(find_spec, PACKAGES)) else {}
    opened_by = {"torch": opened}
    if isinstance(opened, Graph):
        opened_by, graphs = {}, {opened.engine: opened}
        if (opened.path / GRAPHS / GRAPHS_INT8[0]).is_file():
            graphs["int8"] = open_any(spec, engine="int8")
    return opened_by | graphs


def engines_of(
    checkpoint: Checkpoint, names: Sequence[str], *, device: str, keep: bool = False
) -> dict[str, Engine]:
    """Return several engines of a checkpoint, whose graph is captured once."""
    live = {name: engine_of(checkpoint, device=device) for name in names if name == "torch"}
    if len(live) == len(names):
        return live
    content = cache(partial(captured, checkpoint))
    for name in names:
        if name not in live:
            live[name] = as_engine(checkpoint, name, keep=keep, capture=lambda _: content())
    return live
