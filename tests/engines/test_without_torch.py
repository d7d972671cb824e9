"""Answers of a graph in a process that has neither torch nor transformers are torch's."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_tokens
from any_labels import any_labels
from exporting import exports, onnx_writes
from own_models import LABELS
from stock_models import ready
from tiny_families import FAMILIES, WORDS, Family

import hydrasurgeon as hs
from hydrasurgeon.stages.export import export

pytestmark = [exports, onnx_writes]

HEAVY = (
    *("torch", "torchvision", "transformers", "timm", "datasets", "pandas", "scipy", "sklearn"),
    *("jaxtyping", "matplotlib", "accelerate", "onnx", "onnxscript", "jinja2", "safetensors"),
)
"""What the run path does without."""
BARE = f"""
import sys
from importlib.machinery import PathFinder
class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name in {HEAVY!r} else super().find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Without
from hydrasurgeon.cli.app import run
sys.exit(run(sys.argv[1:]))
"""
Made = tuple[Path, Path, str]
"""A checkpoint, what `export` made of it, and data."""


def bare(*words: str, code: str = BARE, **more: Any) -> subprocess.CompletedProcess[str]:
    """A command in a process in which nothing heavy can be imported."""
    return subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False, **more
    )


def rows_of(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def alike(one: Any, other: Any) -> bool:
    """Equal, and numbers but for rounding."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, float):
        return bool(np.isclose(one, other, rtol=1e-5, atol=5e-5))
    return bool(one == other)


def unlabelled(place: Path, rows: list[dict[str, Any]]) -> str:
    place.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(place)


def others(family: Family, place: Path) -> str:
    """Data whose scores are no threshold: none of it was calibrated on."""
    (place / "others").mkdir()
    return family.data(place / "others", rows=90, seed=1)


def unlike(path: str, known: str) -> list[dict[str, Any]]:
    """The rows of a table whose texts another one lacks."""
    rows, theirs = (
        [json.loads(line) for line in Path(each).read_text().splitlines()] for each in (path, known)
    )
    texts = {row["text"] for row in theirs}
    return [row for row in rows if row["text"] not in texts]


def classes(place: Path) -> Made:
    """A score that is fitted to features, and a text that is longer than the model reads."""
    family = FAMILIES["BERT"]
    family.write(place / "source")
    data = family.data(place, rows=150)
    with any_labels():
        made = hs.calibrate(
            place / "source", data=data, ood_score="knn", out=place / "ready.safetensors"
        )
    rows = [*unlike(others(family, place), data), {"text": " ".join(WORDS * 12), "label": 0}]
    data = unlabelled(place / "read.jsonl", rows)
    return made.path, export(made.path, out=f"{place / 'graph'}/").path, data


def pairs(place: Path) -> Made:
    made, data = ready(FAMILIES["BERT"], place, classes=1, pairs=True)
    lines = [json.loads(line) for line in Path(data).read_text().splitlines()][:60]
    grouped = [{**line, "group": f"q{at // 6}"} for at, line in enumerate(lines)]
    data = unlabelled(place / "grouped.jsonl", grouped)
    return made, export(made, out=f"{place / 'graph'}/").path, data


def entities(place: Path) -> Made:
    """Texts in windows."""
    source = tiny_tokens.write(place / "tagger")
    texts = [*tiny_tokens.TEXTS, " ".join(WORDS * 9), "good\u00e9 film, not"]
    data = unlabelled(place / "texts.jsonl", [{"text": text} for text in texts])
    return source, export(source, out=f"{place / 'graph'}/").path, data


def numbers(place: Path) -> Made:
    FAMILIES["BERT"].write(place / "source")
    rng = np.random.default_rng(0)
    rows = [
        {"text": " ".join(rng.choice(WORDS, 6)), "label": float(rng.normal())} for _ in range(200)
    ]
    train, val, data = (
        unlabelled(place / f"{name}.jsonl", rows[first : first + 80])
        for name, first in (("train", 0), ("val", 80), ("data", 160))
    )
    settings = {"problem": "number", "epochs": "1", "classifier": "fresh"}
    tuned = hs.finetune(
        place / "source", data=train, recipe="text", set=settings, out=place / "n", device="cpu"
    )
    with any_labels():
        made = hs.calibrate(tuned.path, data=val, out=place / "ready.safetensors")
    return made.path, export(made.path, out=f"{place / 'graph'}/").path, data


