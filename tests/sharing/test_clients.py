"""Clients that nobody here wrote answer as we do with files that need no us.

optimum and transformers.js have requirements of their own: CLIENT_PYTHON names an interpreter that has
optimum-onnx and sentence-transformers, CLIENT_NODE a folder with node_modules/@huggingface/transformers.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exporting import exports, onnx_writes
from stock_models import name_tokenizer, ready
from tiny_families import FAMILIES
from tiny_members import members_of
from tiny_tokens import TAGGER, write
from tiny_tokens import TEXTS as TAGGED

import hydrasurgeon as hs
from hydrasurgeon.stages.export import export

pytestmark = [pytest.mark.slow, exports, onnx_writes]

CLIENTS = Path(__file__).parents[1] / "support" / "clients"
PYTHON = os.environ.get("CLIENT_PYTHON", sys.executable)
NODE = Path(os.environ.get("CLIENT_NODE", "none"))
TEXTS = ["good film", "a very very bad film the plot", "dull"]
PAIRS = [["good film", "bad"], ["a very bad film the plot", "fine plot"], ["dull", "not"]]
CLOSE, IN_INT8 = 1e-4, 1e-2


@cache
def lacks(python: str, *modules: str) -> bool:
    code = f"import {', '.join(modules)}"
    return subprocess.run([python, "-c", code], capture_output=True, check=False).returncode != 0


# Conditions in quotes start their interpreters when a test is run, and not when it is collected.
needs_optimum = pytest.mark.skipif(
    "lacks(PYTHON, 'optimum.onnxruntime')",
    reason="optimum-onnx is missing: CLIENT_PYTHON may name an interpreter that has it",
)
needs_sentences = pytest.mark.skipif(
    "lacks(sys.executable, 'sentence_transformers')", reason="sentence-transformers is missing"
)
needs_both = pytest.mark.skipif(
    "lacks(PYTHON, 'optimum.onnxruntime', 'sentence_transformers')",
    reason="optimum-onnx and sentence-transformers are missing: see CLIENT_PYTHON",
)
needs_node = pytest.mark.skipif(
    shutil.which("node") is None or not (NODE / "node_modules" / "@huggingface").is_dir(),
    reason="CLIENT_NODE names no folder with node_modules/@huggingface/transformers",
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of three kinds of models: ours, its stock directory and its folder of graphs."""
    everything = {}
    kinds = {"texts": {}, "pairs": {"pairs": True}, "yes or no": {"classes": 1, "pairs": True}}
    for name, how in kinds.items():
        folder = tmp_path_factory.mktemp(name.replace(" ", "-"))
        path, data = ready(FAMILIES["BERT"], folder, **how)  # type: ignore[arg-type]
        small = {} if name == "yes or no" else {"int8": True, "check": data, "tolerance": 0.2}
        export(path, format="stock", out=f"{folder / 'stock'}/")
        export(path, out=f"{folder / 'graph'}/", **small)
        inputs = TEXTS if name == "texts" else PAIRS
        samples = [each if isinstance(each, str) else tuple(each) for each in inputs]
        answer = hs.load(path, device="cpu").decide(samples)
        probs = answer.probabilities
        if name == "yes or no":
            probs = probs[:, -1:]
        everything[name] = (folder, inputs, probs)
    return everything


def answers(command: list[str], job: dict[str, Any], cwd: Path | None = None) -> Any:
    done = subprocess.run(
        command, input=json.dumps(job), capture_output=True, text=True, check=False, cwd=cwd
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return np.array(json.loads(done.stdout.splitlines()[-1]))


def check(found: Any, expected: Any, within: float = CLOSE) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=within)


