"""What `calibrate` holds at a time: the answers once, and once more in float64, not several times over."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from peak import Peak
from promised import promise

from hydrasurgeon.data.samples import Arrays
from hydrasurgeon.decision.fitting import fit_state
from hydrasurgeon.decision.ood_score import Grounds
from hydrasurgeon.runtime.answering import gathered
from hydrasurgeon.statistics import temperature
from hydrasurgeon.statistics.probabilities import in_pieces, mean_probs, nll
from hydrasurgeon.statistics.scores import fitted
from hydrasurgeon.statistics.temperature import nll_of, temperature_of
from hydrasurgeon.tasks.base import Outputs

ROWS, CLASSES = 4000, 50


def answers() -> tuple[np.ndarray, np.ndarray]:
    labels = np.arange(ROWS) % CLASSES
    random = np.random.default_rng(0)
    logits = random.normal(size=(ROWS, 1, CLASSES)).astype(np.float32)
    logits[np.arange(ROWS), 0, labels] += 3
    return logits, labels


def test_collected_answers_are_held_once() -> None:
    """Pieces come in any order, and rows that could not be read leave no gap."""
    logits, labels = answers()
    order = np.random.default_rng(1).permutation(ROWS)

    def pieces(left_out: int = 0) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
        for index in in_pieces(order[: ROWS - left_out], 40):
            values = {"logits": logits[index], "features": logits[index] + 1}
            yield index, {**values, "labels": labels[index]}

    samples = Arrays("x", np.zeros((ROWS, 1, 1), np.uint8))
    with Peak() as peak:
        whole = gathered(samples, pieces())
    assert np.array_equal(whole["logits"], logits)
    assert np.array_equal(whole["features"], logits + 1)
    assert np.array_equal(whole["labels"], labels)
    assert peak.bytes < 1.3 * 2 * logits.nbytes
    kept = np.sort(order[:-300])
    assert np.array_equal(gathered(samples, pieces(left_out=300))["logits"], logits[kept])


def test_a_state_is_fitted_beside_the_answers_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((temperature, "CALIBRATED"), (fitted, "ROWS")):
        monkeypatch.setattr(module, name, 100)
    monkeypatch.setattr(temperature, "ELEMENTS", 100 * CLASSES)
    logits, labels = answers()
    with Peak() as peak:
        fit_state(Outputs(logits, None, labels), promise(ood_score="msp"), Grounds())
    doubles = ROWS * CLASSES * 8
    # The halves in float32, and both joined again.
    assert peak.bytes < 1.25 * (2 * logits.nbytes + doubles)


@pytest.mark.parametrize("rows", [1, 70, 5000])
def test_pieces_change_nothing(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    logits, labels = (each[:300] for each in answers())
    at_once = temperature_of(logits, labels)
    monkeypatch.setattr(temperature, "CALIBRATED", rows)
    assert temperature_of(logits, labels) == at_once
    assert nll_of(logits, labels, 1.3) == nll(mean_probs(logits, 1.3), labels)
