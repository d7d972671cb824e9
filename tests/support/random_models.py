"""Models with random weights, as checkpoints."""

from __future__ import annotations

from pathlib import Path

from hydrasurgeon.checkpoints.checkpoint import rewritten
from hydrasurgeon.checkpoints.writing import save
from hydrasurgeon.files.atomic import claims, output_path
from hydrasurgeon.runtime.torch_tensors import plan_tensors
from hydrasurgeon.tuning.start import starting_module, starting_point


@claims()
def fresh(spec: str, out: Path, *, seed: int = 0) -> None:
    """Write the model of an `init:` spec as a backbone without history."""
    source = starting_point(spec, None)
    module = starting_module(source, source.manifest.model, "keep", seed)
    save(
        output_path(out, force=False, inputs=()),
        plan_tensors(module.state_dict()),
        lambda sha256: rewritten(source.manifest, weights_sha256=sha256),
    )
