"""A command in a TOML file: read, printed by --dry-run, written by a replay; it does what the same words do."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

import hydrasurgeon as hs
from hydrasurgeon.cli.app import app, run
from hydrasurgeon.commands import NAMED
from hydrasurgeon.errors import UsageError
from hydrasurgeon.options.run_file import as_toml, expanded, written

DEMO = Path(hs.__file__).with_name("demo")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the demo's backbone, in which we are."""
    monkeypatch.chdir(tmp_path)
    for name in ("backbone.safetensors", "backbone.heads.json"):
        shutil.copy(DEMO / name, tmp_path / name)
    return tmp_path


def words(text: str, *more: str, command: str = "prune") -> list[str]:
    """What `COMMAND run.toml MORE` is, with this text in the file."""
    Path("run.toml").write_text(text, encoding="utf-8")
    return expanded([command, "run.toml", *more], NAMED[command])


@pytest.mark.parametrize("given", [["run.toml"], ["--config", "run.toml"], ["--config=run.toml"]])
def test_a_file_does_what_its_words_do(here: Path, given: list[str]) -> None:
    assert run(["prune", "backbone", "--method", "magnitude", "--keep", "3", "-o", "a"]) == 0
    text = 'command = "prune"\ncheckpoint = "backbone"\nmethod = "magnitude"\nkeep = 3\nout = "b"\n'
    Path("run.toml").write_text(text)
    assert run(["prune", *given]) == 0
    assert (here / "a.safetensors").read_bytes() == (here / "b.safetensors").read_bytes()


def test_every_kind_of_value_becomes_words(here: Path) -> None:
    text = (
        'checkpoint = "vit"\nkeep = 8\nneurons = 0.5\nskip-bad = true\nforce = false\n'
        'template = ["a {label}", "b"]\n'
    )
    assert words(text, "--limit", "5") == [
        *["prune", "vit", "--keep", "8", "--neurons", "0.5", "--skip-bad"],
        *["--template", "a {label}", "--template", "b", "--limit", "5"],
    ]
    table = 'checkpoints = ["a", "b"]\ncalibrate = false\n'
    assert words(table, command="build") == ["build", "a", "b", "--no-calibrate"]
    table = 'checkpoint = "a"\nset = {lr = "1e-4", epochs = 3}\n'
    assert words(table, command="finetune") == [
        *["finetune", "a", "--set", "lr=1e-4", "--set", "epochs=3"]
    ]


@pytest.mark.parametrize(
    "typed", [["-o", "c"], ["--out", "c"], ["--out=c"], ["--template", "c", "-o", "c"]]
)
def test_what_is_typed_replaces_what_the_file_says(here: Path, typed: list[str]) -> None:
    rest = words('out = "b"\ntemplate = ["a", "b"]\n', *typed)
    assert "b" not in (rest if "--template" in typed else rest[: rest.index("--template")])
    assert rest[-len(typed) :] == typed


def test_dry_run_prints_what_can_be_run(here: Path) -> None:
    asked = ["prune", "backbone", "--method", "magnitude", "--keep", "3", "-o", "m.safetensors"]
    printed = CliRunner().invoke(app, [*asked, "--dry-run"]).output
    assert tomllib.loads(printed) == {
        "command": "prune",
        "checkpoint": "backbone",
        "method": "magnitude",
        "keep": 3,
        "out": "m.safetensors",
    }
    assert not Path("m.safetensors").exists()
    Path("run.toml").write_text(printed)
    assert (
        CliRunner().invoke(app, [*expanded(["prune", "run.toml"], NAMED["prune"])]).exit_code == 0
    )
    assert Path("m.safetensors").exists()


def test_texts_of_all_kinds_come_back() -> None:
    odd = ['a"b', "back\\slash", "ä 漢 🙂", "new\nline", "tab\t", "\x7f", "{label}"]
    options = NAMED["prune"].options.of("vit", keep=2, template=odd, out="o")
    assert tomllib.loads(written("prune", options))["template"] == odd
    values = {"set": {"a b": "1", 'c"': "x"}, "alpha": 0, "lr": 1e-05, "quiet": False, "none": None}
    assert tomllib.loads(as_toml("finetune", values)) == {
        "command": "finetune",
        "set": {"a b": "1", 'c"': "x"},
        "alpha": 0,
        "lr": 1e-05,
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("keeep = 3", r"run.toml: keeep: no such option \(did you mean keep\?\)"),
        ("keep = ", "run.toml: is not TOML"),
        ('command = "fuse"', "holds the options of fuse, not of prune"),
        ("keep = 1979-05-27", "run.toml: keep: expected text, a number"),
        ("keep = [[1]]", "run.toml: keep: expected text, a number"),
    ],
)
def test_mistakes(here: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        words(text)


def test_a_file_that_is_not_there(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["prune", "none.toml"]) == 2
    assert "none.toml" in capsys.readouterr().err


def test_a_replay_writes_files_that_make_the_same_again(here: Path) -> None:
    for keep in (3, 4):
        hs.prune("backbone", method="magnitude", keep=keep, out=f"m{keep}.safetensors")
    hs.fuse(["m3", "m4"], mlp="separate", out="pair.safetensors")
    assert run(["verify", "pair", "--again", ".", "-o", "again", "--quiet"]) == 0
    made = {path.name: path.read_bytes() for path in Path("again").glob("*.safetensors")}
    for name in ("m3", "m4", "pair"):
        record = tomllib.loads(Path(f"again/{name}.safetensors.toml").read_text())
        assert str(here) not in json.dumps(record)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir("again")
        for name in ("m3", "m4", "pair"):
            assert (
                run(
                    [
                        NAMED["prune" if name != "pair" else "fuse"].name,
                        f"{name}.safetensors.toml",
                        "--force",
                    ]
                )
                == 0
            )
            assert Path(f"{name}.safetensors").read_bytes() == made[f"{name}.safetensors"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "made"),
    [("build", ["front/macs-0.6.safetensors", "front/front.json", "front.svg"]),
     ("finetune", ["tuned.safetensors"])],
)  # fmt: skip
def test_the_examples_run(here: Path, name: str, made: list[str]) -> None:
    for end in ("safetensors", "heads.json"):
        Path(f"backbone.{end}").rename(f"vit.{end}")
    file = Path(__file__).parents[2] / "examples" / "runs" / f"{name}.toml"
    shutil.copy(file, here)
    assert run([name, f"{name}.toml", "--quiet", "--device", "cpu"]) == 0
    assert all((here / each).exists() for each in made)
