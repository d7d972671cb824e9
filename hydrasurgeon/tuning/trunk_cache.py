"""Outputs of a frozen trunk, computed once for each sample: in bfloat16, in a temporary file of
bounded size.
"""

from __future__ import annotations

import contextlib
import tempfile
import weakref
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hydrasurgeon.anatomy.parts import Stack
from hydrasurgeon.data import Batch, moved
from hydrasurgeon.runtime.hydra import Started

if TYPE_CHECKING:
    from hydrasurgeon.tuning.branches import Branches

MOST = 16 << 30
"""Bytes that the outputs may take on disk; where they take more, the trunk runs in each step."""


class TrunkCache:
    """Made of all batches, in their order, when the first is asked for: a training that goes on
    makes the same.
    """

    def __init__(self, branches: Branches, batches: Iterable[Batch]) -> None:
        self.branches, self.batches = branches, batches
        self._rows: dict[int, tuple[int, int]] | None = None
        """For each sample where its numbers begin, and of how many tokens they are."""
        with contextlib.ExitStack() as stack:
            self._file = stack.enter_context(tempfile.TemporaryFile(prefix="hydrasurgeon-"))
            weakref.finalize(self, stack.pop_all().close)

    def __call__(self, inputs: Any, index: Tensor, device: torch.device) -> Any:
        """What the trunk makes of these samples; the inputs where it is not kept."""
        if self._rows is None:
            self._rows = self._filled(device)
        if not all(int(i) in self._rows for i in index):
            return inputs
        hydra = self.branches.hydra
        training = hydra.training
        with torch.no_grad():
            stack = hydra.eval().anatomies[0].embed(inputs)
        hydra.train(training)
        hidden = torch.zeros(stack.hidden.shape, dtype=torch.bfloat16)
        for row, i in zip(hidden, index.tolist(), strict=True):
            start, tokens = self._rows[i]
            self._file.seek(start)
            content = np.frombuffer(self._file.read(2 * tokens * row.shape[1]), dtype=np.int16)
            row[:tokens] = torch.from_numpy(content.copy()).view(torch.bfloat16).view(tokens, -1)
        return Started(None, Stack(hidden.to(device, stack.hidden.dtype), stack.bias))

    def _filled(self, device: torch.device) -> dict[int, tuple[int, int]]:
        """Run the trunk on everything; nothing is kept of what is too much, or is padded in front."""
        rows: dict[int, tuple[int, int]] = {}
        size = 0
        for batch in self.batches:
            inputs = moved(batch.inputs, device)
            stack = self.branches.start(inputs).stack
            assert stack is not None
            hidden = stack.hidden.to("cpu", torch.bfloat16)
            lengths = [hidden.shape[1]] * len(hidden)
            if isinstance(inputs, Mapping):
                mask = inputs["attention_mask"].cpu()
                lengths = mask.sum(dim=1).tolist()
                if not all(mask[i, :length].all() for i, length in enumerate(lengths)):
                    return {}
            for i, row, tokens in zip(batch.index.tolist(), hidden, lengths, strict=True):
                rows[i] = size, tokens
                size += self._file.write(
                    row[:tokens].contiguous().view(torch.int16).numpy().tobytes()
                )
            if size > MOST:
                self._file.truncate(0)
                return {}
        return rows
