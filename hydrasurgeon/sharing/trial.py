"""Answers on data that the user gives, before and after a model became another file: metrics of
both, side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from hydrasurgeon.data import Batch, Batches, Samples, by_length, open_data
from hydrasurgeon.data.samples import limited
from hydrasurgeon.errors import CheckFailed
from hydrasurgeon.measuring.sets import check_once, parse_ood
from hydrasurgeon.runtime.answering import gathered
from hydrasurgeon.sharing.base import Compared
from hydrasurgeon.statistics.metrics import accuracy, auroc, ece

if TYPE_CHECKING:
    from hydrasurgeon.engines.onnx.program import Exported
    from hydrasurgeon.files.manifest import Model
    from hydrasurgeon.options.measuring import ExportOptions
    from hydrasurgeon.runtime.classifier import Classifier

Answer = Callable[[Any], tuple[Any, Any]]
"""Inputs of a batch → probabilities, and OOD scores where a decision state says how."""
OF_STATE = ("flagged", "coverage", "answered")
"""Shares that follow from the thresholds of a decision state.

They were fitted on the float model, so neither more nor less is as good.
"""
DIFFERING = 256
"""Samples of `difference`, at most."""


def worse(name: str, before: float, after: float) -> float:
    """Return by how much a metric is worse.

    That is less accuracy, less AUROC, more ECE, or another share that the decision state flags,
    covers or answers.
    """
    change = after - before
    return abs(change) if name in OF_STATE else change if name == "ece" else -change


@dataclass(frozen=True)
class Trial:
    """Data on which answers are compared, and how much worse they may be."""

    samples: Samples
    ood_sets: dict[str, Samples]
    tolerance: float

    def compared(
        self, model: Classifier, before: Answer, after: Answer, *, who: str = "the file"
    ) -> Compared:
        """Return the metrics of two sets of answers.

        Raises CheckFailed if those of `who`, which is to be written, are too much worse.
        """
        was = measured(before, model, self, "the model")
        now = measured(after, model, self, who)
        broken = [
            f"{name}: {value:.4f} before, {now[name]:.4f} in {who}"
            for name, value in was.items()
            if not worse(name, value, now[name]) <= self.tolerance
        ]
        if broken:
            raise CheckFailed(
                f"export --check: worse by more than {self.tolerance:g} on {self.samples.spec}: {'; '.join(broken)}",
                hint="Nothing was written: allow more with --tolerance, or export another way.",
            )
        return {"before": was, "after": now}


def opened_trial(about: Model, check: str, arguments: ExportOptions) -> Trial:
    """Open the data, before a graph is made in vain."""
    samples = open_data(check, limit=arguments.limit, model=about)
    named = [parse_ood(entry) for entry in arguments.ood]
    check_once("--ood", [name for _, name, _ in named])
    ood_sets = {name: open_data(spec, limit=arguments.limit) for _, name, spec in named}
    return Trial(samples, ood_sets, arguments.tolerance)


def in_torch(model: Classifier) -> Answer:
    """Return the function that gives the model's own answers, of all its members."""

    def answer(inputs: Any) -> tuple[Any, Any]:
        if model.state is None:
            return model.predict(inputs), None
        decided = model.decide(inputs, cascade=False)
        return decided.probabilities, decided.ood_score

    return answer


def in_file(file: Exported) -> Answer:
    """Return the function that gives the file's answers."""

    def answer(inputs: Any) -> tuple[Any, Any]:
        named = inputs if isinstance(inputs, dict) else {"pixel_values": inputs}
        values = dict(zip(file.outputs, file.run(named), strict=True))
        # Probabilities have another name where there is a decision state.
        return values["probabilities" if "probabilities" in values else "probs"], values.get(
            "ood_score"
        )

    return answer


def difference(model: Classifier, file: Answer, samples: Samples, *, who: str) -> float:
    """Return the largest difference of a file's probabilities from torch's. `who` runs it."""
    samples = limited(samples, DIFFERING, seed=0)
    expected, _, _ = answers(in_torch(model), model, samples, "the model")
    answered, _, _ = answers(file, model, samples, who)
    return float(np.abs(answered - expected).max())


def measured(run: Answer, model: Classifier, trial: Trial, who: str) -> dict[str, float]:
    """Measure the answers of `who` runs.

    The metrics are accuracy, ECE, AUROC against each OOD set, and the fractions that a decision
    state's thresholds lead to.
    """
    from hydrasurgeon.statistics.conformal import prediction_sets
    from hydrasurgeon.statistics.probabilities import of_labels

    probs, scores, labels = answers(run, model, trial.samples, who)
    assert labels is not None
    measures = {"accuracy": accuracy(probs, labels), "ece": ece(probs, labels)}
    if model.state is not None:
        record = model.state.record
        flagged = scores > record.ood.threshold
        sets = prediction_sets(record.conformal, probs)
        # As `eval` counts: the set of a familiar sample is never empty.
        empty = ~sets.any(axis=-1) & ~flagged
        covered = np.where(empty, probs.argmax(axis=-1) == labels, of_labels(sets, labels))
        shares = {"flagged": flagged, "coverage": covered}
        if record.abstain is not None:
            shares["answered"] = (probs.max(axis=-1) >= record.abstain.threshold) & ~flagged
        measures |= {name: float(share.mean()) for name, share in shares.items()}
    for name, ood_samples in trial.ood_sets.items():
        area = auroc(scores, answers(run, model, ood_samples, who)[1])
        measures[f"auroc.{name}"] = float("nan") if area is None else area
    return measures


def answers(
    run: Answer, model: Classifier, samples: Samples, who: str
) -> tuple[ndarray, ndarray, ndarray | None]:
    """Return probabilities, OOD scores and labels, in the order of the samples.

    Without a decision state the OOD score is 1 − max p. Raises CheckFailed for NaN.
    """
    batches = Batches(samples, model.transform, batch_size=None, order=by_length(samples))

    def read(batch: Batch) -> dict[str, ndarray | None]:
        probs, scores = run(batch.inputs)
        probs = np.asarray(probs, dtype=np.float64)
        if scores is None:
            scores = 1 - probs.max(axis=-1)
        labels = None if batch.labels is None else np.asarray(batch.labels)
        return {"probs": probs, "scores": np.asarray(scores), "labels": labels}

    table = gathered(samples, ((np.asarray(batch.index), read(batch)) for batch in batches))
    # A metric of NaN may be a number: the AUROC of foreign answers that are NaN is 1.
    bad = int((np.isnan(table["probs"]).any(axis=-1) | np.isnan(table["scores"])).sum())
    if bad:
        raise CheckFailed(
            f"export --check: {who} answers NaN for {bad:,} of {len(samples):,} samples of {samples.spec}",
            hint="Nothing was written: `hydrasurgeon eval` shows what the model answers there; try another --format.",
        )
    return table["probs"], table["scores"], table.get("labels")
