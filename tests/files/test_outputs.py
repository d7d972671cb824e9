"""Outputs: refused before the work begins, never an input, never two writers, never somebody else's files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from exporting import onnx_writes
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.cli.app import run
from hydrasurgeon.errors import OutputError
from hydrasurgeon.files.atomic import claim, claims, named, output_file, write_text
from hydrasurgeon.files.manifest import sidecar

MAKE = Callable[..., Path]
SPEC = Callable[..., str]


def listing(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], str]:
    """Run a line that must end with 2, before any work, and change nothing; its message."""
    monkeypatch.chdir(tmp_path)

    def call(line: str) -> str:
        before = listing(tmp_path)
        assert run(line.split()) == 2, line
        assert listing(tmp_path) == before
        said = capsys.readouterr()
        assert said.out == ""
        assert "Traceback" not in said.err
        return said.err.replace("\n", " ")

    return call


def test_what_a_name_stands_for(tiny: MAKE, tmp_path: Path) -> None:
    """The slash of a text makes a folder; a `Path` has none, and is a folder where one is there."""
    assert named("m") == named(Path("m")) == named(Path("m/")) == (Path("m.safetensors"), False)
    assert named("m/") == (Path("m"), True)
    vit = tiny()
    first = hs.prune(vit, method="random", keep=3, out=tmp_path / "m/").path
    assert first == tmp_path / "m.safetensors"
    folder = hs.prune(vit, method="random", keep=3, out=f"{tmp_path}/m/").path
    assert sorted(path.name for path in folder.glob("*.json")) == ["config.json", "heads.json"]
    again = hs.prune(vit, method="random", keep=2, out=tmp_path / "m/", force=True).path
    assert again == folder
    assert open_checkpoint(again).manifest.kept != open_checkpoint(first).manifest.kept  # type: ignore[union-attr]
    with pytest.raises(OutputError, match="already exists"):
        hs.prune(vit, method="random", keep=2, out=tmp_path / "m.safetensors")


def untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """No model may be run from here on."""

    def ran(*_: object, **__: object) -> None:
        raise AssertionError("the work began")

    monkeypatch.setattr("hydrasurgeon.runtime.classifier.as_classifier", ran)


@pytest.mark.parametrize(
    "line",
    [
        "eval vit --data d.npz --json old.json",
        "eval vit --data d.npz --predictions old.safetensors",
        "bench vit --json old.json",
        pytest.param("export vit -o old.onnx", marks=onnx_writes),
        "prune vit --method random --keep 2 -o old.safetensors",
        "score vit --data d.npz -o old",
        "finetune vit --data d.npz -o old",
        "fuse vit vit -o old",
        "eval vit --data d.npz --json nowhere/r.json",
        pytest.param("export vit -o nowhere/m.onnx", marks=onnx_writes),
        "eval vit --data d.npz --json folder",
        "eval vit --data d.npz --json pipe",
        pytest.param("export vit -o pipe", marks=onnx_writes),
        "prune vit --method random --keep 2 -o d.npz/",
        "prune vit --method random --keep 2 -o run.safetensors/",
        "prune vit --method random --keep 2 -o . --force",
        "prune vit --method random --keep 2 -o / --force",
    ],
)
def test_outputs_are_checked_before_the_work_begins(
    tiny: MAKE,
    images: SPEC,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refused: Callable[[str], str],
    line: str,
) -> None:
    tiny()
    images("d.npz")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for suffix in ("json", "safetensors", "png", "onnx"):
        (tmp_path / f"old.{suffix}").write_text("mine")
    untouched(monkeypatch)
    assert any(
        says in refused(line)
        for says in (
            "already exists",
            "no such directory",
            "is a directory",
            "is not a directory",
            "is not a regular file",
            "directory's name",
            "cannot be replaced",
        )
    )


@pytest.mark.parametrize(
    "line",
    [
        "eval vit --data d.npz --predictions vit.safetensors --force",
        "eval vit --data d.npz --json vit.heads.json --force",
        "eval vit --data d.npz --json d.npz --force",
        "eval --predictions-in p.safetensors --json p.safetensors --force",
        "eval DIR --data d.npz --predictions DIR/model.safetensors --force",
        "eval vit --data d.npz --predictions link.safetensors --force",
        "bench vit --json vit.safetensors --force",
        "bench link --json vit.safetensors --force",
        pytest.param("export vit -o vit.safetensors --force", marks=onnx_writes),
        "prune vit --method random --keep 2 -o vit --force",
        "prune DIR/model.safetensors --method random --keep 2 -o DIR/ --force",
        "prune DIR --method random --keep 2 -o DIR --force",
        "score vit --data d.npz -o vit.safetensors --force",
        "finetune vit --data d.npz --recipe demo -o vit.safetensors --force",
        "fuse vit DIR -o vit.safetensors --force",
        "prune vit --mask m.heads.json --keep 2 -o m --force",
    ],
)
def test_an_input_is_never_replaced_even_with_force(
    tiny: MAKE, images: SPEC, tmp_path: Path, refused: Callable[[str], str], line: str
) -> None:
    path = tiny()
    images("d.npz")
    hs.prune(path, method="random", keep=3, out=f"{tmp_path}/DIR/")
    (tmp_path / "m.heads.json").write_bytes(sidecar(path).read_bytes())
    save_file({}, tmp_path / "p.safetensors")
    (tmp_path / "link.safetensors").symlink_to("vit.safetensors")
    said = refused(line if "--mask" not in line else line.replace(" --keep 2", ""))
    assert "is an input of this command" in said


def test_force_replaces_reports(tiny: MAKE, images: SPEC, tmp_path: Path) -> None:
    path, data, report = tiny(), images(), tmp_path / "r.json"
    report.write_text("old")
    hs.evaluate([path], data=data, device="cpu", json=report, force=True)
    assert json.loads(report.read_text())["format"] == "hydrasurgeon.eval/1"
    assert (
        run(["bench", str(path), "--batch", "1", "--runs", "1", "--json", str(report), "--force"])
        == 0
    )
    assert json.loads(report.read_text())["format"] == "hydrasurgeon.bench/1"


HOLDER = """
import sys
from hydrasurgeon.files.atomic import output_path
from hydrasurgeon.files.atomic import claims
with claims():
    output_path(sys.argv[1], force=True)
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("name", ["m.safetensors", "m/"])
def test_a_second_writer_is_told_before_it_works(
    tiny: MAKE,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refused: Callable[[str], str],
    name: str,
) -> None:
    tiny()
    line = f"prune vit --method random --keep 2 -o {name}"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, name],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        for more in ("", " --force"):
            said = refused(line + more)
            assert "another hydrasurgeon is writing it" in said
        holder.kill()
    # What the killed one left is no obstacle, and is gone afterwards.
    assert list(tmp_path.glob(".*"))
    assert run(line.split()) == 0
    assert not list(tmp_path.glob(".*"))


