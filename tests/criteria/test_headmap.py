"""HeadMap against its definition, written out: one pass of the model for each head."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

import hydrasurgeon as hs
from hydrasurgeon.data import Batches, open_data
from hydrasurgeon.heads import Head

MAKE = Callable[..., Path]
SPEC = Callable[..., str]


def by_definition(
    loss: Callable[[list[Head]], float], places: list[tuple[str, int]], heads: int, share: int
) -> tuple[dict[tuple[str, int], list[float]], list[Head]]:
    """L(C and h) - L(C), layer after layer; C grows by the best `share` heads of each."""
    circuit: list[Head] = []
    scores = {}
    for tower, layer in places:
        whole = loss(circuit)
        row = [loss([*circuit, Head(tower, layer, h)]) - whole for h in range(heads)]
        scores[tower, layer] = row
        best = sorted(range(heads), key=lambda h: row[h], reverse=True)[:share]
        circuit = circuit + [Head(tower, layer, h) for h in best]
    return scores, circuit


def test_it_is_the_definition(tiny: MAKE, images: SPEC) -> None:
    """Slow version: W_O's columns are zeroed in timm's own module."""
    path, spec = tiny(), images()
    model = hs.load(path, device="cpu")
    samples = open_data(spec)
    (batch,) = Batches(samples, model.transform, batch_size=len(samples))

    @torch.no_grad()
    def loss(gone: list[Head]) -> float:
        outs = [block.attn.proj.weight for block in model.module.blocks]
        before = [weight.clone() for weight in outs]
        for head in gone:
            outs[head.layer][:, head.number * 8 : head.number * 8 + 8] = 0
        value = float(cross_entropy(model.module(batch.inputs), batch.labels))
        for weight, whole in zip(outs, before, strict=True):
            weight.copy_(whole)
        return value

    expected, circuit = by_definition(loss, [("vision", la) for la in range(3)], 4, 1)
    score = hs.score(path, method="headmap", data=spec, batch_size=7).result
    assert score.values is not None
    for layer in range(3):
        assert score.values["vision"][layer] == pytest.approx(
            expected["vision", layer], rel=1e-3, abs=1e-6
        )
    assert score.settings["circuit"] == [list(head) for head in circuit]
    alone, _ = by_definition(loss, [("vision", 2)], 4, 1)
    assert alone["vision", 2] != pytest.approx(expected["vision", 2], rel=1e-2)


def test_layers_confine_the_circuit(tiny: MAKE, images: SPEC) -> None:
    path, spec = tiny(), images()
    late = hs.score(path, method="headmap", data=spec, layers="1-2").result
    assert {layer for _, layer, _ in late.settings["circuit"]} == {1, 2}
    whole = hs.score(path, method="headmap", data=spec).result
    assert late.values is not None
    assert whole.values is not None
    assert late.values["vision"][0] == whole.values["vision"][0]
    assert late.values["vision"][1] != whole.values["vision"][1]
