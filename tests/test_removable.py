"""What is no core can be deleted: its files, and its line in a list. The rest goes on working: help
pages, a pipeline, and tests of the parts beside it.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from warm import run_module

import hydrasurgeon as hs

PACKAGE, ROOT = Path(hs.__file__).parent, Path(__file__).parents[1]
CRITERIA, FAMILIES, ENGINES, PROTOCOLS = (
    f"{name}/__init__.py" for name in ("criteria", "families", "engines", "serving/protocols")
)
TASKS = "files/manifest.py"
NESTED = r"(?:[^()]|\([^()]*\))*"
"""What stands between brackets."""
Rest = tuple[tuple[str, ...], str]
"""Tests of the parts beside one: their files, and a choice among them by name."""
PARTS_OF_FAMILIES = "timm or [bert or dinov3 or eva02 or modernbert or deberta or qwen3 or [clip"


@dataclass(frozen=True)
class Part:
    """A part: its files, and its lines, each with the list that has it and a pattern."""

    files: tuple[str, ...]
    lines: tuple[tuple[str, str], ...]
    rest: Rest


def without(names: str, *files: str) -> Rest:
    """Tests of files, but for those by these names, which need the part."""
    return files, f"not ({names})"


def object_lines(table: str, module: str, name: str) -> tuple[tuple[str, str], ...]:
    """The import of an object, and its line in a list."""
    return (
        (table, rf"\nfrom hydrasurgeon\.{module} import {name}(?=\n)"),
        (table, rf"\n    {name}\(\),"),
    )


def criterion(name: str, file: str, needing: str) -> Part:
    others = ("score", "headmap")
    rest = without(needing, *(f"criteria/test_{other}.py" for other in others))
    return Part(
        (f"criteria/{file}",), ((CRITERIA, rf'\n    "{name}": Criterion\({NESTED}\),'),), rest
    )


def family(*names: str, needing: str) -> Part:
    lines = rf'\s*"hydrasurgeon\.families\.(?:{"|".join(names)})\.\w+:\w+",'
    chosen = f"test_pruned_equals_masked and ({PARTS_OF_FAMILIES} or openclip) and not ({needing})"
    rest = ("families/test_families.py",), chosen
    return Part(tuple(f"families/{name}" for name in names), ((FAMILIES, lines),), rest)


def task(needing: str, *names: str) -> Part:
    lines = [(TASKS, rf'\n    "{name}": "hydrasurgeon\.tasks\.\w+:\w+",') for name in names]
    rest = without(needing, "engines/test_deciding.py", "tuning/test_validated.py")
    return Part(tuple(f"tasks/{name}.py" for name in names), tuple(lines), rest)


def protocol(file: str, name: str, rest: Rest) -> Part:
    lines = object_lines(PROTOCOLS, rf"serving\.protocols\.{file}", name)
    return Part((f"serving/protocols/{file}.py",), lines, rest)


INT8 = object_lines(ENGINES, r"engines\.int8", "Int8")
ONNX = (
    *object_lines(ENGINES, r"engines\.onnx", "Onnx"),
    *object_lines("sharing/formats.py", r"sharing\.graph_format", "GraphFormat"),
)
PARTS: dict[str, Part] = {
    "magnitude": criterion("magnitude", "magnitude.py", "magnitude"),
    "random": criterion("random", "random.py", "samples_differ or removal_in_all"),
    "headmap": criterion("headmap", "headmap.py", "headmap"),
    "gradient": criterion("gradient", "gradient.py", "test_gradient or [gradient"),
    "gates": criterion("gates", "gates.py", "[gates"),
    "circuit": criterion("circuit", "circuits", "circuit"),
    "cahp": criterion("cahp", "cahp", "cahp or keeps_to_the_layers"),
    "timm_eva": family("timm_eva", needing="dinov3 or eva02"),
    "modernbert, and decoders, which share its layers": family(
        "modernbert", "decoder", needing="modernbert or qwen3"
    ),
    "deberta": family("deberta", needing="deberta"),
    "hf_clip": family("hf_clip", needing="[clip"),
    "decoder": family("decoder", needing="qwen3"),
    "open_clip": family("open_clip", needing="openclip"),
    "all of transformers": family(
        *("hf_encoder", "modernbert", "deberta", "hf_clip", "decoder"),
        needing="bert or qwen3 or [clip",
    ),
    "multi_label": task("multi_label or many_labels", "multi_label"),
    "binary, and labels that are each yes or no": task(
        "binary or one_logit or multi_label or many_labels", "binary", "multi_label"
    ),
    "regression": task("numbers or two_outputs", "regression"),
    "token_classification": task("tags", "token_classification"),
    "monitor": Part(
        ("stages/monitor.py", "measuring/drift.py", "files/looks.py"),
        (("commands.py", rf'\n    Command\(\n        "monitor",{NESTED}\),'),),
        without("monitor or build", "cli/test_options.py"),
    ),
    "int8": Part(
        ("engines/int8",),
        INT8,
        without("int8", "engines/test_onnx.py", "sharing/test_export.py"),
    ),
    "onnx and int8": Part(
        ("engines/int8", "engines/onnx", "sharing/graph_format.py", "sharing/graph_folder.py"),
        (*INT8, *ONNX),
        without("onnx", "measuring/test_multiply_adds.py", "serving/test_app.py"),
    ),
    "our own protocol": protocol(
        "own_api", "OwnApi", without("inference_by_hand", "serving/test_protocols.py")
    ),
    "System One": protocol("system_one", "SystemOne", without("system_one", "serving/test_app.py")),
    "Open Inference Protocol": protocol(
        "open_inference",
        "OpenInference",
        without("a_token or no_word_for or description", "serving/test_app.py"),
    ),
}
SMOKE = """
from pathlib import Path

