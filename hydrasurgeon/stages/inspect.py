"""inspect: what a checkpoint is, from its header and manifest alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from hydrasurgeon.checkpoints.hydra_layout import member_sources
from hydrasurgeon.checkpoints.reading import Checkpoint, open_checkpoint
from hydrasurgeon.files.decided import PREFIX
from hydrasurgeon.files.locks import releases_claims
from hydrasurgeon.files.manifest import HydraManifest, Manifest
from hydrasurgeon.files.plots import check_plot
from hydrasurgeon.slicing import sliced_shape

__all__ = ["Inspection", "inspect"]


@dataclass(frozen=True)
class Inspection:
    path: Path
    manifest: Manifest
    parameters: int
    """Numbers that the file holds."""
    in_memory: int
    """Numbers that the live model holds, and `eval` counts: members of a hydra bring their own copies of heads."""
    nbytes: int
    dtypes: tuple[str, ...]
    recorded: bool
    note: str | None


@releases_claims
def inspect(
    checkpoint: str | Path,
    *,
    arch: str | None = None,
    plot: str | Path | None = None,
    force: bool = False,
) -> Inspection:
    """Read the header, and draw the scores that it records; no tensor is touched and torch is not imported."""
    picture = None if plot is None else check_plot(Path(plot), force=force, inputs=[checkpoint])
    opened = open_checkpoint(checkpoint, arch=arch)
    if picture is not None:
        from hydrasurgeon.criteria.pictured import head_maps
        from hydrasurgeon.files.headmaps import draw_head_maps

        draw_head_maps(head_maps(opened.manifest, opened.name), picture)
    tensors = opened.tensors
    stored = sum(math.prod(t.shape) for name, t in tensors.items() if not name.startswith(PREFIX))
    return Inspection(
        path=opened.path,
        manifest=opened.manifest,
        parameters=stored,
        in_memory=_in_memory(opened, opened.manifest)
        if opened.manifest.kind == "hydra"
        else stored,
        nbytes=tensors.nbytes,
        dtypes=tuple(sorted({info.dtype for info in tensors.values()})),
        recorded=opened.recorded,
        note=opened.note,
    )


def _in_memory(opened: Checkpoint, manifest: HydraManifest) -> int:
    """Members that take the same heads of a tensor share them; any others have rows of their own."""
    tensors, sources = opened.tensors, member_sources(opened, manifest)
    return sum(
        math.prod(tensors[source.stored].shape)
        if source.at is None or source.spec is None
        else math.prod(sliced_shape(tensors[source.stored].shape, len(source.at), spec=source.spec, head_dim=source.head_dim))
        for source in {source for member in sources for source in member.values()}
    )  # fmt: skip
