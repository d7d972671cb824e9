"""Model surgery on checkpoints: prune attention heads, fuse the pruned members into one Hydra.

import hydrasurgeon as hs
model = hs.load("hydra.safetensors")
probs = model.predict(inputs)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hydrasurgeon.runtime.classifier import load
    from hydrasurgeon.stages.bench import bench
    from hydrasurgeon.stages.build import build
    from hydrasurgeon.stages.calibrate import calibrate
    from hydrasurgeon.stages.evaluate import evaluate
    from hydrasurgeon.stages.finetune import finetune
    from hydrasurgeon.stages.fuse import fuse
    from hydrasurgeon.stages.predict import predict
    from hydrasurgeon.stages.probe import probe
    from hydrasurgeon.stages.prune import prune
    from hydrasurgeon.stages.replay import replay
    from hydrasurgeon.stages.score import score
    from hydrasurgeon.stages.verify import verify

from hydrasurgeon.lookup import imported
from hydrasurgeon.sharing.timm_hook import install

install()

__all__ = [
    "bench",
    "build",
    "calibrate",
    "evaluate",
    "finetune",
    "fuse",
    "load",
    "predict",
    "probe",
    "prune",
    "replay",
    "score",
    "verify",
]

_HOME = {name: f"hydrasurgeon.stages.{name}:{name}" for name in __all__} | {
    "load": "hydrasurgeon.runtime.classifier:load"
}
"""Where each name of the public interface is defined."""


def __getattr__(name: str) -> Any:
    """Import what is asked for, when it is asked for: torch is never needed to read a manifest."""
    if name not in _HOME:
        raise AttributeError(f"module 'hydrasurgeon' has no attribute {name!r}")
    return imported(_HOME[name])
