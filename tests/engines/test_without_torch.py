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
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny_tokens
from any_labels import any_labels
from exporting import exports, onnx_writes
from own_models import LABELS
from PIL import Image
from stock_models import ready
from tiny_families import FAMILIES, WORDS, Family

import hydrasurgeon as hs
from hydrasurgeon.cli.app import run
from hydrasurgeon.engines.onnx.onnx_header import SEAL, sealed
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
    # One score of the validation rows is the threshold; that of a pair turned round is not.
    rows = [json.loads(line) for line in Path(data).read_text().splitlines()]
    turned = [{"text": row["text_pair"], "text_pair": row["text"]} for row in rows[:150]]
    data = unlabelled(place / "turned.jsonl", turned)
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
    settings = {"task": "regression", "epochs": "1", "classifier": "fresh"}
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
    "pairs": pairs,
    "entities": entities,
    "numbers": numbers,
    "many labels": labels,
    "pictures": pictures,
    "one file": one_file,
    "words blend": words("blend"),
    "words cascade": words("cascade"),
}


ROOT = Path(__file__).parents[2]


def packages() -> list[str]:
    """What the guide says to install."""
    guide = (ROOT / "docs" / "guide" / "serving.md").read_text()
    (names,) = re.findall("^    pip install (numpy .*)$", guide, re.MULTILINE)
    return names.split()


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    """An environment in which nothing that is installed beside it is seen; None where pip reaches no
    index.
    """
    home = tmp_path_factory.mktemp("bare") / "venv"
    subprocess.run([sys.executable, "-m", "venv", home], check=True)
    for words in (["--no-deps", str(ROOT)], [*packages(), "pillow"]):
        done = more(home, *words)
        if re.search("No matching distribution|connection", done.stderr):
            return None
        assert done.returncode == 0, done.stderr
    return home


