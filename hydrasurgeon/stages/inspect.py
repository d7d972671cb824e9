"""inspect: what a checkpoint is, from headers and manifests alone."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from pathlib import Path

from hydrasurgeon.checkpoints.checkpoint import Checkpoint, open_checkpoint
from hydrasurgeon.checkpoints.layout import member_sources
from hydrasurgeon.files.decided import PREFIX
from hydrasurgeon.files.decision_file import DecisionFile, is_decision_file, read_decision_file
from hydrasurgeon.files.manifest import Manifest, json_schema
from hydrasurgeon.options.base import stage
from hydrasurgeon.options.measuring import InspectOptions
from hydrasurgeon.stages.retrace import retraced


@dataclass(frozen=True)
class Inspection:
    path: Path
    manifest: Manifest = field(repr=False)
    parameters: int
    """Numbers that the file holds."""
    in_memory: int
    """Numbers that the live model holds, and `eval` counts: members of a hydra bring their own
    copies of heads.
    """
    nbytes: int
    dtypes: tuple[str, ...]
    recorded: bool
    note: str | None


@stage(InspectOptions)
def inspect(arguments: InspectOptions) -> Inspection | DecisionFile | str:
    """Read headers; no tensor is touched and torch is not imported."""
    if arguments.schema_:
        return json_schema()
    checkpoint = arguments.needed()
    for path in (str(checkpoint), f"{checkpoint}.safetensors"):
        if path.endswith(".safetensors") and os.path.isfile(path) and is_decision_file(Path(path)):
            return read_decision_file(Path(path))
    opened = open_checkpoint(checkpoint, arch=arguments.arch)
    if arguments.commands:
        return retraced(opened)
    tensors = opened.tensors
    return Inspection(
        path=opened.path,
        manifest=opened.manifest,
        parameters=_numbers(opened),
        in_memory=_in_memory(opened),
        nbytes=tensors.nbytes,
        dtypes=tuple(sorted({info.dtype for info in tensors.values()})),
        recorded=opened.recorded,
        note=opened.note,
    )


def _in_memory(opened: Checkpoint) -> int:
    """Count the numbers in memory. Members that run the same heads of a tensor share them; others
    have copies.
    """
    tensors, manifest = opened.tensors, opened.manifest
    if manifest.kind != "hydra":
        return _numbers(opened)
    sources = {
        source
        for member in member_sources(manifest, opened.weights, tensors)
        for source in member.values()
    }
    return sum(math.prod(source.shape(tensors)) for source in sources)


def _numbers(opened: Checkpoint) -> int:
    """Count the numbers in the model's tensors, without the decision state."""
    return sum(
        math.prod(info.shape)
        for name, info in opened.tensors.items()
        if not name.startswith(PREFIX)
    )
