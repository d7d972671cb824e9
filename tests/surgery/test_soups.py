"""fuse --mean --soup: what goes into the mean, against means worked out by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path

import pytest
import torch
from cached import once
from edited import edited
from safetensors.torch import load_file
from tiny_families import FAMILIES
from tiny_members import tune

import hydrasurgeon as hs
from hydrasurgeon.errors import SurgeryError, UsageError
from hydrasurgeon.statistics.temperature import nll_of, temperature_of

MODEL = "model.safetensors"
MAKE = Callable[..., Path]
State = Mapping[str, torch.Tensor]


@pytest.fixture
def tuned(tiny: MAKE, images: Callable[..., str], tmp_path: Path) -> list[Path]:
    """Three fine-tunings of one start, of which one learnt too fast."""
    start, data = tiny(), images()
    places = [tmp_path / f"t{seed}.safetensors" for seed in range(3)]

    def train(_: Path) -> None:
        for seed, rate in enumerate(("1e-3", "8e-3", "2e-3")):
            settings = {"steps": "3", "lr": rate}
            hs.finetune(start, data=data, recipe="demo", set=settings, seed=seed, out=places[seed])

    once("three fine-tunings, one too fast", tmp_path, train)
    return places


def by_hand(start: State, states: Sequence[State], name: str) -> torch.Tensor:
    """Model Stock's formula: cosines of all pairs, one tensor at a time."""
    origin = start[name].double().flatten()
    moved = [state[name].double().flatten() - origin for state in states]
    if not any(move.any() for move in moved):
        return start[name]
    cosines = [torch.cosine_similarity(a, b, dim=0) for a, b in combinations(moved, 2)]
    cosine = torch.stack(cosines).mean().clamp_min(0)
    count = len(states)
    share = count * cosine / (1 + (count - 1) * cosine)
    mean = torch.stack([state[name].double() for state in states]).mean(dim=0)
    return share * mean + (1 - share) * start[name].double()


def test_model_stock_goes_as_far_as_the_angle_says(tuned: list[Path], tmp_path: Path) -> None:
    vit = tmp_path / "vit.safetensors"
    made = hs.fuse(tuned, mean=True, soup="stock", base=vit, out=tmp_path / "mean.safetensors")
    start, states, mean = load_file(vit), [load_file(p) for p in tuned], load_file(made.path)
    for name, tensor in mean.items():
        expected = by_hand(start, states, name)
        torch.testing.assert_close(tensor.double(), expected.double(), rtol=1e-6, atol=1e-9)
    assert 0.05 < made.weights["vit.safetensors"] < 0.95
    assert sum(made.weights.values()) == pytest.approx(1)


def nll(path: Path, data: str) -> float:
    hs.evaluate([path], data=[data], device="cpu", predictions=path.with_suffix(".p"), force=True)
    read = load_file(path.with_suffix(".p"))
    logits, labels = read["logits"], read["labels"]
    return nll_of(logits, labels, temperature_of(logits, labels))


def averaged(states: Sequence[State], start: State | None, away: float) -> dict[str, torch.Tensor]:
    names = states[0]
    mean = {n: torch.stack([s[n].double() for s in states]).mean(dim=0) for n in names}
    if start is not None:
        mean = {n: (1 - away) * mean[n] + away * start[n].double() for n in names}
    return {n: tensor.float() for n, tensor in mean.items()}


@pytest.mark.parametrize("based", [False, True], ids=["alone", "with-its-start"])
def test_greedy_keeps_what_lowers_the_nll(tuned: list[Path], tmp_path: Path, based: bool) -> None:
    """The best first; each other where the mean with it is better; then the start's fraction."""
    data, vit = str(tmp_path / "data.npz"), tmp_path / "vit.safetensors"
    base = vit if based else None
    made = hs.fuse(
        tuned, mean=True, soup="greedy", base=base, check=data, out=tmp_path / "mean.safetensors"
    )
    states, start = [load_file(path) for path in tuned], load_file(vit)

    def loss(some: list[int], away: float = 0.0) -> float:
        mean = averaged([states[i] for i in some], start if away else None, away)
        return nll(edited(tuned[0], tmp_path / "try.safetensors", lambda n, t: mean[n]), data)

    order = sorted(range(3), key=lambda i: nll(tuned[i], data))
    some = order[:1]
    for i in order[1:]:
        if loss(sorted([*some, i])) < loss(some):
            some = sorted([*some, i])
    assert len(some) < 3  # one of them would harm
    away = min((step / 10 for step in range(10)), key=lambda a: loss(some, a)) if based else 0.0
    weights = [(1 - away) / len(some) if i in some else 0.0 for i in range(3)]
    assert [*made.weights.values()] == pytest.approx([*weights, *([away] if based else [])])
    expected = averaged([states[i] for i in some], start if based else None, away)
    mean = load_file(made.path)
    assert all(torch.equal(mean[name], tensor) for name, tensor in expected.items())


def test_a_start_without_classifier_leaves_it_the_mean(tmp_path: Path) -> None:
    import transformers

    source, body = tmp_path / "source", tmp_path / "body"
    FAMILIES["BERT"].write(source)
    transformers.AutoModel.from_pretrained(source).save_pretrained(body)
    models = [tune(source, tmp_path / f"t{i}.safetensors", seed=i) for i in range(2)]
    made = hs.fuse(models, mean=True, soup="stock", base=body, out=tmp_path / "mean.safetensors")
    states, start, mean = (
        [load_file(p) for p in models],
        load_file(source / MODEL),
        load_file(made.path),
    )
    name = "bert.encoder.layer.1.attention.self.query.weight"
    torch.testing.assert_close(
        mean[name].double(), by_hand(start, states, name), rtol=1e-6, atol=1e-8
    )
    expected = torch.stack([state["classifier.weight"] for state in states]).double().mean(dim=0)
    torch.testing.assert_close(mean["classifier.weight"].double(), expected, rtol=1e-6, atol=1e-9)


def test_what_a_soup_requires(tiny: MAKE, tuned: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "mean.safetensors"
    with pytest.raises(UsageError, match="--soup requires --mean"):
        hs.fuse(tuned, soup="greedy", out=out)
    with pytest.raises(UsageError, match="--soup greedy and --base require --check"):
        hs.fuse(tuned, mean=True, soup="greedy", out=out)
    with pytest.raises(UsageError, match="--soup stock requires --base"):
        hs.fuse(tuned, mean=True, soup="stock", out=out)
    other = tiny("other.safetensors", seed=1)
    with pytest.raises(SurgeryError, match="their attention weights lie"):
        hs.fuse(tuned, mean=True, soup="stock", base=other, out=out)
