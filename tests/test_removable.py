"""What is no core can be deleted: its files, and its line in a list. The rest goes on working."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

import hydrasurgeon as hs

PACKAGE = Path(hs.__file__).parent
CRITERIA, FAMILIES, TASKS = (f"{name}/__init__.py" for name in ("criteria", "families", "tasks"))
NESTED = r"(?:[^()]|\([^()]*\))*"
"""What stands between brackets."""
Part = tuple[tuple[str, ...], tuple[tuple[str, str], ...]]
"""Files of a part, and its lines: the list that has each, and a pattern."""


def criterion(name: str, file: str) -> Part:
    return (f"criteria/{file}",), ((CRITERIA, rf'\n    "{name}": Criterion\({NESTED}\),'),)


def family(*names: str) -> Part:
    lines = rf'\s*"hydrasurgeon\.families\.(?:{"|".join(names)})\.\w+:\w+",'
    return tuple(f"families/{name}" for name in names), ((FAMILIES, lines),)


def task(*classes: tuple[str, str]) -> Part:
    lines = [
        (TASKS, pattern)
        for module, name in classes
        for pattern in (rf"\nfrom hydrasurgeon\.tasks\.{module} import {name}", rf", {name}\(\)")
    ]
    return tuple(f"tasks/{module}.py" for module, _ in classes), tuple(lines)


MULTI_LABEL = ("multi_label", "MultiLabel")
PARTS: dict[str, Part] = {
    **{
        name: criterion(name, f"{name}.py")
        for name in ("magnitude", "random", "headmap", "gradient", "gates")
    },
    "circuit": criterion("circuit", "circuits"),
    "cahp": criterion("cahp", "cahp"),
    **{
        name: family(name)
        for name in ("timm_eva", "modernbert", "deberta", "hf_clip", "decoder", "open_clip")
    },
    "all of transformers": family("hf_encoder", "modernbert", "deberta", "hf_clip", "decoder"),
    "multi_label": task(MULTI_LABEL),
    "binary, and labels that are each yes or no": task(("binary", "Binary"), MULTI_LABEL),
    "regression": task(("regression", "Regression")),
    "token_classification": task(("token_classification", "TokenClassification")),
    "monitor": (
        ("stages/monitor.py", "measuring/drift.py", "files/looks.py"),
        (("commands.py", rf'\n    Command\(\n        "monitor",{NESTED}\),'),),
    ),
}
PIPELINE = """
import hydrasurgeon as hs
from pathlib import Path

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


def copied(folder: Path, part: Part) -> None:
    """Copy the package without a part."""
    copy = folder / "hydrasurgeon"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    files, lines = part
    for name in files:
        shutil.rmtree(copy / name) if (copy / name).is_dir() else (copy / name).unlink()
    for name, pattern in lines:
        text = (copy / name).read_text("utf-8")
        without = re.sub(pattern, "", text)
        assert without != text, f"{name} has no such line"
        without = re.sub(
            r'\n    "\w+": \(\s*\),', "", without
        )  # the name of families that are gone
        (copy / name).write_text(without, "utf-8")


def run(folder: Path, words: Iterable[str]) -> str:
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", PARTS)
def test_a_part_can_be_deleted(name: str, tmp_path: Path) -> None:
    copied(tmp_path, PARTS[name])
    place = run(tmp_path, ["-c", "import hydrasurgeon; print(hydrasurgeon.__file__)"])
    assert Path(place.strip()).parent == tmp_path / "hydrasurgeon"
    assert ("monitor" in run(tmp_path, ["-m", "hydrasurgeon", "--help"])) is (name != "monitor")
    run(tmp_path, ["-m", "hydrasurgeon", "prune", "--help"])
    run(tmp_path, ["-c", PIPELINE])
