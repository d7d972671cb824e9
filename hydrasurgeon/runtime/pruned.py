"""Pruned models in memory that share with a loaded backbone whatever they do not cut."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import torch
from torch import nn

from hydrasurgeon.checkpoints.checkpoint import Single
from hydrasurgeon.families.weights import head_axes, rows_of
from hydrasurgeon.heads import Kept, positions, take_heads
from hydrasurgeon.runtime.torch_tensors import assign, device_of, dtype_of, to_weights

if TYPE_CHECKING:
    from hydrasurgeon.files.tensors import Raw


class LoadedBackbone:
    """The parameters of a backbone or member, once, for any number of models that keep some of its
    heads.
    """

    def __init__(self, checkpoint: Single, *, device: str = "auto", dtype: str = "float32") -> None:
        self.checkpoint = checkpoint
        self.manifest = checkpoint.manifest
        self.device, self.dtype = device_of(device), dtype_of(dtype)
        names = set(self._empty(self.manifest.kept).state_dict())
        self.parameters = {
            name: self._parameter(name, checkpoint.tensors.read(name))
            for name in checkpoint.tensors
            if name in names
        }
        # Models that keep the same heads of a layer share their rows for as long as one of them
        # lives.
        self._cut: WeakValueDictionary[tuple[str, tuple[int, ...]], nn.Parameter] = (
            WeakValueDictionary()
        )

    def module(self, kept: Kept) -> nn.Module:
        """Return the family's own module that `prune` would write for these heads."""
        parameters = dict(self.parameters)
        # Inference tensors would be of no use to hydras, which watch what they have gathered rows
        # from.
        with torch.inference_mode(False):
            parameters |= self._cuts(kept)
        module = self._empty(kept)
        assign(module, parameters, self.checkpoint.path)
        return module.to(device=self.device, dtype=self.dtype).eval()

    def _cuts(self, kept: Kept) -> dict[str, nn.Parameter]:
        """Return the tensors that lose heads."""
        cuts = {}
        for name, (tower, layer, axis) in head_axes(self.checkpoint.weights.values()).items():
            present = self.checkpoint.kept[tower][layer]
            row = tuple(kept[tower][layer]) if tower in kept else present
            if row == present:
                continue
            cut = self._cut.get((name, row))
            if cut is None:
                head_dim = rows_of(self.manifest.towers, tower)
                rows = take_heads(
                    self.parameters[name].detach(),
                    positions(present, row),
                    spec=axis,
                    head_dim=head_dim,
                )
                cut = self._cut[name, row] = nn.Parameter(rows.contiguous())
            cuts[name] = cut
        return cuts

    def _empty(self, kept: Kept) -> nn.Module:
        manifest = self.manifest
        return self.checkpoint.family.module(
            manifest.model,
            {**self.checkpoint.kept, **kept},
            files=self.checkpoint.files,
        )

    def _parameter(self, name: str, raw: Raw) -> nn.Parameter:
        """Return a tensor as a parameter of live models."""
        path, stored = self.checkpoint.path, self.checkpoint.tensors[name].dtype
        weights = to_weights(raw, stored, name=name, path=path)
        return nn.Parameter(weights.to(device=self.device, dtype=self.dtype))
