"""OOD scores in torch, in float64, for graphs that decide: what `statistics.scores` computes in
numpy, which a test holds them against.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn.functional import normalize

from hydrasurgeon.decision.state import State
from hydrasurgeon.errors import SurgeryError
from hydrasurgeon.files.decided import LOGITS
from hydrasurgeon.runtime.kinds import entropy, kind_of

Fit = Mapping[str, Tensor]
Terms = Callable[[Tensor], Tensor]


def _informed(z: Tensor) -> Tensor:
    """Return the probabilities, with their entropy in a last column."""
    probs = z.softmax(dim=-1)
    return torch.cat([probs, entropy(probs)[..., None]], dim=-1)


OF_LOGITS: dict[str, tuple[Terms, Terms]] = {
    "msp": (lambda z: z.softmax(dim=-1), lambda means: 1 - means.amax(dim=-1)),
    "entropy": (lambda z: z.softmax(dim=-1), entropy),
    "energy": (lambda z: -z.logsumexp(dim=-1, keepdim=True), lambda means: means[..., 0]),
    "max-logit": (lambda z: z, lambda means: -means.amax(dim=-1)),
    "mi": (_informed, lambda m: (entropy(m[..., :-1]) - m[..., -1]).clamp_min(0.0)),
}
"""Two functions for each score: of a member's logits, whose results are averaged over members, and
of these averages.
"""


def ood_score(state: State, logits: Tensor, features: Tensor | None) -> Tensor:
    """Return the OOD score that a decision state uses."""
    kind, task = state.record.ood.score, state.task
    choices = kind_of(task).read(logits)
    if kind in OF_LOGITS:
        return _of_logits(kind, choices)
    fitted = state.fitted
    if fitted is None or features is None or kind not in OF_FEATURES:
        raise SurgeryError(
            f"a graph cannot compute the OOD score {kind}",
            hint="Calibrate with another --ood-score.",
        )
    scores = []
    for member, (fit, standard) in enumerate(zip(fitted.fits, fitted.standards, strict=True)):
        parts = {name: torch.as_tensor(part).double() for name, part in fit.items()}
        x, z = features[:, member].double(), choices[:, member].double()
        score = (
            _knn(parts, x, fitted.neighbours) if kind == "knn" else OF_FEATURES[kind](parts, x, z)
        )
        scores.append((score - standard.mean) / standard.deviation)
    return torch.stack(scores).mean(dim=0)


def _of_logits(kind: str, choices: Tensor) -> Tensor:
    terms, score = OF_LOGITS[kind]
    means = terms(choices.double()).mean(dim=1)
    if means.dim() == 2:
        return score(means)
    if choices.shape[-1] > 2:
        there = (choices[:, 0] != choices[:, 0, :, :1]).any(dim=-1)
        return (score(means) * there).sum(dim=-1) / there.sum(dim=-1).clamp_min(1)
    if LOGITS[kind] == "likeliest":
        return score(means[..., 1:]).amin(dim=-1)
    return score(means).sum(dim=-1)


def _nearest(fit: Fit, features: Tensor) -> Tensor:
    x, means = (features - fit["centre"]) @ fit["factor"], fit["means"]
    crossed = means.square().sum(dim=-1) - 2 * x @ means.T
    return (x.square().sum(dim=-1) + crossed.amin(dim=-1)).clamp_min(0.0)


def _relative(fit: Fit, x: Tensor, z: Tensor) -> Tensor:
    return _nearest(fit, x) - ((x - fit["centre"]) @ fit["background"]).square().sum(dim=-1)


def _residual(fit: Fit, x: Tensor, z: Tensor) -> Tensor:
    return ((x - fit["origin"]) @ fit["rest"]).norm(dim=-1)


def _knn(fit: Fit, x: Tensor, neighbours: int) -> Tensor:
    similarity = normalize(x, dim=-1) @ fit["bank"].T
    kth = similarity.topk(neighbours, dim=-1).values[:, -1]
    return torch.sqrt((2 - 2 * kth).clamp_min(0.0))


OF_FEATURES: dict[str, Callable[[Fit, Tensor, Tensor], Tensor]] = {
    "mds": lambda fit, x, z: _nearest(fit, x),
    "rmds": _relative,
    "maha++": lambda fit, x, z: _nearest(fit, normalize(x, dim=-1)),
    "residual": _residual,
    "vim": lambda fit, x, z: fit["alpha"] * _residual(fit, x, z) - z.logsumexp(dim=-1),
    "knn": lambda fit, x, z: _knn(fit, x, 50),
    "mcm": lambda fit, x, z: (
        1 - (normalize(x, dim=-1) @ fit["classes"].T).softmax(dim=-1).amax(dim=-1)
    ),
}
"""Scores that are fitted to features, of one member."""
