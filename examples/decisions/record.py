"""Ask a System One server one question about many texts, and keep its probabilities as labels.

    python examples/decisions/record.py texts.jsonl question.json bought.jsonl --server http://localhost:8000

Each line of the texts is an object with a `text`, or with any fields: what was asked is what the
model reads. A question is an object of one id and its question. What is there already is not asked
again, so that the same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import urllib.request
from pathlib import Path
from typing import Any


def ask(server: str, state: Any, questions: Any, model: str | None, key: str) -> dict[str, Any]:
    """The answer to the question."""
    body = {"state": state, "questions": questions} | ({"model": model} if model else {})
    headers = {"Content-Type": "application/json"} | (
        {"Authorization": f"Bearer {key}"} if key else {}
    )
    request = urllib.request.Request(
        f"{server}/v1/systemone", json.dumps(body).encode(), headers=headers
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        (answer,) = json.loads(reply.read())["answers"].values()
    return dict(answer)


def label(answer: dict[str, Any]) -> float | dict[str, float]:
    """How true yes is, or the probability of each option or level."""
    if answer["type"] == "noul":
        return float(answer["noul"])
    names = answer.get("legend", {})
    return {str(names.get(name, name)): p for name, p in answer["probabilities"].items()}


def text_of(state: Any) -> str:
    """What a model reads where it is asked the same."""
    if isinstance(state, dict) and isinstance(state.get("text"), str):
        return str(state["text"])
    if isinstance(state, str):
        return state
    return json.dumps(state, ensure_ascii=False, separators=(",", ":"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("texts", "question", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--server", default="http://localhost:8000")
    parser.add_argument("--model")
    given = parser.parse_args()
    questions = json.loads(given.question.read_text())
    states = [json.loads(line) for line in given.texts.read_text().splitlines() if line.strip()]
    done = len(given.out.read_text().splitlines()) if given.out.exists() else 0
    key = os.environ.get("SYSTEMONE_API_KEY", "")
    with given.out.open("a") as out:
        for state in states[done:]:
            answer = ask(given.server, state, questions, given.model, key)
            row = {"text": text_of(state), "label": label(answer)}
            out.write(json.dumps(row, ensure_ascii=False) + "\n")
            out.flush()


if __name__ == "__main__":
    main()
