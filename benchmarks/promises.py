"""Rates at which promises let a model answer, and at which they are broken.

Simulated: the confidence of an answer is drawn from Beta(4.6 a, 4.6 (1 − a)), a the accuracy, and the answer is right as often as
it says, so that what a threshold answers and how often it is wrong are known exactly. In each draw VAL is drawn anew. Beside
`calibrate --risk` stand MAPIE's split fixed-sequence testing (`learn_fixed_sequence_order`) on the same third and two thirds of VAL,
and the threshold of who knows the truth.

`split`: the other promises, the temperature and the OOD score, where a half, a third or a quarter of VAL fits. Samples of eight
classes are Gaussian in 32 dimensions and seen by a linear classifier whose logits are twice too large; OOD samples lie elsewhere.

Writes benchmarks/results/promises.json.

    python benchmarks/promises.py [--draws 300]
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy import ndarray
from scipy.stats import beta

from hydrasurgeon.decision import split
from hydrasurgeon.decision.fitting import fit_state
from hydrasurgeon.decision.ood_score import Grounds
from hydrasurgeon.decision.state import decide
from hydrasurgeon.errors import DataError
from hydrasurgeon.files.atomic import write_text
from hydrasurgeon.options.deciding import CalibrateOptions
from hydrasurgeon.statistics.abstain import Graded, Unpromised, fit_abstention
from hydrasurgeon.statistics.metrics import auroc
from hydrasurgeon.statistics.probabilities import of_labels
from hydrasurgeon.tasks.base import Outputs

RESULTS = Path(__file__).parent / "results" / "promises.json"
CELLS = [
    (0.97, 200, 0.05),
    (0.97, 600, 0.02),
    (0.97, 2000, 0.02),
    (0.90, 200, 0.10),
    (0.90, 600, 0.05),
    (0.90, 2000, 0.02),
]
"""Accuracy, rows of VAL, and the risk."""
CONCENTRATION = 4.6
DELTA = 0.05
ROWS = (200, 600, 2000)
CLASSES, WIDTH, FRESH = 8, 32, 4000


class Population:
    """Answers that are right as often as they say."""

    def __init__(self, accuracy: float) -> None:
        self.shape = CONCENTRATION * accuracy, CONCENTRATION * (1 - accuracy)
        self.accuracy = accuracy

    def drawn(self, count: int, random: np.random.Generator) -> Graded:
        confidence = random.beta(*self.shape, count)
        return Graded(confidence, np.asarray(random.random(count) < confidence))

    def outcome(self, threshold: float) -> tuple[float, float]:
        """Return the fraction that a threshold answers, and how often these answers are wrong."""
        first, second = self.shape
        answered = float(beta.sf(threshold, first, second))
        right = self.accuracy * float(beta.sf(threshold, first + 1, second))
        return answered, 1 - right / max(answered, 1e-12)

    def best(self, risk: float) -> float:
        """Return the fraction that is answered at the lowest threshold that keeps the risk."""
        tried = (self.outcome(threshold) for threshold in np.linspace(0, 1, 20_001))
        return next(answered for answered, wrong in tried if wrong <= risk)


def calibrated_threshold(fitting: Graded, certifying: Graded, risk: float) -> float | None:
    try:
        return fit_abstention(fitting, [certifying], risk=risk, delta=DELTA).threshold
    except Unpromised:
        return None


def mapies(fitting: Graded, certifying: Graded, risk: float) -> float | None:
    """Return MAPIE's threshold: an answer is a positive, and precision is controlled."""
    from mapie.risk_control import BinaryClassificationController

    controller = BinaryClassificationController(
        lambda confidence: np.stack([1 - confidence[:, 0], confidence[:, 0]], axis=1),
        risk="precision",
        target_level=1 - risk,
        confidence_level=1 - DELTA,
        fwer_method="split_fixed_sequence",
    )
    controller.learn_fixed_sequence_order(
        fitting.confidence[:, None],
        fitting.right.astype(int),
        beta_grid=np.logspace(-25, 0, 200),
        binary=True,
    )
    controller.calibrate(certifying.confidence[:, None], certifying.right.astype(int))
    best: float | None = controller.best_predict_param
    return best