@needs_optimum
def test_optimum_finds_spans(tmp_path: Path) -> None:
    """Of a hydra of taggers what `predict` finds."""
    source = write(tmp_path / "tagger")
    name_tokenizer(source / "tokenizer_config.json")
    parts = members_of(source, TAGGER, tmp_path)
    hydra = hs.fuse(parts, out=tmp_path / "hydra.safetensors").path
    export(hydra, out=f"{tmp_path / 'graph'}/")
    samples = [text.replace(",", "") for text in TAGGED]
    job = {"folder": str(tmp_path / "graph"), "file": "model.onnx", "inputs": samples}
    command = [PYTHON, str(CLIENTS / "optimum_tokens_client.py")]
    done = subprocess.run(
        command, input=json.dumps(job), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    expected = [
        [[each["start"], each["end"], each["label"]] for each in row["entities"]]
        for row in hs.predict(hydra, text=samples, device="cpu")
    ]
    assert json.loads(done.stdout.splitlines()[-1]) == expected
    assert sum(map(len, expected)) > 3


FILES = [("model.onnx", CLOSE), ("model_quantized.onnx", IN_INT8)]


@needs_optimum
@pytest.mark.parametrize(("file", "within"), FILES)
@pytest.mark.parametrize("kind", ["texts", "pairs"])
def test_optimum(kind: str, file: str, within: float, made: dict[str, Any]) -> None:
    folder, inputs, expected = made[kind]
    job = {"folder": str(folder / "graph"), "file": file, "inputs": inputs}
    found = answers([PYTHON, str(CLIENTS / "optimum_client.py")], job)
    check(found, expected if file == "model.onnx" else in_int8(folder, inputs), within)


def in_int8(folder: Path, inputs: Any) -> Any:
    """What the graph itself says in onnxruntime, for tiny models lose more in 8 bits than real ones."""
    import onnxruntime

    transform = hs.load(folder / "stock", device="cpu").transform
    samples = [each if isinstance(each, str) else tuple(each) for each in inputs]
    fed = {name: value.numpy() for name, value in transform.collate(samples).items()}  # type: ignore[attr-defined]
    session = onnxruntime.InferenceSession(folder / "graph" / "onnx" / "model_quantized.onnx")
    for each in session.get_inputs():
        fed.setdefault(each.name, np.zeros_like(fed["input_ids"]))
    (logits,) = session.run(["logits"], fed)
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    return shares / shares.sum(axis=1, keepdims=True)


@needs_sentences
@pytest.mark.parametrize("kind", ["pairs", "yes or no"])
def test_cross_encoder(kind: str, made: dict[str, Any]) -> None:
    folder, inputs, expected = made[kind]
    job = {"folder": str(folder / "stock"), "file": None, "inputs": inputs}
    check(answers([sys.executable, str(CLIENTS / "cross_encoder_client.py")], job), expected)


@needs_both
@pytest.mark.parametrize("kind", ["pairs", "yes or no"])
def test_cross_encoder_with_onnx(kind: str, made: dict[str, Any]) -> None:
    folder, inputs, expected = made[kind]
    job = {"folder": str(folder / "graph"), "file": "model.onnx", "inputs": inputs}
    check(answers([PYTHON, str(CLIENTS / "cross_encoder_client.py")], job), expected)


@needs_node
@pytest.mark.parametrize("dtype", ["fp32", "q8"])
@pytest.mark.parametrize("kind", ["texts", "pairs"])
def test_transformers_js(kind: str, dtype: str, made: dict[str, Any]) -> None:
    folder, inputs, expected = made[kind]
    shutil.copy(CLIENTS / "client.mjs", NODE / "client.mjs")
    job = {"folder": str(folder / "graph"), "dtype": dtype, "inputs": inputs}
    found = answers(["node", "client.mjs"], job, cwd=NODE)
    if dtype == "fp32":
        check(found, expected)
    else:
        check(found, in_int8(folder, inputs), IN_INT8)


def test_a_pipeline_of_transformers(made: dict[str, Any]) -> None:
    from transformers import pipeline

    for kind, (folder, inputs, expected) in made.items():
        classify = pipeline("text-classification", model=str(folder / "stock"), top_k=None)
        samples = inputs
        if kind != "texts":
            samples = [{"text": text, "text_pair": pair} for text, pair in inputs]
        for sample, row in zip(samples, expected, strict=True):
            found = {each["label"]: each["score"] for each in classify([sample])[0]}
            check([found[f"LABEL_{i}"] for i in range(len(row))], row)
