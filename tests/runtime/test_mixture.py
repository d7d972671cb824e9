"""Weighted members against plain loops in numpy: predict, decide, cascades, eval and predictions files, files and
directories."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny_families import FAMILIES, Family, thoroughly
from tiny_members import KEPTS, member

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.decision.conformal import Conformal
from hydrasurgeon.decision.fitting import Outputs, Promise, fit_state
from hydrasurgeon.decision.gate import Cascade, Gate
from hydrasurgeon.decision.scores.on_logits import ON_LOGITS, mutual_information
from hydrasurgeon.decision.state import OodRule, State, decide
from hydrasurgeon.decision.temperature import Joint, fit_joint
from hydrasurgeon.errors import Disagreement, UsageError
from hydrasurgeon.files.mixture import among, joined, parse_mixture
from hydrasurgeon.measuring import metrics

WEIGHTS = (5 / 8, 2 / 8, 1 / 8)
VIT = FAMILIES["timm ViT"]


def members_of(family: Family, folder: Path) -> list[Path]:
    family.write(folder / "source")
    return [member(folder / "source", family, rows, folder / f"m{i}.safetensors") for i, rows in enumerate(KEPTS)]


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max())
    return e / e.sum()


def entropy(p: np.ndarray) -> float:
    return float(-sum(x * math.log(x) for x in p if x > 0))


def mean(each: list[Any], weights: tuple[float, ...]) -> Any:
    return sum(w * value for w, value in zip(weights, each, strict=True))


@pytest.mark.parametrize("family", thoroughly())
def test_every_family_answers_as_a_loop_over_members(family: Family, tmp_path: Path) -> None:
    path = hs.fuse(members_of(family, tmp_path), out=tmp_path / "h.safetensors", weights="5,2,1").path
    model, inputs = hs.load(path, device="cpu", dtype="float64"), family.inputs(dtype=torch.float64)
    with torch.inference_mode():
        z = model(inputs).numpy()
    expected = np.array([mean([softmax(one) for one in row], WEIGHTS) for row in z])
    found = model.predict(inputs).double().numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    equal = np.array([np.mean([softmax(one) for one in row], axis=0) for row in z])
    assert np.abs(found - equal).max() > 1e-4  # the weights matter
    model.state = State(1.0, None, OodRule("msp", 0.5, 0.05), Conformal("lac", 0.9, 0.5), None, mixture=model.mixture)
    said = model.decide(inputs)
    np.testing.assert_allclose(said.probs.numpy(), expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(said.ood_score.numpy(), 1 - expected.max(axis=1), rtol=0, atol=1e-6)
    total = np.array([entropy(p) for p in expected])
    each = np.array([mean([entropy(softmax(one)) for one in row], WEIGHTS) for row in z])
    np.testing.assert_allclose(said.total.numpy(), total, rtol=0, atol=1e-5)
    np.testing.assert_allclose(said.epistemic.numpy(), total - each, rtol=0, atol=1e-5)


def test_a_file_without_weights_is_what_it_was(tmp_path: Path) -> None:
    parts = members_of(VIT, tmp_path)
    plain = hs.fuse(parts, out=tmp_path / "plain.safetensors")
    alike = hs.fuse(parts, out=tmp_path / "alike.safetensors", weights=[0.3, 0.3, 0.3])
    assert alike.manifest.fusion == plain.manifest.fusion
    record = json.loads((tmp_path / "plain.heads.json").read_text())
    assert record["fusion"] == {"mlp": "average", "trunk": 1}
    assert "weights" not in record["history"][-1]["args"]


@pytest.fixture(scope="module")
def z() -> torch.Tensor:
    return 3 * torch.randn(40, 3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_scores_and_diversity_by_loops(z: torch.Tensor) -> None:
    rows = z.numpy()
    p = [[softmax(one) for one in row] for row in rows]
    mixed = [mean(row, WEIGHTS) for row in p]
    logsum = [[math.log(np.exp(one).sum()) for one in row] for row in rows]
    expected = {
        "msp": [1 - row.max() for row in mixed],
        "entropy": [entropy(row) for row in mixed],
        "energy": [-mean(row, WEIGHTS) for row in logsum],
        "max-logit": [-mean(list(row), WEIGHTS).max() for row in rows],
        "mi": [entropy(m) - mean([entropy(one) for one in row], WEIGHTS) for m, row in zip(mixed, p, strict=True)],
        "gen": [sum((x * (1 - x)) ** 0.1 for x in row) for row in mixed],
    }
    assert set(expected) == set(ON_LOGITS)
    for kind, values in expected.items():
        found = metrics.ood_score(z, kind, mixture=WEIGHTS)
        np.testing.assert_allclose(found.numpy(), values, rtol=0, atol=1e-9)
        assert (found - metrics.ood_score(z, kind)).abs().max() > 1e-3
    votes = rows.argmax(axis=-1)
    pairs = [(0, 1), (0, 2), (1, 2)]
    of_pair = {pair: WEIGHTS[pair[0]] * WEIGHTS[pair[1]] for pair in pairs}
    apart = [sum(of_pair[i, j] for i, j in pairs if v[i] != v[j]) / sum(of_pair.values()) for v in votes]
    found = metrics.disagreements(z, WEIGHTS)
    np.testing.assert_allclose(found.numpy(), apart, rtol=0, atol=1e-12)
    alike = metrics.disagreements(z, (1 / 3, 1 / 3, 1 / 3))
    torch.testing.assert_close(alike, metrics.disagreements(z), rtol=0, atol=1e-12)


def test_the_joint_calibration_has_them_in_both_means(z: torch.Tensor) -> None:
    joint = Joint(0.7, 2.5)
    centre = [mean(list(row), WEIGHTS) for row in z.numpy()]
    expected = [
        mean([softmax((c + 2.5 * (one - c)) / 0.7) for one in row], WEIGHTS)
        for c, row in zip(centre, z.numpy(), strict=True)
    ]
    np.testing.assert_allclose(joint(z, WEIGHTS).numpy(), expected, rtol=0, atol=1e-12)
    labels = torch.where(torch.arange(40) % 3 == 0, torch.arange(40) % 5, z[:, 0].argmax(dim=-1))
    best = fit_joint(z, labels, WEIGHTS)
    near = [Joint(best.aleatoric * a, best.epistemic * e) for a, e in ((1.02, 1), (0.98, 1), (1, 1.02), (1, 0.98))]
    losses = [metrics.nll(each(z, WEIGHTS), labels) for each in (best, *near)]
    assert losses[0] == min(losses)
    assert metrics.nll(fit_joint(z, labels)(z, WEIGHTS), labels) > losses[0]


def test_one_good_member_among_two_of_noise_is_calibrated_by_its_weight() -> None:
    """A decision state fitted with the weights is that of the good member alone, nearly."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 4, (600,), generator=generator)
    good = 3 * torch.eye(4)[labels] + torch.randn(600, 4, generator=generator)
    noise = 4 * torch.randn(600, 2, 4, generator=generator)
    logits = torch.cat([good[:, None], noise], dim=1)
    near = (1 - 2e-9, 1e-9, 1e-9)
    states = [
        fit_state(Outputs(logits, None, labels, near), promise=Promise(), score="msp").state,
        fit_state(Outputs(logits[:, :1], None, labels), promise=Promise(), score="msp").state,
    ]
    weighted, alone = states[0].probs(logits), states[1].probs(logits[:, :1])
    assert states[0].mixture == near
    torch.testing.assert_close(weighted, alone, rtol=0, atol=1e-3)
    assert states[0].ood.threshold == pytest.approx(states[1].ood.threshold, abs=1e-6)
    equal = fit_state(Outputs(logits, None, labels), promise=Promise(), score="msp").state
    assert metrics.nll(weighted, labels) < metrics.nll(equal.probs(logits), labels) - 0.1


