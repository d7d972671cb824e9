"""calibrate --words: a bag-of-words model in a blend or a cascade with the model, and what a file's
own one becomes when it is calibrated again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hydrasurgeon.errors import SurgeryError, UsageError
from hydrasurgeon.lookup import format_number

if TYPE_CHECKING:
    from hydrasurgeon.checkpoints.checkpoint import Checkpoint
    from hydrasurgeon.data import Samples
    from hydrasurgeon.decision.state import State
    from hydrasurgeon.decision.text_model import Lesson, Reading
    from hydrasurgeon.files.decided import DecisionRecord
    from hydrasurgeon.measuring.predictions import Predictions
    from hydrasurgeon.options.deciding import CalibrateOptions
    from hydrasurgeon.run.bag_of_words import WordIds
    from hydrasurgeon.runtime.answering import Engine
    from hydrasurgeon.tasks.base import Outputs, Task

LEAST_SAVED = 0.05
"""The fraction of samples that words must answer to come first."""


def base_of(arguments: CalibrateOptions, source: Checkpoint, opened: Checkpoint) -> Checkpoint:
    """Return the checkpoint to begin with: `source` if its bag-of-words model gets new weights,
    else `opened`.
    """
    before = source.manifest.decision
    fitted = arguments.words == "off" or arguments.fit_data is not None or arguments.cross
    if fitted or before is None or before.words is None:
        return opened
    return source


def as_before(arguments: CalibrateOptions, decision: DecisionRecord | None) -> CalibrateOptions:
    """Return the options with the mode and budget of words that the existing decision state has."""
    before = decision and decision.words
    if arguments.words != "auto" or arguments.cascade or not decision or not before:
        return arguments
    if before.mode == "cascade" and decision.cascade is not None:
        arguments = arguments.but(words="cascade")
        if arguments.budget is None and arguments.max_loss is None:
            arguments = arguments.but(budget=f"on={decision.cascade.share_on:.6f}")
    return arguments


def reading_of(
    engine: Engine,
    task: Task,
    stored: State | None,
    train: Samples | None,
    val: Samples,
    outputs: Outputs,
    unlabelled: Sequence[tuple[Samples, Outputs]],
    arguments: CalibrateOptions,
) -> tuple[Reading | None, str | None]:
    """Return the bag-of-words reader that answers beside the model, or None, and a note."""
    from hydrasurgeon.data.folds import folds_of
    from hydrasurgeon.decision.split import split
    from hydrasurgeon.decision.text_model import lesson, seer, weigh

    mode, model = arguments.words, engine.facts
    text = getattr(engine.transform, "kind", "image") == "text"
    if mode == "off" or not text or (mode == "auto" and stored is None and train is None):
        return None, None
    see = seer(engine.transform)
    if stored is not None:
        rows = split(outputs, arguments.seed)
        parts = see, lesson(val), outputs, (rows.fitting, rows.certifying)
        reading, _ = weigh(stored, *parts)
        return reading, "the bag-of-words model of the file is kept, as no --fit-data is given"
    about = see, model.preprocess.get("files_sha256")
    learnt = None if train is None else lesson(train)
    if arguments.cross and learnt is not None and train is not None:
        learnt = replace(learnt, folds=folds_of(train))
    for samples, outputs_of in unlabelled:
        learnt = learnt and replace(learnt, more=(samples, outputs_of.logits))
    return _weighed(task, *about, learnt, lesson(val), outputs, arguments, None)


def reading_alone(
    task: Task,
    train: Predictions | None,
    ids: WordIds | None,
    val: Outputs,
    arguments: CalibrateOptions,
) -> tuple[Reading | None, str | None]:
    """Return the bag-of-words reader for a predictions file, which holds texts or tokens, and a
    note.
    """
    from hydrasurgeon.decision.text_model import Lesson

    mode, why, learnt = arguments.words, None, None
    if mode == "cascade":
        message = "--words cascade: saves no time, as the model has answered already"
        raise UsageError(message, hint="Give --words blend.")
    if mode == "off" or (mode == "auto" and (ids is None or train is None)):
        return None, None
    read = None if train is None else train.read
    if ids is None or (train is not None and (read is None or read.made_of != ids.made_of)):
        why = (
            "--words requires texts in both --predictions and --fit-predictions, or tokens in both"
        )
    if train is not None:
        learnt = Lesson(read.ids if read is not None else [], train.outputs.labels)
    seen, tokenizer = ([], None) if ids is None else (ids.ids, ids.tokenizer)
    return _weighed(task, list, tokenizer, learnt, Lesson(seen, val.labels), val, arguments, why)


def _weighed(
    task: Task,
    see: Callable[[Any], Any],
    tokenizer: str | None,
    train: Lesson | None,
    val: Lesson,
    outputs: Outputs,
    arguments: CalibrateOptions,
    why: str | None,
) -> tuple[Reading | None, str | None]:
    """Fit a bag-of-words reader to TRAIN. Return it if it pays or is required, else None, and a
    note.
    """
    from hydrasurgeon.decision.split import split
    from hydrasurgeon.decision.text_model import fit_reading, lacks

    mode = arguments.words
    why = lacks(task, outputs.logits.shape[-1], train, first=mode == "cascade") or why
    if why is not None or train is None:
        if mode == "auto":
            return None, why if task.link is not None else None
        raise UsageError(str(why), hint="Give --words off.")
    rows = split(outputs, arguments.seed)
    parts = rows.fitting, rows.certifying
    about = (task, see, tokenizer, train, val, outputs, parts)
    reading, worth = fit_reading(*about, first=mode == "cascade")
    if worth.pays or mode != "auto":
        source = (
            "also learnt from --unlabelled"
            if reading.pseudo_labelled
            else "is better without --unlabelled"
        )
        return reading, None if train.more is None else f"the bag-of-words model {source}"
    before, after = worth.without, worth.together
    return (
        None,
        f"the bag-of-words model is left out: it does not lower NLL ({before:.4f} → {after:.4f})",
    )


def most_on(
    opened: Checkpoint, reading: Reading, val: Samples, arguments: CalibrateOptions
) -> float | None:
    """Return the maximum fraction of samples that may go on from words to the model, by the budget."""
    from hydrasurgeon.building.clock import Clock

    if arguments.budget is None:
        return None
    unit, most = budget_of(arguments.budget)
    if unit == "on":
        return most
    clock = Clock(opened, val, arguments)
    words, model_costs = clock.words(lambda: reading).time, clock.unpruned()
    model_cost = model_costs[arguments.engine].time if arguments.engine in model_costs else 1.0
    if most <= words:
        raise SurgeryError(
            f"--budget {arguments.budget}: the bag-of-words model alone takes time={format_number(words, 2)} on this machine",
            hint="Give a larger --budget.",
        )
    return min(1.0, (most - words) / model_cost)


def budget_of(text: str) -> tuple[str, float]:
    """`time=0.2` or `on=0.3`."""
    match = re.fullmatch(r"(time|on)=([0-9]*\.?[0-9]+)", text)
    most = 0.0 if match is None else float(match[2])
    if match is None or (most > 1 if match[1] == "on" else most <= 0):
        raise UsageError(
            f"--budget {text}: expected time=N above 0, or on=N from 0 to 1",
            hint="Such as time=0.2.",
        )
    return match[1], most


def with_words_first(
    state: State,
    first: Outputs,
    val: Outputs,
    ood: Sequence[tuple[Outputs, Outputs]],
    real_count: int,
    arguments: CalibrateOptions,
    most_on: float | None,
) -> tuple[State, tuple[str, ...]]:
    """Let words answer first if that saves something, else return the state unchanged with a note.

    The first `real_count` OOD sets are real data. Perturbed sets follow; they count only where no
    real OOD data are given, and never within a budget.
    """
    from hydrasurgeon.decision.cascade_fit import LOST, fit_cascade, lost
    from hydrasurgeon.decision.state import with_seen

    counted = ood[:real_count] if real_count or most_on is not None else ood
    fitted = fit_cascade(state, first, val, arguments, ood=counted, words=True, most_on=most_on)
    cascade, words = fitted.cascade, fitted.record.words
    assert words is not None
    if cascade.share_on > 1 - LEAST_SAVED:
        note = f"--words cascade saves nothing: {100 * cascade.share_on:.0f} % of the rows would go on to the model. The bag-of-words model is averaged with it instead"
        return state, (note,)
    more = "a smaller --max-loss" if most_on is None else "a larger budget"
    advice = more if real_count else f"--ood or {more}"
    notes = tuple(
        f"the bag-of-words model answers {100 * share:.0f} % of the perturbed rows that the model calls unfamiliar; {advice} sends more rows to the model"
        for share in (lost(fitted, *outputs) for outputs in ood[real_count:])
        if share > LOST
    )
    words = words.model_copy(update={"mode": "cascade", "threshold": cascade.threshold})
    fitted = replace(fitted, record=fitted.record.model_copy(update={"words": words}))
    return with_seen(fitted, val.logits, val.features, first), notes
