"""Cut whole heads out of weight tensors and put them together again (DESIGN section 5: prune).

A head tensor holds heads along one axis, as `blocks` packed groups (3 for q, k, v in one matrix), each
`head × head_dim` long. Everything here works on numpy arrays and torch tensors alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Array = TypeVar("Array", bound=Any)


@dataclass(frozen=True)
class HeadAxis:
    """Where one tensor of an attention site keeps its heads."""

    axis: int
    blocks: int = 1


def take_heads(array: Array, at: Sequence[int], *, spec: HeadAxis, head_dim: int) -> Array:
    """The heads at positions `at`, in that order; every other axis untouched."""
    shape = tuple(array.shape)
    lead, tail = shape[: spec.axis], shape[spec.axis + 1 :]
    heads = shape[spec.axis] // (spec.blocks * head_dim)
    grouped = array.reshape((*lead, spec.blocks, heads, head_dim, *tail))
    taken = grouped[(slice(None),) * (spec.axis + 1) + (list(at),)]
    return taken.reshape(sliced_shape(shape, len(at), spec=spec, head_dim=head_dim))


def put_heads(array: NDArray[Any], at: Sequence[int], heads: int, *, spec: HeadAxis, head_dim: int) -> NDArray[Any]:
    """The opposite of `take_heads`: these heads at positions `at` of so many, and zeros for the others."""
    import numpy as np

    made = np.zeros(sliced_shape(array.shape, heads, spec=spec, head_dim=head_dim), array.dtype)
    mask = head_mask(made.shape[spec.axis], at, spec=spec, head_dim=head_dim)
    if spec.axis == 0:
        made[mask] = array
    else:
        made[:, mask] = array
    return made


def sliced_shape(shape: Sequence[int], heads: int, *, spec: HeadAxis, head_dim: int) -> tuple[int, ...]:
    """The shape that `take_heads` gives for `heads` heads."""
    return (*shape[: spec.axis], spec.blocks * heads * head_dim, *shape[spec.axis + 1 :])


def head_mask(length: int, at: Sequence[int], *, spec: HeadAxis, head_dim: int) -> NDArray[np.bool_]:
    """Which of the `length` rows (or columns) along the heads' axis belong to the heads at positions `at`."""
    import numpy as np

    mask = np.zeros((spec.blocks, length // (spec.blocks * head_dim), head_dim), dtype=bool)
    mask[:, list(at)] = True
    return mask.reshape(-1)


def masked(rows: Array, mask: NDArray[np.bool_], start: int, *, spec: HeadAxis) -> Array:
    """What `head_mask` leaves of a tensor's rows from `start` on."""
    kept: Array = rows[mask[start : start + len(rows)]] if spec.axis == 0 else rows[:, mask]
    return kept
