"""What was changed in a manifest is noticed by its hash."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_families import FAMILIES
from tiny_members import members_of

import hydrasurgeon as hs
from hydrasurgeon.cli.app import run
from hydrasurgeon.errors import ManifestError
from hydrasurgeon.files.manifest import HEADER_KEY, parse_manifest
from hydrasurgeon.stages.inspect import inspect
from hydrasurgeon.stages.verify import verify

ZEROS = "0" * 64


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT with class names, three members, their hydra, and that calibrated."""
    folder, family = tmp_path_factory.mktemp("pipeline"), FAMILIES["BERT"]
    source = folder / "source"
    family.write(source)
    config = json.loads((source / "config.json").read_text())
    names = {"id2label": {"0": "bad", "1": "fine", "2": "good"}}
    (source / "config.json").write_text(json.dumps({**config, **names}))
    members = members_of(source, family, folder)
    hydra = hs.fuse(members, out=folder / "hydra.safetensors").path
    hs.calibrate(hydra, data=family.data(folder, rows=80), out=folder / "decided.safetensors")
    return folder


@pytest.fixture
def folder(pipeline: Path, tmp_path: Path) -> Path:
    return shutil.copytree(pipeline, tmp_path / "pipeline")


def tamper(path: Path, change: Callable[[dict[str, Any]], object], *, mended: bool) -> None:
    """Change a file's manifest in place; `mended`: with a hash that fits again."""
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    record = json.loads(header["__metadata__"][HEADER_KEY])
    change(record)
    if mended:
        del record["record_sha256"]
        record = json.loads(parse_manifest(json.dumps(record), "test").to_json())
    header["__metadata__"][HEADER_KEY] = json.dumps(record)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + size :])
    path.with_name(f"{path.stem}.heads.json").unlink()


ALONE = {
    "labels": lambda record: record["model"]["labels"].reverse(),
    "no-labels": lambda record: record["model"].update(labels=None),
    "activation": lambda record: record["model"]["config"].update(hidden_act="relu"),
    "eps": lambda record: record["model"]["config"].update(layer_norm_eps=1e-3),
    "max-length": lambda record: record["model"]["preprocess"].update(max_length=8),
    "ood": lambda record: record["decision"]["ood"].update(threshold=1e9),
    "sets": lambda record: record["decision"]["conformal"].update(threshold=0.999999),
    "temperature": lambda record: record["decision"].update(temperature=9.0),
    "seed": lambda record: record["history"][0].update(seed=7),
    "args": lambda record: record["history"][0]["args"].update(keep=2.0),
}


def outcomes(path: Path) -> dict[str, bool | None]:
    return {check.name: check.holds for check in verify(path).checks}


def test_untouched_files_hold(folder: Path) -> None:
    assert set(outcomes(folder / "decided.safetensors").values()) == {True}


@pytest.mark.parametrize("name", ALONE)
def test_a_lone_file_that_was_edited(folder: Path, name: str) -> None:
    path = folder / "decided.safetensors"
    tamper(path, ALONE[name], mended=False)
    checks = outcomes(path)
    assert checks["manifest hash"] is False
    assert run(["verify", str(path), "--quiet"]) == 1


@pytest.mark.parametrize(("version", "holds"), [("0.0.9", None), (hs.__version__, False)])
def test_only_older_versions_may_have_written_no_hash(
    folder: Path, version: str, holds: bool | None
) -> None:
    path = folder / "hydra.safetensors"

    def change(record: dict[str, Any]) -> None:
        del record["record_sha256"]
        record["history"][-1]["versions"]["hydrasurgeon"] = version

    tamper(path, change, mended=False)
    checks = outcomes(path)
    assert checks.pop("manifest hash") is holds
    assert False not in checks.values()


HISTORY = {
    "output": lambda record: record["history"][0].update(output=ZEROS),
    "no-output": lambda record: record["history"][0].pop("output"),
    "no-input": lambda record: record["history"][1].update(inputs=[]),
    "first": lambda record: record["history"].pop(0),
    "second": lambda record: record["history"].pop(1),
    "order": lambda record: record["history"].insert(0, record["history"].pop()),
}


@pytest.mark.parametrize("name", HISTORY)
def test_a_history_is_whole(folder: Path, name: str) -> None:
    path = folder / "hydra.safetensors"
    tamper(path, HISTORY[name], mended=True)
    assert outcomes(path)["history"] is (None if name == "no-output" else False)
    if name != "no-output":
        with pytest.raises(ManifestError, match="its history"):
            inspect(path, commands=True)