def test_a_cascade_weighs_those_that_ran(tmp_path: Path) -> None:
    """Two members first: their weights are brought to the sum 1; then all."""
    model = hs.load(
        hs.fuse(members_of(VIT, tmp_path), out=tmp_path / "h.safetensors", weights=[5, 2, 1]).path,
        device="cpu",
        dtype="float64",
    )
    inputs = VIT.inputs(7, torch.float64)
    with torch.inference_mode():
        z = model(inputs)
    order, two = (2, 0, 1), (1 / 6, 5 / 6)
    scores = metrics.ood_score(z[:, [2, 0]], "msp", mixture=two)
    bound = float(scores.sort().values[3:5].mean())
    cascade = Cascade(order, 2, Gate("msp", low=bound), 1.7, 0.31, Conformal("lac", 0.8, 0.55), None)
    model.state = replace(
        State(0.8, Joint(0.9, 1.4), OodRule("msp", 0.4, 0.05), Conformal("lac", 0.8, 0.7), None, cascade),
        mixture=model.mixture,
    )
    going = scores >= bound
    assert going.sum() == 3
    early, late = metrics.mean_probs(z[:, [2, 0]], mixture=two), metrics.mean_probs(z, mixture=WEIGHTS)
    expected = torch.where(going[:, None], late, early)
    torch.testing.assert_close(model.predict(inputs, cascade=True).double(), expected, rtol=0, atol=1e-6)
    said = model.decide(inputs)
    calm = replace(model.state, temperature=1.7, joint=None, mixture=two, cascade=None)
    right = torch.where(going[:, None], model.state.probs(z), calm.probs(z[:, [2, 0]]))
    torch.testing.assert_close(said.probs, right, rtol=0, atol=1e-6)
    doubts = torch.where(going, decide(model.state, z, None).epistemic, decide(calm, z[:, [2, 0]], None).epistemic)
    torch.testing.assert_close(said.epistemic, doubts, rtol=0, atol=1e-6)