import hydrasurgeon as hs
from hydrasurgeon.cli.app import run


def test_it_is_the_copy():
    assert Path(hs.__file__).parent == Path(__file__).parent / "hydrasurgeon"


def test_help(capsys):
    for page in ([], ["prune"], ["predict"], ["serve"], ["export"]):
        assert run([*page, "--help"]) == 0
    pages = capsys.readouterr().out
    assert {"monitor": "  monitor  " in pages, "onnx": "onnx: " in pages, "int8": "int8:" in pages} == HELD


def test_a_pipeline(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    start, device = Path(hs.__file__).parent / "demo" / "backbone.safetensors", {"device": "cpu"}
    few = {"data": "demo:train", "limit": 64, **device}
    scored = hs.score(start, method="taylor", out="scored.safetensors", **few).path
    members = []
    for seed in (1, 2):
        cut = hs.prune(scored, method="taylor", sample="16/24", seed=seed, out=f"cut{seed}.safetensors", **device).path
        tuned = hs.finetune(cut, recipe="demo", set=("epochs=1",), out=f"tuned{seed}.safetensors", **few)
        members.append(tuned.path)
    hydra = hs.fuse(members, out="hydra.safetensors").path
    ready = hs.calibrate(hydra, data="demo:val", limit=200, out="ready.safetensors", **device).path
    hs.predict(ready, data="demo:test", limit=32, out="rows.jsonl", **device)
    (result,) = hs.evaluate(ready, data="demo:test", limit=64, **device).report.results
    assert result.id.accuracy > 0.5
"""
"""Tests that hold whatever is missing."""


def copied(folder: Path, part: Part) -> None:
    """Copy the package without a part."""
    copy = folder / "hydrasurgeon"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for name in part.files:
        shutil.rmtree(copy / name) if (copy / name).is_dir() else (copy / name).unlink()
    for name, pattern in part.lines:
        text = (copy / name).read_text("utf-8")
        shorter = re.sub(pattern, "", text)
        assert shorter != text, f"{name} has no such line"
        # The name of families that are gone.
        shorter = re.sub(r'\n    "\w+": \(\s*\),', "", shorter)
        (copy / name).write_text(shorter, "utf-8")


def run_fast_tests(folder: Path, *words: str) -> None:
    """Run tests with the copy, in the repository's configuration."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    options = ["-q", "-p", "no:cacheprovider", "-m", "not slow"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of plugins that are loaded
    options += ["-c", str(ROOT / "pyproject.toml"), f"--rootdir={ROOT}"]
    done = run_module("pytest", *options, *words, cwd=folder, environment=environment)
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.slow
@pytest.mark.parametrize("name", PARTS)
def test_a_part_can_be_deleted(name: str, tmp_path: Path) -> None:
    part = PARTS[name]
    copied(tmp_path, part)
    held = {"monitor": name != "monitor", "onnx": "onnx" not in name, "int8": "int8" not in name}
    smoke = tmp_path / "test_smoke.py"
    smoke.write_text(f"HELD = {held}\n{SMOKE}")
    files, chosen = part.rest
    places = [str(ROOT / "tests" / file) for file in files]
    run_fast_tests(tmp_path, str(smoke), *places, "-k", f"smoke or ({chosen})")
