"""inspect --commands: a history as a script that makes the same bytes again."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from remade import remade

import hydrasurgeon as hs
from hydrasurgeon.cli.app import run
from hydrasurgeon.errors import ManifestError
from hydrasurgeon.files.manifest import HEADER_KEY, parse_manifest
from hydrasurgeon.stages.inspect import inspect

MAKE = Callable[..., Path]
SPEC = Callable[..., str]


def lines(path: Path) -> list[str]:
    text = inspect(path, commands=True)
    assert isinstance(text, str)
    return [line for line in text.splitlines() if line.startswith(("hydrasurgeon", "mkdir"))]


@pytest.mark.slow
def test_a_whole_pipeline_is_made_again(
    tiny: MAKE, images: SPEC, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scored in place, pruned, tuned, fused and calibrated; names with blanks and quotes."""
    monkeypatch.chdir(tmp_path)
    backbone = tiny("the 'whole'.safetensors")
    data = Path(images("train 1.npz", rows=40))
    val = Path(images("val.npz", rows=60, seed=3))
    begun = tmp_path / "begun"
    begun.mkdir()
    shutil.copy(backbone, begun)
    hs.score(backbone, method="taylor", data=data.name, limit=30, seed=4)
    for seed in (1, 2):
        hs.prune(backbone, method="taylor", sample="3/6", seed=seed, out=f"m{seed}")
        hs.finetune(
            f"m{seed}",
            data=data.name,
            recipe="demo",
            set={"steps": "2"},
            freeze="mlp",
            seed=seed,
            out=f"t{seed}",
        )
    hs.fuse(["t1", "t2"], out="hydra")
    ready = hs.calibrate("hydra", data=val.name, ood_score="mds", seed=7, out="ready.safetensors")
    commands = [line.split()[1] for line in lines(ready.path) if not line.startswith("mkdir")]
    assert sorted(commands[:-2]) == sorted(["score", "prune", "finetune", "prune", "finetune"])
    assert commands[-2:] == ["fuse", "calibrate"]
    again = remade(ready.path, [begun / backbone.name, data, val], tmp_path / "again")
    assert again.read_bytes() == ready.path.read_bytes()
    (made,) = (tmp_path / "again" / "ready.heads.json",)
    assert made.read_bytes() == (tmp_path / "ready.heads.json").read_bytes()


def changed(path: Path, change: Callable[[list[dict[str, Any]]], object]) -> Path:
    """The file with another history, and a hash that fits it."""
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    record = json.loads(header["__metadata__"][HEADER_KEY])
    change(record["history"])
    del record["record_sha256"]
    header["__metadata__"][HEADER_KEY] = parse_manifest(json.dumps(record), "test").to_json()
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + size :])
    path.with_name(f"{path.stem}.heads.json").unlink()
    return path


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"inputs": [{"name": "../up", "sha256": "INPUT"}]}, "names a file"),
        (
            {"inputs": [{"name": "x\ny", "sha256": "INPUT"}]},
            "names a file|can be printed|printable",
        ),
        ({"args": {"method": "random\nrm -rf ~"}}, "control characters"),
        ({"args": {"out": "/etc/passwd"}}, "is not an option"),
        ({"args": {"trunk_cache": "off"}}, "is not an option"),
        ({"command": "rm"}, "history is incomplete|cannot be repeated"),
    ],
)
def test_a_hostile_history_becomes_no_script(
    tiny: MAKE,
    tmp_path: Path,
    change: dict[str, Any],
    says: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = hs.prune(tiny(), method="random", remove=1, out=tmp_path / "m.safetensors").path
    text = json.dumps(change).replace("INPUT", inspect(path).manifest.history[-1].inputs[0].sha256)
    changed(path, lambda history: history[-1].update(json.loads(text)))
    assert run(["inspect", str(path), "--commands"]) == 3
    said = capsys.readouterr()
    assert said.out == ""
    with pytest.raises(ManifestError, match=says):
        inspect(path, commands=True)


def test_words_of_a_history_are_quoted(tiny: MAKE, tmp_path: Path) -> None:
    path = hs.prune(tiny(), method="random", remove=1, out=tmp_path / "m.safetensors").path
    changed(path, lambda history: history[-1]["args"].update(data="$(touch x); `y` 'z'"))
    (line,) = lines(path)
    assert "--data '$(touch x); `y` '\"'\"'z'\"'\"''" in line


def test_what_no_command_made(tiny: MAKE) -> None:
    with pytest.raises(ManifestError, match="has no history"):
        inspect(tiny(), commands=True)
