"""A new classifier that fits the features of the body it is put on, before the first step of
training.

    min over W, b   mean CE(W z + b, label) + λ/2 ‖W‖²,    z = (features − mean) / s,    s² = mean
    of features²

Convex, solved by L-BFGS from zero in float64: nothing is drawn. Features that hardly vary get no
large weights, which would not survive dropout. A classifier that starts at random first pulls the
body away from what it knows (Kumar et al., 2022).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from hydrasurgeon.data import Batches, moved
from hydrasurgeon.data.samples import UNLABELLED, Samples
from hydrasurgeon.decision.problems import SINGLE, known, problem_of
from hydrasurgeon.errors import UsageError
from hydrasurgeon.options.shared import Run
from hydrasurgeon.runtime.features import LiveModel, WithFeatures, last_layers
from hydrasurgeon.runtime.processes import own_device
from hydrasurgeon.runtime.tensors import device_of

PENALTY = 0.01
"""λ, how much large weights cost."""
MOST = 20_000
"""Samples that a classifier is fitted to at most, evenly spaced over the data."""
ITERATIONS = 200
"""Steps of L-BFGS at most."""


@torch.no_grad()
def probe(model: LiveModel, samples: Samples, run: Run) -> None:
    """Fit a single model's last layer to labelled samples, in place."""
    if samples.labels is None or not (np.asarray(samples.labels) != UNLABELLED).any():
        raise UsageError(
            "--set classifier=probe: is fitted to labels, and the data has none",
            hint="Give --set classifier=fresh.",
        )
    device = device_of(own_device(run.device))
    model.to(device).eval()
    order = np.unique(np.linspace(0, len(samples) - 1, MOST).round().astype(int))
    batches = Batches(
        samples, model.transform, batch_size=run.batch_size, order=order, skip_bad=run.skip_bad
    )
    read, labels = list[Tensor](), list[Tensor]()
    with_features = WithFeatures(model)
    for batch in batches:
        assert batch.labels is not None
        labelled = known(batch.labels)
        _, features = with_features(moved(batch.inputs, device))
        read.append(features[:, 0].cpu()[labelled].double())
        labels.append(batch.labels[labelled])
    (layers,), problem = last_layers(model), problem_of(model.manifest.model)
    # A distilled model has two classifiers side by side, each with features of its own.
    for layer, features in zip(layers, torch.cat(read).chunk(len(layers), dim=1), strict=True):
        assert isinstance(layer, nn.Linear)
        weight, bias = logistic(
            features,
            torch.cat(labels),
            layer.out_features,
            problem.losses,
            intercept=layer.bias is not None,
        )
        layer.weight.copy_(weight)
        if layer.bias is not None:
            layer.bias.copy_(bias)


def logistic(
    features: Float[Tensor, "row width"],
    labels: Tensor,
    classes: int,
    losses: Callable[[Tensor, Tensor], Tensor] = SINGLE.losses,
    *,
    intercept: bool = True,
) -> tuple[Float[Tensor, "klass width"], Float[Tensor, " klass"]]:
    """Weight and bias of the multinomial logistic regression."""
    mean = features.mean(dim=0) if intercept else features.new_zeros(features.shape[1])
    scale = features.square().mean().sqrt().clamp_min(torch.finfo(features.dtype).tiny)
    scaled = (features - mean) / scale
    weight, bias = features.new_zeros(classes, features.shape[1]), features.new_zeros(classes)
    solved = [weight.requires_grad_(), *([bias.requires_grad_()] if intercept else [])]
    solver = torch.optim.LBFGS(
        solved, max_iter=ITERATIONS, tolerance_change=1e-12, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        solver.zero_grad()
        value = (
            losses(scaled @ weight.T + bias, labels).mean() + PENALTY / 2 * weight.square().sum()
        )
        value.backward()  # type: ignore[no-untyped-call]
        return value

    with torch.enable_grad():
        solver.step(loss)  # type: ignore[no-untyped-call]
    made = weight.detach() / scale
    return made, bias.detach() - made @ mean
