"""calibrate --words: which reader answers beside a model or before it, and what a file's own one
becomes when it is calibrated again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hydrasurgeon.errors import SurgeryError, UsageError
from hydrasurgeon.lookup import format_number

if TYPE_CHECKING:
    from hydrasurgeon.checkpoints.reading import Checkpoint
    from hydrasurgeon.data import Samples
    from hydrasurgeon.decision.reading import Lesson, Reading
    from hydrasurgeon.decision.state import State
    from hydrasurgeon.files.decided import Decision
    from hydrasurgeon.measuring.predictions import Predictions
    from hydrasurgeon.options.deciding import CalibrateOptions
    from hydrasurgeon.problems.base import Outputs, Problem
    from hydrasurgeon.run.words import WordIds
    from hydrasurgeon.runtime.answering import Engine

LEAST_SAVED = 0.05
"""The fraction of samples that words must answer to come first."""


def begun_of(arguments: CalibrateOptions, source: Checkpoint, opened: Checkpoint) -> Checkpoint:
    """What the state is made of: the file, where its own words are weighed anew, else the model."""
    before = source.manifest.decision
    fitted = arguments.words == "off" or arguments.fit_data is not None or arguments.cross
    if fitted or before is None or before.words is None:
        return opened
    return source


def as_before(arguments: CalibrateOptions, decision: Decision | None) -> CalibrateOptions:
    """Words stand where they stood: before the model, for what went on to it."""
    before = decision and decision.words
    if arguments.words != "auto" or arguments.cascade or not decision or not before:
        return arguments
    if before.mode == "first" and decision.cascade is not None:
        arguments = arguments.but(words="first")
        if arguments.budget is None and arguments.max_loss is None:
            arguments = arguments.but(budget=f"on={decision.cascade.share_on:.6f}")
    return arguments


def reading_of(
    engine: Engine,
    problem: Problem,
    stored: State | None,
    train: Samples | None,
    val: Samples,
    outputs: Outputs,
    unlabelled: Sequence[tuple[Samples, Outputs]],
    arguments: CalibrateOptions,
) -> tuple[Reading | None, str | None]:
    """The reader of words that answers beside the model, if there is to be one; and a note."""
    from hydrasurgeon.data.folds import folds_of
    from hydrasurgeon.decision.reading import lesson, seer, weigh
    from hydrasurgeon.decision.split import split

    wanted, model = arguments.words, engine.facts
    text = getattr(engine.transform, "kind", "image") == "text"
    if wanted == "off" or not text or (wanted == "auto" and stored is None and train is None):
        return None, None
    if stored is not None:
        rows = split(outputs, arguments.seed)
        parts = seer(engine.transform), lesson(val), outputs, (rows.fitting, rows.certifying)
        reading, _ = weigh(stored, *parts)
        return reading, "words: those of the file, for no --fit-data is given"
    about = seer(engine.transform), model.preprocess.get("files_sha256")
    learnt = None if train is None else lesson(train)
    if arguments.cross and learnt is not None and train is not None:
        learnt = replace(learnt, folds=folds_of(train))
    for samples, said in unlabelled:
        learnt = learnt and replace(learnt, more=(samples, said.logits))
    return _weighed(problem, *about, learnt, lesson(val), outputs, arguments, None)


def reading_alone(
    problem: Problem,
    train: Predictions | None,
    ids: WordIds | None,
    val: Outputs,
    arguments: CalibrateOptions,
) -> tuple[Reading | None, str | None]:
    """The same beside any model: of the texts or tokens that stand beside what it answered."""
    from hydrasurgeon.decision.reading import Lesson

    wanted, why, learnt = arguments.words, None, None
    if wanted == "first":
        what = "--words first: saves nothing where the model has answered already"
        raise UsageError(what, hint="Give --words beside.")
    if wanted == "off" or (wanted == "auto" and (ids is None or train is None)):
        return None, None
    read = None if train is None else train.read
    if ids is None or (train is not None and (read is None or read.made_of != ids.made_of)):
        why = "words: require texts in both --predictions and --fit-predictions, or tokens in both"
    if train is not None:
        learnt = Lesson(read.ids if read is not None else [], train.outputs.labels)
    seen, tokenizer = ([], None) if ids is None else (ids.ids, ids.tokenizer)
    return _weighed(problem, list, tokenizer, learnt, Lesson(seen, val.labels), val, arguments, why)


def _weighed(
    problem: Problem,
    see: Callable[[Any], Any],
    tokenizer: str | None,
    train: Lesson | None,
    val: Lesson,
    outputs: Outputs,
    arguments: CalibrateOptions,
    why: str | None,
) -> tuple[Reading | None, str | None]:
    """The reader that is fitted to TRAIN, where it pays or is asked for; and why there is none."""
    from hydrasurgeon.decision.reading import fit_reading, lacks
    from hydrasurgeon.decision.split import split

    wanted = arguments.words
    why = lacks(problem, outputs.logits.shape[-1], train, first=wanted == "first") or why
    if why is not None or train is None:
        if wanted == "auto":
            return None, why if problem.link is not None else None
        raise UsageError(str(why), hint="Give --words off.")
    rows = split(outputs, arguments.seed)
    parts = rows.fitting, rows.certifying
    about = (problem, see, tokenizer, train, val, outputs, parts)
    reading, worth = fit_reading(*about, first=wanted == "first")
    if worth.pays or wanted != "auto":
        told = "learnt from --unlabelled too" if reading.taught else "better without --unlabelled"
        return reading, None if train.more is None else f"words: {told}"
    before, after = worth.without, worth.together
    return None, f"words: left out, for the NLL is no lower with them ({before:.4f} → {after:.4f})"


def most_on(
    opened: Checkpoint, reading: Reading, val: Samples, arguments: CalibrateOptions
) -> float | None:
    """The fraction of samples that a budget lets go on from words to the model."""
    from hydrasurgeon.building.clock import Clock

    if arguments.budget is None:
        return None
    unit, most = budget_of(arguments.budget)
    if unit == "on":
        return most
    clock = Clock(opened, val, arguments)
    words, whole = clock.words(lambda: reading).time, clock.unpruned()
    taken = whole[arguments.engine].time if arguments.engine in whole else 1.0
    if most <= words:
        raise SurgeryError(
            f"--budget {arguments.budget}: words alone take time={format_number(words, 2)} on this machine",
            hint="Allow more than that.",
        )
    return min(1.0, (most - words) / taken)


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
    foreign: Sequence[tuple[Outputs, Outputs]],
    given: int,
    arguments: CalibrateOptions,
    most_on: float | None,
) -> tuple[State, tuple[str, ...]]:
    """The state in which words answer first, where that saves something; else as it is, and a note.
    Of the OOD samples the first sets were `given`: what is invented counts where there are none, and
    takes nothing from a budget.
    """
    from hydrasurgeon.decision.cascade_fit import LOST, fit_cascade, lost
    from hydrasurgeon.decision.state import with_seen

    known = foreign[:given] if given or most_on is not None else foreign
    fitted = fit_cascade(state, first, val, arguments, foreign=known, words=True, most_on=most_on)
    cascade, words = fitted.cascade, fitted.record.words
    assert words is not None
    if cascade.share_on > 1 - LEAST_SAVED:
        note = f"words come beside the model and not first: {100 * cascade.share_on:.0f} % of samples would go on"
        return state, (note,)
    more = "a smaller --max-loss" if most_on is None else "a larger budget"
    advice = more if given else f"--ood or {more}"
    notes = tuple(
        f"words first: {100 * share:.0f} % of perturbed samples stop at words, though unfamiliar to the model; {advice} lets more go on"
        for share in (lost(fitted, *both) for both in foreign[given:])
        if share > LOST
    )
    words = words.model_copy(update={"mode": "first", "threshold": cascade.threshold})
    fitted = replace(fitted, record=fitted.record.model_copy(update={"words": words}))
    return with_seen(fitted, val.logits, val.features, first), notes
