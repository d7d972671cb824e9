"""System One's `/v1/systemone` and `/v1/models`: typed questions about a state, answered by rows of
`predict`. A model was trained on one question: what a request says of it besides names is not read.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

from fastapi import FastAPI, HTTPException, Request

from hydrasurgeon.serving.inputs import (
    SECOND,
    TOKENS,
    Asked,
    Row,
    check_count,
    input_of,
    parsed,
    refuse_if,
)
from hydrasurgeon.serving.protocols.base import Protocol, check_type
from hydrasurgeon.serving.service import ServedModel, Service

BODY = 'the body is not {"state": …, "questions": {"ID": {"type": …}, …}}'
"""Message for JSON of another shape."""
FEWEST, OPTIONS, LEVELS = 2, 255, 10
"""Minimum number of options or levels of a question, and the maximum of each."""
FULL = 16
"""Pieces of JSON that a request may have, for each of those that other protocols' may have: a
question lists its options.
"""
SHOWN = 10
"""Names that a message lists."""
LONGEST = 100
"""Characters of an id that a message repeats."""
Answer = Callable[[Row], dict[str, Any]]
"""A function from a row to the answer to a question."""


class SystemOne(Protocol):
    path = "/v1/systemone"
    asks_all = True

    def add(self, app: FastAPI, services: Sequence[Service]) -> None:
        """Add the routes, of models that read texts. Each model answers in passes of its own."""
        if services[0].model.reads != "text":
            return
        models = {one.model.name: one.model for one in services}

        async def rows(request: Asked) -> list[Row]:
            answering = [
                services[int(one.id)].rows(replace(request, inputs=[replace(one, id=0)]))
                for one in request.inputs
            ]
            return [row for answers in await asyncio.gather(*answering) for row in answers]

        async def answer(request: Request) -> Any:
            check_type(request)
            return await services[0].answered(request, partial(asked_of, models), rows)

        async def listed() -> Any:
            return {"models": [described(model) for model in models.values()]}

        app.post(self.path)(answer)
        app.get("/v1/models")(listed)


def labels_of(model: ServedModel) -> list[str]:
    """Return the names of a model's classes or labels; of a model of numbers, its levels."""
    return [*map(str, model.labels or model.levels)]


def types_of(model: ServedModel) -> Sequence[str]:
    """Return the types of questions that a model answers."""
    if "logit" in model.columns:
        return ("noul",)
    if not labels_of(model):
        return ()
    if "value" in model.columns:
        return ("score",) if model.reach else ()
    return ("noul",) if "labels" in model.columns else ("choice", "score")


def why_none(model: ServedModel) -> str:
    """Return why a model answers no type."""
    if "value" in model.columns:
        if model.levels:
            return "it answers with numbers, and says how sure it is once it is calibrated"
        return "it answers with numbers, and no levels of them are recorded"
    if "top" in model.columns:
        return "two of its classes have one name"
    return "it answers with entities"


def described(model: ServedModel) -> dict[str, str]:
    """Return a model's entry in the list of models."""
    description = f"asked by /v1/predict alone: {why_none(model)}"
    types, labels = types_of(model), labels_of(model)
    if types:
        among = f": {', '.join(labels)}" if labels else ""
        per_label = " of each label" if "labels" in model.columns else ""
        description = f"{' or '.join(types)}{per_label}{among}"
    return {"name": model.name, "description": description, "release_date": model.released}


