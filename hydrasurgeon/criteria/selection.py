"""Scores and options → the heads to keep: pure decisions, no weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hydrasurgeon.errors import SurgeryError, UsageError
from hydrasurgeon.files.manifest import Score, SingleManifest
from hydrasurgeon.files.untrusted import read_json
from hydrasurgeon.heads import (
    Head,
    Layers,
    all_heads,
    count,
    drop,
    kept_from_mask,
    parse_layers,
    parse_towers,
    removal_order,
)
from hydrasurgeon.lookup import whole_number

# Of a mask's file, which may be a whole manifest.
MAX_MASK = 16 << 20


def choose(
    manifest: SingleManifest,
    score: Score,
    *,
    keep: int | None = None,
    remove: int | None = None,
    sample: str | None = None,
    layers: str | None = None,
    tower: str | None = None,
    seed: int = 0,
    even: bool = False,
) -> tuple[dict[str, Layers], tuple[str, ...]]:
    """Choose the kept heads by `keep`, `remove` or `sample`; there are no notes.

    `keep` counts heads per layer, on average unless `even`, if heads of all layers are compared.
    `remove` counts heads in all; `sample` takes N of the first P to go.
    """
    candidates = movable(manifest, score, layers=layers, tower=tower)
    if keep is not None:
        removed = _beyond(manifest, score, candidates, keep, even=even)
    elif sample is not None:
        removed = _sampled(score, candidates, sample, seed)
    elif remove is not None:
        removed = _in_order(score, candidates, remove)
    else:
        raise UsageError(
            "prune: the number of heads is missing",
            hint="Give --keep K, --remove N, --sample N/P or --mask FILE.",
        )
    return _some(drop(manifest.kept, removed)), ()


def movable(
    manifest: SingleManifest, score: Score, *, layers: str | None, tower: str | None
) -> list[Head]:
    """List the heads that may go: of these layers, in this tower or in all scored towers."""
    if score.order is not None and tower is None:
        tower = score.settings.get("tower")  # the order holds no others
    towers = parse_towers(tower, manifest.towers)
    if score.values is not None:
        missing = [name for name in towers if name not in score.values]
        if missing and tower is not None:
            raise UsageError(
                f"--tower {tower}: only {' and '.join(score.values)} was scored",
                hint=f"Score again with --tower {tower}.",
            )
        towers = tuple(name for name in towers if name in score.values)
    chosen = scored_layers(score, layers, max(manifest.towers[name].layers for name in towers))
    present = all_heads(manifest.kept)
    return [head for head in present if head.tower in towers and head.layer in chosen]


def scored_layers(score: Score, layers: str | None, most: int) -> frozenset[int]:
    """Return these layers; without any, those that the scoring was confined to."""
    chosen, confined = parse_layers(layers, most), score.settings.get("layers")
    if layers is None and isinstance(confined, list):
        return frozenset(layer for layer in chosen if layer in confined)
    return chosen


def _beyond(
    manifest: SingleManifest, score: Score, candidates: Sequence[Head], keep: int, *, even: bool
) -> list[Head]:
    """Return the heads that go if each layer keeps `keep` heads.

    It is an average for a criterion that compares heads of all layers.
    """
    rows = [
        [head for head in candidates if (head.tower, head.layer) == (tower, layer)]
        for tower in manifest.towers
        for layer in sorted({head.layer for head in candidates if head.tower == tower})
    ]
    removed: list[Head] = []
    apart = even or score.values is not None
    for row in rows if apart else [list(candidates)]:
        layers = 1 if apart else max(1, len(rows))
        where, present = (
            f"{row[0].tower} layer {row[0].layer}" if apart else "a layer on average",
            len(row) / layers,
        )
        if not 1 <= keep <= present:
            raise SurgeryError(
                f"--keep {keep}: {where} has {present:g} heads",
                hint=f"Keep between 1 and {present:g}.",
            )
        surplus = len(row) - keep * layers
        if surplus == 0:
            continue
        removed += (
            removal_order(score.values, row)[:surplus]
            if score.values
            else _in_order(score, row, surplus)
        )
    return removed


def _order(score: Score, candidates: Sequence[Head]) -> list[Head]:
    """Return the candidates in the order of removal."""
    if score.order is not None:
        candidate_set = set(candidates)
        return [head for head in (Head(*entry) for entry in score.order) if head in candidate_set]
    assert score.values is not None
    return removal_order(score.values, candidates)


def _in_order(score: Score, candidates: Sequence[Head], remove: int) -> list[Head]:
    order = _order(score, candidates)
    if not 1 <= remove <= len(order):
        hint = "Remove fewer heads, or allow more layers (--layers)."
        if score.order is not None and remove < len(candidates):
            hint = (
                f"The recorded order ends there: score again with --remove {remove} and the "
                "same --layers."
            )
        raise SurgeryError(
            f"cannot remove {remove} heads: only {len(order)} can be removed", hint=hint
        )
    return order[:remove]


def _sampled(score: Score, candidates: Sequence[Head], sample: str, seed: int) -> list[Head]:
    """Draw N of the first P heads to go, without replacement (paper B.5)."""
    n, p = (whole_number(part) for part in (*sample.split("/", 1), "")[:2])
    if n is None or p is None:
        raise UsageError(
            f"--sample {sample}: not N/P",
            hint="Write for example 48/100: remove 48 of the first 100.",
        )
    order = _order(score, candidates)
    if not 0 < n <= p <= len(order):
        raise SurgeryError(
            f"--sample {sample}: needs 0 < N ≤ P ≤ {len(order)} heads that can be removed"
        )
    chosen = np.random.default_rng(seed).permutation(p)[:n]
    return [order[i] for i in sorted(chosen)]


def _some(kept: dict[str, Layers], where: str = "") -> dict[str, Layers]:
    if count(kept) == 0:
        raise SurgeryError(f"{where}no head would be left", hint="Keep more heads.")
    return kept


def kept_from_file(path: Path, manifest: SingleManifest) -> dict[str, Layers]:
    """Read `--mask`.

    The file is a manifest, {"kept": …}, or per tower [layer] lists of heads or [layer][head]
    booleans.
    """
    raw = read_json(path, most=MAX_MASK, error=UsageError)
    while isinstance(raw, Mapping) and ("kept" in raw or "mask" in raw):
        raw = raw["kept"] if "kept" in raw else raw["mask"]
    if isinstance(raw, list) and len(manifest.towers) == 1:
        raw = {next(iter(manifest.towers)): raw}
    if not isinstance(raw, Mapping) or set(raw) != set(manifest.towers):
        raise UsageError(
            f"--mask {path}: needs kept heads for {', '.join(manifest.towers)}",
            hint='For example {"vision": [[0, 2], [1]]}.',
        )
    return _some(
        {tower: _rows(path, rows, manifest, tower) for tower, rows in raw.items()},
        f"--mask {path}: ",
    )


def _rows(path: Path, rows: Any, manifest: SingleManifest, tower: str) -> Layers:
    size, present = manifest.towers[tower], manifest.kept[tower]
    are_lists = (
        isinstance(rows, list)
        and len(rows) == size.layers
        and all(isinstance(row, list) for row in rows)
    )
    kinds = {type(value) for row in rows for value in row} if are_lists else set()
    if kinds == {bool} and all(len(row) == size.heads for row in rows):
        rows = [list(row) for row in kept_from_mask(np.array(rows, dtype=bool))]
    elif not are_lists or not kinds <= {int}:
        raise UsageError(
            f"--mask {path}: {tower} needs {size.layers} layers of heads' numbers, or of "
            f"{size.heads} booleans each"
        )
    for layer, row in enumerate(rows):
        if absent := sorted(set(row) - set(present[layer])):
            raise SurgeryError(
                f"--mask {path}: {tower} layer {layer} has no head {absent[0]} (present: "
                f"{list(present[layer])})"
            )
    return tuple(tuple(sorted(set(row))) for row in rows)
