"""replay: what history records is enough to make every file again, byte for byte, here and by a shell script."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import any_labels
import pytest
import torch
from conftest import ARCH
from edited import edited
from safetensors.torch import load_file, save_file
from torch import Tensor

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.reading import open_checkpoint, rewritten
from hydrasurgeon.checkpoints.writing import save
from hydrasurgeon.cli.app import run
from hydrasurgeon.errors import CheckpointError, DataError, ManifestError
from hydrasurgeon.stages.replay import Replay, replay
from hydrasurgeon.stages.replay import _bring as bring

MAKE = Callable[..., Path]
SPEC = Callable[..., str]
TUNE = "--recipe demo --set steps=2 --freeze mlp,embedding --data data.npz --batch-size 8"
PIPELINE = (
    "score --method taylor --keep 3 --data data.npz --limit 20 vit",
    "prune --method taylor --keep 3 vit -o taylor",
    "prune --method taylor --sample 4/6 --seed 1 vit -o m1",
    "prune --method taylor --sample 4/6 --seed 2 vit -o m2",
    f"finetune m1 {TUNE} --seed 1 -o t1",
    f"finetune m2 {TUNE} --seed 2 --val data.npz -o t2",
    "fuse t1 t2 -o hydra.safetensors",
)


@pytest.fixture
def made(
    tiny: MAKE, images: SPEC, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Path]:
    """A folder in which commands were run."""
    tiny()
    images()
    monkeypatch.chdir(tmp_path)

    def pipeline(*lines: str) -> Path:
        for line in lines:
            assert run([*shlex.split(line), "--quiet"]) == 0, line
        return tmp_path

    return pipeline


def outcomes(result: Replay) -> list[bool | None]:
    return [check.holds for check in result.checks]


def only(folder: Path, *names: str) -> Path:
    """A folder that holds these files and nothing else."""
    kept = folder / "from"
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir()
    for name in names:
        shutil.copy(folder / name, kept / name)
    return kept


def test_the_demos_pipeline_comes_out_the_same(made: Callable[..., Path]) -> None:
    folder = made(*PIPELINE)
    source = only(folder, "vit.safetensors", "data.npz")
    result = replay(folder / "hydra.safetensors", folder=source, out=folder / "again")
    assert outcomes(result) == [True] * 8
    assert result.checks[-1].detail == "identical, and so are the files"
    commands = [command.split()[0] for command in result.commands]
    assert commands == ["score", "prune", "finetune", "prune", "finetune", "fuse"]
    for name in ("hydra", "t1", "t2", "m1", "m2", "vit"):
        again = folder / "again" / f"{name}.safetensors"
        assert again.read_bytes() == (folder / again.name).read_bytes(), name
    assert sorted(p.name for p in source.iterdir()) == ["data.npz", "vit.safetensors"]


def test_history_says_what_every_step_wrote(made: Callable[..., Path]) -> None:
    folder = made(
        *PIPELINE,
        "calibrate hydra --data data.npz -o ready",
        "export --format padded t1 -o padded/",
    )
    for name in ("vit", "taylor", "m1", "t1", "hydra", "ready", "padded"):
        manifest = open_checkpoint(folder / name).manifest
        assert manifest.history[-1].output == manifest.weights_sha256, name
        outputs = {entry.output for entry in manifest.history}
        assert {read.sha256 for entry in manifest.history for read in entry.inputs} <= outputs, name


@pytest.mark.slow
def test_the_scripts_make_the_same_files(made: Callable[..., Path]) -> None:
    calibrate = "calibrate hydra --data data.npz --ood-score msp -o ready"
    folder = made(
        *PIPELINE,
        calibrate,
        f"finetune init:{ARCH} --recipe scratch --set steps=2 --data data.npz -o start",
    )
    source = only(folder, "vit.safetensors", "data.npz")
    fresh_folder = folder / "it's fresh"
    fresh_folder.mkdir()
    for name, others in (("ready", ("hydra", "t2", "m1")), ("start", ())):
        text = replay(folder / f"{name}.safetensors", folder=source, dry_run=True).script
        assert _sh(text, fresh_folder).returncode == 0
        for each in (name, *others):
            file = f"{each}.safetensors"
            assert (fresh_folder / file).read_bytes() == (folder / file).read_bytes(), each


def _sh(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    program = f"{shlex.quote(sys.executable)} {shlex.quote(any_labels.__file__)}"
    command = f'hydrasurgeon() {{ {program} "$@" --quiet; }}\n{script}'
    env = {**os.environ, "PYTHONPATH": str(Path(hs.__file__).parents[1])}
    return subprocess.run(["sh", "-c", command], cwd=folder, env=env, check=False, text=True)


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("prune --method random --keep 2 --seed 3 vit -o out", ("vit.safetensors",)),
        ("prune --mask mask.json vit -o out", ("vit.safetensors", "mask.json")),
        (
            "prune --method taylor --keep 2 --data data.npz --batch-size 7 vit -o out",
            ("vit.safetensors", "data.npz"),
        ),
        (
            "prune --method magnitude --keep 2 --compensate lstsq --data data.npz --dtype bfloat16 vit -o out",
            ("vit.safetensors", "data.npz"),
        ),
        (
            "prune --method fisher --remove 5 --data data.npz vit -o out",
            ("vit.safetensors", "data.npz"),
        ),
        (
            "score --method circuit --objective acc --data data.npz --remove 3 vit -o out",
            ("vit.safetensors", "data.npz"),
        ),
        (
            "score --method circuit --objective avg --data data.npz --ood data.npz --ood ood.npz --remove 2 vit -o out",
            ("vit.safetensors", "data.npz", "ood.npz"),
        ),
        (
            "finetune vit --recipe own.toml --data data.npz -o out",
            ("vit.safetensors", "data.npz", "own.toml"),
        ),
        ("prune --method random --keep 2 vit -o out/", ("vit.safetensors",)),
    ],
)
def test_single_steps(
    made: Callable[..., Path], images: SPEC, line: str, names: tuple[str, ...]
) -> None:
    folder = made()
    images("ood.npz", seed=5, labels=False)
    (folder / "mask.json").write_text(json.dumps({"vision": [[0, 2], [], [1, 2, 3]]}))
    (folder / "own.toml").write_text('optimizer = "sgd"\nlr = 0.01\nsteps = 2\nbatch_size = 8\n')
    made(line)
    out = folder / "out" if (folder / "out").is_dir() else folder / "out.safetensors"
    result = replay(out, folder=only(folder, *names))
    assert outcomes(result) == [True] * 3, result.checks
    assert result.checks[-1].detail == "identical, and so are the files"


@pytest.mark.slow
def test_a_script_with_names_that_need_quoting(made: Callable[..., Path]) -> None:
    folder = made()
    shutil.move(folder / "vit.safetensors", folder / "it's $(a) vit.safetensors")
    shutil.move(folder / "data.npz", folder / "my `data`.npz")
    made(
        "score --method taylor --keep 3 --data 'my `data`.npz' \"it's $(a) vit\"",
        "prune --method taylor --keep 3 \"it's $(a) vit\" -o 'a b'",
    )
    text = replay(folder / "a b.safetensors", folder=folder, dry_run=True).script
    place = folder / "place"
    place.mkdir()
    assert _sh(text, place).returncode == 0
    assert (place / "a b.safetensors").read_bytes() == (folder / "a b.safetensors").read_bytes()


def test_scores_that_came_later_do_not_matter(made: Callable[..., Path]) -> None:
    folder = made(*PIPELINE[:2], "score --method random vit", "score --method magnitude vit")
    result = replay(
        folder / "taylor.safetensors", folder=only(folder, "vit.safetensors", "data.npz")
    )
    assert result.checks[-1].detail == "identical, and so are the files"


def test_a_bare_backbone_with_a_sidecar(bare: MAKE, made: Callable[..., Path]) -> None:
    arch = {
        "img_size": 28,
        "patch_size": 7,
        "in_chans": 1,
        "embed_dim": 32,
        "depth": 3,
        "num_heads": 4,
        "num_classes": 5,
    }
    bare("stock.safetensors", **arch)
    spec = "timm:vit_tiny_patch16_224," + ",".join(f"{k}={v}" for k, v in arch.items())
    folder = made(
        f"score --method taylor --data data.npz --arch {spec} stock",
        "prune --method taylor --keep 2 stock -o p",
    )
    assert (folder / "stock.heads.json").exists()
    for names in (
        ("stock.safetensors", "data.npz"),
        ("stock.safetensors", "stock.heads.json", "data.npz"),
    ):
        source = only(folder, *names)
        result = replay(folder / "p.safetensors", folder=source)
        assert outcomes(result) == [True] * 4
        assert result.checks[-1].detail == "identical, and so are the files"


def test_files_are_found_whatever_they_are_called(made: Callable[..., Path]) -> None:
    folder = made(*PIPELINE[:2])
    source = only(folder, "vit.safetensors", "data.npz")
    (source / "vit.safetensors").rename(source / "renamed.safetensors")
    shutil.copy(folder / "taylor.safetensors", source / "decoy.safetensors")
    result = replay(folder / "taylor.safetensors", folder=source)
    assert outcomes(result) == [True] * 4
    assert result.checks[-1].detail == "identical, and so are the files"


def test_two_files_of_one_name(made: Callable[..., Path]) -> None:
    folder = made()
    for seed in (1, 2):
        (folder / str(seed)).mkdir()
        made(f"prune --method random --remove 4 --seed {seed} vit -o {seed}/m")
    made("fuse 1/m 2/m -o h")
    result = replay(folder / "h.safetensors", folder=only(folder, "vit.safetensors"))
    assert outcomes(result) == [True] * 5
    assert result.checks[-1].detail == "identical, and so are the files"


def test_a_tuned_backbone_is_made_again(made: Callable[..., Path]) -> None:
    """Only what no step made is taken from the folder: the file on the way may be a forged one."""
    folder = made(f"finetune vit {TUNE} -o tuned", "prune --method random --keep 2 tuned -o m")
    source = only(folder, "vit.safetensors", "tuned.safetensors", "data.npz")
    result = replay(folder / "m.safetensors", folder=source)
    assert [command.split()[0] for command in result.commands] == ["finetune", "prune"]
    assert outcomes(result) == [True] * 4
    with pytest.raises(CheckpointError, match=r"vit\.safetensors .* with which its history begins"):
        replay(folder / "m.safetensors", folder=only(folder, "tuned.safetensors", "data.npz"))


def test_members_of_several_backbones(tiny: MAKE, made: Callable[..., Path]) -> None:
    folder = made()
    tiny("second.safetensors", seed=1)
    made(
        "prune --method random --keep 2 vit -o a",
        "prune --method random --keep 3 second -o b",
        "prune --method random --keep 1 b -o c",
        "fuse a b c vit -o h",
    )
    result = replay(
        folder / "h.safetensors", folder=only(folder, "vit.safetensors", "second.safetensors")
    )
    assert outcomes(result) == [True] * 6
    with pytest.raises(CheckpointError, match=r"second\.safetensors .* is not in"):
        replay(folder / "h.safetensors", folder=only(folder, "vit.safetensors"))


def forge(path: Path, out: Path, **changes: object) -> Path:
    """The same weights under another manifest."""
    opened = open_checkpoint(path)
    save(
        out,
        opened.tensors.planned(),
        lambda sha: rewritten(opened.manifest, weights_sha256=sha, **changes),
    )
    return out


def retold(source: Path, **change: object) -> Path:
    """The file with another last step."""
    history = [e.model_dump() for e in open_checkpoint(source).manifest.history]
    history[-1] |= change
    return forge(source, source.with_name("retold.safetensors"), history=history)


def test_what_was_edited_does_not_come_out(made: Callable[..., Path]) -> None:
    folder = made(*PIPELINE[:2])

    def nudge(name: str, tensor: Tensor) -> Tensor:
        if name == "head.weight":
            tensor[2, 3] += 0.25
        return tensor

    path = edited(folder / "taylor.safetensors", folder / "forged.safetensors", nudge)
    result = replay(path, folder=folder)
    weights = result.checks[-2]
    assert weights.holds is False
    assert weights.difference == pytest.approx(0.25)
    assert "1 of" in weights.detail
    assert "head.weight" in weights.detail
    assert list(result.differences) == ["head.weight"]
    assert replay(path, folder=folder, tolerance=0.3).holds
    assert run(["replay", str(path), "--from", str(folder), "--quiet"]) == 1


def test_scores_that_were_edited_do_not_come_out(made: Callable[..., Path]) -> None:
    folder = made(*PIPELINE[:2])
    scores = open_checkpoint(folder / "taylor.safetensors").manifest.scores
    plain = {name: score.model_dump(mode="json") for name, score in scores.items()}
    plain["taylor"]["values"]["vision"][0][0] += 1.0
    path = forge(folder / "taylor.safetensors", folder / "forged.safetensors", scores=plain)
    result = replay(path, folder=folder)
    assert outcomes(result) == [True, True, True, False]
    assert result.checks[-1].detail == "differs in scores"


def test_other_data_of_the_same_name_is_told(made: Callable[..., Path], images: SPEC) -> None:
    folder = made(*PIPELINE[:2])
    images(seed=9)
    result = replay(folder / "taylor.safetensors", folder=folder)
    assert result.checks[0].holds is False
    assert "data.npz is other data than then" in result.checks[0].detail


def test_other_versions_are_named(made: Callable[..., Path]) -> None:
    folder = made(*PIPELINE[:2])
    history = [
        e.model_dump() for e in open_checkpoint(folder / "taylor.safetensors").manifest.history
    ]
    history[1]["versions"]["torch"] = "1.0"
    path = forge(folder / "taylor.safetensors", folder / "old.safetensors", history=history)
    result = replay(path, folder=folder)
    assert result.versions == {"torch": ("1.0", torch.__version__.partition("+")[0])}
    assert outcomes(result) == [True] * 4
    assert "versions" in result.checks[-1].detail


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"command": "rm"}, "cannot be done again"),
        ({"args": {"keep": 2, "method": "random", "out": "/etc/passwd"}}, "out"),
        ({"args": {"keep": 2, "method": "random", "push_to_hub": "me/you"}}, "push_to_hub"),
        ({"args": {"keep": [2], "method": "random"}}, "keep"),
        ({"args": {"keep": 2, "method": "random", "classes": "/"}}, "names this file"),
        ({"args": {"keep": 2, "method": "random", "template": ["../"]}}, "names this file"),
        ({"args": {"keep": 2, "method": "random\n rm -rf"}}, "control characters"),
        ({"args": {"keep": 2, "method": "random", "template": ["a\nb"]}}, "control characters"),
        (
            {"command": "finetune", "inputs": [], "args": {"data": "d", "checkpoint": "/etc/x"}},
            "read 0 files",
        ),
        ({"inputs": []}, "read 0 files"),
        ({"inputs": [{"name": "../../up.safetensors"}]}, "names a file"),
        ({"inputs": [{"name": "a\nb.safetensors"}]}, "names a file"),
        ({"inputs": [{"name": "x" * 201}]}, "names a file"),
    ],
)
def test_a_hostile_history_is_refused(
    made: Callable[..., Path], change: dict[str, object], says: str
) -> None:
    folder = made("prune --method random --keep 2 vit -o p")
    last = open_checkpoint(folder / "p.safetensors").manifest.history[-1].model_dump()
    if change.get("inputs"):
        change = {"inputs": [{**last["inputs"][0], **change["inputs"][0]}]}  # type: ignore[index]
    path = retold(folder / "p.safetensors", **change)
    with pytest.raises(ManifestError, match=says):
        replay(path, folder=folder)


@pytest.mark.parametrize(
    "data",
    [
        "hf:org/name:train",
        "torchvision:MNIST:test",
        "..",
        "x/..",
        "/usr/[a-z]*.tar",
        "../x-*.tar",
        "/data.npz@/",
        "x" * 300,
    ],
)
def test_data_is_read_from_the_folder_only(
    made: Callable[..., Path], data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made("prune --method random --keep 2 vit -o p")
    (folder / "data.npz").unlink()
    path = retold(folder / "p.safetensors", args={"keep": 2, "method": "random", "data": data})
    monkeypatch.setattr("hydrasurgeon.data.open_data", pytest.fail)
    with pytest.raises(DataError, match="is not in"):
        replay(path, folder=folder)
    if not data.startswith(("hf:", "torchvision:")):
        with pytest.raises(DataError, match="is not in"):
            replay(path, folder=folder, fetch=True)


def test_the_hub_is_asked_only_with_fetch(
    made: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made("prune --method random --keep 2 vit -o p")
    step = open_checkpoint(folder / "p.safetensors").manifest.history[-1].model_dump()
    step["inputs"] = [{"name": "hf:me/gone", "sha256": "0" * 64}]
    path = forge(folder / "p.safetensors", folder / "hub.safetensors", history=[step])
    asked = []

    def fetched(spec: str, **_: object) -> None:
        asked.append(spec)
        raise CheckpointError("not on the hub")

    target = open_checkpoint(path)
    monkeypatch.setattr("hydrasurgeon.stages.replay.open_checkpoint", lambda _: target)
    monkeypatch.setattr("hydrasurgeon.stages.replay_plan.open_checkpoint", fetched)
    with pytest.raises(CheckpointError, match="is not in") as refused:
        replay(path, folder=folder)
    assert "--fetch" in str(refused.value.hint)
    assert not asked
    with pytest.raises(CheckpointError, match="not on the hub"):
        replay(path, folder=folder, fetch=True)
    assert asked == ["hf:me/gone"]


def test_what_links_lead_to_stays_out(
    made: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = made("prune --method random --keep 2 vit -o p")
    secret = tmp_path_factory.mktemp("elsewhere") / "secret.txt"
    secret.write_text("a\nb\nc\nd\ne\n")
    (folder / "names.txt").symlink_to(secret)
    args = {"keep": 2, "method": "random", "classes": "names.txt"}
    with pytest.raises(ManifestError, match="names this file"):
        replay(retold(folder / "p.safetensors", args=args), folder=folder)
    # A directory whose weights carry no manifest is copied file by file.
    source = made("prune --method random --keep 4 vit -o whole/") / "whole"
    save_file(load_file(source / "model.safetensors"), folder / "weights")
    (source / "model.safetensors").unlink()
    (source / "model.safetensors").symlink_to(folder / "weights")
    (source / "notes.txt").symlink_to(secret)
    os.mkfifo(source / "pipe")
    opened = open_checkpoint(source)
    bring(opened, folder / "brought")
    names = {path.name for path in (folder / "brought").iterdir()}
    assert names == {"README.md", "config.json", "model.safetensors"}


def test_the_command(made: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    made(*PIPELINE[:2])
    before = sorted(Path().iterdir())
    assert run(["replay", "taylor", "--from", ".", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "hydrasurgeon prune vit.safetensors --method taylor --keep 3\n" in out
    assert run(["replay", "taylor", "--from", ".", "--dry-run", "--shell"]) == 0
    assert capsys.readouterr().out.startswith("#!/bin/sh\n")
    assert run(["replay", "taylor", "--from", "."]) == 0
    assert "taylor.safetensors, weights: " in capsys.readouterr().out
    assert run(["replay", "taylor", "--from", ".", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["format"], report["holds"]) == ("hydrasurgeon.replay/1", True)
    assert sorted(Path().iterdir()) == before


@pytest.fixture
def calibrated(made: Callable[..., Path], images: SPEC) -> Path:
    """A hydra, calibrated with several OOD sets, data of its own to fit on, and other values than the defaults."""
    Path("data").mkdir()
    images("data/val.npz", rows=120)
    images("train.npz", rows=60, seed=2)
    images("o1.npz", seed=3, labels=False)
    images("o2.npz", seed=5, labels=False)
    return made(
        "prune --method random --keep 3 --seed 1 vit -o m1",
        "prune --method random --keep 2 --seed 2 vit -o m2",
        "fuse m1 m2 -o hydra",
        "calibrate hydra --data data/val.npz --fit-data train.npz --ood o1.npz --ood o2.npz --conformal raps"
        " --coverage 0.8 --id-flagged 0.1 --limit 100 --seed 4 --batch-size 16 -o ready",
    )


def test_a_calibration_is_run_again(calibrated: Path, made: Callable[..., Path]) -> None:
    made(
        "calibrate m1 --data data/val.npz --ood-score msp -o alone/",
        "score alone --method random --keep 2",
    )
    steps = [step.command for step in open_checkpoint("alone").manifest.history]
    assert steps == ["init", "prune", "calibrate", "score"]
    for name in ("ready.safetensors", "alone"):
        assert hs.verify(name).holds
        assert hs.verify(name, parents=".").holds
        result = replay(name, folder=".", out=calibrated / f"again-{name}")
        assert all(check.holds for check in result.checks), result.checks
        assert result.checks[-1].detail == "identical, and so are the files"