def asked_of(models: Mapping[str, ServedModel], body: bytes, most: int) -> Asked:
    """Parse a request: its questions, and the models that answer them, each of which reads the
    state once. An input's id is the number of its model.
    """
    request = parsed(body, FULL * most)
    refuse_if(not isinstance(request, dict) or not {"state", "questions"} <= set(request), BODY)
    refuse_if(request.get("assets"), "assets: pictures are not read here; ask /v1/predict")
    content = _content(request["state"])
    questions = request["questions"]
    refuse_if(
        not isinstance(questions, dict) or not questions,
        "questions: is not an object with at least one question",
    )
    check_count(len(questions), most)
    default_model = _default_model(request.get("model"), models)
    answered_by: dict[str, tuple[str, Answer]] = {}
    for name, question in questions.items():
        where = f"question {name[:LONGEST]!r}"
        model = models.get(name, default_model)
        if model is None:
            which = f"which of the models {_listed([*models])}? Say it by its id or by `model`"
            raise HTTPException(422, f"{where}: {which}")
        answered_by[name] = (model.name, _answer(where, name, question, model))
    used = [*dict.fromkeys(model for model, _ in answered_by.values())]
    numbers = {model: at for at, model in enumerate(models)}

    def reply(rows: list[Row]) -> dict[str, Any]:
        by_model = dict(zip(used, rows, strict=True))
        tokens = sum(row.get(TOKENS, 0) for row in rows)
        return {
            "model": ", ".join(used),
            "answers": {
                name: answer(by_model[model]) for name, (model, answer) in answered_by.items()
            },
            "usage": {"input_tokens": tokens, "output_tokens": 0},
        }

    return Asked([input_of("state", numbers[model], content) for model in used], reply)


def _content(state: Any) -> str | tuple[str, str]:
    """Return the text of a state: a string itself, an object's `text` and `text_pair`, or else its
    JSON.
    """
    if isinstance(state, str):
        return state
    if isinstance(state, dict) and isinstance(state.get("text"), str):
        refuse_if(not isinstance(state.get(SECOND, ""), str), f"state: its {SECOND} is not a text")
        return (state["text"], state[SECOND]) if SECOND in state else str(state["text"])
    refuse_if(
        not isinstance(state, dict | list), "state: is neither a text, an object nor an array"
    )
    return json.dumps(state, ensure_ascii=False, separators=(",", ":"))


def _default_model(name: Any, models: Mapping[str, ServedModel]) -> ServedModel | None:
    """Return the model for questions whose id names none."""
    if name is None:
        return next(iter(models.values())) if len(models) == 1 else None
    refuse_if(not isinstance(name, str), "model: is not a name")
    refuse_if(name not in models, f"no model {name[:LONGEST]!r}; here is {_listed([*models])}", 404)
    return models[name]


def _answer(where: str, name: str, question: Any, model: ServedModel) -> Answer:
    """Return a function from a model's row to the answer to a question."""
    kind: Any = question.get("type") if isinstance(question, dict) else None
    refuse_if(kind == "box", f"{where}: box: pictures are not read here")
    refuse_if(
        kind not in ("choice", "noul", "score"),
        f"{where}: its type is none of choice, noul and score",
    )
    instructions, criteria = question.get("instructions"), question.get("criteria")
    refuse_if(
        not _is_content(instructions),
        f"{where}: its instructions are neither text, object nor array",
    )
    options = _options(where, kind, criteria)
    types = types_of(model)
    if kind not in types:
        advice = f"ask {' or '.join(types)}" if types else why_none(model)
        raise HTTPException(422, f"{where}: {model.name} cannot answer a {kind}; {advice}")
    if kind == "noul":
        if "logit" in model.columns:
            return lambda row: {
                "type": "noul",
                "noul": _chance(row["probability"]),
                **_verdict(row),
            }
        _check_known(where, [name], model, "labels; the id of a question is one of them")
        return lambda row: {"type": "noul", "noul": _chances(row)[name], **_verdict(row)}
    if "value" in model.columns:
        _check_known(where, options, model, "levels; for named ones train a model of classes")
        return lambda row: _chosen(_of_levels(row, model), kind, options)
    _check_known(where, options, model, "classes")
    return lambda row: _chosen(row, kind, options)


