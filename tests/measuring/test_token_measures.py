"""Measures of entities, against seqeval and scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from fitted_states import fitted
from numpy import ndarray
from token_logits import NAMES, drawn

from hydrasurgeon.files.decided import Abstention, Cover, EntityRule
from hydrasurgeon.measuring import measure
from hydrasurgeon.measuring.measure import row_of
from hydrasurgeon.measuring.predictions import Predictions
from hydrasurgeon.statistics.entities import entities_of, joint_chances, with_openings
from hydrasurgeon.statistics.metrics import risks
from hydrasurgeon.statistics.probabilities import softmax, surest
from hydrasurgeon.tasks import TASKS
from hydrasurgeon.tasks.base import Outputs
from hydrasurgeon.tasks.entity_answers import JudgedTokens

TOKENS = TASKS["token_classification"]


def names_of(tags: ndarray, counts: list[int]) -> list[list[str]]:
    return [[NAMES[tag] for tag in row[:n]] for row, n in zip(tags.tolist(), counts, strict=True)]


def judged(logits: ndarray, labels: ndarray, **constants: Any) -> JudgedTokens:
    state = fitted(TOKENS, temperature=1.3, **constants)
    inside = measure.judged(Outputs(logits, None, labels), state)
    assert isinstance(inside, JudgedTokens)
    return inside


def values(inside: JudgedTokens, rows: ndarray) -> dict[str, float]:
    return {name: float(value[0]) for name, value in inside.measures()(rows[None]).items()}


@pytest.mark.parametrize("seed", range(3))
def test_entities_are_scored_as_seqeval_does(seed: int) -> None:
    from seqeval.metrics import f1_score, precision_score, recall_score
    from seqeval.scheme import IOB2

    logits, labels, counts = drawn(120, seed)
    inside = judged(logits, labels)
    rows = torch.randint(120, (200,), generator=torch.Generator().manual_seed(seed)).numpy()
    for some in (np.arange(120), rows):
        found = values(inside, some)
        chosen = [counts[row] for row in some.tolist()]
        truth, said = (names_of(tags[some], chosen) for tags in (labels, inside.tags))
        how = {"mode": "strict", "scheme": IOB2}
        assert found["f1"] == pytest.approx(f1_score(truth, said, **how), abs=1e-12)
        assert found["precision"] == pytest.approx(precision_score(truth, said, **how), abs=1e-12)
        assert found["recall"] == pytest.approx(recall_score(truth, said, **how), abs=1e-12)
        assert 0.2 < found["f1"] < 0.8


def test_words_disagree_as_classes_do() -> None:
    logits, labels, _ = drawn(80, 4)
    inside, there = judged(logits, labels), labels[:, :8] >= 0
    outputs = Outputs(np.moveaxis(logits, 2, 1)[there], None, labels[:, :8][there])
    words = measure.judged(outputs, fitted(temperature=1.3))
    assert inside.diversity() == pytest.approx(words.diversity(), abs=1e-12)
    assert inside.count == 80


def runs(tags: list[int]) -> list[tuple[int, int, int]]:
    """The entities of a text by going from word to word: first, last, kind."""
    found = []
    for start, tag in enumerate(tags):
        if tag > 0 and tag % 2:
            end = start
            while end + 1 < len(tags) and tags[end + 1] == tag + 1:
                end += 1
            found.append((start, end, tag // 2))
    return found


def test_entities_have_the_probability_of_their_words() -> None:
    logits, labels, counts = drawn(60, 5)
    inside = judged(logits, labels, entities=EntityRule(probability="least", most=4))
    truth = labels.tolist()
    chances: list[float] = []
    right: list[bool] = []
    for text, count in enumerate(counts):
        for first, last, kind in runs(inside.tags[text, :count].tolist()):
            chances.append(float(inside.confidence[text, first : last + 1].min()))
            right.append((first, last, kind) in runs(truth[text][:count]))
    said = entities_of(inside.tags)
    np.testing.assert_allclose(inside.chances[said.text, said.first].tolist(), chances)
    product = joint_chances(said, inside.confidence, "product")
    by_hand = [
        float(inside.confidence[t, a : b + 1].prod())
        for t, a, b in zip(said.text, said.first, said.last, strict=True)
    ]
    np.testing.assert_allclose(product.tolist(), by_hand)
    figures = inside.figures()
    curve = risks(np.array(chances), np.array(right))
    assert figures["aurc"] == pytest.approx(float(np.trapezoid(curve)) / (len(curve) - 1))
    edges = np.linspace(0, 1, 16)
    bins = np.digitize(np.array(chances, dtype=np.float32), edges.astype(np.float32))
    gaps = [
        abs(np.sum(np.array(right)[bins == b]) - np.sum(np.array(chances)[bins == b]))
        for b in range(1, 17)
    ]
    assert figures["entity_ece"] == pytest.approx(sum(gaps) / len(chances))


def test_entities_of_foreign_texts_are_told_apart() -> None:
    from sklearn.metrics import roc_auc_score

    logits, labels, counts = drawn(60, 5)
    foreign, _, others = drawn(40, 6, noise=3.0)
    cover = Cover(threshold=0.1, risk=0.1, delta=0.1, words=0.5)
    state = fitted(TOKENS, temperature=1.3, cover=cover)
    said, far = Outputs(logits, None, labels), {"far": Outputs(foreign, None)}
    (found,) = row_of(Predictions("m", "hydra", said, far, task=TOKENS), state).result.ood
    doubts: list[float] = []
    for given, lengths in ((logits, counts), (foreign, others)):
        probs = softmax(given.astype(np.float64)).mean(axis=1) ** (1 / 1.3)
        confidence, tags = surest(probs / probs.sum(axis=-1, keepdims=True))
        doubts += [
            1 - float(confidence[text, first : last + 1].prod())
            for text, count in enumerate(lengths)
            for first, last, _ in runs(with_openings(tags[text : text + 1, :count])[0].tolist())
        ]
    inside = sum(
        len(runs(row[:count].tolist()))
        for row, count in zip(judged(logits, labels).tags, counts, strict=True)
    )
    is_foreign = [at >= inside for at in range(len(doubts))]
    assert found.entity_auroc == pytest.approx(roc_auc_score(is_foreign, doubts), abs=1e-9)
    assert found.entity_auroc != pytest.approx(0.5, abs=0.02)


def test_what_is_promised_is_measured() -> None:
    logits, labels, counts = drawn(60, 6, noise=1.0)
    how = {"entities": EntityRule(probability="product", most=4)}
    kept = {"risk": 0.1, "delta": 0.1}
    abstain = Abstention(threshold=0.4, bound=0.1, coverage=0.5, **kept)
    sure = judged(logits, labels, abstain=abstain, **how)
    prediction = TOKENS.plain(logits, {"temperature": 1.3, "abstain": abstain, **how})
    rows = prediction.columns(NAMES, 0)["entities"]
    answered = wrong = 0
    for text, entities in enumerate(rows):
        true = runs(labels[text, : counts[text]].tolist())
        for entity in entities:
            assert (entity["answer"] != "abstain") == (entity["probability"] >= 0.4)
            if entity["answer"] != "abstain":
                kind = ["PER", "LOC"].index(entity["label"])
                answered += 1
                wrong += (entity["start"], entity["end"] - 1, kind) not in true
    assert 20 < answered < len(entities_of(prediction.tags))
    assert sure.figures()["answered"] == answered / len(entities_of(prediction.tags))
    assert sure.figures()["wrong"] == pytest.approx(wrong / answered)
    assert values(sure, np.arange(60)) == values(judged(logits, labels), np.arange(60))

    cover = Cover(threshold=0.8, words=0.5, **kept)
    covered = judged(logits, labels, cover=cover, **how)
    prediction = TOKENS.plain(logits, {"temperature": 1.3, "cover": cover, **how})
    missed = total = 0
    for text, entities in enumerate(prediction.columns(NAMES, 0)["entities"]):
        words = {word for e in entities for word in range(e["start"], e["end"])}
        probs = TOKENS.answers(logits, {"temperature": 1.3})[text, : counts[text]]
        assert words == set(np.flatnonzero(probs[:, 1:].sum(axis=1) >= 0.8).tolist())
        for first, last, _ in runs(labels[text, : counts[text]].tolist()):
            total += 1
            missed += not set(range(first, last + 1)) <= words
    assert covered.figures()["missed"] == pytest.approx(missed / total)
    assert 0 < missed < total


def test_scores_of_a_text_are_means_of_its_words() -> None:
    from hydrasurgeon.statistics.scores.on_logits import score_of

    logits, _, counts = drawn(30, 7)
    assert len({*counts}) > 3
    for kind in TOKENS.scores:
        found = score_of(kind, logits)
        for text, count in enumerate(counts):
            if count:
                words = score_of(kind, logits[text, :, :count].swapaxes(0, 1))
                assert float(found[text]) == pytest.approx(float(words.mean()), abs=1e-9)
