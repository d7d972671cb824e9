"""Cascaded inference against a plain loop: one row at a time, one member's own module at a time."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from runtime_states import cascade_by, lac, with_cascade
from runtime_states import state as made_state
from tiny_families import FAMILIES, Family, thoroughly
from tiny_members import KEPTS, member, tune

import hydrasurgeon as hs
from hydrasurgeon.decision.cascaded import lets, own_score
from hydrasurgeon.decision.state import State
from hydrasurgeon.errors import CheckpointError
from hydrasurgeon.files.decided import Alone, Gate, Standard
from hydrasurgeon.runtime.cascaded import said

ORDER = (2, 0, 1)
ROWS = 7


def state(gate: Gate, first: int = 1) -> State:
    """A decision state with other numbers for rows that stop early than for those that go on."""
    cascade = cascade_by(
        gate, ORDER, first, temperature=1.7, ood_threshold=0.31, conformal=lac(0.55, 0.8)
    )
    return made_state(threshold=0.4, temperature=0.8, conformal=lac(0.7, 0.8), cascade=cascade)


def hydra(
    folder: Path, family: Family, *, tuned: bool = True, dtype: str = "float64"
) -> hs.Classifier:
    family.write(folder / "source")
    parts = [
        member(folder / "source", family, rows, folder / f"m{i}.safetensors")
        for i, rows in enumerate(KEPTS)
    ]
    if tuned:
        parts = [tune(path, folder / f"t{i}.safetensors", i) for i, path in enumerate(parts)]
    fused = hs.fuse(parts, out=folder / "hydra.safetensors", mlp="separate")
    return hs.load(fused.path, device="cpu", dtype=dtype)


def row(inputs: Any, at: int) -> Any:
    if isinstance(inputs, dict):
        return {name: value[at : at + 1] for name, value in inputs.items()}
    return inputs[at : at + 1]


def rows(inputs: Any, at: list[int]) -> Any:
    if isinstance(inputs, dict):
        return {name: value[at] for name, value in inputs.items()}
    return inputs[at]


@torch.inference_mode()
def slowly(model: hs.Classifier, inputs: Any, count: int) -> list[torch.Tensor]:
    """The logits of the members that run, for each row, [member, class], as the file numbers them."""
    assert model.state is not None
    cascade = model.state.record.cascade
    assert cascade is not None
    said_of = []
    for at in range(count):
        one = row(inputs, at)
        # Its own module; without the tokens that only padding adds.
        first = torch.stack([model.module.members[m](one)[0] for m in cascade.starters])
        if lets(cascade.gate, own_score(cascade.gate.score, first[None]))[0]:
            said_of.append(torch.stack([each(one)[0] for each in model.module.members]))
        else:
            said_of.append(first)
    return said_of


def quickly(model: hs.Classifier, inputs: Any, count: int) -> list[torch.Tensor]:
    found: dict[int, torch.Tensor] = {}
    for part in said(model, inputs):
        assert part.logits.shape[1] == len(part.members)
        found |= dict(zip(part.rows.tolist(), part.logits, strict=True))
    assert sorted(found) == list(range(count))
    return [found[at] for at in range(count)]


def middle(model: hs.Classifier, inputs: Any, score: str, starters: tuple[int, ...]) -> float:
    """A bound with half of the rows on either side of it, between two of them."""
    with torch.inference_mode():
        logits = model(inputs)[:, list(starters)]
    values = own_score(score, logits).sort().values
    return float(values[3] + values[4]) / 2


@pytest.mark.parametrize("family", thoroughly())
def test_every_family_answers_as_a_loop_over_rows(family: Family, tmp_path: Path) -> None:
    model = hydra(tmp_path, family, tuned=False)
    inputs = family.inputs(ROWS, torch.float64)
    for score, first in (("msp", 1), ("disagreement", 2)):
        bound = middle(model, inputs, score, ORDER[:first])
        model.state = state(Gate(score=score, low=bound), first)
        slow = slowly(model, inputs, ROWS)
        assert sorted(len(each) for each in slow) == [first] * 4 + [3] * 3
        for mode, lately in (("stacked", 0.0), ("apart", 0.0), ("auto", 1.0)):
            # Where nearly all rows went on lately, all members run first, and the gate is asked afterwards.
            model.module.mode, model.module.going_on = mode, lately
            for quick, reference in zip(quickly(model, inputs, ROWS), slow, strict=True):
                torch.testing.assert_close(quick, reference, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["timm ViT", "BERT"])
@pytest.mark.parametrize("tuned", [False, True])
def test_a_row_does_not_depend_on_the_others(name: str, tuned: bool, tmp_path: Path) -> None:
    model = hydra(tmp_path, FAMILIES[name], tuned=tuned)
    inputs = FAMILIES[name].inputs(ROWS, torch.float64)
    model.state = state(Gate(score="entropy", low=middle(model, inputs, "entropy", ORDER[:1])))
    whole = quickly(model, inputs, ROWS)
    assert {len(each) for each in whole} == {1, 3}
    for some in ([3], [6, 0], [5, 4, 1, 2]):
        again = quickly(model, rows(inputs, some), len(some))
        for at, each in zip(some, again, strict=True):
            torch.testing.assert_close(each, whole[at], rtol=0, atol=1e-12)


def test_float32_keeps_five_digits(tmp_path: Path) -> None:
    model = hydra(tmp_path, FAMILIES["timm ViT"], dtype="float32")
    inputs = FAMILIES["timm ViT"].inputs(ROWS)
    model.state = state(Gate(score="msp", low=middle(model, inputs, "msp", ORDER[:1])))
    whole = torch.stack([each.softmax(-1).mean(0) for each in quickly(model, inputs, ROWS)])
    slow = torch.stack([each.softmax(-1).mean(0) for each in slowly(model, inputs, ROWS)])
    torch.testing.assert_close(whole, slow, rtol=0, atol=1e-5)
    torch.testing.assert_close(model.predict(inputs, cascade=True), slow, rtol=0, atol=1e-5)
    torch.testing.assert_close(
        model.predict(row(inputs, 2), cascade=True), slow[2:3], rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("tuned", [False, True])
def test_a_gate_that_lets_everything_through_is_the_hydra(tuned: bool, tmp_path: Path) -> None:
    model = hydra(tmp_path, FAMILIES["timm ViT"], tuned=tuned)
    inputs = FAMILIES["timm ViT"].inputs(ROWS, torch.float64)
    with torch.inference_mode():
        logits = model(inputs)
    full = model.predict(inputs)
    # Without bounds the hydra itself runs; where all rows of a batch happen to go on, its members do.
    for gate, tolerance in ((Gate(score="msp"), 0.0), (Gate(score="msp", low=-1.0), 1e-12)):
        model.state = state(gate)
        (*none, everyone) = said(model, inputs)
        assert all(len(part.rows) == 0 for part in none)
        torch.testing.assert_close(everyone.logits, logits, rtol=0, atol=tolerance)
        torch.testing.assert_close(model.predict(inputs, cascade=True), full, rtol=0, atol=1e-6)
        found, plain = model.decide(inputs), model.decide(inputs, cascade=False)
        assert found.members_run.tolist() == [3] * ROWS
        torch.testing.assert_close(found.probabilities, plain.probabilities, rtol=0, atol=1e-6)
    model.state = state(Gate(score="msp", low=2.0))
    assert model.decide(inputs).members_run.tolist() == [1] * ROWS
    torch.testing.assert_close(
        model.predict(inputs, cascade=True), logits[:, 2].softmax(-1).float(), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize(("score", "first"), [("msp", 1), ("disagreement", 2)])
def test_decisions_follow_from_the_members_that_ran(score: str, first: int, tmp_path: Path) -> None:
    model = hydra(tmp_path, FAMILIES["timm ViT"])
    inputs = FAMILIES["timm ViT"].inputs(ROWS, torch.float64)
    model.state = given = state(
        Gate(score=score, low=middle(model, inputs, score, ORDER[:first])), first
    )
    found, slow = model.decide(inputs), slowly(model, inputs, ROWS)
    assert found.members_run.tolist() == [len(each) for each in slow]
    assert sorted(set(found.members_run.tolist())) == [first, 3]
    for at, logits in enumerate(slow):
        temperature = 0.8 if len(logits) == 3 else 1.7
        each = (logits / temperature).softmax(-1)
        # Temperature acts behind the average.
        mean = (logits.softmax(-1).mean(0).log() / temperature).softmax(-1)
        torch.testing.assert_close(found.probabilities[at], mean, rtol=0, atol=1e-6)
        total = float(torch.special.entr(each.mean(0)).sum())
        aleatoric = float(torch.special.entr(each).sum(-1).mean())
        assert math.isclose(float(found.total[at]), total, abs_tol=1e-5)
        assert math.isclose(float(found.epistemic[at]), max(total - aleatoric, 0), abs_tol=1e-5)
        score_of = 1 - float(logits.softmax(-1).mean(0).max())
        assert math.isclose(float(found.ood_score[at]), score_of, abs_tol=1e-6)
        assert bool(found.unfamiliar[at]) == (score_of > 0.31)
        assert found.sets[at].tolist() == (1 - found.probabilities[at] <= 0.55 + 1e-12).tolist()
    # Without the cascade the hydra's own thresholds hold.
    plain = model.decide(inputs, cascade=False)
    assert plain.members_run.tolist() == [3] * ROWS
    assert torch.equal(plain.unfamiliar, plain.ood_score > given.record.ood.threshold)


def test_those_that_run_later_may_answer_alone(tmp_path: Path) -> None:
    """What goes on is answered by members 0 and 1, at a temperature of their own."""
    model = hydra(tmp_path, FAMILIES["timm ViT"])
    inputs = FAMILIES["timm ViT"].inputs(ROWS, torch.float64)
    bound = middle(model, inputs, "msp", ORDER[:1])
    model.state = with_cascade(state(Gate(score="msp", low=bound)), rest=Alone(temperature=0.6))
    with torch.inference_mode():
        everyone = model(inputs)
    going = lets(Gate(score="msp", low=bound), own_score("msp", everyone[:, 2:]))
    for lately in (0.0, 1.0):
        model.module.going_on = lately
        found = model.decide(inputs)
        assert found.members_run.tolist() == [2 if goes else 1 for goes in going]
        for at, logits in enumerate(everyone):
            mean, temperature = logits[2].softmax(-1), 1.7
            if going[at]:
                mean, temperature = logits[:2].softmax(-1).mean(0), 0.6
            expected = (mean.log() / temperature).softmax(-1)
            torch.testing.assert_close(found.probabilities[at], expected, rtol=0, atol=1e-6)


def test_a_gate_on_a_fitted_score_reads_features(tmp_path: Path) -> None:
    """The OOD score of the first member alone, by the distances that it was fitted with."""
    from hydrasurgeon.runtime.features import WithFeatures
    from hydrasurgeon.statistics.scores.fitted import EnsembleScore, functions_of

    model = hydra(tmp_path, FAMILIES["timm ViT"])
    inputs = FAMILIES["timm ViT"].inputs(ROWS, torch.float64)
    generator = torch.Generator().manual_seed(0)
    parts = {"centre": (32,), "factor": (32, 32), "means": (3, 32)}
    fits = tuple(
        {name: torch.randn(shape, generator=generator) for name, shape in parts.items()}
        for _ in range(3)
    )
    standards = tuple(Standard(mean=m + 1.0, deviation=m + 4.0) for m in range(3))
    fitted = EnsembleScore("mds", fits, standards)
    with torch.inference_mode():
        logits, features = (values.float() for values in WithFeatures(model)(inputs))

    def standard(m: int) -> torch.Tensor:
        score = functions_of("mds")[1](fits[m], features[:, m], logits[:, m])
        return (score - standards[m].mean) / standards[m].deviation

    first = standard(ORDER[0]).double()
    ordered = first.sort().values
    cascade = state(Gate(score="ood", low=float(ordered[3] + ordered[4]) / 2)).record.cascade
    model.state = made_state("mds", 0.5, fitted=fitted, conformal=lac(0.7, 0.8), cascade=cascade)
    found = model.decide(inputs)
    assert sorted(found.members_run.tolist()) == [1] * 4 + [3] * 3
    model.module.going_on = 1.0
    torch.testing.assert_close(
        model.decide(inputs).ood_score, found.ood_score, rtol=1e-6, atol=1e-6
    )
    mean = torch.stack([standard(m).double() for m in range(3)]).mean(0)
    expected = torch.where(found.members_run == 3, mean, first)
    torch.testing.assert_close(found.ood_score.double(), expected, rtol=1e-4, atol=1e-4)
    # Where nobody asks for scores the gate looks at them all the same.
    each = logits.softmax(-1)
    probs = torch.where((found.members_run == 3)[:, None], each.mean(1), each[:, ORDER[0]])
    torch.testing.assert_close(model.predict(inputs, cascade=True), probs, rtol=0, atol=1e-5)


def test_no_rows_are_answered_nothing(tmp_path: Path) -> None:
    model = hydra(tmp_path, FAMILIES["timm ViT"])
    nothing = FAMILIES["timm ViT"].inputs(ROWS, torch.float64)[:0]
    model.state = state(Gate(score="msp", low=0.2))
    assert model.predict(nothing, cascade=True).shape == (0, 3)
    for cascade in (None, False):
        found = model.decide(nothing, cascade=cascade)
        assert found.answer == []
        assert found.members_run.shape == (0,)


def test_without_a_cascade_there_is_none(tmp_path: Path) -> None:
    model = hydra(tmp_path, FAMILIES["timm ViT"])
    inputs = FAMILIES["timm ViT"].inputs(2, torch.float64)
    for given in (None, with_cascade(state(Gate(score="msp")))):
        model.state = given
        with pytest.raises(CheckpointError, match="no cascade in a decision state"):
            model.predict(inputs, cascade=True)
    with pytest.raises(CheckpointError, match="no cascade in a decision state"):
        model.decide(inputs, cascade=True)


def test_parameters_that_change_change_the_cascade(tmp_path: Path) -> None:
    model = hydra(tmp_path, FAMILIES["timm ViT"])
    inputs = FAMILIES["timm ViT"].inputs(ROWS, torch.float64)
    model.state = state(Gate(score="msp", low=-1.0))
    model.module.mode = "stacked"
    with torch.inference_mode():
        before, whole = quickly(model, inputs, ROWS), model(inputs)
    for each in model.module.members:
        for parameter in each.parameters():
            parameter.data = parameter.data * 1.01
    with torch.inference_mode():
        # The whole and its parts lay parameters side by side in turn.
        for _ in range(2):
            after, changed = torch.stack(quickly(model, inputs, ROWS)), model(inputs)
            torch.testing.assert_close(after, changed, rtol=0, atol=1e-12)
    assert not torch.allclose(changed, whole)
    assert not torch.allclose(torch.stack(before), changed)


def test_rows_that_keep_going_on_are_answered_in_one_pass(tmp_path: Path) -> None:
    """As many passes as recent rows make worth while: two at first, then one, and two again where rows stop."""
    model = hydra(tmp_path, FAMILIES["timm ViT"])
    inputs = FAMILIES["timm ViT"].inputs(ROWS, torch.float64)
    first, rest = model.module.part(ORDER[:1]), model.module.part(ORDER[1:])
    passes: list[Any] = []
    for part in (model.module, first, rest):
        part.finish = partial(_counted, passes, part, part.finish)
    for gate, expected in (
        (Gate(score="msp", low=-1.0), [first, rest]),
        (Gate(score="msp", low=2.0), [model.module]),
    ):
        model.state = state(gate)
        model.predict(inputs, cascade=True)
        assert passes == expected
        for _ in range(40):
            model.predict(inputs, cascade=True)
        passes.clear()
    model.predict(inputs, cascade=True)
    assert passes == [first]
    assert model.module.going_on < 0.1


def _counted(passes: list[Any], part: Any, finish: Any, started: Any) -> Any:
    passes.append(part)
    return finish(started)


def test_the_whole_and_its_parts_share_what_lies_side_by_side(tmp_path: Path) -> None:
    """In turn they run on the same tensors: nothing is laid anew, and nothing moves."""
    model = hydra(tmp_path, FAMILIES["timm ViT"])
    inputs = FAMILIES["timm ViT"].inputs(ROWS, torch.float64)
    model.module.mode = "stacked"
    pairs = [model.module.part(pair) for pair in ((0, 1), (0, 2), (1, 2))]
    with torch.inference_mode():
        for _ in range(2):
            whole = model(inputs)
            for pair, at in zip(pairs, ([0, 1], [0, 2], [1, 2]), strict=True):
                part = pair.finish(model.module.start(inputs))
                torch.testing.assert_close(part, whole[:, at], rtol=0, atol=1e-12)
        laid = [each._grouped for each in (model.module, *pairs)]
        assert all(each is not None and each.holds for each in laid)
        torch.testing.assert_close(model(inputs), whole, rtol=0, atol=0)
        # Against the order in which they lie there is no one tensor of them: they are laid anew.
        turned = model.module.part((2, 0)).finish(model.module.start(inputs))
        torch.testing.assert_close(turned, whole[:, [2, 0]], rtol=0, atol=1e-12)
        torch.testing.assert_close(model(inputs), whole, rtol=0, atol=1e-12)
