# mypy: ignore-errors
"""The model of with_hydrasurgeon.sh, with the interface of the other ways: log-probabilities and
the OOD score.
"""

import numpy as np

import hydrasurgeon as hs
from hydrasurgeon.decision.fitting import flag_threshold
from hydrasurgeon.decision.split import split_rows
from hydrasurgeon.errors import DataError
from hydrasurgeon.statistics.abstain import Graded, fit_abstention
from hydrasurgeon.statistics.conformal import fit_conformal, prediction_sets
from hydrasurgeon.statistics.probabilities import softmax
from hydrasurgeon.statistics.temperature import temperature_of


class Model:
    def __init__(self, out):
        self.answer = hs.Predictor(f"{out}/ready")
        self.all_classes = hs.Predictor(f"{out}/ready", top=1000)

    def read(self, texts):
        rows = self.all_classes(texts)
        chances = [[p for _, p in sorted((int(name), p) for name, p in row["top"])] for row in rows]
        return np.column_stack(
            [np.log(np.clip(chances, 1e-12, 1)), [row["ood_score"] for row in rows]]
        )

    def calibrate(self, read, labels, risk):
        """Calibrate as the command does: a third fits a temperature, the rest certifies all
        thresholds.
        """
        split = split_rows(len(labels), 0)
        fits, certifies = split.fitting, split.certifying
        self.temperature = temperature_of(read[fits, None, :-1], labels[fits])
        held, truth = softmax(read[certifies, :-1] / self.temperature), labels[certifies]
        self.sets = fit_conformal(held, truth)
        self.flagged = flag_threshold(read[certifies, -1], 0.05)
        rows = read[certifies, -1] <= self.flagged
        try:
            first = softmax(read[fits, :-1] / self.temperature)
            near = read[fits, -1] <= self.flagged
            right, other = held.argmax(axis=1) == truth, first.argmax(axis=1) == labels[fits]
            ordering = Graded(first.max(axis=1)[near], other[near])
            certifying = Graded(held.max(axis=1)[rows], right[rows])
            self.least = fit_abstention(ordering, [certifying], risk=risk).threshold
        except DataError:  # nothing is promised, and nothing answered
            self.least = 2.0

    def decide(self, read):
        p, score = softmax(read[:, :-1] / self.temperature), read[:, -1]
        answered = (p.max(axis=1) >= self.least) & (score <= self.flagged)
        return p, score, answered, prediction_sets(self.sets, p)
