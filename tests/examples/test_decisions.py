"""examples/decisions: what a server said becomes a model, which is asked the same."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from own_models import embedder_folder
from row_files import write_lines
from tiny_families import FAMILIES, WORDS

import hydrasurgeon as hs
from hydrasurgeon.cli.app import run
from hydrasurgeon.stages.serve import PACKAGES

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec(name) is None, reason=f"the extra serve is missing: {name}"
    )
    for name in PACKAGES
]
EXAMPLE = Path(__file__).parents[2] / "examples" / "decisions"
QUESTION = {"team": {"type": "choice", "criteria": dict.fromkeys("210")}}
ANSWER = {"type": "choice", "choice": "1", "probabilities": {"2": 0.2, "1": 0.7, "0": 0.1}}
NOWHERE = "http://127.0.0.1:9"
"""An address at which nothing listens."""


class Record:
    """record.py with its tables in a folder."""

    def __init__(self, folder: Path, states: list[Any], question: Any = QUESTION) -> None:
        self.folder = folder
        lines = [json.dumps(state, ensure_ascii=False) + "\n" for state in states]
        (folder / "texts.jsonl").write_text("".join(lines), encoding="utf-8")
        (folder / "question.json").write_text(json.dumps(question))

    def __call__(self, server: str) -> subprocess.CompletedProcess[str]:
        words = ["texts.jsonl", "question.json", "bought.jsonl", "--server", server]
        return subprocess.run(
            [sys.executable, EXAMPLE / "record.py", *words],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
        )

    @property
    def rows(self) -> list[Any]:
        lines = (self.folder / "bought.jsonl").read_text(encoding="utf-8").split("\n")
        return [json.loads(line) for line in lines if line]


@contextmanager
def scripted(replies: dict[str, list[int]]) -> Iterator[tuple[str, Counter[str]]]:
    """A server that answers a text with these statuses, then with 200; and how often it was asked."""
    asked: Counter[str] = Counter()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            text = str(body["state"])
            asked[text] += 1
            statuses = replies.get(text, [])
            status = statuses.pop(0) if statuses else 200
            reply = {"answers": {"team": ANSWER}} if status == 200 else {"detail": f"no {text}"}
            self.send_response(status)
            self.send_header("Retry-After", "0")
            self.end_headers()
            self.wfile.write(json.dumps(reply).encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def tables(folder: Path) -> None:
    """What the page starts from; a word of each text tells its label, mostly, and no text is twice."""
    seen: set[str] = set()
    rng = np.random.default_rng(0)
    for name, count in (("train", 200), ("texts", 200), ("labelled", 300), ("fresh", 300)):
        rows: list[dict[str, str]] = []
        while len(rows) < count:
            label = int(rng.integers(2))
            word = WORDS[label if rng.random() < 0.98 else 1 - label]
            words = [word, *rng.choice(WORDS[4:], size=rng.integers(3, 8))]
            text = " ".join(rng.permutation(words))
            if text not in seen:
                seen.add(text)
                rows.append({"text": text, "label": ("billing", "technical")[label]})
        if name == "texts":
            rows = [{"text": row["text"]} for row in rows]
        write_lines(folder / f"{name}.jsonl", rows)


@pytest.mark.slow
def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its blocks as they stand, but for the port, and `build` ends with the first that it can
    write; the client's calls at both servers.
    """
    from listening import serving

    embedder_folder(tmp_path)
    tables(tmp_path)
    shutil.copy(EXAMPLE / "record.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    page = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```(\w+)\n(.*?)```", page, re.S)
    (client,) = [code for kind, code in blocks if kind == "python"]
    (question,) = [text for kind, text in blocks if kind == "json"]
    (tmp_path / "question.json").write_text(question)
    commands = [line for kind, text in blocks if kind == "bash" for line in text.splitlines()]
    answers, server, address = [], ExitStack(), NOWHERE
    with server:
        for line in commands:
            name, command, *words = shlex.split(line.replace("http://localhost:8000", address))
            if name == "python":
                subprocess.run([sys.executable, command, *words], check=True, timeout=120)
            elif command == "serve":
                server.close()
                address = server.enter_context(serving(*words))
                names: dict[str, Any] = {}
                exec(client.replace("http://localhost:8000", address), names)
                answers.append(names["reply"].choices["team"].probabilities)
            else:
                sooner = ["--max-minutes", "0.01"] if command == "build" else []
                assert run([command, *words, *sooner]) == 0, line
    assert [set(answer) for answer in answers] == [{"billing", "technical"}] * 2
    assert len((tmp_path / "bought.jsonl").read_text().splitlines()) == 200
    test = hs.evaluate([tmp_path / "ready.safetensors"], data="train.jsonl", device="cpu")
    assert test.report.results[0].id.accuracy > 0.9


