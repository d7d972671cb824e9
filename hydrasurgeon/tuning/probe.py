"""A new classifier that fits the features of the body it is put on, before the first step of
training, or in its place.

    min over W, b   mean CE(W z + b, label) + λ/2 ‖W‖²,    z = (features − mean) / s,    s² = mean
    of features²

Convex, solved by L-BFGS in float64: nothing is drawn. With a validation set, λ is the one
with the least NLL there. Features that hardly vary get no large weights, which would
not survive dropout. A classifier that starts at random first pulls the body away from what it knows
(Kumar et al., 2022).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from hydrasurgeon.anatomy.word_logits import are_there
from hydrasurgeon.data import Batches, by_length, moved
from hydrasurgeon.data.folds import FOLDS, NO_FOLD, folds_of, some_of
from hydrasurgeon.data.samples import UNLABELLED, Samples
from hydrasurgeon.deadline import check_deadline
from hydrasurgeon.errors import UsageError
from hydrasurgeon.memo import digest_of, shared
from hydrasurgeon.options.shared import Run
from hydrasurgeon.runtime.answering import fed
from hydrasurgeon.runtime.features import LiveModel, WithFeatures, last_layers
from hydrasurgeon.runtime.processes import own_device
from hydrasurgeon.runtime.torch_tensors import device_of
from hydrasurgeon.tasks import SINGLE, task_of
from hydrasurgeon.tasks.base import Outputs
from hydrasurgeon.tuning.losses import losses_of

PENALTY = 0.01
"""λ, how much large weights cost, without a validation set."""
PENALTIES = (0.1, 0.03, 0.003, 0.001, 0.0003)
"""Further values of λ that a validation set chooses from."""
MOST = 20_000
"""Samples that a classifier is fitted to at most, chosen by a hash of their content."""
WORK = 1e11
"""Multiplications of a fit, about: many rows and classes get fewer steps."""
WORK_TOGETHER = 5e11
"""Multiplications of all fits of a cross-fitting."""
FEWEST_STEPS = 25
MANY = 4_000
"""Rows from which on a fit ends at a change of 1e-9 in place of 1e-12."""
SOME = 64
"""Samples that the length of features is measured on."""
ITERATIONS = 200
"""Steps of L-BFGS at most."""


Fit = tuple[Float[Tensor, "klass width"], Float[Tensor, " klass"]]
"""Weight and bias of a linear classifier."""


@dataclass(frozen=True)
class Probed:
    """Result of `probe`; that of no probe by default."""

    begin: Callable[[], None] = lambda: None
    """Puts the fit by `PENALTY` into the model, which training goes on from."""
    figures: Mapping[str, float] | None = None
    """Figures on the validation data, where its features give all of them."""


@torch.no_grad()
def probe(
    model: LiveModel,
    samples: Samples,
    held_out: Samples | None,
    run: Run,
    *,
    cross: bool = False,
    most: int = MOST,
) -> Probed:
    """Fit a single model's last layer to labelled samples, in place; its penalty is chosen on
    `held_out`, or by folds of the samples if it is to `cross`.

    Training goes on from the fit by `PENALTY`: a weaker penalty may generalise better, and leave no
    loss for the body to learn from.
    """
    if samples.labels is None or not (np.asarray(samples.labels) != UNLABELLED).any():
        raise UsageError(
            "--set classifier=probe: is fitted to labels, and the data has none",
            hint="Give labelled data; to learn from --teacher alone, --recipe text --set classifier=fresh.",
        )
    features, labels, rows = read(model, samples, run, most)
    (layers,), task = last_layers(model), task_of(model.manifest.model)
    losses = losses_of(task).losses

    def fitted(penalty: float, starts: Sequence[Fit | None]) -> list[Fit]:
        # A distilled model has two classifiers side by side, each with features of its own.
        parts = features.chunk(len(layers), dim=1)
        return [
            logistic(part, labels, layer, losses, penalty, start)
            for part, layer, start in zip(parts, layers, starts, strict=True)
        ]

    def put(fits: Sequence[Fit]) -> None:
        with torch.no_grad():
            for layer, (weight, bias) in zip(layers, fits, strict=True):
                layer.weight.copy_(weight)
                if layer.bias is not None:
                    layer.bias.copy_(bias)

    usual = best = fitted(PENALTY, [None] * len(layers))
    figures: Mapping[str, float] | None = None
    if held_out is not None:
        val_features, val_labels, _ = read(model, held_out, run)
        val_parts = val_features.chunk(len(layers), dim=1)

        def val_logits(fits: Sequence[Fit]) -> Tensor:
            pairs = zip(val_parts, fits, strict=True)
            return torch.stack([part @ weight.T + bias for part, (weight, bias) in pairs]).mean(0)

        def nll(fits: Sequence[Fit]) -> float:
            return float(losses(val_logits(fits), val_labels).mean())

        best = min((usual, *(fitted(penalty, usual) for penalty in PENALTIES)), key=nll)
        if task is SINGLE and len(layers) == 1 and len(val_labels) == len(held_out):
            values = task.validated(val_logits(best).numpy(), val_labels.numpy())
            figures = {f"val_{name}": value for name, value in values.items()}
    elif cross:
        check_one_layer(layers)
        penalty, _ = out_of_fold(features, labels, folds_of(samples)[rows], layers[0], losses)
        best = usual if penalty == PENALTY else fitted(penalty, usual)
    put(best)
    return Probed(partial(put, usual), figures)


def check_one_layer(layers: Sequence[nn.Module]) -> None:
    """Refuse to cross-fit what two classifiers answer together."""
    if len(layers) > 1:
        raise UsageError(
            "--val cross: the model has two classifiers side by side",
            hint="Give --val D, or no --val.",
        )


@torch.no_grad()
def out_of_fold(
    features: Float[Tensor, "row width"],
    labels: Tensor,
    folds: NDArray[np.int64],
    layer: nn.Linear,
    losses: Callable[[Tensor, Tensor], Tensor],
    penalties: Sequence[float] | None = None,
) -> tuple[float, Tensor]:
    """Return the penalty of least loss on rows that the fits do not see, and the logits that it gives
    them; those of rows without a fold stay 0. All penalties are tried unless some are given.
    """
    judged = torch.from_numpy(folds != NO_FOLD)
    penalties = penalties or (PENALTY, *PENALTIES)
    logits = features.new_zeros(len(penalties), len(features), layer.out_features)
    work = min(WORK, WORK_TOGETHER / (FOLDS * len(penalties)))
    for fold in range(FOLDS):
        held = torch.from_numpy(folds == fold)
        usual: Fit | None = None
        for number, penalty in enumerate(penalties):
            fit = logistic(features[~held], labels[~held], layer, losses, penalty, usual, work)
            usual = usual or fit
            logits[number, held] = features[held] @ fit[0].T + fit[1]
    means = [float(losses(part[judged], labels[judged]).mean()) for part in logits]
    best = int(np.argmin(means))
    return penalties[best], logits[best].clone()


def cross_fitted(
    model: LiveModel,
    outputs: Outputs,
    samples: Samples,
    penalties: Sequence[float] | None = None,
) -> Outputs:
    """Return the outputs of a probe on the samples that it was fitted to, with the logits of
    classifiers that were fitted to the other folds; rows without a fold are left out.
    """
    (layers,), task = last_layers(model), task_of(model.manifest.model)
    check_one_layer(layers)
    assert outputs.features is not None
    assert samples.written is not None
    folds = folds_of(samples)
    features = torch.from_numpy(outputs.features[:, 0].astype(np.float64))
    truth = torch.from_numpy(np.asarray(samples.written.held))
    losses = losses_of(task).losses

    def key() -> tuple[Hashable, ...]:
        digest = digest_of([features.numpy(), truth.numpy(), folds])
        return task.name, penalties, outputs.logits.shape, layers[0].bias is None, digest

    _, logits = shared(
        "logits of a probe in folds",
        key,
        lambda: out_of_fold(features, truth, folds, layers[0], losses, penalties),
    )
    shape = outputs.logits.shape
    answers = logits.numpy().reshape(shape).astype(outputs.logits.dtype)
    return replace(outputs, logits=answers).at(np.flatnonzero(folds != NO_FOLD))


def read(
    model: LiveModel, samples: Samples, run: Run, most: int = MOST
) -> tuple[Float[Tensor, "row width"], Tensor, NDArray[np.int64]]:
    """Return the features that the classifiers read of labelled samples, the labels, and the number of each sample."""
    device = device_of(own_device(run.device))
    model.to(device).eval()
    order = some_of(samples, most)
    longest = by_length(samples)
    if longest is not None:  # so that batches hold little padding
        order = longest[np.isin(longest, order)]
    batches = Batches(
        samples, model.transform, batch_size=run.batch_size, order=order, skip_bad=run.skip_bad
    )
    features_of = WithFeatures(model, each_word=True)
    features, labels, numbers = list[Tensor](), list[Tensor](), list[Tensor]()
    for batch in fed(batches, run.but(progress=None), module=model):
        assert batch.truth is not None
        rows, truth = features_of(batch.inputs)[1][:, 0].cpu(), batch.truth
        labelled = losses_of(task_of(model.manifest.model)).is_labelled(truth)
        if rows.dim() == 3:
            truth = truth[:, : rows.shape[1]]
            labelled = are_there(rows) & (truth != UNLABELLED)
        features.append(rows[labelled].double())
        labels.append(truth[labelled])
        index = torch.as_tensor(batch.index).cpu()
        numbers.append(index if rows.dim() == 2 else index[:, None].expand(labelled.shape))
        numbers[-1] = numbers[-1][labelled.cpu()]
    rows, truth, index = torch.cat(features), torch.cat(labels), torch.cat(numbers)
    # Texts hold many words.
    kept = torch.linspace(0, len(rows) - 1, min(len(rows), 2 * MOST)).round().long()
    return rows[kept], truth[kept], index[kept].numpy()


@torch.no_grad()
def feature_length(model: LiveModel, samples: Samples, run: Run) -> float:
    """Return the mean length of the features that the classifiers read."""
    device = device_of(own_device(run.device))
    model.to(device).eval()
    order = np.unique(np.linspace(0, len(samples) - 1, SOME).round().astype(int))
    (batch, *_) = Batches(
        samples, model.transform, batch_size=SOME, order=order, skip_bad=run.skip_bad
    )
    features = WithFeatures(model)(moved(batch.inputs, device))[1]
    return float(features.norm(dim=-1).mean())


def logistic(
    features: Float[Tensor, "row width"],
    labels: Tensor,
    layer: nn.Linear,
    losses: Callable[[Tensor, Tensor], Tensor] = losses_of(SINGLE).losses,
    penalty: float = PENALTY,
    start: Fit | None = None,
    work: float = WORK,
) -> Fit:
    """Fit a multinomial logistic regression in the shape of a layer. A start at another fit takes
    fewer steps.
    """
    intercept = layer.bias is not None
    mean = features.mean(dim=0) if intercept else features.new_zeros(features.shape[1])
    scale = features.square().mean().sqrt().clamp_min(torch.finfo(features.dtype).tiny)
    scaled = (features - mean) / scale
    weight = features.new_zeros(layer.out_features, features.shape[1])
    bias = features.new_zeros(layer.out_features)
    if start is not None:
        weight, bias = start[0] * scale, start[1] + start[0] @ mean
    solved = [weight.requires_grad_(), *([bias.requires_grad_()] if intercept else [])]
    steps = int(work / max(1, len(features) * weight.numel()))
    steps = min(max(steps, FEWEST_STEPS), ITERATIONS)
    least_change = 1e-12 if len(features) < MANY else 1e-9
    # With several threads, scipy's L-BFGS waits for those of torch: a fit takes three times as long.
    solver = torch.optim.LBFGS(
        solved, max_iter=steps, tolerance_change=least_change, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        check_deadline()
        solver.zero_grad()
        value = (
            losses(scaled @ weight.T + bias, labels).mean() + penalty / 2 * weight.square().sum()
        )
        value.backward()  # type: ignore[no-untyped-call]
        return value

    with torch.enable_grad():
        solver.step(loss)  # type: ignore[no-untyped-call]
    unscaled = weight.detach() / scale
    return unscaled, bias.detach() - unscaled @ mean