def test_scoring_in_place_changes_only_the_manifest(tiny: MAKE, tmp_path: Path) -> None:
    path = tiny()
    folder = hs.prune(path, method="random", keep=3, out=f"{tmp_path}/d/").path
    (folder / "notes.txt").write_text("mine")
    card = (folder / "README.md").read_text()
    for each in (path, folder):
        before = open_checkpoint(each).digests()
        hs.score(each, method="magnitude")
        after = open_checkpoint(each)
        assert "magnitude" in after.manifest.scores
        assert after.digests() == before
    assert (folder / "notes.txt").read_text() == "mine"
    assert (folder / "README.md").read_text() == card
    assert not list(folder.glob(".*"))
    sidecar(path).unlink()
    assert "magnitude" in open_checkpoint(path).manifest.scores


def test_scoring_keeps_the_hubs_cache_as_it_is(tiny: MAKE, tmp_path: Path) -> None:
    """A folder of links, as huggingface_hub makes them: what they lead to is named by its hash."""
    folder = hs.prune(tiny(), method="random", keep=3, out=f"{tmp_path}/d/").path
    (tmp_path / "blobs").mkdir()
    for path in list(folder.iterdir()):
        path.rename(tmp_path / "blobs" / path.name)
        path.symlink_to(tmp_path / "blobs" / path.name)
    before = listing(tmp_path / "blobs")
    hs.score(folder, method="magnitude")
    assert "magnitude" in open_checkpoint(folder).manifest.scores
    assert listing(tmp_path / "blobs") == before