def test_what_is_recorded_is_what_the_server_says(tmp_path: Path) -> None:
    from listening import serving
    from stock_models import ready, texts

    model, _ = ready(FAMILIES["BERT"], tmp_path, neurons=None)
    states: list[Any] = [sample["text"] for sample in texts(60)]
    states[1] = {"text": "good film", "user": 3}
    states[2] = {"said": "good"}
    states[3] = {"text": ""}
    record = Record(tmp_path, states)
    with serving(model) as address:
        for server in (f"{address}/", address):  # the second time only the refused row is asked
            done = record(server)
            assert done.returncode == 1
            assert done.stderr.startswith("texts.jsonl, line 4: 422: ")
    assert len(record.rows) == 59
    assert [row["text"] for row in record.rows[1:3]] == ["good film", '{"said":"good"}']
    predicted = hs.predict(model, data=str(tmp_path / "bought.jsonl"), device="cpu", top=3)
    for row, answer in zip(record.rows, predicted, strict=True):
        expected = {str(name): p for name, p in answer["top"]}
        assert row["label"] == pytest.approx(expected, abs=1e-4)


def test_only_a_newline_ends_a_row(tmp_path: Path) -> None:
    """A count of lines by splitlines skipped a row for each of these."""
    states = ["a\u2028b", "c\u2029d", "e\x85f", "\ud800", "same", "same", "last"]
    record = Record(tmp_path, [])
    ascii_lines = "".join(json.dumps(state) + "\n" for state in states[3:])
    raw = "".join(f'"{state}"\n' for state in states[:3])
    (tmp_path / "texts.jsonl").write_text(raw + ascii_lines, encoding="utf-8")
    with scripted({}) as (server, asked):
        assert record(server).returncode == 0
        assert [row["text"] for row in record.rows] == states
        # As an editor or an older version leaves it: raw characters, and the end of a line missing.
        kept = "\n".join(json.dumps(row, ensure_ascii=False) for row in record.rows[:3])
        (tmp_path / "bought.jsonl").write_text(kept, encoding="utf-8")
        assert record(server).returncode == 0
        # And as a kill does.
        whole = (tmp_path / "bought.jsonl").read_bytes()
        (tmp_path / "bought.jsonl").write_bytes(whole[:-9])
        assert record(server).returncode == 0
    assert [row["text"] for row in record.rows] == states
    assert [asked[state] for state in states] == [1, 1, 1, 2, 4, 4, 3]


def test_pairs_are_told_apart(tmp_path: Path) -> None:
    pairs = [{"text": "good", "text_pair": second} for second in ("film", "plot")]
    record = Record(tmp_path, pairs)
    (tmp_path / "bought.jsonl").write_text(json.dumps(pairs[1] | {"label": {"0": 1.0}}) + "\n")
    with scripted({}) as (server, asked):
        assert record(server).returncode == 0
    assert [row["text_pair"] for row in record.rows] == ["plot", "film"]
    assert asked == {str(pairs[0]): 1}


def test_a_refused_row_is_named_and_asked_again(tmp_path: Path) -> None:
    record = Record(tmp_path, ["first", "second", "third"])
    with scripted({"second": [422]}) as (server, asked):
        done = record(server)
        assert done.returncode == 1
        assert done.stderr.splitlines() == [
            "texts.jsonl, line 2: 422: no second",
            "1 refused; the same command asks again",
        ]
        assert record(server).returncode == 0
    assert [row["text"] for row in record.rows] == ["first", "third", "second"]
    assert asked == {"first": 1, "second": 2, "third": 1}


def test_a_busy_server_is_asked_again(tmp_path: Path) -> None:
    record = Record(tmp_path, ["first", "busy", "last"])
    with scripted({"first": [429, 503], "busy": [503] * 100}) as (server, asked):
        done = record(server)
    assert done.returncode == 1
    assert "texts.jsonl, line 2: 503: no busy" in done.stderr
    assert [row["text"] for row in record.rows] == ["first", "last"]
    assert asked == {"first": 3, "busy": 5, "last": 1}


def test_what_every_row_would_meet_ends_it(tmp_path: Path) -> None:
    record = Record(tmp_path, ["first", "second"])
    with scripted({"first": [401]}) as (server, asked):
        done = record(server)
    assert done.returncode == 1
    assert done.stderr == f"{server}/v1/systemone: 401: no first\n"
    assert asked == {"first": 1}


@pytest.mark.parametrize("question", [{**QUESTION, "other": {"type": "noul"}}, {}, []])
def test_another_number_of_questions_is_not_asked(tmp_path: Path, question: Any) -> None:
    record = Record(tmp_path, ["first"], question)
    with scripted({}) as (server, asked):
        done = record(server)
    assert done.returncode == 2
    assert "question.json: expected an object of one id and its question" in done.stderr
    assert not asked
