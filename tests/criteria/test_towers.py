"""Circuits over both towers of a CLIP, against Algorithm 1 written out, and what shares their work."""

from __future__ import annotations

from copy import deepcopy
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from slow_circuits import everything, greedy, points
from tiny_families import CLIP, HEADS, LAYERS, NAMES, write_clip

import hydrasurgeon as hs
from hydrasurgeon.anatomy.hooks import ablated
from hydrasurgeon.criteria.circuits.engine import TwoTowerEngine, circuit_engine, numbered
from hydrasurgeon.criteria.circuits.objective import Held, Objective, Problem
from hydrasurgeon.heads import Head

TEMPLATES = ("A photo of a {label}.", "{label}, drawn badly by somebody")
TOWERS = ("vision", "text")
ALL = [Head(t, la, h) for t in TOWERS for la in range(LAYERS) for h in range(HEADS)]


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    write_clip(tmp_path / "clip")
    hs.score(tmp_path / "clip", method="random", classes=",".join(NAMES), template=TEMPLATES)
    return tmp_path / "clip"


def pictures(folder: Path, name: str, rows: int, seed: int, *, labels: bool = True) -> str:
    rng = np.random.default_rng(seed)
    truth = np.arange(rows) % len(NAMES)
    pixels = rng.integers(0, 100, (rows, 28, 28, 3), dtype=np.uint8)
    for i, label in enumerate(truth):
        pixels[i, 9 * label : 9 * label + 9] = 230
    np.savez(folder / name, images=pixels, **({"labels": truth} if labels else {}))
    return str(folder / name)


@pytest.fixture
def sets(tmp_path: Path) -> dict[str, Any]:
    data = pictures(tmp_path, "id.npz", 30, 0)
    ood = pictures(tmp_path, "ood.npz", 17, 5, labels=False)
    return {"data": data, "ood": [ood], "batch_size": 7, "device": "cpu"}


def algorithm_1(
    path: Path, sets: dict[str, Any], objective: str, budget: int, left: list[Head] = ALL
) -> tuple[list[Head], list[float]]:
    """Zero W_O's columns in either tower, run the whole model, restore."""
    model = hs.load(path, device="cpu")
    clip = model.module.model
    stacks = {"vision": clip.visual.transformer, "text": clip.transformer}
    (x, y), (foreign, _) = (
        everything(spec, model.transform) for spec in (sets["data"], *sets["ood"])
    )

    def columns(head: Head) -> torch.Tensor:
        # Not `.data`: the model would not notice, and keep its class features.
        weight = stacks[head.tower].resblocks[head.layer].attn.out_proj.weight.detach()
        return weight[:, 8 * head.number : 8 * head.number + 8]

    @torch.no_grad()
    def worth(removed: list[Head]) -> Fraction:
        saved = [columns(head).clone() for head in removed]
        for head in removed:
            columns(head).zero_()
        logits, outside = (
            torch.cat([model(b)[:, 0] for b in s.split(7)]).double() for s in (x, foreign)
        )
        for head, weight in zip(removed, saved, strict=True):
            columns(head).copy_(weight)
        right = Fraction(int((logits.argmax(-1) == y).sum()), len(y))
        # ln (1 − p), summed over the others: 1 − p itself would round to 0 for sure samples.
        scores = (
            z.log_softmax(-1).sort(-1).values[:, :-1].logsumexp(-1) for z in (logits, outside)
        )
        return points(objective, right, *scores)

    return greedy(left, budget, worth)


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["acc", "ood", "avg"])
def test_the_search_is_algorithm_1_over_both_towers(
    clip: Path, sets: dict[str, Any], objective: str
) -> None:
    order, trace = algorithm_1(clip, sets, objective, 6)
    assert objective == "acc" or {head.tower for head in order} == set(TOWERS)
    score = hs.score(clip, method="circuit", objective=objective, remove=6, **sets).result
    assert list(score.order or ()) == order
    assert score.trace == pytest.approx(trace, abs=1e-9)
    assert len(score.settings["templates_sha256"]) == 64


@pytest.mark.slow
@pytest.mark.parametrize("tower", ["text", "vision"])
def test_one_tower_alone(clip: Path, sets: dict[str, Any], tower: str, tmp_path: Path) -> None:
    order, _ = algorithm_1(clip, sets, "avg", 4, [head for head in ALL if head.tower == tower])
    score = hs.score(clip, method="circuit", tower=tower, remove=4, **sets).result
    assert list(score.order or ()) == order
    assert score.settings["tower"] == tower
    kept = hs.prune(clip, method="circuit", keep=3, out=tmp_path / "k.safetensors").manifest.kept
    assert kept is not None
    gone = {head for head in ALL if head.number not in kept[head.tower][head.layer]}
    assert gone == set(order[:3])  # three a layer on average, in the tower that was searched


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"text_cfg": {"no_causal_mask": True, "proj_bias": True}},
        {"text_cfg": {"pool_type": "last", "ls_init_value": 0.5}, "init_logit_bias": -3.0},
        {"vision_cfg": {"pool_type": "avg"}, "text_cfg": {"pool_type": "first"}},
    ],
)
def test_the_engine_computes_what_the_model_computes(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    """In float64: the present circuit and it without each other head of either tower."""
    config = deepcopy(CLIP)
    for key, value in changes.items():
        config[key] = {**config[key], **value} if isinstance(value, dict) else value
    write_clip(tmp_path / "c", config=config)
    # Names of unequal length: texts end in different places.
    names = "cat,a very long name of a bird,dog"
    model = hs.load(
        tmp_path / "c", classes=names, template=TEMPLATES, device="cpu", dtype="float64"
    )
    from hydrasurgeon.families.open_clip.family import OpenCLIP

    anatomy = OpenCLIP().anatomy(model.module)
    x = torch.randn(9, 3, 28, 28, generator=torch.Generator().manual_seed(1)).double()
    held, none = numbered(*(Held.of(b, x.device, x.dtype) for b in ([x[:5], x[5:]], [])))
    problem = Problem(
        module=model.module,
        anatomy=anatomy,
        id_inputs=held,
        labels=torch.zeros(9).long(),
        ood_inputs=none,
        objective=Objective("acc", 9, 0),
        candidates=tuple(ALL),
        batch_size=4,
        together=5,
    )
    engine = circuit_engine(problem)
    assert isinstance(engine, TwoTowerEngine)
    gone = [
        Head("vision", 1, 0),
        Head("text", 0, 2),
        Head("text", 2, 1),
        *(Head("text", 1, h) for h in range(4)),
    ]
    with torch.inference_mode():
        engine.remove(gone)
        part = torch.tensor([6, 0, 3])
        left = problem.left(gone)
        found = engine.without_each(held.take(part), left)
        for head, logits in zip(left, found, strict=True):
            with ablated(anatomy.sites, [*gone, head]):
                torch.testing.assert_close(logits, model(x[part])[:, 0], rtol=0, atol=1e-11)
        with ablated(anatomy.sites, gone):
            expected = model(x[part])[:, 0]
        torch.testing.assert_close(engine.present(held.take(part)), expected, rtol=0, atol=1e-11)
    assert (found - expected).abs().amax(dim=(1, 2)).min() > 1e-6  # every head matters
