"""Cut heads and neurons out of a checkpoint's tensors: rows of q, k, v and W_1, columns of W_O and
W_2; the rest is copied.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from hydrasurgeon.checkpoints.checkpoint import Single
from hydrasurgeon.errors import SurgeryError
from hydrasurgeon.families.weights import head_axes, rows_of
from hydrasurgeon.files.manifest import OF_WORDS, SingleManifest
from hydrasurgeon.files.tensors import Planned, as_bytes, sound
from hydrasurgeon.heads import Kept, even, head_mask, masked, positions, sliced_shape

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hydrasurgeon.files.tensors import Raw


def plan_pruning(
    opened: Single,
    kept: Kept,
    inputs: dict[str, str],
    repaired: Mapping[str, Raw] | None = None,
    *,
    chosen: Mapping[str, NDArray[np.bool_]] | None = None,
) -> list[Planned]:
    """Plan how each tensor is written.

    Tensors in `repaired` are replaced, those in `chosen` keep only these rows, others are cut or
    copied.

    `inputs` fills with the digests of the tensors that were read.
    """
    repaired, chosen = repaired or {}, chosen or {}
    tensors, kept = opened.tensors, {**opened.kept, **kept}
    # The tensors that lose heads or neurons: where they keep them, which positions stay, and how
    # wide each is.
    cuts = {
        name: (axis, positions(row, kept[group][layer]), rows_of(opened.manifest.towers, group))
        for name, (group, layer, axis) in head_axes(opened.weights.values()).items()
        if kept[group][layer] != (row := opened.kept[group][layer])
    }

    def read(name: str, blocks: Iterator[Raw]) -> Iterator[Raw]:
        original = hashlib.sha256()
        for block in blocks:
            original.update(as_bytes(block))
            yield block
        inputs[name] = original.hexdigest()

    def cut(name: str) -> Iterator[Raw]:
        spec, at, head_dim = cuts[name]
        keep = head_mask(tensors[name].shape[spec.axis], at, spec=spec, head_dim=head_dim)
        start = 0
        for rows in read(name, tensors.rows(name)):
            yield masked(rows, keep, start, spec=spec)
            start += len(rows)

    def pick(name: str) -> Iterator[Raw]:
        start = 0
        for rows in read(name, tensors.rows(name)):
            yield rows[chosen[name][start : start + len(rows)]]
            start += len(rows)

    def produce(name: str) -> Iterator[Raw]:
        # What is cut away may be unsound.
        if name in chosen:
            arrays = pick(name)
        else:
            arrays = cut(name) if name in cuts else read(name, tensors.blocks(name))
        checked = sound(arrays, tensors[name].dtype, name=name, path=opened.path)
        if name not in repaired:
            yield from checked
            return
        for _ in checked:
            pass
        yield repaired[name]

    def plan(name: str) -> Planned:
        info = tensors[name]
        shape = info.shape
        if name in repaired:
            shape = repaired[name].shape
        elif name in chosen:
            shape = (int(chosen[name].sum()), *shape[1:])
        elif name in cuts:
            spec, at, head_dim = cuts[name]
            shape = sliced_shape(info.shape, len(at), spec=spec, head_dim=head_dim)
        return Planned(name, info.dtype, shape, partial(produce, name))

    return [plan(name) for name in tensors]


def check_stock(opened: Single, manifest: SingleManifest, *, hint: str) -> None:
    """Refuse what the model's own library has no class for, or no class of this size."""
    if opened.family.stock_sizes(manifest) is not None:
        return
    cut = [*manifest.kept.values(), *(manifest.kept_neurons or {}).values()]
    reason = f"{opened.family.name} cannot load a model with this number of heads or neurons"
    if manifest.model.pooling not in (None, OF_WORDS):
        reason = f"its classifier reads pooled tokens, which {opened.family.name} cannot load"
    elif any(even(rows) is None for rows in cut):
        reason = "its layers keep different numbers of heads or neurons"
    raise SurgeryError(f"{opened.name}: {reason}", hint=hint)
