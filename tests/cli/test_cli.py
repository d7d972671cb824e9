"""The commands as people type them: outputs, exit codes, messages, and what is never imported."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest

from hydrasurgeon.cli.app import run

MAKE = Callable[..., Path]
SPEC = Callable[..., str]


@pytest.fixture
def shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], tuple[int, str, str]]:
    monkeypatch.chdir(tmp_path)

    def call(line: str) -> tuple[int, str, str]:
        code = run(line.split())
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_the_users_own_lines(
    tiny: MAKE, images: SPEC, shell: Callable[[str], tuple[int, str, str]]
) -> None:
    tiny()
    images()
    code, _, err = shell("prune --method taylor --keep 2 vit.safetensors")
    assert code == 2
    assert "hydrasurgeon score vit.safetensors --method taylor --data D" in err
    assert shell("score --method taylor --data data.npz vit.safetensors")[0] == 0
    code, out, _ = shell("prune --method taylor --keep 2 vit.safetensors")
    assert code == 0
    assert "vit-taylor-k2.safetensors: 6 heads removed, 6 kept" in out
    for seed in (1, 2, 3):
        assert shell(f"prune --method taylor --sample 4/8 --seed {seed} vit -o m{seed}")[0] == 0
    assert shell("fuse m1 m2 m3 -o hydra.safetensors")[0] == 0
    code, out, _ = shell("eval hydra vit --data data.npz --json -")
    assert code == 0
    assert [r["kind"] for r in json.loads(out)["results"]] == ["hydra", "backbone"]
    code, out, _ = shell("inspect hydra")
    assert "member 2" in out
    assert "■" in out


LIGHT = (
    *(
        "torch",
        "timm",
        "transformers",
        "open_clip",
        "datasets",
        "accelerate",
        "torchvision",
        "sklearn",
    ),
    "huggingface_hub",
)


def first_heavy(
    lines: Iterable[str] | Mapping[str, int], cwd: Path, packages: tuple[str, ...] = LIGHT
) -> str:
    """The first of these commands to pull in a heavy package, and which; in a fresh process, one after the other.

    Each must end with its exit code, which is 0 where none is said.
    """
    codes = dict(lines) if isinstance(lines, Mapping) else dict.fromkeys(lines, 0)
    code = (
        "import sys\nfrom hydrasurgeon.cli.app import run\n"
        f"for line, code in {codes!r}.items():\n"
        "    assert run(line.split()) == code, line\n"
        f"    if heavy := [m for m in {packages!r} if m in sys.modules]:\n"
        "        raise SystemExit(f'{line}: {heavy}')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=False
    )
    return done.stderr.splitlines()[-1] if done.returncode else ""


def test_light_commands_import_nothing_heavy(tiny: MAKE, bare: MAKE, tmp_path: Path) -> None:
    tiny()
    bare("bare.safetensors")
    lines = (
        "--help",
        "prune --help",
        "inspect --schema",
        "inspect vit",
        "inspect bare",
        "verify vit",
        "prune --method random --keep 2 vit -o a",
        "prune --method random --keep 3 vit -o b",
        "fuse a b -o h",
    )
    assert first_heavy(lines, tmp_path) == ""
    assert (tmp_path / "h.safetensors").is_file()
    again = ("inspect --schema", "prune --method random --keep 2 vit -o c")
    assert first_heavy(again, tmp_path, ("numpy",)).startswith(again[1])


def test_mistakes_are_told_before_anything_heavy_is_imported(
    tiny: MAKE, images: SPEC, tmp_path: Path
) -> None:
    tiny("intent.safetensors")
    images()
    rest = {
        "eval": "",
        "calibrate": "-o c",
        "finetune": "-o t",
        "build": "--val data.npz -o b",
        "score": "",
    }
    mistakes = {
        **{f"{name} intnt --data data.npz {more}": 3 for name, more in rest.items()},
        **{f"{name} intent --data gone.npz {more}": 5 for name, more in rest.items()},
        "eval intent --data data.npz --ood far:other=gone/": 5,
        "finetune intent --data data.npz --teacher gone -o t": 3,
        "bench intent --vs gone": 3,
        "eval intent --dat data.npz": 2,
        "calibrate intent --data data.npz --coverage 2 -o c": 2,
    }
    assert first_heavy(mistakes, tmp_path, (*LIGHT, "numpy")) == ""


def test_a_misspelt_checkpoint_is_found_by_its_near_name(
    tiny: MAKE, shell: Callable[[str], tuple[int, str, str]]
) -> None:
    tiny("intent.safetensors")
    for typed in ("intnt", "intent.safetensor", "./intnt"):
        code, _, err = shell(f"inspect {typed}")
        assert code == 3
        assert f"{typed}: no such checkpoint (did you mean intent.safetensors?)" in err
    assert "did you mean" not in shell("inspect other")[2]


def test_import_is_light() -> None:
    code = f"import sys, hydrasurgeon; assert not [m for m in {LIGHT!r} if m in sys.modules]"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("named", [True, False])
def test_a_full_temporary_folder_is_no_bug(
    named: bool,
    tiny: MAKE,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    where = [str(tmp_path / "left.bin")] if named else []

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", *where)

    monkeypatch.setattr("hydrasurgeon.stages.prune.prune", full)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert (
        run(["prune", str(tiny()), "--method", "random", "--keep", "2", "-o", str(tmp_path / "o")])
        == 2
    )
    said = " ".join(capsys.readouterr().err.split())
    assert "the disk is full" in said
    assert "set TMPDIR to a folder with room" in said
    assert "Traceback" not in said


def test_other_errors_of_the_system_keep_their_traceback(
    tiny: MAKE, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr("hydrasurgeon.stages.prune.prune", broken)
    with pytest.raises(OSError, match="Bad file descriptor"):
        run(["prune", str(tiny()), "--method", "random", "--keep", "2", "-o", str(tmp_path / "o")])
