"""States of interrupted work: beside the output, told by their content, never lost by forgetting an option."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.errors import CheckpointError, HydraError, OutputError
from hydrasurgeon.files.resumable import FORMAT, Resumable

MAKE = Callable[..., Path]
SPEC = Callable[..., str]
SHORT = {"epochs": "2", "batch_size": "8"}


class Killed(Exception):
    pass


def killer(after: int) -> Callable[[str, int, int], None]:
    def kill(what: str, done: int, total: int) -> None:
        if done >= after:
            raise Killed

    return kill


@pytest.mark.parametrize("command", ["score", "prune"])
def test_a_search_with_a_new_folder_as_output_is_resumed(
    tiny: MAKE, images: SPEC, tmp_path: Path, command: str
) -> None:
    path, data = tiny(), images()
    options: dict[str, Any] = {
        "method": "circuit",
        "objective": "acc",
        "data": data,
        "device": "cpu",
        "remove": 2,
    }
    run: Callable[..., Any] = getattr(hs, command)
    whole = run(path, out=f"{tmp_path}/whole/", **options).path
    with pytest.raises(Killed):
        run(path, out=f"{tmp_path}/cut/", progress=killer(5), **options)
    assert not (tmp_path / "cut").exists()
    assert (tmp_path / "cut.circuit-acc.search.json").exists()
    cut = run(path, out=f"{tmp_path}/cut/", **options).path
    assert {p.name: p.read_bytes() for p in cut.iterdir()} == {
        p.name: p.read_bytes() for p in whole.iterdir()
    }
    assert not list(tmp_path.glob("*.search.json"))


def test_a_file_that_is_called_like_a_state_stays(tiny: MAKE, images: SPEC, tmp_path: Path) -> None:
    path, data = tiny(), images()
    mine = tmp_path / "m.random.search.json"
    mine.write_text("{}")
    hs.prune(path, method="random", keep=2, out=tmp_path / "m")
    assert mine.read_text() == "{}"
    trained = tmp_path / "t.training.safetensors"
    for write in (lambda: trained.write_text("mine"), lambda: save_file({}, trained)):
        write()
        before = trained.read_bytes()
        refusals: dict[str, type[HydraError]] = {
            "": OutputError,
            "force": OutputError,
            "resume": CheckpointError,
        }
        for option, error in refusals.items():
            more: dict[str, Any] = {option: True} if option else {}
            with pytest.raises(
                error, match=r"t\.training.*is not the state of an interrupted training"
            ):
                hs.finetune(path, data=data, recipe="demo", set=SHORT, out=tmp_path / "t", **more)
        assert trained.read_bytes() == before
        assert not (tmp_path / "t.safetensors").exists()


@pytest.mark.parametrize(
    ("says", "words"),
    [
        (
            {FORMAT: "kept.state/1", "identity": "", "position": "", "sha256": ""},
            "its format is 'kept.state/1'; ",
        ),
        (
            {FORMAT: "others.state/1", "identity": "", "position": "", "sha256": ""},
            "its format is 'others.state/1'",
        ),
        ({FORMAT: "kept.state/2"}, "it is incomplete"),
        ({FORMAT: 2}, "it is incomplete"),
        ([], "it is incomplete"),
    ],
)
def test_a_state_that_is_none(says: Any, words: str, tmp_path: Path) -> None:
    state = Resumable(tmp_path / "t.json", {}, ("training", "kept.state/2"))
    with pytest.raises(CheckpointError) as refused, state.judged():
        state.position(says, most=1000)
    assert refused.value.message.startswith(
        f"{tmp_path}/t.json: the state of an interrupted training is damaged ({words}"
    )
    assert refused.value.hint == "Delete t.json: the training then starts over."


def test_an_interrupted_run_is_not_started_over_by_mistake(
    tiny: MAKE, images: SPEC, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"data": images(), "recipe": "demo", "set": SHORT, "device": "cpu"}
    path, out, state = tiny(), tmp_path / "t.safetensors", tmp_path / "t.training.safetensors"
    with pytest.raises(Killed):
        hs.finetune(path, out=out, save_every=2, progress=killer(5), **options)
    before = state.read_bytes()
    with pytest.raises(OutputError, match="left its state") as refused:
        hs.finetune(path, out=out, **options)
    assert "--resume" in str(refused.value.hint)
    assert state.read_bytes() == before
    (note,) = hs.finetune(path, out=out, resume=True, **options).notes
    assert note.startswith("no --val, so the last epoch is written")
    assert sorted(p.name for p in tmp_path.glob("t*")) == ["t.heads.json", "t.safetensors"]
    whole = out.read_bytes()
    state.write_bytes(before)
    again = hs.finetune(path, out=out, force=True, **options)
    assert out.read_bytes() == whole
    assert not state.exists()
    (note,) = again.notes
    assert note.startswith("no --val")


def test_resuming_nothing_says_so(tiny: MAKE, images: SPEC, tmp_path: Path) -> None:
    """It begins, so that a job's command is the same each time it is started, and says that it did."""
    tuned = hs.finetune(
        tiny(), data=images(), recipe="demo", set=SHORT, out=tmp_path / "t", resume=True
    )
    assert tuned.notes[-1] == "there was no interrupted run to resume: trained from the beginning"
    assert open_checkpoint(tuned.path).manifest.history[-1].command == "finetune"
