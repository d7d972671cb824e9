"""What computes answers: `torch`; or `onnx` and `int8`, where onnxruntime runs the model's graph in
float32 or in 8 bits.

An engine is one verb (`runtime.answering.Engine.ask`): a batch of inputs → what the members say. The
decision state then means the same, whatever computed it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydrasurgeon.checkpoints.reading import Checkpoint, open_checkpoint
from hydrasurgeon.errors import UsageError
from hydrasurgeon.lookup import need
from hydrasurgeon.options.engines import ENDING, Engines

if TYPE_CHECKING:
    from hydrasurgeon.runtime.answering import Engine

PACKAGES = ("onnx", "onnxscript", "onnxruntime")
"""What makes graphs, and runs them."""


def open_any(spec: str | Path, **options: Any) -> Checkpoint:
    """Any checkpoint, or a graph that `export` wrote."""
    if not str(spec).endswith(ENDING):
        return open_checkpoint(spec, **options)
    need("onnxruntime", purpose=str(spec))
    from hydrasurgeon.engines.graph import open_graph

    if options.get("arch") is not None:
        raise UsageError(f"--arch {options['arch']}: {spec} says what it is")
    return open_graph(Path(spec))


def open_models(specs: Sequence[str | Path], *, arch: str | None) -> list[Checkpoint]:
    """Several checkpoints; `--arch` is that of those which do not say what they are."""
    if len(specs) < 2:
        return [open_any(spec, arch=arch) for spec in specs]
    said = [None if str(spec).endswith(ENDING) else arch for spec in specs]
    return [
        open_any(spec, arch=of_bare, arch_of_bare=True)
        for spec, of_bare in zip(specs, said, strict=True)
    ]


def fitted_otherwise(checkpoint: Checkpoint, engine: str) -> str | None:
    """What to say of a state that was fitted to float32's outputs and decides in 8 bits, or the
    other way round.
    """
    engine = getattr(checkpoint, "engine", engine)  # a graph's own
    decision = checkpoint.manifest.decision
    if decision is None or (decision.engine == "int8") == (engine == "int8"):
        return None
    return (
        f"{checkpoint.name}: its decision state was fitted to another engine's outputs; "
        f"run calibrate --engine {engine}"
    )


def check_engine(options: Engines, dtype: str) -> None:
    """What an engine needs and cannot do, before any work."""
    if options.engine == "torch":
        return
    if dtype != "float32":
        raise UsageError(
            f"--engine {options.engine} conflicts with --dtype {dtype}", hint="Leave it out."
        )
    need(*PACKAGES, purpose=f"--engine {options.engine}")


def engine_of(
    checkpoint: Checkpoint,
    *,
    engine: str = "torch",
    device: str = "auto",
    dtype: str = "float32",
    keep: bool = True,
) -> Engine:
    """What answers for an opened checkpoint; `keep` leaves its graph in the cache.

    `runtime.answering.collected([engine], samples, run)` gives its logits on data, and
    `measuring.cost.interleaved({name: engine}, inputs, runs=9)` the seconds of a batch.
    """
    if engine == "torch" and checkpoint.path.suffix != ENDING:
        from hydrasurgeon.runtime.classifier import as_classifier

        return as_classifier(checkpoint, device=device, dtype=dtype, lean=True)
    from hydrasurgeon.engines.graph import in_onnxruntime

    return in_onnxruntime(checkpoint, engine, keep=keep)


def engines_of(checkpoint: Checkpoint, names: Sequence[str], *, device: str) -> dict[str, Engine]:
    """Several engines of a checkpoint, whose graph is captured once and not kept."""
    live = {name: engine_of(checkpoint, device=device) for name in names if name == "torch"}
    if len(live) == len(names):
        return live
    from hydrasurgeon.engines.graph import captured, in_onnxruntime

    content = cache(partial(captured, checkpoint))
    for name in names:
        if name not in live:
            live[name] = in_onnxruntime(checkpoint, name, keep=False, capture=lambda _: content())
    return live
