"""OOD scores of many labels, each a choice between no and yes with the logits 0 and z; higher = more unfamiliar.

msp 1 − max p over labels · entropy Σ H(p) · mi Σ of the labels' · energy −Σ T ln(1 + e^(z/T)), the joint energy (Wang
et al., NeurIPS 2021) · max-logit −max z; the last two are means over the members.
"""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor

from hydrasurgeon.decision.probabilities import Scores, entropy, mean_probs, member_probs

Choices = Float[Tensor, "sample member label 2"]


def _mutual_information(logits: Choices) -> Scores:
    probs = member_probs(logits)
    return (entropy(probs.mean(dim=1)) - entropy(probs).mean(dim=1)).clamp_min(0.0).sum(dim=-1)


ON_LABELS: dict[str, Callable[[Choices, float], Scores]] = {
    "msp": lambda logits, t: 1 - mean_probs(logits, t)[..., 1].amax(dim=-1),
    "entropy": lambda logits, t: entropy(mean_probs(logits, t)).sum(dim=-1),
    "energy": lambda logits, t: -(t * (logits.double() / t).logsumexp(dim=-1)).sum(dim=-1).mean(dim=1),
    "max-logit": lambda logits, t: -logits.double()[..., 1].mean(dim=1).amax(dim=-1),
    "mi": lambda logits, t: _mutual_information(logits),
}
"""Score → what it makes of choices and a temperature."""
