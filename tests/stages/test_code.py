"""verify DIR: what of a directory is run with trust_remote_code is what we write."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_families import FAMILIES
from tiny_members import members_of

import hydrasurgeon as hs
from hydrasurgeon.cli.app import run
from hydrasurgeon.stages.verify import verify

MODELLING = "modeling_hydrasurgeon.py"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hydra with our code, and an even directory without."""
    home, family = tmp_path_factory.mktemp("made"), FAMILIES["BERT"]
    family.write(home / "source")
    parts = members_of(home / "source", family, home)
    hs.fuse(parts, out=f"{home}/hydra/")
    hs.finetune(
        home / "source",
        data=family.data(home),
        recipe="demo",
        set={"steps": "1"},
        out=f"{home}/even/",
    )
    return home


def code(folder: Path) -> tuple[bool | None, str]:
    (check,) = [check for check in verify(folder).checks if check.name == "code"]
    return check.holds, check.detail


def config(change: dict[str, Any], name: str = "config.json") -> Callable[[Path], object]:
    def changed(folder: Path) -> None:
        path = folder / name
        record = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**record, **change}))

    return changed


CHANGES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a line in our code": (
        "hydra",
        lambda folder: (folder / MODELLING).write_text(
            "import os\n" + (folder / MODELLING).read_text()
        ),
    ),
    "another class to build on": (
        "hydra",
        lambda folder: (folder / MODELLING).write_text(
            (folder / MODELLING).read_text().replace("BertForSequence", "EvilForSequence")
        ),
    ),
    "code that is no text": ("hydra", lambda folder: (folder / MODELLING).write_bytes(b"\xff\0")),
    "another file": ("even", lambda folder: (folder / "evil.py").write_text("")),
    "one in a folder": (
        "hydra",
        lambda folder: ((folder / "x").mkdir(), (folder / "x" / "evil.py").write_text("")),
    ),
    "a class of an even model": ("even", config({"auto_map": {"AutoModel": "evil.Evil"}})),
    "another class of a hydra": ("hydra", config({"auto_map": {"AutoModel": "evil.Evil"}})),
    "a class elsewhere": ("even", config({"auto_map": {"AutoModel": "me/x--evil.Evil"}})),
    "a pipeline": ("even", config({"custom_pipelines": {"x": {"impl": "evil.Evil"}}})),
    "a processor": (
        "even",
        config({"auto_map": {"AutoProcessor": "e.E"}}, "processor_config.json"),
    ),
    "modules": (
        "even",
        lambda folder: (folder / "modules.json").write_text('[{"type": "evil.Transformer"}]'),
    ),
}


def test_ours_holds(made: Path) -> None:
    assert code(made / "hydra") == (True, f"{MODELLING}: as we write it")
    assert code(made / "even") == (True, "there is none")
    assert verify(made / "hydra").holds


@pytest.mark.parametrize("what", CHANGES)
def test_code_of_others_does_not_hold(made: Path, tmp_path: Path, what: str) -> None:
    kind, change = CHANGES[what]
    folder = shutil.copytree(made / kind, tmp_path / kind)
    change(folder)
    assert code(folder)[0] is False
    assert run(["verify", str(folder), "--quiet"]) == 1
