"""Fitting a whole decision state on made-up outputs, and what it then decides, row by row."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy import ndarray
from promised import promise
from sklearn.metrics import roc_auc_score

from hydrasurgeon.decision.fitting import fit_state, halves
from hydrasurgeon.decision.ood_score import Grounds, dealt_out, evidence_of, left_out
from hydrasurgeon.decision.split import split, split_rows
from hydrasurgeon.decision.state import decide
from hydrasurgeon.errors import DataError
from hydrasurgeon.statistics.probabilities import mean_probs, softmax
from hydrasurgeon.statistics.scores.evidence import Gathering
from hydrasurgeon.statistics.temperature import calibrated, temperature_of
from hydrasurgeon.tasks.base import Outputs

MEMBERS, CLASSES, WIDTH = 2, 3, 8


class World:
    """Two members that see clusters through matrices of their own, and a classifier of each."""

    def __init__(self, seed: int = 0) -> None:
        random = torch.Generator().manual_seed(seed)
        self.random = random
        self.centres = (
            3 * torch.randn(CLASSES, WIDTH, generator=random, dtype=torch.float64).numpy()
        )
        self.views = torch.randn(
            MEMBERS, WIDTH, WIDTH, generator=random, dtype=torch.float64
        ).numpy()
        self.weights = [self.centres @ np.linalg.inv(view).T for view in self.views]
        self.biases = [-np.square(self.centres).sum(axis=1) / 2 for _ in self.views]

    def seen(self, x: ndarray, labels: ndarray | None) -> Outputs:
        features = np.stack([x @ view for view in self.views], axis=1)
        logits = [
            features[:, m] @ w.T + b
            for m, (w, b) in enumerate(zip(self.weights, self.biases, strict=True))
        ]
        return Outputs(np.stack(logits, axis=1), features, labels)

    def inside(self, count: int) -> Outputs:
        y = torch.randint(CLASSES, (count,), generator=self.random).numpy()
        noise = 2 * torch.randn(count, WIDTH, generator=self.random, dtype=torch.float64).numpy()
        return self.seen(self.centres[y] + noise, y)

    def outside(self, count: int) -> Outputs:
        """Off the plane that the classifiers look at: their logits know nothing of it."""
        y = torch.randint(CLASSES, (count,), generator=self.random).numpy()
        _, _, rows = np.linalg.svd(self.centres)
        off = rows[CLASSES:].sum(axis=0)
        noise = 2 * torch.randn(count, WIDTH, generator=self.random, dtype=torch.float64).numpy()
        return self.seen(self.centres[y] + noise + 12 * off, None)

    @property
    def classifiers(self) -> list[tuple[ndarray, ndarray]]:
        return list(zip(self.weights, self.biases, strict=True))


@pytest.fixture
def world() -> World:
    return World()


def test_auto_takes_the_score_that_sees_the_foreign(world: World) -> None:
    val, ood = world.inside(2000), world.outside(400)
    state, _ = fit_state(val, promise(), Grounds(classifiers=world.classifiers, ood=[ood]))
    assert state.fitted is not None
    best = state.record.ood.auroc[state.record.ood.score]
    assert best == max(state.record.ood.auroc.values())
    assert best > 0.95 > 0.75 > state.record.ood.auroc["msp"]
    assert "mcm" not in state.record.ood.auroc
    fresh, others = world.inside(4000), world.outside(400)
    assert fresh.features is not None
    flagged = (decide(state, fresh.logits, fresh.features).unfamiliar).astype(np.float64).mean()
    assert float(flagged) == pytest.approx(0.05, abs=0.02)
    assert (decide(state, others.logits, others.features).unfamiliar).astype(
        np.float64
    ).mean() > 0.5


def test_auto_takes_the_score_with_the_highest_log_odds(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of .999 and .65 the mean is lower than of .995 and .7, and the odds are higher: 999 · 1.86
    against 199 · 2.33. Beyond .999 nothing counts, and the first is taken.
    """
    easy, telling = world.outside(10), world.outside(20)
    worth = {
        "msp": (0.97, 0.5),
        "entropy": (0.995, 0.7),
        "energy": (0.9991, 0.65),
        "max-logit": (0.9, 0.72),
        "mi": (0.5, 0.71),
    }

    def auroc(kind: str, fitted: object, held: object, other: object) -> float:
        return worth[kind][0 if other is easy else 1]

    monkeypatch.setattr("hydrasurgeon.decision.ood_score._auroc", auroc)
    val = world.inside(100)
    val = Outputs(val.logits, None, val.labels)
    for ood, best in (
        ([easy], "energy"),
        ([telling], "max-logit"),
        ([easy, telling], "energy"),
    ):
        state, _ = fit_state(val, promise(), Grounds(ood=ood))
        assert state.record.ood.score == best
    # The figure that is shown is the one that chose: √(999 · 13/7) is the geometric mean of the odds.
    odds = math.sqrt(999 * 0.65 / 0.35)
    assert state.record.ood.auroc["energy"] == pytest.approx(odds / (1 + odds), abs=1e-6)
    assert state.record.ood.auroc["energy"] == max(state.record.ood.auroc.values())


