"""Predictions files with OOD scores of their own: as columns, and as a foreign method's AUROC; refused by name when not
whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sklearn.metrics import roc_auc_score

import hydrasurgeon as hs
from hydrasurgeon.errors import DataError
from hydrasurgeon.measuring.predictions import read_predictions

Tensors = dict[str, torch.Tensor]


def tensors() -> Tensors:
    """A method with scores on the ID set and two OOD sets, of which the second has no logits."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    return {
        "logits": draw(40, 3),
        "labels": torch.arange(40) % 3,
        "scores.vilu": draw(40),
        "scores.dist.v2": draw(40).half(),
        "ood.a.logits": draw(30, 3),
        "ood.a.scores.vilu": draw(30) + 1,
        "ood.a.scores.dist.v2": draw(30),
        "ood.b.scores.vilu": draw(20).double() - 1,
    }


def write(path: Path, **changes: torch.Tensor | None) -> Path:
    every = {**tensors(), **{name.replace("__", "."): tensor for name, tensor in changes.items()}}
    save_file({name: tensor for name, tensor in every.items() if tensor is not None}, path)
    return path


def auroc(outside: torch.Tensor, inside: torch.Tensor) -> float:
    truth = np.r_[np.zeros(len(inside)), np.ones(len(outside))]
    return float(roc_auc_score(truth, np.r_[inside.double().numpy(), outside.double().numpy()]))


def test_a_method_that_gives_scores_alone(tmp_path: Path) -> None:
    path, own = write(tmp_path / "theirs.safetensors"), tensors()
    (result,) = hs.evaluate([], predictions_in=[path], ood_score="vilu").report.results
    assert [(o.name, o.group, o.n) for o in result.ood] == [("a", "far", 30), ("b", "far", 20)]
    for o in result.ood:
        expected = auroc(own[f"ood.{o.name}.scores.vilu"], own["scores.vilu"])
        assert o.auroc == pytest.approx(expected, abs=1e-9)
        assert o.scores is None
    # What is right and how sure is still told by the logits.
    assert result.id.accuracy == (own["logits"].argmax(-1) == own["labels"]).double().mean().item()
    (every,) = hs.evaluate([], predictions_in=[path], ood_score="all").report.results
    assert every.ood == result.ood  # dist.v2 is not there of all sets, nor are logits


def test_scores_are_columns_beside_functions_of_the_logits(tmp_path: Path) -> None:
    path = write(tmp_path / "theirs.safetensors", ood__b__scores__vilu=None)
    own = tensors()
    (result,) = hs.evaluate([], predictions_in=[path], ood_score="msp,dist.v2,vilu").report.results
    (only,) = result.ood
    assert only.scores is not None
    assert list(only.scores) == ["dist.v2", "vilu"]
    for name, value in only.scores.items():
        assert value == pytest.approx(
            auroc(own[f"ood.a.scores.{name}"], own[f"scores.{name}"]), abs=1e-9
        )
    msp = {name: 1 - own[name].softmax(-1).amax(-1) for name in ("ood.a.logits", "logits")}
    assert only.auroc == pytest.approx(auroc(msp["ood.a.logits"], msp["logits"]), abs=1e-6)
    (every,) = hs.evaluate([], predictions_in=[path], ood_score="all").report.results
    assert every.ood[0].scores is not None
    assert set(every.ood[0].scores) == {
        "entropy",
        "energy",
        "max-logit",
        "mi",
        "dist.v2",
        "vilu",
    }
    # A score by the name of a function of the logits comes before it.
    own_msp = write(
        tmp_path / "msp.safetensors",
        ood__b__scores__vilu=None,
        scores__msp=own["scores.vilu"],
        ood__a__scores__msp=own["ood.a.scores.vilu"],
    )
    (named,) = hs.evaluate([], predictions_in=[own_msp]).report.results
    assert named.ood[0].auroc == only.scores["vilu"]


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        (
            {"ood__a__scores__vilu": torch.zeros(29)},
            r"ood\.a\.scores\.vilu must be floating-point \[sample=30\], found F32 \(29,\)",
        ),
        (
            {"scores__vilu": torch.zeros(40, 1)},
            r"scores\.vilu must be floating-point \[sample=40\]",
        ),
        ({"scores__vilu": torch.zeros(40, dtype=torch.int64)}, "found I64"),
        ({"ood__b__scores__vilu": torch.zeros(0)}, r"found F32 \(0,\)"),
        (
            {"ood__b__scores__vilu": torch.tensor(1.0)},
            r"must be floating-point \[sample=0\], found F32 \(\)",
        ),
        ({"ood__b__scores__other": torch.zeros(19)}, r"floating-point \[sample=20\], found"),
        (
            {"scores__vilu": torch.full((40,), float("nan"))},
            r"scores\.vilu holds values that are not finite",
        ),
        ({"ood__a__scores__vilu": torch.full((30,), float("inf"))}, "not finite"),
        ({"scores__  ": torch.zeros(40)}, "not a name of a score"),
        ({"ood__  __scores__v": torch.zeros(4)}, "not a name of a set"),
        ({"logits": None}, "tensor logits is missing"),
    ],
)
def test_scores_that_are_none(
    changes: dict[str, torch.Tensor | None], what: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=what):
        read_predictions(write(tmp_path / "p.safetensors", **changes))
