"""Tiny models whose classifiers a test has worked out: the body stays random, the answers are known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from edited import edited
from numpy.typing import NDArray

from hydrasurgeon.anatomy.hooks import ablated
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.data import open_data
from hydrasurgeon.heads import Head
from hydrasurgeon.options.shared import Run
from hydrasurgeon.runtime.answering import collected
from hydrasurgeon.runtime.classifier import Classifier, as_classifier

Array = NDArray[np.float64]
HEADS = ("head.", "classifier.")
"""Prefixes of the last layer's tensors."""


def outputs_of(path: Path, data: str) -> tuple[Array, Array, Array]:
    """Return the features [sample, width] of a model with one member, its logits and the labels, in
    order.
    """
    return _collected(as_classifier(open_checkpoint(path), device="cpu"), data)


def _collected(model: Classifier, data: str) -> tuple[Array, Array, Array]:
    outputs = collected([model], open_data(data), Run(batch_size=32), features=True)
    assert outputs.features is not None
    labels = np.zeros(len(outputs.logits)) if outputs.labels is None else outputs.labels
    return (
        outputs.features[:, 0].astype(np.float64),
        outputs.logits[:, 0].astype(np.float64),
        labels,
    )


def solved(
    path: Path,
    data: str,
    *,
    sharpness: float = 2.0,
    ridge: float = 1e-2,
    cuts: Sequence[Sequence[Head]] = ((),),
) -> Array:
    """Fit the classifier [class, width + 1] that separates the classes of these data by least
    squares, also without the heads of any of the `cuts`.
    """
    model = as_classifier(open_checkpoint(path), device="cpu")
    seen = []
    for removed in cuts:
        with ablated(model.anatomy.sites, removed):
            seen.append(_collected(model, data))
    features, _, labels = (np.concatenate(parts) for parts in zip(*seen, strict=True))
    extended = np.concatenate([features, np.ones((len(features), 1))], axis=1)
    target_logits = sharpness * (np.eye(int(labels.max()) + 1)[labels.astype(int)] * 2 - 1)
    gram = extended.T @ extended + ridge * np.eye(extended.shape[1])
    return np.linalg.solve(gram, extended.T @ target_logits).T


def with_head(path: Path, out: Path, head: Array, *, moved: float = 0.0) -> Path:
    """Write the model with this classifier, bias last. Its body is `moved` a little, as by a
    training.
    """
    rng = np.random.default_rng(int(abs(head[0, 0]) * 1e6))

    def change(name: str, tensor: torch.Tensor) -> torch.Tensor:
        if not name.startswith(HEADS):
            noise = torch.from_numpy(rng.normal(size=tuple(tensor.shape)))
            return tensor + moved * tensor * noise.to(tensor.dtype)
        values = head[:, :-1] if name.endswith("weight") else head[:, -1]
        return torch.from_numpy(values.copy()).to(tensor.dtype).reshape(tensor.shape)

    return edited(path, out, change)
