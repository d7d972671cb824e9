"""compare: how alike two selections of heads are (paper B.2), from manifests alone.

With A and B the heads that two models keep, or that they lack: Jaccard |A∩B| / |A∪B|, the share in
common 2|A∩B| / (|A| + |B|), and the Jensen–Shannon divergence of the uniform distributions over A
and over B, in nats.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Set
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.errors import CheckpointError, SurgeryError, UsageError
from hydrasurgeon.files.manifest import Manifest, Tower, read_manifest
from hydrasurgeon.heads import Head, Kept, all_heads
from hydrasurgeon.lookup import whole_number

FORMAT = "hydrasurgeon.compare/1"
"""Format identifier of the JSON report."""


@dataclass(frozen=True)
class Overlap:
    """Two sets of heads; what is undefined for empty ones is None."""

    a: int
    b: int
    common: int
    jaccard: float | None
    share: float | None
    jsd: float | None


@dataclass(frozen=True)
class Comparison:
    names: tuple[str, str]
    selections: tuple[Kept, Kept]
    towers: dict[str, Tower]
    kept: Overlap
    removed: Overlap
    layers: dict[str, tuple[dict[str, Overlap], ...]]
    """tower → per layer, the overlap of the kept and of the removed heads."""
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        layers = {
            tower: [
                {"layer": i, **{what: asdict(each) for what, each in row.items()}}
                for i, row in enumerate(rows)
            ]
            for tower, rows in self.layers.items()
        }
        whole = {"kept": asdict(self.kept), "removed": asdict(self.removed)}
        return {"format": FORMAT, "a": self.names[0], "b": self.names[1], **whole, "layers": layers}


def compare(a: str | Path, b: str | Path) -> Comparison:
    """Compare what two checkpoints, members of a hydra (FILE#0) or manifests keep; no tensor is
    read.
    """
    (mine, first, kept, *_), (other, second, others, *_) = pair = (
        _selection(str(a)),
        _selection(str(b)),
    )
    if _shape(first) != _shape(second):
        raise SurgeryError(
            (
                f"{mine} is {_shape(first)}, {other} is {_shape(second)}: their heads cannot be "
                "compared"
            ),
            hint="Compare selections from one backbone.",
        )

    def overlaps(heads: Iterable[Head]) -> dict[str, Overlap]:
        """Overlap of the heads that are kept, and of those that are not."""
        among = set(heads)
        sides = [among & set(all_heads(each)) for each in (kept, others)]
        return {"kept": overlap(*sides), "removed": overlap(*(among - each for each in sides))}

    towers = first.towers
    every = {
        t: [[Head(t, i, h) for h in range(size.heads)] for i in range(size.layers)]
        for t, size in towers.items()
    }
    return Comparison(
        names=(mine, other),
        selections=(kept, others),
        towers=dict(towers),
        **overlaps(head for rows in every.values() for row in rows for head in row),
        layers={tower: tuple(map(overlaps, rows)) for tower, rows in every.items()},
        notes=tuple(note for *_, note in pair if note),
    )


def overlap(a: Set[Head], b: Set[Head]) -> Overlap:
    common, either = len(a & b), len(a | b)
    return Overlap(
        a=len(a),
        b=len(b),
        common=common,
        jaccard=common / either if either else None,
        share=2 * common / (len(a) + len(b)) if either else None,
        jsd=divergence(len(a), len(b), common),
    )


def divergence(a: int, b: int, common: int) -> float | None:
    """Jensen–Shannon divergence of uniform distributions over sets of these sizes; ln 2 when they
    are disjoint.
    """
    if not a or not b:
        return None
    p, q = 1 / a, 1 / b
    middle = (p + q) / 2
    # Heads of one set only: m = p/2, so each adds p·ln 2; those in common add p·ln(p/m) and
    # q·ln(q/m).
    alone = (a - common) * p + (b - common) * q
    together = common * (p * math.log(p / middle) + q * math.log(q / middle))
    return max(0.0, (alone * math.log(2) + together) / 2)


def _selection(spec: str) -> tuple[str, Manifest, Kept, str | None]:
    """What FILE, or member i of FILE#i, keeps: its name, manifest and heads, and a note."""
    text, hash_, number = spec.rpartition("#")
    if not hash_ or os.path.exists(spec):
        text, number = spec, ""
    path, note = Path(text), None
    if path.suffix == ".json":
        if not path.is_file():
            raise CheckpointError(f"{text}: no such manifest")
        manifest = read_manifest(path)
    else:
        opened = open_checkpoint(text)
        manifest, note = opened.manifest, opened.note
    name = path.name + (f"#{number}" if number else "")
    if manifest.kind != "hydra":
        if number:
            raise UsageError(
                f"{spec}: {path.name} is a {manifest.kind}, not a hydra", hint="Leave #N out."
            )
        return name, manifest, manifest.kept, note
    members, which = manifest.members, whole_number(number)
    if which is None or which >= len(members):
        raise UsageError(
            f"{spec}: which member of the hydra?",
            hint=f"Write {text}#0 to {text}#{len(members) - 1}.",
        )
    return name, manifest, members[which].kept, note


def _shape(manifest: Manifest) -> str:
    """Of which model the heads are."""
    model, towers = manifest.model, manifest.towers.items()
    sizes = ", ".join(f"{name} {t.layers}×{t.heads} heads of {t.head_dim}" for name, t in towers)
    return f"{model.family}:{model.arch} ({sizes})"