def _options(where: str, kind: str, criteria: Any) -> list[str]:
    """Return the options of a choice, or the levels of a score."""
    if kind == "noul":
        right = isinstance(criteria, dict) and set(criteria) <= {"true", "false"}
        refuse_if(
            not right and not isinstance(criteria, str | None),
            f"{where}: its criteria are neither a text nor true and false",
        )
        return []
    if kind == "choice":
        refuse_if(
            not isinstance(criteria, dict) or not all(map(_is_content, criteria.values())),
            f"{where}: its criteria are not an object of option → description",
        )
        most, noun = OPTIONS, "options"
    else:
        refuse_if(
            not isinstance(criteria, list) or not all(isinstance(level, str) for level in criteria),
            f'{where}: its criteria are no list of levels, each a text: ["1", "2"]',
        )
        most, noun = LEVELS, "levels"
    refuse_if(
        not FEWEST <= len(criteria) <= most,
        f"{where}: {len(criteria)} {noun}; from {FEWEST} to {most} are answered",
    )
    refuse_if(len({*criteria}) < len(criteria), f"{where}: a level occurs twice")
    return [*criteria]


def _check_known(where: str, names: Sequence[str], model: ServedModel, noun: str) -> None:
    labels = labels_of(model)
    unknown = [name for name in names if name not in labels]
    refuse_if(
        unknown,
        f"{where}: {model.name} was not trained on {_listed(unknown)}; {_listed(labels)} "
        f"are its {noun}",
    )


def _chosen(row: Row, kind: str, options: Sequence[str]) -> dict[str, Any]:
    """Return a choice between some of the classes, whose probabilities are scaled to sum to 1."""
    all_chances = _chances(row)
    chances = [all_chances[name] for name in options]
    if len(options) < len(all_chances):
        total = sum(chances)
        chances = [p / total if total > 0 else 1 / len(options) for p in chances]
    verdict = _verdict(row)
    if verdict and verdict["answer"] == "answered" and str(row["label"]) not in options:
        verdict["answer"] = "abstain"  # of another answer nothing was promised
    if "set" in verdict:
        verdict["set"] = [name for name in verdict["set"] if name in options]
    doubt = -sum(p * math.log(p) for p in chances if p > 0) / math.log(len(options))
    surely = {"confidence": min(max(1 - doubt, 0.0), 1.0), **verdict}
    if kind == "choice":
        best = max(range(len(options)), key=chances.__getitem__)
        named = dict(zip(options, chances, strict=True))
        return {"type": kind, "choice": options[best], "probabilities": named, **surely}
    return {
        "type": kind,
        "score": sum(at * p for at, p in enumerate(chances)),
        "probabilities": {str(at): p for at, p in enumerate(chances)},
        "legend": {str(at): level for at, level in enumerate(options)},
        **surely,
    }


def _of_levels(row: Row, model: ServedModel) -> Row:
    """Convert a number to probabilities of levels: those of a normal distribution between their
    midpoints.
    """
    levels, value = model.levels, row["value"]
    assert model.reach
    deviation = max((row["high"] - row["low"]) / 2 / model.reach, 1e-12)
    below = [
        (1 + math.erf((sum(pair) / 2 - value) / deviation / math.sqrt(2))) / 2
        for pair in pairwise(levels)
    ]
    chances = [b - a for a, b in pairwise([0.0, *below, 1.0])]
    top = sorted(zip(labels_of(model), chances, strict=True), key=lambda pair: -pair[1])
    return {**row, "top": top, "label": top[0][0]}


def _chances(row: Row) -> dict[str, float]:
    return {str(name): _chance(p) for name, p in row["top"]}


def _chance(p: float) -> float:
    if not math.isfinite(p):
        raise ValueError("its probabilities are not numbers")
    return p


def _verdict(row: Row) -> dict[str, Any]:
    """Return the fields of a decision; none without a decision state."""
    if row.get("unfamiliar") is None:
        return {}
    answer = row["answer"] if row["answer"] in ("abstain", "unfamiliar") else "answered"
    sets = {"set": [*map(str, row["set"])]} if row.get("set") is not None else {}
    return {"answer": answer, "ood_score": row["ood_score"], **sets}


def _is_content(value: Any) -> bool:
    return value is None or isinstance(value, str | dict | list)


def _listed(names: Sequence[str]) -> str:
    more = [f"{len(names) - SHOWN} more"] if len(names) > SHOWN else []
    return ", ".join([*(repr(name[:LONGEST]) for name in names[:SHOWN]), *more])
