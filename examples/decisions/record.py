"""Ask a System One server one question about many texts, and keep its probabilities as labels.

    python record.py texts.jsonl question.json bought.jsonl --server http://localhost:8000

Each line of the texts is a state: a text, an object with a `text`, or any other JSON. A question is
an object of one id and its question. A text that has its row already is not asked again: repeat the
command after it was stopped, or when rows were refused (it then exits with 1).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

BUSY = (429, 503)
"""Statuses of a server that wants to be asked again."""
FOR_ALL = (401, 403, 404)
"""Statuses that every row would get: the token, the address or the model is wrong."""
TRIES = 5
"""Maximum number of requests to a busy server for a row."""
LONGEST = 3600
"""Seconds that are waited at most, whatever the server says."""


class Refused(Exception):
    """The server has no answer for this row."""


def ask(request: Request) -> float | dict[str, float]:
    """Ask the server, and return the answer as a label."""
    tries = 1
    while True:
        try:
            with urlopen(request, timeout=60) as reply:
                (answer,) = json.loads(reply.read())["answers"].values()
                return label(answer)
        except HTTPError as error:
            message = f"{error.code}: {detail(error)}"
            if error.code in FOR_ALL:
                raise SystemExit(f"{request.full_url}: {message}") from None
            if error.code not in BUSY or tries == TRIES:
                raise Refused(message) from None
            time.sleep(pause(error.headers.get("Retry-After"), tries))
        except URLError as error:
            raise SystemExit(f"{request.full_url}: {error.reason}") from None
        except (OSError, HTTPException) as error:
            raise Refused(f"the connection broke: {error}") from None
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise Refused(f"the reply is not System One's: {error!r}") from None
        tries += 1


def label(answer: dict[str, Any]) -> float | dict[str, float]:
    """Return the probability of yes, or that of each option or level."""
    if answer["type"] == "noul":
        return float(answer["noul"])
    names = answer.get("legend", {})
    return {str(names.get(name, name)): p for name, p in answer["probabilities"].items()}


def detail(error: HTTPError) -> str:
    """Return the server's error message."""
    body = ""
    try:
        body = error.read().decode(errors="replace")
        message = json.loads(body)["detail"]
    except (OSError, HTTPException, KeyError, TypeError, ValueError):
        return body[:300] or error.reason
    return message if isinstance(message, str) else json.dumps(message)


def pause(retry_after: str | None, tries: int) -> int:
    """Return the seconds to wait: the server's number, else 2, 4, 8, …"""
    if retry_after and retry_after.isdecimal():
        return min(int(retry_after), LONGEST)
    return 2**tries


def columns(state: Any) -> dict[str, str]:
    """Return the columns that a model reads of a state, or of a row in a table."""
    if isinstance(state, str):
        return {"text": state}
    if isinstance(state, dict) and isinstance(state.get("text"), str):
        names = ("text", "text_pair")
        return {name: state[name] for name in names if isinstance(state.get(name), str)}
    return {"text": json.dumps(state, ensure_ascii=False, separators=(",", ":"))}


def rows(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield each line's number and content. Only "\\n" ends a line: a text may hold U+2028."""
    for number, line in enumerate(path.read_bytes().removeprefix(BOM_UTF8).split(b"\n"), start=1):
        if line.strip():
            try:
                yield number, json.loads(line.decode())
            except ValueError as error:
                raise SystemExit(f"{path}, line {number}: not JSON: {error}; mend it") from None


def mend(out: Path) -> None:
    """Remove a last row that was cut off while it was written, so that it is asked again."""
    with out.open("r+b") as file:
        kept = file.read()
        complete_bytes = kept.rfind(b"\n") + 1
        try:
            json.loads(kept[complete_bytes:])
            file.write(b"\n")  # only the end of the line is missing
        except ValueError:
            file.truncate(complete_bytes)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("texts", "question", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--server", default="http://localhost:8000")
    parser.add_argument("--model")
    arguments = parser.parse_args()
    questions = json.loads(arguments.question.read_text(encoding="utf-8"))
    if not isinstance(questions, dict) or len(questions) != 1:
        parser.error(f"{arguments.question}: expected an object of one id and its question")
    body = {"questions": questions} | ({"model": arguments.model} if arguments.model else {})
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get("SYSTEMONE_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    address = f"{arguments.server.rstrip('/')}/v1/systemone"

    states = list(rows(arguments.texts))
    arguments.out.touch()
    mend(arguments.out)
    bought = Counter(tuple(columns(row).values()) for _, row in rows(arguments.out))
    refused = 0
    with arguments.out.open("ab") as out:
        for number, state in states:
            read = columns(state)
            if bought[tuple(read.values())]:
                bought[tuple(read.values())] -= 1
                continue
            request = Request(address, json.dumps(body | {"state": state}).encode(), headers)
            try:
                answer = ask(request)
            except Refused as error:
                sys.stderr.write(f"{arguments.texts}, line {number}: {error}\n")
                refused += 1
                continue
            out.write(json.dumps(read | {"label": answer}).encode() + b"\n")
            out.flush()
    if refused:
        sys.stderr.write(f"{refused} refused; the same command asks again\n")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
