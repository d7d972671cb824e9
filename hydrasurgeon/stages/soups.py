"""Which fine-tunings, and how much of their start, go into a mean: as validation data say.

Model soups (Wortsman et al., 2022), and their way between start and fine-tuning (WiSE-FT).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hydrasurgeon.checkpoints.reading import Single
from hydrasurgeon.options.making import FuseOptions
from hydrasurgeon.runtime.answering import logits_of
from hydrasurgeon.runtime.classifier import as_classifier
from hydrasurgeon.statistics.temperature import nll_of, temperature_of
from hydrasurgeon.surgery.means import mean_model

if TYPE_CHECKING:
    from hydrasurgeon.data import Samples

STEPS = 10
"""In how many steps the start's fraction is tried, from none to almost all."""


def chosen(
    models: Sequence[Single],
    digests: Sequence[dict[str, str]],
    start: Single | None,
    samples: Samples,
    arguments: FuseOptions,
) -> tuple[Single, tuple[float, ...]]:
    """The mean with the least NLL, each at the temperature that fits it best, and how much of each
    model, the start last, is in it.

    Greedy goes through the models from the best on and keeps those that make the mean better.
    """

    def made(some: Sequence[int], away: float = 0.0) -> Single:
        hashes = [*(digests[i] for i in some), *digests[len(models) :]]
        return mean_model([models[i] for i in some], hashes, start, away)[0]

    def loss(some: Sequence[int], away: float = 0.0) -> float:
        model = as_classifier(made(some, away), device=arguments.device, dtype=arguments.dtype)
        logits, labels = logits_of([model], samples, arguments)
        assert labels is not None
        rows, truth = model.problem.labelled(logits, labels)
        return nll_of(rows, truth, temperature_of(rows, truth))

    some = list(range(len(models)))
    if arguments.soup == "greedy":
        alone = {i: loss([i]) for i in some}
        first, *others = sorted(some, key=alone.__getitem__)
        some, least = [first], alone[first]
        for i in others:
            tried = sorted([*some, i])
            with_it = loss(tried)
            if with_it < least:
                some, least = tried, with_it
    away = 0.0
    if start is not None:
        fractions = [step / STEPS for step in range(STEPS)]
        away = min(fractions, key=lambda fraction: loss(some, fraction))
    weights = [(i in some) * (1 - away) / len(some) for i in range(len(models))]
    return made(some, away), (*weights, *[away] * (start is not None))
