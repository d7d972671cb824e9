"""Criteria by one backward pass, against obvious versions with one for each sample."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from slow_circuits import problem_of, slow_attribution
from tiny_families import FAMILIES
from torch.nn.functional import cross_entropy

import hydrasurgeon as hs
from hydrasurgeon.anatomy.hooks import masked
from hydrasurgeon.criteria.circuits.attribution import Attribution, first_order
from hydrasurgeon.criteria.circuits.objective import measure, outcomes_of
from hydrasurgeon.criteria.circuits.search import extract
from hydrasurgeon.data import Batches, open_data
from hydrasurgeon.errors import SurgeryError
from hydrasurgeon.heads import Head

MAKE = Callable[..., Path]
SPEC = Callable[..., str]


@pytest.fixture
def data(images: SPEC) -> tuple[str, str]:
    return images(rows=20), images("ood.npz", rows=15, seed=5, labels=False)


def test_effects_are_slopes(tiny: MAKE, data: tuple[str, str]) -> None:
    """Against finite differences in float64."""
    problem = problem_of(tiny(), *data, dtype=torch.float64)
    answers, changes = first_order(problem)
    step, present = 1e-5, outcomes_of(problem, ())
    for head in (Head("vision", 2, 3), Head("vision", 1, 2)):
        moved = []
        for by in (step, -step):
            factors = {
                (s.tower, s.layer): torch.tensor(
                    [1 + by * (head == (s.tower, s.layer, h)) for h in s.heads], dtype=torch.float64
                )
                for s in problem.sites
            }
            with masked(problem.sites, factors):
                moved.append(outcomes_of(problem, ()))
        row = problem.candidates.index(head)
        for name in ("margin", "familiar", "ood_certainty"):
            torch.testing.assert_close(
                getattr(answers, name), getattr(present, name)[0], rtol=0, atol=1e-12
            )
            slope = (getattr(moved[0], name) - getattr(moved[1], name))[0] / (2 * step)
            torch.testing.assert_close(
                getattr(changes, name)[row].double(), -slope, rtol=1e-5, atol=1e-6
            )


@pytest.mark.parametrize(
    "objective", ["avg", *(pytest.param(o, marks=pytest.mark.slow) for o in ("acc", "ood"))]
)
def test_attribution_is_greedy_over_predicted_answers(
    tiny: MAKE, data: tuple[str, str], objective: Any
) -> None:
    path = tiny()
    expected = slow_attribution(path, *data, objective, 8)
    problem = problem_of(path, *data, objective)
    circuit = extract(problem, Attribution(problem), budget=8)
    assert list(circuit.order) == expected
    assert circuit.start == problem.objective.value(measure(problem, ()))
    for at, value in enumerate(circuit.trace, 1):
        assert value == problem.objective.value(measure(problem, expected[:at]))


def test_heads_that_samples_do_not_run_through(tiny: MAKE, data: tuple[str, str]) -> None:
    problem = problem_of(tiny(), *data)
    other = replace(problem, candidates=(*problem.candidates, Head("text", 0, 0)))
    with pytest.raises(
        SurgeryError, match=r"--search attribution: no data runs through tower text"
    ) as caught:
        Attribution(other)
    assert "--tower vision" in str(caught.value.hint)


ARCH = "timm:vit_tiny_patch16_224,img_size=28,patch_size=7,in_chans=1,embed_dim=64,depth=6,num_heads=8,num_classes=8"


def test_gradient_is_its_definition(tiny: MAKE, images: SPEC) -> None:
    """Slow version: W_O's columns are scaled by a mask in timm's own module, sample by sample."""
    path, spec = tiny(), images()
    model = hs.load(path, device="cpu")
    samples = open_data(spec)
    (batch,) = Batches(samples, model.transform, batch_size=len(samples))
    masks = [torch.ones(4, requires_grad=True) for _ in model.module.blocks]
    hooks = [
        block.attn.proj.register_forward_pre_hook(
            lambda _, args, mask=mask: (args[0] * mask.repeat_interleave(8),)
        )
        for block, mask in zip(model.module.blocks, masks, strict=True)
    ]
    expected = [torch.zeros(4) for _ in masks]
    for image, label in zip(batch.inputs, batch.labels, strict=True):
        loss = cross_entropy(model.module(image[None]), label[None])
        for total, gradient in zip(expected, torch.autograd.grad(loss, masks), strict=True):
            total += gradient.abs() / len(samples)
    for hook in hooks:
        hook.remove()
    score = hs.score(path, method="gradient", data=spec, batch_size=7).result
    assert score.values is not None
    for row, total in zip(score.values["vision"], expected, strict=True):
        assert row == pytest.approx(total.tolist(), rel=1e-4, abs=1e-8)


@pytest.mark.slow
def test_gates_close_a_head_that_does_nothing(tmp_path: Path) -> None:
    """Nothing but the penalty moves the gate of a head whose output projection is zero."""
    tensors = load_file(str(files("hydrasurgeon") / "demo" / "backbone.safetensors"))
    tensors["blocks.1.attn.proj.weight"][:, 16:24] = 0
    path = tmp_path / "made.safetensors"
    save_file(tensors, path, {"format": "pt"})
    about = {"arch": ARCH, "data": "demo:val", "limit": 300, "device": "cpu"}
    first = hs.score(path, method="gates", **about, out=tmp_path / "a.safetensors").result
    again = hs.score(path, method="gates", **about, out=tmp_path / "b.safetensors").result
    assert first.values is not None
    assert first.values == again.values  # the draws follow from the seed
    heads = {
        (layer, head): value
        for layer, row in enumerate(first.values["vision"])
        for head, value in enumerate(row)
    }
    assert min(heads, key=lambda place: heads[place]) == (1, 2)


@pytest.mark.parametrize("method", ["gradient", "gates"])
def test_a_tower_without_data_is_refused(method: str, tmp_path: Path) -> None:
    """The text tower of CLIP runs on class names, not on the rows of the data."""
    family = FAMILIES["OpenCLIP"]
    family.write(tmp_path / "clip")
    with pytest.raises(SurgeryError, match="no data runs through tower text"):
        hs.score(tmp_path / "clip", method=method, data=family.data(tmp_path), out=tmp_path / "o")