def test_eval_and_its_predictions_file_have_them(tmp_path: Path) -> None:
    parts = members_of(VIT, tmp_path)
    data = VIT.data(tmp_path, rows=60)
    noise = np.random.default_rng(1).integers(0, 255, (30, 28, 28, 3), dtype=np.uint8)
    np.savez(tmp_path / "noise.npz", images=noise)
    hydra = hs.fuse(parts, out=tmp_path / "h.safetensors", weights="5,2,1").path
    far = [f"far:noise={tmp_path / 'noise.npz'}"]
    stored = tmp_path / "p.safetensors"
    ours = hs.evaluate([hydra], data=data, ood=far, ood_score="all", predictions=stored).report.results[0]
    again = hs.evaluate([], predictions_in=[stored], ood_score="all").report.results[0]
    assert (again.id, again.ood, again.diversity) == (ours.id, ours.ood, ours.diversity)
    tensors = load_file(stored)
    logits, labels = tensors["logits"], tensors["labels"]
    assert ours.id.nll == pytest.approx(metrics.nll(metrics.mean_probs(logits, mixture=WEIGHTS), labels), abs=1e-9)
    assert ours.id.nll != pytest.approx(metrics.nll(metrics.mean_probs(logits), labels), abs=1e-5)
    assert ours.diversity is not None
    assert ours.diversity.mi == pytest.approx(float(mutual_information(logits, WEIGHTS).mean()))
    # Of two hydras as one ensemble every member counts by its own weight.
    both = hs.evaluate([], predictions_in=[stored, stored], ensemble=True).report.results[0]
    assert both.id.nll == pytest.approx(ours.id.nll, abs=1e-9)
    fitted = hs.evaluate([hydra], data=data, val=data, temperature="fit").report.results[0]
    heat = metrics.fit_temperature(metrics.mean_probs(logits, mixture=WEIGHTS), labels)
    expected = metrics.nll(metrics.mean_probs(logits, heat, WEIGHTS), labels)
    assert fitted.id.nll == pytest.approx(expected, abs=1e-6)


