"""Diversity on OOD sets (the paper's Table 9): by hand, by torch-uncertainty, and for which models there is one."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from references import torch_uncertainty as tu
from safetensors.numpy import save_file

import hydrasurgeon as hs
from hydrasurgeon.measuring.results import Result

torch = pytest.importorskip("torch")


def measured(place: Path, **tensors: np.ndarray) -> Result:
    arrays = {name.replace("__", "."): np.ascontiguousarray(a) for name, a in tensors.items()}
    save_file(arrays, place)
    return hs.evaluate([], predictions_in=[place]).report.results[0]


def logits(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(scale=2, size=shape).astype(np.float32)


def test_by_hand(tmp_path: Path) -> None:
    """Two members: alike on the first row; on the second they name other classes, for certain."""
    probabilities = [[[0.5, 0.5], [0.5, 0.5]], [[0.8, 0.2], [0.2, 0.8]]]
    outside = np.log(np.array(probabilities, dtype=np.float32))
    inside, labels = logits(6, 2, 2, seed=0), np.arange(6) % 2
    found = measured(
        tmp_path / "p.safetensors", logits=inside, labels=labels, ood__x__logits=outside
    )
    # Entropy of the mean (ln 2), less the mean entropy of the members, which is the same twice.
    entropy = -(0.8 * math.log(0.8) + 0.2 * math.log(0.2))
    (ood,) = found.ood
    assert ood.mi == pytest.approx((0 + math.log(2) - entropy) / 2, abs=1e-6)
    assert ood.disagreement == 0.5
    assert (found.ood_average["far"].mi, found.ood_average["all"].disagreement) == (ood.mi, 0.5)


def test_by_torch_uncertainty_and_averaged_over_sets(tmp_path: Path) -> None:
    sets = {f"ood__{name}__logits": logits(n, 3, 5, seed=n) for name, n in (("a", 30), ("b", 70))}
    labels = np.arange(40) % 5
    found = measured(
        tmp_path / "p.safetensors", logits=logits(40, 3, 5, seed=1), labels=labels, **sets
    )
    for each, outside in zip(found.ood, sets.values(), strict=True):
        shares = torch.from_numpy(outside).softmax(-1)
        for ours, theirs in (
            (each.mi, tu.MutualInformation()),
            (each.disagreement, tu.Disagreement()),
        ):
            theirs.update(shares)
            assert ours == pytest.approx(float(theirs.compute()), abs=1e-6)
    mean: Any = found.ood_average["all"]
    assert mean.mi == pytest.approx((found.ood[0].mi + found.ood[1].mi) / 2)
    assert mean.disagreement == pytest.approx(
        (found.ood[0].disagreement + found.ood[1].disagreement) / 2
    )


def test_one_member_and_scores_alone_have_none(tmp_path: Path) -> None:
    labels = np.arange(40) % 5
    alone = measured(
        tmp_path / "one.safetensors",
        logits=logits(40, 1, 5, seed=1),
        labels=labels,
        ood__a__logits=logits(30, 1, 5, seed=2),
    )
    record = alone.model_dump()
    assert not {"mi", "disagreement"} & {*record["ood"][0], *record["ood_average"]["all"]}
    # A set of which only scores are known has no diversity, nor has a mean over it.
    save = {"logits": logits(40, 3, 5, seed=1), "labels": labels}
    save |= {"scores.own": np.zeros(40, np.float32), "ood.a.logits": logits(30, 3, 5, seed=2)}
    save |= {"ood.a.scores.own": np.ones(30, np.float32)}
    save |= {"ood.b.scores.own": np.ones(20, np.float32)}
    save_file(save, tmp_path / "scores.safetensors")
    (found,) = hs.evaluate(
        [], predictions_in=[tmp_path / "scores.safetensors"], ood_score="own"
    ).report.results
    assert [each.name for each in found.ood if each.mi is not None] == ["a"]
    assert found.ood_average["all"].mi is None


@pytest.mark.parametrize("task", ["many labels", "words"])
def test_other_kinds_of_answers(task: str, tmp_path: Path) -> None:
    """Of many labels each is a choice between no and yes; of words those that are there."""
    import json

    if task == "words":
        shape, name, label_shape = (4, 2, 3, 5), "token_classification", (4, 3)
    else:
        shape, name, label_shape = (4, 2, 5), "multi_label", (4, 5)
    outside = logits(*shape, seed=3)
    labels = np.random.default_rng(0).integers(0, 2, label_shape)
    tensors = {"logits": logits(*shape, seed=4), "labels": labels, "ood.x.logits": outside}
    about = {"hydrasurgeon.predictions": json.dumps({"task": name})}
    save_file(tensors, tmp_path / "p.safetensors", metadata=about)
    (found,) = hs.evaluate([], predictions_in=[tmp_path / "p.safetensors"]).report.results
    if task == "words":
        shares = torch.from_numpy(outside).movedim(2, 1).reshape(12, 2, 5).softmax(-1)
    else:
        yes = torch.from_numpy(outside).sigmoid().movedim(2, 1).reshape(20, 2, 1)
        shares = torch.cat([1 - yes, yes], dim=-1)
    for ours, theirs in (
        (found.ood[0].mi, tu.MutualInformation()),
        (found.ood[0].disagreement, tu.Disagreement()),
    ):
        theirs.update(shares)
        assert ours == pytest.approx(float(theirs.compute()), abs=1e-5)
