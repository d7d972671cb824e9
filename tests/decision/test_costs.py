"""One number for three answers: losses by hand, thresholds against all pairs, and calibrate → eval."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_families import FAMILIES

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.cli.app import run
from hydrasurgeon.data import Batches, open_data
from hydrasurgeon.files.decided import Costs
from hydrasurgeon.statistics.costs import Rows, cheapest, losses, together

COSTS = Costs(wrong=1.0, abstain=0.1, unfamiliar=0.2, ood=0.3)
VIT = FAMILIES["timm ViT"]


@pytest.mark.parametrize(
    ("ood", "expected"),
    [
        # answered right, wrong; abstained twice; unfamiliar four times
        (False, [0.0, 1.0, 0.1, 0.1, 0.2, 0.2, 0.2, 0.2]),
        (True, [0.0, 1.0, 0.1, 0.1, 0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_losses_by_hand(ood: bool, expected: list[float]) -> None:
    flags = torch.tensor(list(product((False, True), repeat=3)))
    found = losses(COSTS, flags[:, 0], flags[:, 1], flags[:, 2], ood=ood)
    assert found.tolist() == pytest.approx(expected)


def test_sets_share_what_is_expected_to_be_ood() -> None:
    assert together(COSTS, 0.5, [0.1, 0.3]) == pytest.approx(0.7 * 0.5 + 0.3 * 0.2)
    assert together(COSTS, 0.5, []) == 0.5


def drawn(seed: int, rows: int, shift: float) -> Rows:
    """Scores and confidences with ties."""
    random = torch.Generator().manual_seed(seed)
    score = (torch.randn(rows, generator=random) + shift).round(decimals=1)
    confidence = torch.rand(rows, generator=random).round(decimals=1)
    wrong = torch.rand(rows, generator=random) > confidence
    return Rows(score, confidence, wrong if shift == 0 else torch.ones_like(wrong))


@pytest.mark.parametrize("costs", [COSTS, Costs(abstain=0.6), Costs(wrong=2, unfamiliar=0.01)])
def test_thresholds_are_the_cheapest_of_all_pairs(costs: Costs) -> None:
    inside, outside = drawn(0, 60, 0.0), [drawn(1, 40, 1.0), drawn(2, 9, 2.0)]

    def loss(score: float, confidence: float) -> float:
        means = [
            float(
                losses(
                    costs, rows.score > score, rows.confidence < confidence, rows.wrong, ood=at > 0
                ).mean()
            )
            for at, rows in enumerate((inside, *outside))
        ]
        return together(costs, means[0], means[1:])

    found = cheapest(costs, inside, outside)
    levels = [value / 10 for value in range(11)]
    least = float(inside.score.min())  # not all that is known is called unfamiliar
    scores = [least + value / 10 + 1e-6 for value in range(80)]
    every = [loss(s, c - 1e-6) for s in scores for c in levels]
    assert found.loss == pytest.approx(min(every), abs=1e-6)
    assert loss(found.score, found.confidence) == pytest.approx(found.loss, abs=1e-6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, data that it knows well, and noise."""
    made = tmp_path_factory.mktemp("costs")
    VIT.write(made / "source")
    data = VIT.data(made, rows=160)
    shape = np.load(data)["images"].shape[1:]
    noise = np.random.default_rng(1).integers(0, 255, (60, *shape), dtype=np.uint8)
    np.savez(made / "noise.npz", images=noise)
    return made


def test_calibrate_chooses_by_costs_and_eval_reports_them(folder: Path) -> None:
    data, noise = str(folder / "data.npz"), str(folder / "noise.npz")
    text = "wrong=1,abstain=0.4,unfamiliar=0.3,ood=0.4"
    given = {"data": data, "ood_score": "mds", "coverage": 0.6}
    done = hs.calibrate(
        folder / "source", ood=[noise], cost=text, out=folder / "c.safetensors", **given
    )
    hs.calibrate(folder / "source", out=folder / "p.safetensors", **given)
    decision = open_checkpoint(folder / "c").manifest.decision
    assert decision is not None
    costs = Costs(wrong=1, abstain=0.4, unfamiliar=0.3, ood=0.4)
    assert decision.costs == costs == done.decision.costs
    assert decision.abstain is not None
    assert decision.abstain.risk is None
    assert done.manifest is not None
    assert done.manifest.history[-1].args["cost"] == text
    report = hs.evaluate(
        [folder / "c", folder / "p"], data=data, ood=[f"near:noise={noise}"], cost=text
    ).report
    ours, plain = (result.scod for result in report.results)
    assert ours is not None
    assert plain is not None
    assert ours.loss <= plain.loss
    model = hs.load(folder / "c", device="cpu")
    means = []
    for spec in (data, noise):
        (batch,) = Batches(open_data(spec), model.transform, batch_size=160, workers=0)
        answers = model.decide(batch.inputs)
        wrong = torch.ones(len(answers.labels), dtype=torch.bool)
        if spec == data:
            wrong = answers.labels != torch.from_numpy(open_data(data).labels)
        found = losses(costs, answers.unfamiliar, answers.abstain, wrong, ood=spec == noise)
        means.append(float(found.mean()))
    assert (ours.id, ours.ood["noise"]) == pytest.approx(means, abs=0.01)
    assert ours.loss == pytest.approx(0.6 * ours.id + 0.4 * ours.ood["noise"])
    assert ours.costs == costs.model_dump()
    alone = hs.evaluate([folder / "c"], data=data).report.results[0].scod
    assert alone is not None
    assert alone.loss == alone.id == pytest.approx(ours.id)
    assert hs.evaluate([folder / "p"], data=data).report.results[0].scod is None


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        ("--cost wrong=1", 2, "--cost requires --ood or --ood-predictions."),
        ("--cost wrong=x --ood noise.npz", 2, "--cost wrong=x: wrong: "),
        ("--cost right=1 --ood noise.npz", 2, "names are wrong, abstain, unfamiliar, ood"),
        ("--cost ood=1 --ood noise.npz", 2, "ood: Input should be less than 1"),
        ("--cost wrong=1 --risk 0.1 --ood noise.npz", 2, "--cost conflicts with --risk."),
        ("--cost wrong=1 --id-flagged 0.1 --ood noise.npz", 2, "conflicts with --id-flagged"),
        ("--cost wrong=1 --ood few.npz", 5, "--cost requires OOD data"),
    ],
)
def test_costs_that_cannot_be(
    options: str,
    code: int,
    says: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    np.savez("few.npz", images=np.load("noise.npz")["images"][:5])
    line = "calibrate source --data data.npz --ood-score msp --coverage 0.6 -o x"
    assert run([*line.split(), *options.split()]) == code
    assert says in capsys.readouterr().err
    assert not Path("x.safetensors").exists()
