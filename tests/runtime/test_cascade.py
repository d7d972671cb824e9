"""Two stages against a plain loop: one row at a time, one member's own module at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from runtime_states import STANDARDS, cascade_by, lac
from runtime_states import state as made_state
from tiny_families import FAMILIES, Family, thoroughly
from tiny_members import members_of, tuned_of

import hydrasurgeon as hs
from hydrasurgeon.decision.state import State
from hydrasurgeon.errors import CheckpointError
from hydrasurgeon.runtime.answering import outputs_in_stages
from hydrasurgeon.runtime.features import WithFeatures
from hydrasurgeon.statistics.scores.fitted import EnsembleScore
from hydrasurgeon.statistics.scores.on_features import on_features

ROWS = 7
VIT = FAMILIES["timm ViT"]


def hydra(
    folder: Path, family: Family, *, tuned: bool = True, dtype: str = "float64"
) -> hs.Classifier:
    family.write(folder / "source")
    parts = members_of(folder / "source", family, folder)
    if tuned:
        parts = tuned_of(parts, folder)
    fused = hs.fuse(parts, out=folder / "hydra.safetensors", mlp="separate")
    return hs.load(fused.path, device="cpu", dtype=dtype)


def state(threshold: float, unfamiliar: float = 1.0) -> State:
    """Other numbers for rows that the first answers than for those that go on."""
    cascade = cascade_by(threshold, temperature=1.7, conformal=lac(0.55, 0.8))
    return made_state(
        threshold=unfamiliar, temperature=0.8, conformal=lac(0.7, 0.8), cascade=cascade
    )


def at(inputs: Any, rows: list[int]) -> Any:
    if isinstance(inputs, dict):
        return {name: value[rows] for name, value in inputs.items()}
    return inputs[rows]


@torch.inference_mode()
def by_hand(model: hs.Classifier, inputs: Any) -> torch.Tensor:
    """Logits [row, member, class], each of its own module, without what only padding adds."""
    rows = [at(inputs, [row]) for row in range(ROWS)]
    return torch.stack([torch.cat([each(row) for each in model.module.members]) for row in rows])


def certainty(logits: torch.Tensor) -> torch.Tensor:
    return (logits[:, 0] / 1.7).softmax(-1).amax(-1)


def middle(values: torch.Tensor) -> float:
    """With three rows below it."""
    ordered = values.sort().values
    return float(ordered[2] + ordered[3]) / 2


def quickly(model: hs.Classifier, inputs: Any, count: int = ROWS) -> list[torch.Tensor]:
    found: dict[int, torch.Tensor] = {}
    for part in outputs_in_stages(model, inputs, features=False):
        assert part.logits.shape[1] == (1 if part.first else 3)
        found |= dict(zip(part.rows.tolist(), part.logits, strict=True))
    assert sorted(found) == list(range(count))
    return [found[row] for row in range(count)]


@pytest.mark.parametrize("family", thoroughly())
def test_every_family_answers_as_a_loop_over_rows(family: Family, tmp_path: Path) -> None:
    model = hydra(tmp_path, family, tuned=False)
    inputs = family.inputs(ROWS, torch.float64)
    slow = by_hand(model, inputs)
    bound = middle(certainty(slow))
    model.state = state(bound)
    for mode in ("stacked", "apart"):
        model.module.mode = mode
        for row, quick in enumerate(quickly(model, inputs)):
            some = slow[row] if certainty(slow)[row] < bound else slow[row, :1]
            torch.testing.assert_close(quick, some, rtol=0, atol=1e-10)


def test_decisions_are_those_of_the_stage(tmp_path: Path) -> None:
    """What is unfamiliar to the first goes on too, and the whole model says whether it is."""
    model = hydra(tmp_path, VIT)
    inputs = VIT.inputs(ROWS, torch.float64)
    slow = by_hand(model, inputs)
    unsure = 1 - slow[:, 0].softmax(-1).amax(-1)
    unfamiliar = float(unsure.sort().values[-2:].mean())
    bound = middle(certainty(slow))
    model.state = state(bound, unfamiliar)
    going = (certainty(slow) < bound) | (unsure > unfamiliar)
    found = model.decide(inputs)
    assert found.members_run.tolist() == [3 if goes else 1 for goes in going]
    for row, logits in enumerate(slow):
        some, temperature = (logits, 0.8) if going[row] else (logits[:1], 1.7)
        mean = some.softmax(-1).mean(0)
        expected = (mean.log() / temperature).softmax(-1)
        np.testing.assert_allclose(found.probabilities[row], expected, rtol=0, atol=1e-6)
        assert float(found.ood_score[row]) == pytest.approx(1 - float(mean.max()), abs=1e-6)
        assert bool(found.unfamiliar[row]) == (1 - float(mean.max()) > unfamiliar)
        assert found.sets[row].tolist() == (1 - expected <= 0.55 + 1e-9).tolist()
    assert not found.unfamiliar[~going.numpy()].any()
    each = torch.where(going[:, None], slow.softmax(-1).mean(1), slow[:, 0].softmax(-1))
    torch.testing.assert_close(model.predict(inputs, cascade=True), each.float(), rtol=0, atol=1e-6)
    plain = model.decide(inputs, cascade=False)
    assert plain.members_run.tolist() == [3] * ROWS


def test_a_score_of_features_sends_rows_on(tmp_path: Path) -> None:
    """Of the first member by its own fit, of the whole model by the mean of all."""
    model = hydra(tmp_path, VIT, dtype="float32")
    inputs = VIT.inputs(ROWS)
    with torch.inference_mode():
        logits, features = WithFeatures(model)(inputs)
    random = torch.Generator().manual_seed(0)
    width, classes = features.shape[-1], logits.shape[-1]
    shapes = {"centre": (width,), "factor": (width, width), "means": (classes, width)}
    fits = tuple(
        {name: torch.randn(shape, generator=random).numpy() for name, shape in shapes.items()}
        for _ in range(3)
    )
    each = [
        (
            on_features("mds").score(fits[m], features[:, m].numpy(), logits[:, m].numpy())
            - STANDARDS[m].mean
        )
        / STANDARDS[m].deviation
        for m in range(3)
    ]
    limit = middle(torch.from_numpy(each[0]))
    made = made_state(
        "mds", limit, fitted=EnsembleScore("mds", fits, STANDARDS), cascade=cascade_by(0.0)
    )
    model.state = made
    found = model.decide(inputs)
    going = each[0] > limit
    assert found.members_run.tolist() == [3 if goes else 1 for goes in going]
    expected = np.where(going, np.stack(each).mean(0), each[0])
    np.testing.assert_allclose(found.ood_score, expected, rtol=1e-4, atol=1e-4)


def test_without_a_cascade_there_is_none(tmp_path: Path) -> None:
    model = hydra(tmp_path, VIT)
    inputs = VIT.inputs(2, torch.float64)
    for given in (None, made_state()):
        model.state = given
        with pytest.raises(CheckpointError, match="its decision state has no cascade"):
            model.predict(inputs, cascade=True)
    with pytest.raises(CheckpointError, match="its decision state has no cascade"):
        model.decide(inputs, cascade=True)


def test_the_whole_and_its_parts_share_what_lies_side_by_side(tmp_path: Path) -> None:
    """In turn they run on the same tensors: nothing is laid anew, and what moves is seen by both."""
    model = hydra(tmp_path, VIT)
    inputs = VIT.inputs(ROWS, torch.float64)
    model.module.mode = "stacked"
    rest = model.module.part(range(1, 3))
    with torch.inference_mode():
        for _ in range(2):
            whole = model(inputs)
            late = rest.finish(model.module.start(inputs))
            torch.testing.assert_close(late, whole[:, 1:], rtol=0, atol=1e-12)
        assert all(each._grouped.holds for each in (model.module, rest))
    for each in model.module.members:
        for parameter in each.parameters():
            parameter.data = parameter.data * 1.01
    with torch.inference_mode():
        for _ in range(2):
            late, changed = rest.finish(model.module.start(inputs)), model(inputs)
            torch.testing.assert_close(late, changed[:, 1:], rtol=0, atol=1e-12)
    assert not torch.allclose(changed, whole)
