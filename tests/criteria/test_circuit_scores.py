"""Circuits by other OOD scores than msp: the same order as Algorithm 1 with that score, bounds that hold, names that
tell them apart."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from slow_circuits import algorithm_1

import hydrasurgeon as hs
from hydrasurgeon.cli.app import run
from hydrasurgeon.criteria import ScoreKey, score_key
from hydrasurgeon.errors import UsageError
from hydrasurgeon.files.decided import OF_CIRCUITS as OOD_SCORES
from hydrasurgeon.files.manifest import read_manifest, sidecar
from hydrasurgeon.statistics.scores.on_logits import ON_LOGITS, familiarity, furthest

MAKE = Callable[..., Path]
SPEC = Callable[..., str]


def test_every_score_of_one_models_logits_is_there() -> None:
    assert set(OOD_SCORES) == {*ON_LOGITS} - {"mi"}


@pytest.mark.parametrize(
    ("score", "objective"),
    [
        ("gen", "ood"),
        ("energy", "avg"),
        *(pytest.param(score, "ood", marks=pytest.mark.slow) for score in ("entropy", "max-logit")),
    ],
)
def test_a_search_is_algorithm_1_with_that_score(
    tiny: MAKE, images: SPEC, score: str, objective: str
) -> None:
    path = tiny()
    data, ood = images(rows=30), images("ood.npz", rows=25, seed=5, labels=False)
    expected, trace = algorithm_1(path, data, ood, objective, 4, ood_score=score)
    options = {
        "method": "circuit",
        "objective": objective,
        "ood_score": score,
        "data": data,
        "ood": [ood],
    }
    scored = hs.score(path, remove=4, batch_size=7, **options)
    assert scored.method == f"circuit-{objective}-{score}"
    assert list(scored.result.order or ()) == expected
    assert scored.result.trace == pytest.approx(trace, abs=1e-12)
    assert scored.result.settings["ood_score"] == score


LOGITS = st.lists(st.floats(-30, 30), min_size=4, max_size=4)


@pytest.mark.parametrize("score", OOD_SCORES)
@given(rows=st.lists(LOGITS, min_size=2, max_size=8))
def test_familiarity_orders_samples_as_the_score_does(score: str, rows: list[list[float]]) -> None:
    logits = torch.tensor(rows).double()
    strange = ON_LOGITS[score](logits[:, None], 1.0)
    familiar = familiarity(score, logits)
    assert bool(familiar.isfinite().all())
    # What rounding cannot have turned round: near certainty 1 − p loses its digits, which gen takes to the power 0.1.
    surely = (strange[:, None] - strange) > (0.03 if score == "gen" else 1e-9)
    assert bool((familiar[:, None] < familiar)[surely].all())


@pytest.mark.parametrize("score", OOD_SCORES)
@given(
    row=LOGITS,
    shift=st.lists(st.floats(-1, 1), min_size=4, max_size=4),
    size=st.sampled_from([1.0, 1e-3]),
)
def test_a_score_moves_no_further_than_is_allowed_for(
    score: str, row: list[float], shift: list[float], size: float
) -> None:
    logits = torch.tensor([row]).double()
    moved = logits + size * torch.tensor([shift]).double()
    off = (familiarity(score, moved) - familiarity(score, logits)).abs()
    assert float(off) <= size * furthest(score) + 1e-9


def test_formulas() -> None:
    """Against the formulas, in exact enough arithmetic, also of more classes than gen looks at."""
    logits = 3 * torch.randn(
        6, 130, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    p = logits.softmax(-1)
    largest = p.sort(dim=-1, descending=True).values[:, :100]
    expected = {
        "msp": (p.amax(-1) / (1 - p.amax(-1))).log(),
        "entropy": -(-(p * p.log()).sum(-1)).log(),
        "gen": -(largest * (1 - largest)).pow(0.1).sum(-1).log(),
        "energy": logits.exp().sum(-1).log(),
        "max-logit": logits.amax(-1),
    }
    for score, values in expected.items():
        torch.testing.assert_close(familiarity(score, logits), values, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("score", OOD_SCORES)
def test_nothing_saturates(score: str) -> None:
    """Samples beyond what a probability can tell apart keep their order."""
    gaps = torch.tensor([30.0, 50.0, 100.0, 700.0, 2000.0, 60000.0]).double()
    logits = torch.stack([gaps, torch.zeros_like(gaps), torch.zeros_like(gaps)], dim=-1)
    familiar = familiarity(score, logits)
    assert bool(familiar.isfinite().all())
    assert bool((familiar.diff() > 0).all())


CIRCUIT_OOD = ScoreKey("circuit", "ood")


def test_keys() -> None:
    assert str(score_key("circuit")) == "circuit-avg"
    assert score_key("circuit", "ood", "msp") == score_key("circuit-ood") == CIRCUIT_OOD
    gen = ScoreKey("circuit", "ood", "gen")
    assert score_key("circuit-ood", None, "gen") == score_key("circuit-ood-gen") == gen
    recorded = ("circuit-ood", "circuit-ood-gen", "taylor")
    assert score_key("circuit", None, "gen", recorded=recorded) == gen
    assert score_key("circuit", None, "msp", recorded=recorded) == CIRCUIT_OOD
    assert str(score_key("circuit", None, "energy", recorded=recorded)) == "circuit-avg-energy"
    with pytest.raises(UsageError, match="circuit-ood and circuit-ood-gen"):
        score_key("circuit", recorded=recorded)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("circuit-ood-max-logit", ScoreKey("circuit", "ood", "max-logit")),
        ("circuit-acc", ScoreKey("circuit", "acc")),
        ("neurons-fisher", ScoreKey("fisher", part="neurons")),
        ("my-own", ScoreKey("my-own")),
    ],
)
def test_a_key_and_its_text(text: str, key: ScoreKey) -> None:
    assert ScoreKey.parse(text) == key
    assert str(key) == text


def test_each_score_is_recorded_beside_the_others(
    tiny: MAKE, images: SPEC, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the command line: manifest, history, inspect, prune; msp by its name is the default to the byte."""
    path, data, ood = tiny(), images(), images("ood.npz", seed=3)
    line = f"score {path} --method circuit --objective ood --data {data} --ood {ood} --remove 3 --quiet".split()
    assert run(line) == 0
    before = sidecar(path).read_bytes()
    assert run([*line, "--ood-score", "msp"]) == 0
    assert sidecar(path).read_bytes() == before
    assert run([*line, "--ood-score", "gen"]) == 0
    manifest = read_manifest(sidecar(path))
    assert set(manifest.scores) == {"circuit-ood", "circuit-ood-gen"}
    assert "ood_score" not in manifest.scores["circuit-ood"].settings
    assert [step.args["method"] for step in manifest.history[-2:]] == [
        "circuit-ood",
        "circuit-ood-gen",
    ]
    capsys.readouterr()
    assert run(["inspect", str(path), "--json"]) == 0
    assert "circuit-ood-gen" in json.loads(capsys.readouterr().out)["manifest"]["scores"]
    gone: dict[str, Any] = {}
    for score in ("msp", "gen"):
        member = hs.prune(path, method="circuit", objective="ood", ood_score=score, remove=3)
        assert member.path.name == f"vit-circuit-ood{'-gen' * (score == 'gen')}-r3.safetensors"
        gone[score] = member.manifest.kept["vision"]
        key = str(score_key("circuit", "ood", score))
        assert all(
            head not in gone[score][layer] for _, layer, head in manifest.scores[key].order or ()
        )
    with pytest.raises(UsageError, match="no circuit-avg-energy scores"):
        hs.prune(path, method="circuit-avg-energy", keep=2, out=tmp_path / "x.safetensors")