def test_a_linked_output_is_followed(tiny: MAKE, tmp_path: Path) -> None:
    path = tiny()
    store = tmp_path / "store"
    store.mkdir()
    for name in ("m.safetensors", "dir"):
        (tmp_path / name).symlink_to(store / name)
    hs.prune(path, method="random", keep=2, out=tmp_path / "m.safetensors")
    assert (tmp_path / "m.safetensors").is_symlink()
    assert sorted(p.name for p in store.iterdir()) == ["m.heads.json", "m.safetensors"]
    again = hs.prune(path, method="random", keep=3, out=tmp_path / "m.safetensors", force=True)
    for name in (tmp_path / "m.safetensors", store / "m.safetensors"):
        assert open_checkpoint(name).manifest == again.manifest
    hs.prune(path, method="random", keep=2, out=f"{tmp_path}/dir/")
    assert (tmp_path / "dir").is_symlink()
    assert open_checkpoint(store / "dir").manifest.kind == "member"


def test_a_folder_with_other_files_is_not_replaced(tiny: MAKE, tmp_path: Path) -> None:
    path, out = tiny(), f"{tmp_path}/d/"
    folder = hs.prune(path, method="random", keep=3, out=out).path
    with pytest.raises(OutputError, match="already exists"):
        hs.prune(path, method="random", keep=2, out=out)
    (folder / "runs").mkdir()
    (folder / "runs" / "log.txt").write_text("mine")
    (folder / "notes.txt").write_text("mine")
    before = listing(folder)
    with pytest.raises(OutputError, match=r"did not write \(notes\.txt, runs\)"):
        hs.prune(path, method="random", keep=2, out=out, force=True)
    assert listing(folder) == before
    (folder / "runs" / "log.txt").unlink()
    (folder / "runs").rmdir()
    (folder / "notes.txt").unlink()
    (folder / "README.md").write_text("# My own words\n")
    with pytest.raises(OutputError, match=r"did not write \(README\.md\)"):
        hs.prune(path, method="random", keep=2, out=out, force=True)


def test_a_folder_of_another_family_is_not_mixed_up(tiny: MAKE, tmp_path: Path) -> None:
    """Weights of OpenCLIP's name win over others: they must not stay, nor be deleted where they are not ours."""
    path, folder = tiny(), tmp_path / "d"
    folder.mkdir()
    save_file({"x": load_file(path)["head.bias"]}, folder / "open_clip_model.safetensors")
    (folder / "open_clip_config.json").write_text("{}")
    with pytest.raises(OutputError, match=r"open_clip_config\.json, open_clip_model"):
        hs.prune(path, method="random", keep=2, out=folder, force=True)
    # Where we wrote them, they go.
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    save_file(load_file(path), folder / "open_clip_model.safetensors", metadata=metadata)
    hs.prune(path, method="random", keep=2, out=folder, force=True)
    assert sorted(p.name for p in folder.iterdir()) == [
        "README.md",
        "config.json",
        "heads.json",
        "model.safetensors",
    ]
    assert open_checkpoint(folder).manifest.kind == "member"


def test_what_killed_runs_left_is_cleaned_and_nothing_else(tmp_path: Path) -> None:
    ours = [".a.json.0a1b2c3d.part", ".a.json.00000000.old", ".a.json.exclusive.lock"]
    theirs = [
        ".a.json.part",
        ".b.json.0a1b2c3d.part",
        "a.json.0a1b2c3d.part",
        ".a.json.0a1b2c3d.part.bak",
    ]
    for name in ours + theirs:
        (tmp_path / name).write_text("x")
    (tmp_path / "a.json").write_text("x")
    with claims():
        path = output_file(tmp_path / "a.json", option="--json", force=True)
        write_text(path, "new")
    assert sorted(listing(tmp_path)) == sorted(["a.json", *theirs])
    assert path.read_text() == "new"


