"""bom: a valid CycloneDX document that says what went in, and is the same each time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from tiny_families import FAMILIES

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.cli.app import run
from hydrasurgeon.errors import ManifestError, MissingDependency, OutputError, UsageError
from hydrasurgeon.stages.bom import bom

MAKE = Callable[..., Path]
SPEC = Callable[..., str]


def document(path: Path) -> dict[str, Any]:
    text = bom(path).text
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert bom(path).text == text
    return json.loads(text)


def test_a_hydra(tiny: MAKE, images: SPEC, tmp_path: Path) -> None:
    tiny()
    data = images()
    hs.score(tmp_path / "vit", method="taylor", data=data)
    for seed in (1, 2):
        hs.prune(tmp_path / "vit", method="taylor", sample="2/6", seed=seed, out=tmp_path / f"m{seed}")
    path = hs.fuse([tmp_path / "m1", tmp_path / "m2"], out=tmp_path / "hydra").path
    bill = document(path)
    model = bill["metadata"]["component"]
    assert model["type"] == "machine-learning-model"
    assert model["hashes"][0]["content"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert {file["name"] for file in model["components"]} == {"hydra.safetensors", "hydra.heads.json"}
    manifest = open_checkpoint(path).manifest
    ancestors = {a["name"]: a["hashes"][0]["content"] for a in model["pedigree"]["ancestors"]}
    assert ancestors == {
        "vit.safetensors": open_checkpoint(tmp_path / "vit").manifest.weights_sha256,
        "m1.safetensors": manifest.members[0].sha256,
        "m2.safetensors": manifest.members[1].sha256,
    }
    assert "hydrasurgeon fuse m1.safetensors m2.safetensors" in model["pedigree"]["notes"]
    parts = {(part["type"], part["name"]): part for part in bill["components"]}
    (record,) = next(entry.data for entry in manifest.history if entry.data)
    assert parts["data", "data.npz"]["hashes"][0]["content"] == record.sha256
    card = model["modelCard"]["modelParameters"]
    assert card["datasets"] == [{"ref": parts["data", "data.npz"]["bom-ref"]}]
    assert (card["task"], card["modelArchitecture"]) == ("image-classification", "timm:vit_tiny_patch16_224")
    torch = next(e.versions["torch"] for e in manifest.history if "torch" in e.versions)
    assert parts["library", "torch"]["purl"] == f"pkg:pypi/torch@{torch}"
    facts = {p["name"]: p["value"] for p in model["properties"]}
    assert facts["hydrasurgeon:weights_sha256"] == manifest.weights_sha256
    assert facts["hydrasurgeon:member_1.heads_kept"] == "10"


def test_other_files_have_another_serial_number(tiny: MAKE) -> None:
    one, other = document(tiny()), document(tiny("other.safetensors", seed=1))
    assert one["serialNumber"] != other["serialNumber"]
    assert "timestamp" not in one["metadata"]


@pytest.mark.parametrize("name", ["BERT", "OpenCLIP"])
def test_directories_of_other_families(name: str, tmp_path: Path) -> None:
    FAMILIES[name].write(tmp_path / "source")
    bill = document(tmp_path / "source")
    files = {file["name"] for file in bill["metadata"]["component"]["components"]}
    assert files == {path.name for path in (tmp_path / "source").iterdir()}


def test_a_bare_file(bare: MAKE) -> None:
    assert "components" not in document(bare())


def test_names_from_a_manifest_are_shown_not_obeyed(tiny: MAKE, tmp_path: Path) -> None:
    from hydrasurgeon.files.history import step
    from hydrasurgeon.files.manifest import DataRecord, Input
    from hydrasurgeon.stages.bom import _document

    opened = open_checkpoint(tiny())
    sha = opened.manifest.weights_sha256
    entry = step(
        "prune",
        args={"method": "a\x1b[2J\nb"},
        inputs=[Input(name="x\u202ey.safetensors", sha256=sha)],
        data=[DataRecord(spec="d\x00", rows=1, sha256=sha)],
    ).model_copy(update={"versions": {"../odd name": "1", "torch": "2\n"}})
    hostile = opened.manifest.model_copy(update={"history": (entry,)})
    object.__setattr__(opened, "manifest", hostile)
    text, _ = _document(opened, sha, {})
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert all(c.isprintable() or c == "\n" for c in text)


@pytest.mark.parametrize("part", ["inputs", "data", "versions"])
def test_a_history_without_end_is_refused(tiny: MAKE, part: str) -> None:
    from hydrasurgeon.files.history import step
    from hydrasurgeon.files.manifest import DataRecord, Input
    from hydrasurgeon.stages.bom import _document

    opened = open_checkpoint(tiny())
    hashes = [f"{i:064x}" for i in range(1001)]
    many: dict[str, Any] = {
        "inputs": tuple(Input(name="x", sha256=sha) for sha in hashes),
        "data": tuple(DataRecord(spec="x", rows=1, sha256=sha) for sha in hashes),
        "versions": {f"n{i}": "1" for i in range(1001)},
    }
    entry = step("prune", args={}, inputs=[]).model_copy(update={part: many[part]})
    object.__setattr__(opened, "manifest", opened.manifest.model_copy(update={"history": (entry,)}))
    with pytest.raises(ManifestError, match=r"1,001 .*at most 1,000"):
        _document(opened, opened.manifest.weights_sha256, {})


def test_outputs(tiny: MAKE, tmp_path: Path) -> None:
    path = tiny()
    done = bom(path, out=tmp_path / "vit.bom.json")
    assert done.path is not None
    assert done.path.read_text(encoding="utf-8") == done.text
    with pytest.raises(OutputError, match="already exists"):
        bom(path, out=tmp_path / "vit.bom.json")
    bom(path, out=tmp_path / "vit.bom.json", force=True)
    with pytest.raises(OutputError, match="is an input"):
        bom(path, out=tmp_path / "vit.heads.json", force=True)
    with pytest.raises(UsageError, match=r"\.json"):
        bom(path, out=tmp_path / "vit.xml")


def test_without_the_package(tiny: MAKE, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny()
    monkeypatch.setattr("hydrasurgeon.lookup.find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match="cyclonedx-python-lib"):
        bom(path)


def test_the_command(
    tiny: MAKE, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny()
    monkeypatch.chdir(tmp_path)
    assert run(["bom", "vit"]) == 0
    assert json.loads(capsys.readouterr().out)["bomFormat"] == "CycloneDX"
    assert run(["bom", "vit", "-o", "vit.bom.json"]) == 0
    assert "vit.bom.json: " in capsys.readouterr().out
