"""The same job in another folder, with its files in other places, writes the same bytes."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from remade import remade

import hydrasurgeon as hs
from hydrasurgeon.cli.app import run
from hydrasurgeon.files.untrusted import portable, portable_entry

LINES = (
    "score vit --method taylor --data {at}train.npz -o scored.safetensors",
    "score vit --method circuit --objective avg --remove 2 --data {at}train.npz --ood {at}far.npz -o circled.safetensors",
    "prune scored --method taylor --keep 3 --data {at}train.npz -o m1.safetensors",
    "prune scored --method random --keep 2 --compensate none -o m2.safetensors",
    "prune vit --mask {at}mask.json -o m3.safetensors",
    "finetune m1 --data {at}train.npz --val {at}val.npz --recipe {at}short.toml --teacher {at}teacher -o t1.safetensors",
    "finetune m2 --recipe {at}short.toml --unlabelled {at}far.npz --teacher {at}teacher -o t2.safetensors",
    "fuse t1 t2 m3 --check {at}val.npz --tolerance 1 -o hydra.safetensors",
    "calibrate hydra --data {at}val.npz --fit-data {at}train.npz --ood {at}far.npz --coverage 0.5 -o ready/",
    "eval ready hydra --data {at}test.npz --ood near:noise={at}far.npz --shift fog:1={at}test.npz --json report.json",
)
RECIPE = 'optimizer = "adamw"\nlr = 1e-3\nsteps = 2\nbatch_size = 20\n'


@pytest.fixture
def files(tiny: Callable[..., Path], images: Callable[..., str], tmp_path: Path) -> Path:
    home = tmp_path / "files"
    home.mkdir()
    for seed, name in enumerate(("train", "val", "test", "far")):
        shutil.move(images(f"{name}.npz", rows=60, seed=seed), home)
    shutil.move(tiny(), home / "vit.safetensors")
    shutil.copy(home / "vit.safetensors", home / "teacher.safetensors")
    (home / "mask.json").write_text(json.dumps({"vision": [[0, 1], [0, 1, 2], [3]]}))
    (home / "short.toml").write_text(RECIPE)
    return home


def everything(folder: Path) -> dict[str, bytes]:
    written = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in written}


@pytest.mark.slow
@pytest.mark.usefixtures("labels_need_not_fit")
def test_the_same_job_elsewhere(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = []
    for number, at in enumerate(("", "data/", "../beside/of it/", f"{tmp_path}/2/")):
        work = tmp_path / str(number) / "work"
        place = work / at
        work.mkdir(parents=True)
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(files / "vit.safetensors", work)
        for name in ("train.npz", "val.npz", "test.npz", "far.npz", "mask.json", "short.toml"):
            shutil.copy(files / name, place)
        shutil.copy(files / "teacher.safetensors", place)
        before = {str(path.relative_to(work)) for path in work.rglob("*")}
        monkeypatch.chdir(work)
        for line in LINES:
            assert run([word.format(at=at) for word in [*line.split(), "--quiet"]]) == 0, line
        made = everything(work)
        outputs.append({name: made[name] for name in made.keys() - before})
    first, *others = outputs
    assert {"report.json", "hydra.safetensors", "ready/heads.json"} <= first.keys()
    for other in others:
        assert other.keys() == first.keys()
        assert [name for name in first if first[name] != other[name]] == []
    # The script of the last one's history names its files, which lie beside it then.
    again = remade(Path("t1.safetensors"), files.iterdir(), tmp_path / "again")
    assert again.read_bytes() == first["t1.safetensors"]


def test_names_without_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.makedirs("lr=0.1")
    Path("lr=0.1", "a.csv").touch()
    for spec, name in {
        "a.csv": "a.csv",
        "../data/a.csv#text,one#label,two": "a.csv#text,one#label,two",
        "/data/a.csv#label,a%2Fb": "a.csv#label,a%2Fb",
        "images/train/": "train",
        "images/*.png": "*.png",
        ".": ".",
        "hf:me/set:train": "hf:me/set:train",
        "demo:val": "demo:val",
        "timm:vit/x": "timm:vit/x",
        "s3://bucket/a/b.csv": "s3://bucket/a/b.csv",
        "-": "-",
    }.items():
        assert portable(spec) == name
    for entry, name in {
        "near:noise=../far.npz": "near:noise=far.npz",
        "fog:3=/there/fog.npz": "fog:3=fog.npz",
        "noise=hf:me/set:test": "noise=hf:me/set:test",
        "lr=0.1/a.csv": "a.csv",
        "runs/lr=0.1/a.csv": "a.csv",
        "data/a.csv#label,x": "a.csv#label,x",
    }.items():
        assert portable_entry(entry) == name


def test_messages_keep_the_path_that_was_typed(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(files.parent)
    Path("files", "bad.jsonl").write_text('{"text": "a"}\n')
    assert run(["eval", "files/vit", "--data", "files/bad.jsonl"]) == 5
    assert "files/bad.jsonl" in capsys.readouterr().err


def test_two_sets_of_one_name_stay_two(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What heads were chosen on and what the member was refitted on are told apart by their hashes."""
    monkeypatch.chdir(files)
    os.makedirs("other")
    shutil.copy("val.npz", "other/train.npz")
    hs.finetune(
        "vit", data="train.npz", val="other/train.npz", recipe="short.toml", out="t.safetensors"
    )
    history = json.loads(Path("t.heads.json").read_text())["history"]
    data = history[-1]["data"]
    assert [each["spec"] for each in data] == ["train.npz", "train.npz"]
    assert data[0]["sha256"] != data[1]["sha256"]