def test_a_folder_set_aside_by_a_killed_run_comes_back(tmp_path: Path) -> None:
    aside = tmp_path / ".d.0a1b2c3d.old"
    aside.mkdir()
    (aside / "a.txt").write_text("old")
    with claims(), pytest.raises(OutputError, match="already exists"):
        claim(tmp_path / "d", option="-o", force=False, folder=True)
    assert listing(tmp_path) == {"d/a.txt": b"old"}


def test_a_name_that_is_too_long_is_refused_before_the_work(tmp_path: Path) -> None:
    """Also where only the temporary name would be too long."""
    longest = "n" * (255 - len("..exclusive.lock"))
    with claims():
        write_text(output_file(tmp_path / longest, option="--json", force=False), "x")
    for name in (longest + "n", "n" * 300):
        with (
            claims(),
            pytest.raises(OutputError, match=r"cannot be written \(File name too long\)"),
        ):
            output_file(tmp_path / name, option="--json", force=False)
    assert [p.name for p in tmp_path.iterdir()] == [longest]


def test_the_mode_is_what_the_umask_gives(tiny: MAKE, tmp_path: Path) -> None:
    path = tiny()
    old = os.umask(0o027)
    try:
        hs.prune(path, method="random", keep=2, out=tmp_path / "m.safetensors")
        hs.prune(path, method="random", keep=2, out=f"{tmp_path}/d/")
    finally:
        os.umask(old)
    modes = {p.name: p.stat().st_mode & 0o777 for p in tmp_path.glob("[md]*")}
    assert modes == {"m.safetensors": 0o640, "m.heads.json": 0o640, "d": 0o750}


@pytest.mark.parametrize("out", ["m", "m/"])
def test_contents_and_names_are_seen_onto_the_disk(
    tiny: MAKE, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str
) -> None:
    """A name is given to what is on the disk already, and its folder is written down after that."""
    source = tiny()
    events: list[tuple[str, int]] = []
    sync, replace, rename = os.fsync, os.replace, os.rename

    def synced(descriptor: int) -> None:
        events.append(("synced", os.fstat(descriptor).st_ino))
        sync(descriptor)

    def named(move: Callable[..., None]) -> Callable[..., None]:
        def moved(here: Path, there: Path) -> None:
            events.append(("named", os.stat(here).st_ino))
            move(here, there)

        return moved

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", named(replace))
    monkeypatch.setattr(os, "rename", named(rename))
    hs.prune(source, method="random", keep=2, out=f"{tmp_path}/{out}")
    folder = tmp_path / "m"
    files = (
        [*folder.iterdir()]
        if out == "m/"
        else [tmp_path / "m.safetensors", tmp_path / "m.heads.json"]
    )
    for file in files:
        put = events.index(("named", (folder if out == "m/" else file).stat().st_ino))
        assert ("synced", file.stat().st_ino) in events[:put]
        assert ("synced", tmp_path.stat().st_ino) in events[put:]
    if out == "m/":
        assert ("synced", folder.stat().st_ino) in events[:put]


def test_a_lock_ends_with_the_stage_that_failed(tmp_path: Path) -> None:
    @claims()
    def stage() -> None:
        output_file(tmp_path / "a.json", option="--json", force=False)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        stage()
    with claims():
        output_file(tmp_path / "a.json", option="--json", force=False)
        assert [p.name for p in tmp_path.iterdir()] == [".a.json.exclusive.lock"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a file system without new files")
def test_what_cannot_be_made_is_not_said_to_be_written_by_another() -> None:
    with (
        claims(),
        pytest.raises(OutputError, match=r"x\.safetensors: cannot be written") as refused,
    ):
        claim(Path("/proc/x.safetensors"), option="-o", force=False)
    assert "another hydrasurgeon" not in refused.value.message