def test_features_dealt_out_are_one_more_set(world: World) -> None:
    """Each feature keeps its values, and none its sample; their logits are the classifier's."""
    val = world.inside(400)
    assert val.features is not None
    (dealt,) = dealt_out(val, world.classifiers, 0)
    assert dealt.features is not None
    ours, theirs = (np.sort(each, axis=0) for each in (dealt.features, val.features))
    np.testing.assert_allclose(ours, theirs)
    assert float((dealt.features == val.features).astype(np.float64).mean()) < 0.05
    weight, bias = world.classifiers[0]
    np.testing.assert_allclose(
        dealt.logits[:, 0].astype(np.float64), dealt.features[:, 0] @ weight.T + bias
    )
    assert dealt_out(replace(val, logits=np.square(val.logits)), world.classifiers, 0) == []


def test_classes_left_out_are_ood_in_turn() -> None:
    """Eight classes, two at a time: nothing is fitted on their samples, and no logit is theirs."""
    random = torch.Generator().manual_seed(0)
    weight = torch.randn(8, 5, generator=random, dtype=torch.float64).numpy()
    labels = np.arange(240) % 8
    features = weight[labels] + torch.randn(240, 5, generator=random, dtype=torch.float64).numpy()
    logits = features @ weight.T
    everything = Outputs(logits[:, None], features[:, None], labels)
    train, held = everything.at(slice(160)), everything.at(slice(160, None))
    evidence = evidence_of(train, [(weight, np.zeros(8))], 0)
    aurocs: dict[str, list[float]] = {"msp": [], "mds": []}
    for first in range(4):
        kept = np.arange(8)[np.arange(8) % 4 != first]
        is_ood = held.truth % 4 == first
        msp = -softmax(held.logits[:, 0][:, kept]).max(axis=-1)
        aurocs["msp"].append(roc_auc_score(is_ood, msp))
        x = train.features[:, 0]  # type: ignore[index]
        means = np.stack([x[train.truth == label].mean(axis=0) for label in kept])
        inside = train.truth % 4 != first
        of_class = np.zeros((8, 5))
        of_class[kept] = means
        centred = x[inside] - of_class[train.truth[inside]]
        inverse = np.linalg.inv(centred.T @ centred / len(centred))
        apart = held.features[:, 0, None] - means  # type: ignore[index]
        mds = np.einsum("nkd,de,nke->nk", apart, inverse, apart).min(axis=1)
        aurocs["mds"].append(roc_auc_score(is_ood, mds))
    found = left_out(["msp", "mds"], evidence, held)
    for kind, values in aurocs.items():
        assert found[kind] == pytest.approx(sum(values) / 4, abs=1e-3)


def test_before_and_after_are_of_the_part_that_did_not_fit(world: World) -> None:
    val = world.inside(301)
    assert val.labels is not None
    state, _ = fit_state(val, promise(ood_score="msp", seed=4), Grounds())
    rows = split(val, 4)
    parts = rows.fitting, rows.certifying
    losses = {"before": 0.0, "temperature": 0.0}
    for here, there in (parts, parts[::-1]):
        temperature = temperature_of(val.logits[here], val.labels[here])
        for i in there.tolist():
            z, truth = val.logits[i : i + 1], int(val.labels[i])
            each = {
                "before": mean_probs(z),
                "temperature": mean_probs(z, temperature),
            }
            for name, q in each.items():
                losses[name] -= float(np.log(q[0, truth])) / 301
    assert state.record.nll == {
        name: pytest.approx(loss, abs=1e-9) for name, loss in losses.items()
    }
    first = temperature_of(val.logits[rows.fitting], val.labels[rows.fitting])
    assert state.record.temperature == first


