"""Model surgery on checkpoints: prune attention heads, fuse the pruned members into one Hydra.

>>> import hydrasurgeon as hs
>>> model = hs.load("backbone")
>>> model.predict("bag.png")
     id  label  probability  total  answer
bag.png      6        0.998  0.018       6
not calibrated: no decision state was used
"""

from __future__ import annotations

from typing import Any

from hydrasurgeon.commands import COMMANDS
from hydrasurgeon.lookup import imported
from hydrasurgeon.sharing.timm_hook import install

install()

_HOME = {command.function: command.place for command in COMMANDS if command.in_python} | {
    "Decision": "hydrasurgeon.decision.standalone:Decision",
    "HydraError": "hydrasurgeon.errors:HydraError",
    "HydraWarning": "hydrasurgeon.errors:HydraWarning",
    "Predictor": "hydrasurgeon.stages.predictor:Predictor",
    "load": "hydrasurgeon.runtime.classifier:load",
}
"""Place of each public name's definition. `python tools/render_stubs.py` writes their types."""
__all__ = sorted(_HOME)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    """Import what is asked for, when it is asked for: torch is never needed to read a manifest."""
    if name == "__version__":
        from hydrasurgeon.files.history import installed

        return installed(__name__) or "unknown"
    if name not in _HOME:
        raise AttributeError(f"module 'hydrasurgeon' has no attribute {name!r}")
    return imported(_HOME[name])


def __dir__() -> list[str]:
    """List the public names."""
    return [*__all__, "__version__"]
