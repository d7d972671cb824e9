"""Text Embeddings Inference's `/predict` and `/rerank`, and Hugging Face's InferenceClient, from and
to rows of `predict`. Scores are its probabilities.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fastapi import HTTPException

from hydrasurgeon.serving.inputs import Asked, Input, Row, check_count, input_of, parsed, refuse_if

IGNORED = {"truncate", "truncation_direction"}
"""Options of Text Embeddings Inference: a text is cut as `predict` cuts it."""
PAIR = 'inputs (a list of two texts is a pair, [["…"], ["…"]] are two texts)'
RERANK = "/rerank needs a model of one logit"

FoundOf = Callable[[list[float]], bool | None]
"""Whether one of texts with these probabilities answers their query; None where nothing was promised
of it.
"""


def asked_to_predict(body: bytes, most: int) -> Asked:
    """A text, a pair of two, or a list of such lists; scores of labels, the largest first."""
    request = _fields(body, most, {"inputs", "raw_scores", *IGNORED})
    refuse_if(_flag(request, "raw_scores"), "raw_scores: the scores are calibrated probabilities")
    return _labelled(request["inputs"], most, alone=True)


def asked_by_hub(body: bytes, most: int, *, entities: bool = False) -> Asked:
    """As InferenceClient asks: the answer to one text is a list of lists, too, unless it is of
    entities.
    """
    request = _fields(body, most, {"inputs", "parameters"})
    parameters = request.get("parameters")
    if parameters is None:
        parameters = {}
    known = "aggregation_strategy" if entities else "top_k"
    refuse_if(
        not isinstance(parameters, dict) or not set(parameters) <= {known},
        f"parameters: only {known} is read",
    )
    refuse_if(
        parameters.get("aggregation_strategy") == "none",
        "aggregation_strategy: words are put together here; leave it out",
    )
    top = parameters.get("top_k")
    refuse_if(
        top is not None and (type(top) is not int or top < 1), "top_k: is no number of labels"
    )
    return _labelled(request["inputs"], most, alone=entities, top=top)


def asked_to_rerank(body: bytes, most: int, *, ranks: bool, found: FoundOf) -> Asked:
    """Texts for a query; their places and scores, the best first, and whether one was found."""
    request = _fields(body, most, {"query", "texts", "raw_scores", "return_text", *IGNORED})
    refuse_if(not ranks, RERANK)
    query: Any = request.get("query")
    texts: Any = request.get("texts")
    refuse_if(
        not isinstance(query, str) or not _all_texts(texts),
        'the body is not {"query": "…", "texts": ["…", …]}',
    )
    check_count(len(texts), most)
    score = "logit" if _flag(request, "raw_scores") else "probability"
    with_text = _flag(request, "return_text")

    def reply(rows: list[Row]) -> list[Row]:
        ranked = [{"index": at, "score": row[score]} for at, row in enumerate(rows)]
        if with_text:
            ranked = [{**each, "text": texts[each["index"]]} for each in ranked]
        answer = found([row["probability"] for row in rows])
        if answer is not None:
            ranked = [{**each, "found": answer} for each in ranked]
        return sorted(ranked, key=lambda each: -each["score"])

    return Asked([input_of(f"texts[{at}]", at, (query, t)) for at, t in enumerate(texts)], reply)


def _labelled(sent: Any, most: int, *, alone: bool, top: int | None = None) -> Asked:
    """Inputs whose answers are scores of labels."""
    single = isinstance(sent, str) or (_all_texts(sent) and len(sent) <= 2)
    entries = [sent] if single else sent
    refuse_if(not isinstance(entries, list), "inputs: is neither a text nor a list")
    check_count(len(entries), most)
    inputs = [_input(at, entry) for at, entry in enumerate(entries)]
    if single and not isinstance(sent, str) and len(sent) == 2:
        inputs = [replace(each, where=PAIR) for each in inputs]

    def reply(rows: list[Row]) -> Any:
        scores = [_scores(row)[:top] for row in rows]
        return scores[0] if single and alone else scores

    return Asked(inputs, reply)


def _input(at: int, entry: Any) -> Input:
    texts = [entry] if isinstance(entry, str) else entry
    refuse_if(
        not _all_texts(texts) or len(texts) not in (1, 2),
        f"inputs[{at}]: is neither a text nor a pair of texts",
    )
    return input_of(f"inputs[{at}]", at, texts[0] if len(texts) == 1 else (texts[0], texts[1]))


def _scores(row: Row) -> list[Row]:
    """The labels of an answer, the most probable first; or the entities that are answered, as a
    pipeline lists them.
    """
    if "entities" in row:
        return [
            {
                "entity_group": entity["answer"],
                "score": entity["probability"],
                "word": entity["text"],
                "start": entity["start"],
                "end": entity["end"],
            }
            for entity in row["entities"]
            if entity["answer"] != "abstain"
        ]
    if "top" in row:
        return [{"label": str(label), "score": p} for label, p in row["top"]]
    if "logit" in row:
        return [{"label": "yes", "score": row["probability"]}]
    raise HTTPException(422, "the model answers with numbers; ask /v1/predict")


def _fields(body: bytes, most: int, names: set[str]) -> dict[str, Any]:
    request = parsed(body, most)
    refuse_if(
        not isinstance(request, dict) or not set(request) <= names,
        f"the body is no object of {', '.join(sorted(names))}",
    )
    refuse_if("inputs" in names and "inputs" not in request, "there are no inputs")
    return request


def _flag(request: dict[str, Any], name: str) -> bool:
    value = request.get(name, False)
    refuse_if(not isinstance(value, bool), f"{name}: is neither true nor false")
    return value


def _all_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(each, str) for each in values)
