"""A tag for each word of a text, and the entities that tags make.

Logits are [text, member, word, class], labels [text, word]; `anatomy.word_logits` says how places without
a word look. Probabilities of such a place are 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy import ndarray

from hydrasurgeon.data.matching import TAG_EACH
from hydrasurgeon.data.samples import UNLABELLED
from hydrasurgeon.files.decided import LOGITS, Abstention, Cover, DecisionRecord, EntityRule
from hydrasurgeon.files.manifest import Model, TaskName
from hydrasurgeon.run.shapes import Bool, Float, Int
from hydrasurgeon.statistics.abstain import DELTA, Unpromised
from hydrasurgeon.statistics.by_text import EntityOutcomes, Risk, ThresholdPlan
from hydrasurgeon.statistics.conformal import largest, sets_of
from hydrasurgeon.statistics.entities import (
    are_right,
    entities_of,
    joint_chances,
)
from hydrasurgeon.statistics.metrics import ece_of
from hydrasurgeon.statistics.padded_words import are_there, widened
from hydrasurgeon.statistics.probabilities import TINY, Scores, of_labels, softmax, tempered
from hydrasurgeon.tasks.base import (
    Calibration,
    Certifying,
    Constants,
    Outputs,
    Part,
    Reads,
    Task,
    Watched,
    entities_in,
)
from hydrasurgeon.tasks.entity_answers import (
    WAYS,
    Chances,
    JudgedTokens,
    TokensPrediction,
    called_kind,
    how_of,
    not_outside,
    tags_of,
)
from hydrasurgeon.tasks.single_label import SingleLabel

BEYOND = 0.01
"""Maximum fraction of entities beyond the number that counts in a text."""
FOUND = 0.5
"""Maximum cover threshold. A word whose most probable tag is not O belongs to an entity with at least
this probability, so a promise that few entities are missed drops none of these words.
"""
NONE = "none"
"""Name under which `monitor` counts a text without entities."""


class TokenClassification(Task):
    """Task of choosing a tag for each word."""

    name: ClassVar[TaskName] = "token_classification"
    in_torch = "hydrasurgeon.runtime.kinds:TorchTokenClassification"
    trained_by = "hydrasurgeon.tuning.losses:TokenLosses"
    labels = TAG_EACH
    scores = LOGITS.keys()
    features = ("mds", "maha++", "residual", "knn")
    axes = ("text", "member", "word", "class")
    one_class = True
    label_axes = ("text", "word")
    link = None
    columns: ClassVar = {
        "entities": "json",
        "ood_score": "number",
        "unfamiliar": "flag",
        "error": "text",
    }
    lacks: ClassVar = {
        "--embeddings": "It reads words, and embeds no text.",
        "--objective ood": "Give --objective nll or acc.",
        "predict_proba": "Use predict or decide.",
        "--cascade": "Words are decided together.",
        "--method cahp": "It compares samples of one class with those of others.",
        "--method circuit": "It keeps what is right or wrong; give --method taylor.",
        "--check": "What it compares, accuracy and ECE, are those of classes; export without it.",
        "a decision state in a graph": "Graphs answer for tokens, and words are decided: export it as it was before calibrate.",
        "--shift": "What is measured under shifts is accuracy; give the data as another --data.",
    }

    def validated(
        self, logits: Float[ndarray, "text *member word klass"], labels: ndarray
    ) -> dict[str, float]:
        if logits.ndim == 3:
            logits = logits[:, None]
        by_word = SingleLabel().validated(*self.choices(logits, labels))
        return {"token_accuracy": by_word.pop("accuracy"), **by_word}

    def read(self, logits: Float[ndarray, "text member word klass"]) -> ndarray:
        return logits

    def choices(
        self, logits: Float[ndarray, "text member word klass"], labels: ndarray | None = None
    ) -> tuple[Float[ndarray, "word member klass"], Int[ndarray, " word"]]:
        """Return the words that are present; only those with a tag, if labels are given."""
        there, words = are_there(logits[:, 0]), np.moveaxis(logits, 2, 1)
        if labels is None:
            return words[there], np.zeros(0, dtype=np.int64)
        truth = _beside(labels, logits)
        labelled = (truth != UNLABELLED) & there
        return words[labelled], truth[labelled]

    def constants(self, record: DecisionRecord) -> Constants:
        names = ("temperature", "entities", "cover", "abstain")
        return {name: getattr(record, name) for name in names}

    def answers(self, logits: ndarray, constants: Constants) -> Chances:
        """Return probabilities; 0 for places without a word."""
        there = are_there(logits[:, 0])[..., None]
        mean = softmax(logits.astype(np.float64)).mean(axis=1)
        return tempered(mean, constants.get("temperature", 1.0)) * there

    def plain(self, logits: ndarray, constants: Constants) -> TokensPrediction:
        probs = self.answers(logits, constants)
        cover, abstain = constants.get("cover"), constants.get("abstain")
        tags, chances = tags_of(probs, None if cover is None else cover.threshold)
        never = np.zeros(len(logits), dtype=bool)
        prediction = TokensPrediction(
            members_run=np.full((len(logits),), logits.shape[1]),
            tags=tags,
            chances=chances,
            how=how_of(constants),
            least=0.0 if abstain is None else abstain.threshold,
            kinds=logits.shape[-1] // 2,
            ood_score=np.full((len(logits),), np.nan, dtype=np.float64),
            unfamiliar=never,
            abstain=never,
        )
        entities, certain = prediction.entities
        unsure = entities.text[certain < prediction.least]
        return replace(prediction, abstain=np.bincount(unsure, minlength=len(logits)) > 0)

    def watched(self, model: Model, decision: DecisionRecord) -> Watched:
        """Return the settings of `monitor`: a text counts under the kind of its first entity."""
        kinds = range(model.num_classes // 2)
        return Watched([NONE, *(called_kind(kind, model.labels) for kind in kinds)])

    def counted(self, decision: DecisionRecord, row: Mapping[str, Any]) -> str:
        entities = entities_in(row)
        return str(entities[0]["label"]) if entities else NONE

    def unsure(self, row: Mapping[str, Any]) -> float:
        return sum(1 - float(entity["probability"]) for entity in entities_in(row))

    def named(self, row: Mapping[str, Any]) -> Sequence[str]:
        """Return the label of each answered entity."""
        answers = [str(entity["answer"]) for entity in entities_in(row)]
        return [answer for answer in answers if answer != "abstain"]

    def calibrated(self, fitting: Outputs, certifying: Outputs) -> Calibration:
        """Fit the temperature of words, and choose how the probability of an entity is computed."""
        by_word = SingleLabel().calibrated(self._words(fitting), self._words(certifying))
        constants = self._with_entities(by_word.constants, fitting)
        return replace(by_word, constants=constants)

    def check_labels(self, fitting: Outputs, certifying: Outputs, fit: Calibration) -> None:
        by_word = replace(fit, constants={"temperature": fit.constants["temperature"]})
        SingleLabel().check_labels(self._words(fitting), self._words(certifying), by_word)

    def fitted(self, outputs: Outputs) -> dict[str, Any]:
        return self._with_entities(SingleLabel().fitted(self._words(outputs)), outputs)

    def _words(self, outputs: Outputs) -> Outputs:
        rows, truth = self.choices(outputs.logits, _tags(outputs))
        return Outputs(rows, None, truth)

    def _with_entities(self, constants: Constants, outputs: Outputs) -> dict[str, Any]:
        truth = _beside(_tags(outputs), outputs.logits)
        tags, chances = tags_of(self.answers(outputs.logits, constants))
        predicted = entities_of(tags)
        right = are_right(predicted, truth)
        errors = {
            how: ece_of(joint_chances(predicted, chances, how), right) if len(predicted) else 0.0
            for how in WAYS
        }
        most = max(
            _most(entities_list.counts(len(truth)))
            for entities_list in (predicted, entities_of(truth))
        )
        entities = EntityRule(probability=min(WAYS, key=errors.__getitem__), most=most)
        return {**constants, "entities": entities}

    def promised(self, by: Certifying) -> dict[str, Any]:
        """Return sets of tags that hold the true one of every word of a text, and the threshold of
        the promise.
        """
        promise = by.promise
        sets = largest(sets_of(_least_sure(part), promise.coverage) for part in by.parts)
        if promise.risk is None:
            return {"conformal": sets}
        entities = by.constants["entities"]
        risk = Risk(promise.risk, DELTA, entities.most, promise.promise == "missed")
        fitting, *parts = (
            _outcomes(part.answers, part.outputs, risk, entities.probability)
            for part in (by.fitting, *by.parts)
        )
        return {"conformal": sets, **_kept(ThresholdPlan.of(fitting, risk), risk, by, parts)}

    def judged(self, logits: ndarray, labels: ndarray, reading: Reads) -> JudgedTokens:
        logits, constants = widened(logits, labels.shape[1], 2), reading.constants
        probs = self.answers(logits, constants)
        of_truth = of_labels(probs, np.maximum(labels, 0))
        tags, confidence = tags_of(probs)
        predicted = entities_of(tags)
        chances = np.zeros_like(confidence)
        chances[predicted.text, predicted.first] = joint_chances(
            predicted, confidence, how_of(constants)
        )
        information, disagreement = reading.apart(
            np.moveaxis(logits, 2, 1).reshape(-1, logits.shape[1], logits.shape[-1])
        )
        there, answered = _are_said(probs), None
        if constants.get("cover") or constants.get("abstain"):
            answered = self.plain(logits, constants).answered
        return JudgedTokens(
            labels=labels,
            tags=tags,
            right=probs.argmax(axis=-1) == labels,
            # A word that the tokenizer drops is O for certain.
            confidence=np.where(there, confidence, 1.0),
            nll=-np.log(np.maximum(np.where((labels != UNLABELLED) & there, of_truth, 1.0), TINY)),
            mutual_information=information.reshape(labels.shape),
            disagreement=disagreement.reshape(labels.shape),
            chances=chances,
            answered=answered,
            abstains=bool(constants.get("abstain")),
        )


def _are_said(answers: Chances) -> Bool[ndarray, "text word"]:
    """Return True for words that have probabilities."""
    return np.any(answers > 0, axis=-1)


def _least_sure(part: Part) -> Scores:
    """Return 1 − the probability of the true tag at the least certain word of each text."""
    truth = _beside(_tags(part.outputs), part.answers)
    of_truth = of_labels(part.answers, np.maximum(truth, 0))
    labelled = (truth != UNLABELLED) & _are_said(part.answers)
    distances: Scores = np.where(labelled, 1 - of_truth, 0.0).max(axis=1)
    return distances


def _kept(
    plan: ThresholdPlan, promise: Risk, by: Certifying, parts: Sequence[EntityOutcomes]
) -> dict[str, Any]:
    """Return the threshold that keeps a promise, as a field of a `DecisionRecord`."""
    threshold = plan.kept(parts, promise)
    outcomes, answers = parts[0], by.parts[0].answers
    if threshold is None:
        errors = "of true entities missed" if promise.missed else "of wrong entities"
        raise Unpromised(
            f"no threshold keeps a risk of {promise.risk:g} {errors}",
            needed=plan.needed(outcomes, promise),
        )
    kept = {"risk": promise.risk, "delta": promise.delta}
    if promise.missed:
        threshold, there = min(threshold, FOUND), (answers > 0).any(axis=-1)
        belong = ((not_outside(answers) >= threshold)[there]).astype(np.float64).mean()
        words = float(belong) if there.any() else 0.0
        return {"cover": Cover(threshold=threshold, words=words, **kept)}
    share = float((outcomes.value >= threshold).astype(np.float64).mean())
    abstain = Abstention(threshold=threshold, bound=promise.risk, coverage=share, **kept)
    return {"abstain": abstain}


def _outcomes(answers: Chances, outputs: Outputs, promise: Risk, how: str) -> EntityOutcomes:
    """Return the predicted entities with their probabilities; if the promise is about missed ones,
    the true entities with the least probability that a word of theirs belongs to one.
    """
    truth = _beside(_tags(outputs), answers)
    if promise.missed:
        true = entities_of(truth)
        value = joint_chances(true, not_outside(answers), "least")
        return EntityOutcomes(len(truth), true.text, value, np.ones_like(value, dtype=bool))
    tags, chances = tags_of(answers)
    predicted = entities_of(tags)
    value = joint_chances(predicted, chances, how)
    return EntityOutcomes(len(truth), predicted.text, value, ~are_right(predicted, truth))


def _most(counts: Int[ndarray, " text"]) -> int:
    """Return the smallest number of entities per text with which nearly all entities count."""
    most = 1
    while int(np.maximum(counts - most, 0).sum()) > BEYOND * int(counts.sum()):
        most += 1
    return most


def _tags(outputs: Outputs) -> Int[ndarray, "text word"]:
    assert outputs.original_labels is not None
    return outputs.original_labels


def _beside(labels: Int[ndarray, "text any"], logits: ndarray) -> Int[ndarray, "text word"]:
    """Return labels for as many words as the logits have."""
    words = logits.shape[-2]
    return widened(labels[:, :words], words, 1)