def labels(place: Path) -> Made:
    """Many labels, in a hydra of two."""
    family = FAMILIES["RoBERTa"]
    family.write(place / "source")
    config = place / "source" / "config.json"
    kind = {"problem_type": "multi_label_classification"}
    config.write_text(json.dumps(json.loads(config.read_text()) | kind))
    parts = [
        hs.prune(place / "source", method="magnitude", keep=keep, out=place / f"m{keep}").path
        for keep in (2, 3)
    ]
    fused = hs.fuse(parts, out=place / "hydra", mlp="separate").path
    rows = [json.loads(line) for line in Path(family.data(place, rows=60)).read_text().splitlines()]
    data = unlabelled(place / "t.jsonl", [{"text": row["text"]} for row in rows])
    return fused, export(fused, out=f"{place / 'graph'}/").path, data


def pictures(place: Path) -> Made:
    family = FAMILIES["ViT"]
    family.write(place / "source")
    data = family.data(place, rows=90)
    with any_labels():
        made = hs.calibrate(
            place / "source", data=data, ood_score="energy", out=place / "ready.safetensors"
        )
    return made.path, export(made.path, out=f"{place / 'graph'}/").path, others(family, place)


def one_file(place: Path) -> Made:
    """A timm model, whose library has no folder of graphs."""
    family = FAMILIES["timm ViT"]
    family.write(place / "source")
    data = family.data(place, rows=90)
    with any_labels():
        made = hs.calibrate(
            place / "source", data=data, ood_score="msp", out=place / "ready.safetensors"
        )
    return made.path, export(made.path, out=place / "graph.onnx").path, others(family, place)


def words(mode: str) -> Callable[[Path], Made]:
    """A reader of words, beside the model or before it."""

    def make(place: Path) -> Made:
        FAMILIES["BERT"].write(place / "random")
        rng = np.random.default_rng(0)
        tables = {}
        for name, rows in (("train", 300), ("val", 200), ("data", 60)):
            lines = []
            for _ in range(rows):
                label = int(rng.integers(3))
                some = [WORDS[label], *rng.choice(WORDS[4:], size=3)]
                lines.append({"text": " ".join(rng.permutation(some)), "label": LABELS[label]})
            tables[name] = unlabelled(place / f"{name}.jsonl", lines)
        source = place / "probe"
        hs.finetune(place / "random", recipe="probe", data=tables["train"], out=source)
        with any_labels():
            made = hs.calibrate(
                source,
                data=tables["val"],
                fit_data=tables["train"],
                words=mode,
                ood_score="msp",
                out=place / "ready.safetensors",
            )
        data = unlabelled(place / "read.jsonl", unlike(tables["data"], tables["val"]))
        return made.path, export(made.path, out=f"{place / 'graph'}/").path, data

    return make


KINDS: dict[str, Callable[[Path], Made]] = {
    "classes": classes,
    "pairs and groups": pairs,
    "entities": entities,
    "numbers": numbers,
    "many labels": labels,
    "pictures": pictures,
    "one file": one_file,
    "words beside": words("beside"),
    "words first": words("first"),
}


@pytest.mark.slow  # each exports a graph
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_torchs(kind: str, tmp_path: Path) -> None:
    checkpoint, graph, data = KINDS[kind](tmp_path)
    options = {"engine": "torch", "device": "cpu", "batch_size": 7}
    expected = [*hs.predict(checkpoint, data=data, **options)]
    found = rows_of(bare("predict", str(graph), "--data", data, "--batch-size", "16", "--quiet"))
    assert len(found) == len(expected)
    for one, other in zip(json.loads(json.dumps(expected)), found, strict=True):
        assert alike(one, other), (one, other)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return classes(tmp_path_factory.mktemp("made"))


@pytest.mark.slow
def test_tables_texts_and_what_needs_torch(made: Made, tmp_path: Path) -> None:
    checkpoint, graph, data = made
    texts = [json.loads(line)["text"] for line in Path(data).read_text().splitlines()][:5]
    right = [row["probability"] for row in hs.predict(checkpoint, text=texts, engine="torch")]
    (tmp_path / "t.csv").write_text("\n".join(["text", *texts]) + "\n")
    ways = [["--data", str(tmp_path / "t.csv")], ["--text", texts[0], "--text", texts[1]]]
    for way in ways:
        found = [row["probability"] for row in rows_of(bare("predict", str(graph), *way))]
        np.testing.assert_allclose(found, right[: len(found)], atol=1e-5)
    typed = bare("predict", str(graph), "--data", "-", input="\n".join(texts) + "\n")
    assert len(rows_of(typed)) == 5
    # Its graph in the cache does as well as an exported one.
    cache = os.environ | {"HYDRASURGEON_CACHE": str(tmp_path / "cache")}
    command = ["predict", str(checkpoint), "--text", texts[0], "--quiet"]
    alone = bare(*command, env=cache)
    assert (alone.returncode, alone.stdout) == (6, "")
    assert "torch" in alone.stderr
    module = [sys.executable, "-m", "hydrasurgeon", *command, "--engine", "onnx"]
    subprocess.run(module, env=cache, check=True, capture_output=True)
    for engine in ([], ["--engine", "onnx"]):
        (row,) = rows_of(bare(*command, *engine, env=cache))
        assert row["probability"] == pytest.approx(right[0], abs=1e-5)
    refused = bare("eval", str(checkpoint), "--data", data)
    assert refused.returncode == 6
    assert len(refused.stderr.strip().splitlines()) <= 2
    assert "Traceback" not in refused.stderr