def test_predict_and_calibrate_have_them(tmp_path: Path) -> None:
    hydra = hs.fuse(members_of(VIT, tmp_path), out=tmp_path / "h.safetensors", weights="5,2,1").path
    data = VIT.data(tmp_path, rows=60)
    ready = hs.calibrate(hydra, data=data, out=tmp_path / "c.safetensors", ood_score="msp", cascade=True).path
    manifest = open_checkpoint(ready).manifest
    assert manifest.fusion is not None
    assert manifest.fusion.weights == WEIGHTS
    model = hs.load(ready, device="cpu")
    assert model.state is not None
    assert model.state.mixture == WEIGHTS
    hs.evaluate([hydra], data=data, predictions=tmp_path / "p.safetensors")
    tensors = load_file(tmp_path / "p.safetensors")
    outputs = Outputs(tensors["logits"], None, tensors["labels"], WEIGHTS)
    expected = fit_state(outputs, promise=Promise(), score="msp").state
    assert model.state.temperature == pytest.approx(expected.temperature, rel=1e-5)
    assert model.state.conformal.threshold == pytest.approx(expected.conformal.threshold, rel=1e-5)
    rows: list[str] = []
    hs.predict(hydra, data=data, each=rows.append)
    found = [json.loads(row)["probability"] for row in rows]
    mixed = metrics.mean_probs(tensors["logits"], mixture=WEIGHTS).amax(dim=-1)
    np.testing.assert_allclose(found, mixed.numpy(), rtol=0, atol=1e-6)


def test_weights_that_fuse_was_not_given_are_refused(tmp_path: Path) -> None:
    hydra = hs.fuse(members_of(VIT, tmp_path), out=f"{tmp_path / 'h'}/", weights="5,2,1").path
    record = json.loads((hydra / "heads.json").read_text())
    assert record["history"][-1]["args"]["weights"] == "5,2,1"
    from hydrasurgeon.checkpoints.hydra_layout import check_hydra

    opened = open_checkpoint(hydra)
    manifest: Any = opened.manifest
    for weights in (None, (0.5, 0.25, 0.25)):
        other = manifest.model_copy(update={"fusion": manifest.fusion.model_copy(update={"weights": weights})})
        with pytest.raises(Disagreement, match="other weights of the members"):
            check_hydra(opened, other)


def test_a_replay_makes_the_same_bytes(tmp_path: Path) -> None:
    hydra = hs.fuse(members_of(VIT, tmp_path), out=tmp_path / "h.safetensors", weights="5,2,1").path
    replayed = hs.replay(hydra, folder=tmp_path, out=tmp_path / "again")
    assert replayed.holds
    again = (tmp_path / "again" / "h.safetensors").read_bytes()
    assert again == hydra.read_bytes()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1,2", "2 weights for 3 members"),
        ("1,x,2", "not numbers"),
        ("1,,2", "not numbers"),
        ("0,0,0", "0 is not a positive number"),
        ("1,-1,1", "-1 is not a positive number"),
        ("1,nan,1", "nan is not a positive number"),
        ("1,inf,1", "inf is not a positive number"),
        ("1e300,1e-300,1", "too far apart"),
        ("1e308,1e308,1", "too large to be added up"),
    ],
)
def test_weights_that_mean_nothing(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse_mixture(text, 3)


def test_parts_and_wholes() -> None:
    assert parse_mixture("2, 1,1", 3) == (0.5, 0.25, 0.25)
    assert parse_mixture("7,7", 2) is None
    assert among(WEIGHTS, (0, 1, 2)) is WEIGHTS
    assert among(WEIGHTS, (2, 0)) == pytest.approx((1 / 6, 5 / 6))
    assert among(WEIGHTS, (1,)) is None
    assert among(None, (1, 2)) is None
    assert joined([(2, None), (1, None)]) is None
    assert joined([(2, (0.75, 0.25)), (1, None)]) == pytest.approx((0.5, 1 / 6, 1 / 3))