def test_what_is_decided_follows_from_the_state(world: World) -> None:
    state, _ = fit_state(
        world.inside(1000),
        promise(risk=0.2, ood_score="rmds"),
        Grounds(classifiers=world.classifiers),
    )
    some = world.inside(50)
    found = decide(state, some.logits, some.features)
    p = calibrated(some.logits, state.record.temperature)
    np.testing.assert_allclose(found.probabilities, p)
    assert np.array_equal(found.labels, p.argmax(axis=1))
    np.testing.assert_allclose(found.total, found.aleatoric + found.epistemic)
    for i, answer in enumerate(found.answer):
        expected: str | int = int(p[i].argmax())
        assert state.record.abstain is not None
        if float(p[i].max()) < state.record.abstain.threshold:
            expected = "abstain"
        if float(found.ood_score[i]) > state.record.ood.threshold:
            expected = "unfamiliar"
        assert answer == expected
        held = (1 - p[i] <= state.record.conformal.threshold + 1e-12).tolist()
        if not any(held) and not found.unfamiliar[i]:
            held[int(p[i].argmax())] = True
        assert found.sets[i].tolist() == held


def test_one_member(world: World) -> None:
    val = world.inside(400)
    alone = Outputs(val.logits[:, :1], None, val.labels)
    state, _ = fit_state(
        alone, promise(), Grounds(ood=[Outputs(world.outside(50).logits[:, :1], None)])
    )
    assert set(state.record.nll) == {"before", "temperature"}
    assert set(state.record.ood.auroc) == {"msp", "entropy", "energy", "max-logit"}
    found = decide(state, alone.logits, None)
    assert float(np.abs(found.epistemic).max()) < 1e-9


def test_statistics_from_data_of_their_own(world: World) -> None:
    train = world.inside(1500)
    assert train.features is not None
    assert train.labels is not None
    evidence = []
    for m, linear in enumerate(world.classifiers):
        gathering = Gathering(*linear)
        gathering.add(train.features[:, m], train.logits[:, m], train.labels)
        evidence.append(gathering.evidence())
    state, _ = fit_state(world.inside(400), promise(ood_score="mds"), Grounds(evidence=evidence))
    assert state.record.ood.score == "mds"
    assert state.record.ood.auroc == {}


def test_the_same_seed_gives_the_same_state(world: World) -> None:
    val = world.inside(600)
    first, again, other = (
        fit_state(val, promise(ood_score="msp", seed=seed), Grounds())[0] for seed in (0, 0, 1)
    )
    assert first == again != other


def test_auto_says_what_it_leaves_out(world: World) -> None:
    val = world.inside(300)
    assert val.labels is not None
    two = val.at(val.labels < 2)
    state, notes = fit_state(
        two, promise(), Grounds(classifiers=world.classifiers, ood=[world.outside(50)])
    )
    assert "mds" not in state.record.ood.auroc
    assert "vim" in state.record.ood.auroc
    told = "--ood-score auto leaves out mds, rmds, maha++: 1 of "
    assert sum(note.startswith(told) for note in notes) == 1
    with pytest.raises(DataError, match=r"1 of [0-9]+ classes never occur"):
        fit_state(two, promise(ood_score="mds"), Grounds(classifiers=world.classifiers))


def test_halves_are_disjoint_and_whole() -> None:
    first, second = halves(41, 3)
    assert sorted([*first.tolist(), *second.tolist()]) == list(range(41))
    assert len(second) - len(first) == 1


def test_a_third_fits_and_no_copy_of_what_certifies_does() -> None:
    """The rows that certify are any two thirds of the inputs, and of the copies."""
    plain = split_rows(41, 3)
    assert sorted([*plain.fitting.tolist(), *plain.certifying.tolist()]) == list(range(41))
    assert (len(plain.fitting), len(plain.parts)) == (13, 1)
    random = np.random.default_rng(0)
    inputs = random.permutation(np.repeat(np.arange(30), random.integers(1, 8, 30)))
    rows = split_rows(len(inputs), 3, inputs=np.asarray(inputs))
    copies = len(inputs) - 30
    assert len(rows.certifying) == 20 + copies - copies // 3
    assert len(rows.distinct) == len({*inputs[rows.distinct].tolist()}) == 20
    assert {*rows.distinct.tolist()} < {*rows.certifying.tolist()}
    assert {*inputs[rows.fitting].tolist()}.isdisjoint(inputs[rows.distinct].tolist())
    assert len({*inputs[rows.fitting].tolist()}) == 10
    assert {*rows.fitting.tolist()}.isdisjoint(rows.certifying.tolist())
    assert [part.tolist() for part in rows.parts] == [
        rows.certifying.tolist(),
        rows.distinct.tolist(),
    ]
