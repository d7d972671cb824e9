"""HeadMap: the rise of the mean loss when a head is off, layer after layer, with the circuit of the
layers before off too.

Layer-conditioned locating of "HeadMap: Locating and Enhancing Knowledge Circuits in LLMs" (Wang et
al., ICLR 2025):

    s_h = L(C ∪ {h}) − L(C)

L(S) is the mean loss with the heads S off. C holds the circuit of the layers before: of each, the
quarter of its heads that scored highest. Within a layer the order is that of L(C ∪ {h}), which is
HeadMap's own; L(C) makes layers comparable.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from hydrasurgeon.anatomy.hooks import ablated
from hydrasurgeon.anatomy.parts import Attention
from hydrasurgeon.criteria.base import Subject, Verdict
from hydrasurgeon.heads import Head

SHARE = 4
"""One head in so many of a layer belongs to the circuit, as in HeadMap: 8 of 32."""


def score(subject: Subject) -> Verdict:
    model, sites = subject.module, subject.sites
    circuit: list[Head] = []
    scores = {}
    for site in sites:
        heads = [Head(site.tower, site.layer, number) for number in site.heads]
        start, *losses = _losses(subject, model, sites, circuit, heads) if heads else [0.0]
        rises = scores[site.tower, site.layer] = [loss - start for loss in losses]
        if site.layer in subject.layers:
            by_rise = sorted(range(len(heads)), key=lambda i: -rises[i])
            circuit += [heads[i] for i in by_rise[: -(-len(heads) // SHARE)]]
    return Verdict(scores, {"circuit": [list(head) for head in circuit]})


@torch.inference_mode()
def _losses(
    subject: Subject,
    model: nn.Module,
    sites: Sequence[Attention],
    circuit: Sequence[Head],
    heads: Sequence[Head],
) -> list[float]:
    """Return the mean loss without the circuit, then without each of the heads besides.

    One pass over the data.
    """
    totals = [0.0] * (1 + len(heads))
    for inputs, labels in subject.batches(f"losses of layer {heads[0].layer}"):
        for at, more in enumerate(((), *((head,) for head in heads))):
            with ablated(sites, (*circuit, *more)):
                losses = subject.losses(model(inputs), labels)
            totals[at] += float(losses.double().sum())
    return [total / subject.samples for total in totals]