@pytest.mark.slow
def test_a_predictor_in_a_worker(made: Made, tmp_path: Path) -> None:
    checkpoint, graph, _ = made
    table = {"id": ["a", "b"], "text": ["good film", "bad plot"]}
    right = hs.Predictor(checkpoint, engine="torch", device="cpu")(table)
    stored = pickle.dumps((hs.Predictor(graph), table))
    (tmp_path / "p").write_bytes(stored)
    code = BARE.split("from hydra")[0] + (
        "import json, pickle; p, t = pickle.load(open(sys.argv[1], 'rb'));"
        "print(json.dumps([p(t), p.schema.names]))"
    )
    done = bare(str(tmp_path / "p"), code=code)
    assert done.returncode == 0, done.stderr
    answers, names = json.loads(done.stdout)
    assert {*answers} <= {*names}
    assert alike(answers["probability"], [*map(float, right["probability"])])
    assert answers["answer"] == [*map(str, right["answer"])]


def test_what_is_in_the_folder_belongs_together(made: Made, tmp_path: Path) -> None:
    _, whole, data = made
    graph = shutil.copytree(whole, tmp_path / "graph")
    other = graph / "decision.safetensors"
    content = bytearray(other.read_bytes())
    content[-1] ^= 1
    other.write_bytes(bytes(content))
    done = bare("predict", str(graph), "--data", data)
    assert done.returncode == 3
    assert "belongs to another graph" in done.stderr
    inspected = bare("inspect", str(graph))
    assert inspected.returncode == 3
    assert "holds a graph, and no weights" in inspected.stderr


ROOT = Path(__file__).parents[2]


def packages() -> list[str]:
    """What the guide says to install, and what `serve` needs besides."""
    guide = (ROOT / "docs" / "guide" / "serving.md").read_text()
    (names,) = re.findall("^    pip install (numpy .*)$", guide, re.MULTILINE)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [*names.split(), *extras["optional-dependencies"]["serve"]]


@pytest.mark.slow  # installs packages
def test_an_environment_without_torch(made: Made, tmp_path: Path) -> None:
    """Of its own: nothing that is installed beside it is seen."""
    checkpoint, graph, data = made
    right = [row["probability"] for row in hs.predict(checkpoint, data=data, engine="torch")]
    home = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", home], check=True)
    python = home / "bin" / "python"
    pip = [python, "-m", "pip", "install", "-q", "--no-compile", "--disable-pip-version-check"]
    subprocess.run([*pip, *packages()], check=True)
    own = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    command = [python, "-m", "hydrasurgeon"]
    done = subprocess.run(
        [*command, "predict", graph, "--data", data, "-q"],
        env=own,
        capture_output=True,
        text=True,
        check=False,
    )
    np.testing.assert_allclose([row["probability"] for row in rows_of(done)], right, atol=1e-5)
    there = [python, "-c", "import torch"]
    lacking = subprocess.run(there, env=own, capture_output=True, text=True, check=False)
    assert "No module named 'torch'" in lacking.stderr
    serve = [*command, "serve", graph, "--port", "0"]
    with subprocess.Popen(serve, env=own, stderr=subprocess.PIPE, text=True) as served:
        try:
            assert served.stderr is not None
            line = next(line for line in served.stderr if "answers at" in line)
            address = line.split("answers at ")[1].strip()
            request = urllib.request.Request(
                address, b'{"inputs": ["good film"]}', {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request) as reply:
                (answer,) = json.loads(reply.read())["answers"]
        finally:
            served.terminate()
    (expected,) = hs.predict(checkpoint, text=["good film"], engine="torch")
    assert answer["probability"] == pytest.approx(expected["probability"], abs=1e-5)