def more(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Install that too."""
    pip = [home / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    return subprocess.run([*pip, *words], capture_output=True, text=True, check=False)


def alone(home: Path) -> dict[str, str]:
    """The variables of its processes."""
    return {"PATH": os.environ["PATH"], "HOME": str(home), "OMP_NUM_THREADS": "1"}


def answered(home: Path | None, *words: str, **options: Any) -> list[dict[str, Any]]:
    """Rows of `predict` in such an environment, else in a process that imports nothing heavy."""
    command = ["predict", *words, "--quiet"]
    if home is None:
        return rows_of(bare(*command, **options))
    done = subprocess.run(
        [home / "bin" / "hydrasurgeon", *command],
        env=alone(home),
        capture_output=True,
        text=True,
        check=False,
        **options,
    )
    return rows_of(done)


@pytest.mark.slow  # each exports a graph
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_torchs(kind: str, tmp_path: Path, environment: Path | None) -> None:
    checkpoint, graph, data = KINDS[kind](tmp_path)
    options = {"engine": "torch", "device": "cpu", "batch_size": 7}
    expected = [*hs.predict(checkpoint, data=data, **options)]
    found = answered(environment, str(graph), "--data", data, "--batch-size", "16")
    assert len(found) == len(expected)
    for one, other in zip(json.loads(json.dumps(expected)), found, strict=True):
        unlike_keys = [name for name in one if not alike(one[name], other.get(name))]
        assert alike(one, other), [(name, one[name], other.get(name)) for name in unlike_keys]


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
    run = subprocess.run(module, env=cache, check=True, capture_output=True, text=True)
    assert not [line for line in run.stderr.splitlines() if not line.startswith("note: ")]
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


@pytest.mark.slow
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
    assert "holds a graph but no weights" in inspected.stderr


def manifest(graph: Path, change: Callable[[str], str], entry: str = "manifest") -> None:
    """What a graph's file says, changed and sealed anew: a seal is no signature."""
    import onnx

    path = graph / "onnx" / "model.onnx"
    model = onnx.load_from_string(path.read_bytes()[:-SEAL])
    for said in model.metadata_props:
        if said.key == f"hydrasurgeon.{entry}":
            said.value = change(said.value)
    path.write_bytes(sealed(model.SerializeToString()))


def later(text: str) -> str:
    """Of another version."""
    return text.replace("hydrasurgeon.manifest/1", "hydrasurgeon.manifest/3")


def edit(path: Path, change: Callable[[str], str]) -> None:
    path.write_text(change(path.read_text()))


BROKEN: dict[str, tuple[Callable[[Path], object], Callable[[Path], object], str]] = {
    "no decision": (
        lambda model: (model / "decision.safetensors").unlink(),
        lambda graph: (graph / "decision.safetensors").unlink(),
        "decision",
    ),
    "no decision but bytes": (
        lambda model: (model / "decision.safetensors").write_bytes(b"?"),
        lambda graph: (graph / "decision.safetensors").write_bytes(b"?"),
        "decision.safetensors: not a safetensors file",
    ),
    "another version": (
        lambda model: edit(model / "heads.json", later),
        lambda graph: manifest(graph, later),
        "format 'hydrasurgeon.manifest/3'; this version reads 'hydrasurgeon.manifest/1'",
    ),
    "no tokenizer": (
        lambda model: (model / "tokenizer.json").write_text("{}"),
        lambda graph: manifest(graph, lambda _: "{}", "tokenizer"),
        "tokenizer",
    ),
    "cut off": (
        lambda model: os.truncate(model / "model.safetensors", 10_000),
        lambda graph: os.truncate(graph / "onnx" / "model.onnx", 10_000),
        "damaged",
    ),
}
"""What is done to a checkpoint and to its graph, and what both say of that."""
NO_DATA: dict[str, tuple[str, bytes]] = {
    "another column": ("t.csv", b"words\ngood film\n"),
    "no text": ("t.csv", b'text\ngood film\n""\n'),
    "other bytes": ("t.csv", "text\ncaf\u00e9\n".encode("latin-1")),
    "no JSON": ("t.jsonl", b'{"text": "a"}\n{text\n'),
    "a number": ("t.jsonl", b'{"text": 3}\n'),
    "a picture": ("t.png", b""),
    "nothing": ("gone.csv", b""),
}
"""Data that no model of texts can read."""


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = run(["predict", *words, "--quiet"])
    said = capsys.readouterr()
    assert said.out == ""
    assert "Traceback" not in said.err
    return code, said.err


@pytest.mark.slow
def test_bad_data_is_refused_as_by_torch(
    made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, graph, _ = made
    monkeypatch.chdir(tmp_path)
    for what, (name, content) in NO_DATA.items():
        if name.endswith(".png"):
            Image.new("RGB", (8, 8)).save(name)
        elif content:
            Path(name).write_bytes(content)
        expected = told(capsys, str(checkpoint), "--engine", "torch", "--data", name)
        assert expected[0] == 5, what
        assert told(capsys, str(graph), "--data", name) == expected, what


@pytest.mark.slow  # writes a directory, and its graph
def test_broken_graphs_are_refused_as_checkpoints_are(
    made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint, whole, _ = made
    source = checkpoint.parent / "source"
    data = str(checkpoint.parent / "data.jsonl")
    with any_labels():
        model = hs.calibrate(source, data=data, ood_score="knn", out=f"{tmp_path / 'model'}/").path
    for what, (of_model, of_graph, says) in BROKEN.items():
        places = [shutil.copytree(each, tmp_path / what / each.name) for each in (model, whole)]
        for place, change in zip(places, (of_model, of_graph), strict=True):
            change(place)
            code, said = told(capsys, str(place), "--text", "good film")
            assert code == 3, (what, said)
            assert says in said
            assert place.name in said


@pytest.mark.slow  # installs packages
def test_an_environment_without_torch(made: Made, environment: Path | None, tmp_path: Path) -> None:
    """All sources of data, and `serve`, with what the guide says to install."""
    if environment is None:
        pytest.skip("pip reaches no index")
    checkpoint, graph, data = made
    command = [environment / "bin" / "hydrasurgeon"]
    lacking = subprocess.run(
        [*command, "eval", checkpoint, "--data", data],
        env=alone(environment),
        capture_output=True,
        text=True,
        check=False,
    )
    assert lacking.returncode == 6
    assert "eval needs" in lacking.stderr
    assert len(lacking.stderr.splitlines()) <= 2
    right = json.loads(json.dumps([*hs.predict(checkpoint, data=data, engine="torch")]))
    texts = [json.loads(line)["text"] for line in Path(data).read_text().splitlines()]
    (tmp_path / "t.csv").write_text("\n".join(["text", *texts]) + "\n")
    model = str(graph)
    assert alike(answered(environment, model, "--data", data), right)
    assert alike(answered(environment, model, "--data", str(tmp_path / "t.csv")), right)
    typed = answered(environment, model, "--data", "-", input="\n".join(texts) + "\n")
    assert alike(typed, right)
    assert alike(answered(environment, model, "--text", texts[0]), right[:1])

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    done = more(environment, "pyarrow", *extras["optional-dependencies"]["serve"])
    assert done.returncode == 0, done.stderr
    pq.write_table(pa.table({"text": texts}), tmp_path / "t.parquet")
    assert alike(answered(environment, model, "--data", str(tmp_path / "t.parquet")), right)

    serve = [*command, "serve", graph, "--port", "0"]
    with subprocess.Popen(
        serve, env=alone(environment), stderr=subprocess.PIPE, text=True
    ) as served:
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
    (one,) = hs.predict(checkpoint, text=["good film"], engine="torch")
    assert answer["probability"] == pytest.approx(one["probability"], abs=1e-5)