METHODS: dict[str, Callable[[Graded, Graded, float], float | None]] = {
    "calibrate": calibrated_threshold,
    "mapie": mapies,
}


def risks(draws: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each cell: the answered fraction, and how often the promise is broken and
    refused.
    """
    for accuracy, rows, risk in CELLS:
        population, random = Population(accuracy), np.random.default_rng(0)
        outcomes: dict[str, list[tuple[float, float] | None]] = {name: [] for name in METHODS}
        for _ in range(draws):
            graded, cut = population.drawn(rows, random), rows // split.FITS
            fitting, certifying = (
                Graded(graded.confidence[part], graded.right[part])
                for part in (slice(cut), slice(cut, None))
            )
            for name, method in METHODS.items():
                threshold = method(fitting, certifying, risk)
                outcomes[name].append(None if threshold is None else population.outcome(threshold))
        cell: dict[str, Any] = {"accuracy": accuracy, "rows": rows, "risk": risk}
        cell["truth"] = round(population.best(risk), 4)
        for name, values in outcomes.items():
            kept = [value for value in values if value is not None]
            cell[name] = {
                "answered": round(sum(answered for answered, _ in kept) / draws, 4),
                "broken": round(sum(wrong > risk for _, wrong in kept) / draws, 4),
                "refused": round(1 - len(kept) / draws, 4),
            }
        print(cell, flush=True)
        yield cell


def seen(count: int, random: np.random.Generator, centres: ndarray, shift: float = 0) -> Outputs:
    labels = random.integers(0, CLASSES, count)
    features = centres[labels] + random.normal(size=(count, WIDTH)) + shift
    logits = 2 * (features @ centres.T - (centres**2).sum(axis=1) / 2)
    return Outputs(logits[:, None], features[:, None], labels)


def splits(draws: int) -> Iterator[dict[str, Any]]:
    """Yield figures of decision states of which a half, a third or a quarter of VAL is fitted on."""
    centres = np.random.default_rng(1).normal(size=(CLASSES, WIDTH)) * 0.45
    biases = 2 * (-(centres**2).sum(axis=1) / 2)
    options = [
        CalibrateOptions.of("", data="", out="", ood_score="auto", risk=risk)
        for risk in (0.1, None)
    ]
    for rows in ROWS:
        for fits in (2, 3, 4):
            split.FITS = fits
            random, figures = np.random.default_rng(2), list[dict[str, float]]()
            fresh, odd = seen(FRESH, random, centres), seen(FRESH, random, centres, 0.45)
            for _ in range(draws):
                val, ood = seen(rows, random, centres), seen(100, random, centres, 0.45)
                grounds = Grounds([(2 * centres, biases)], None, [ood])
                try:
                    state, _ = fit_state(val, options[0], grounds)
                except DataError:  # the risk cannot be promised: nothing is answered
                    state, _ = fit_state(val, options[1], grounds)
                refused = state.record.abstain is None
                decided = decide(state, fresh.logits, fresh.features)
                held = 1 - decided.probabilities <= state.record.conformal.threshold
                scores = [decided.ood_score, state.ood_score(odd.logits, odd.features)]
                chances = of_labels(decided.probabilities, fresh.truth)
                figures.append(
                    {
                        "coverage": float(of_labels(held, fresh.truth).mean()),
                        "flagged": float(decided.unfamiliar.mean()),
                        "answered": 0.0
                        if refused
                        else float((~decided.abstain & ~decided.unfamiliar).mean()),
                        "refused": float(refused),
                        "nll": -float(np.log(chances).mean()),
                        "auroc": auroc(*scores) or 0.0,
                    }
                )
            row: dict[str, Any] = {"rows": rows, "fits": fits}
            for name in figures[0]:
                values = [figure[name] for figure in figures]
                row[name] = [round(fmean(values), 4), round(float(np.std(values)), 4)]
            print(row, flush=True)
            yield row
    split.FITS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--draws", type=int, default=300)
    draws = parser.parse_args().draws
    warnings.simplefilter("ignore")  # MAPIE's, where no threshold controls the risk
    results = {
        "draws": draws,
        "delta": DELTA,
        "risks": [*risks(draws)],
        "splits": [*splits(max(1, draws // 3))],
    }
    write_text(RESULTS, json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
