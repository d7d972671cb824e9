"""Names of engines that are not here: in an option, and in a decision state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from edited import edited

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.cli.app import run
from hydrasurgeon.errors import CheckpointError, UsageError

MAKE = Callable[..., Path]
SPEC = Callable[..., str]


@pytest.mark.parametrize("command", ["predict", "eval", "bench", "calibrate"])
def test_an_unknown_engine(
    command: str, tiny: MAKE, images: SPEC, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [command, str(tiny()), "--data", images(), "--engine", "onx"]
    words += ["-o", str(tmp_path / "ready.safetensors")] if command == "calibrate" else []
    assert run(words) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "--engine onx: no such engine (did you mean onnx?)" in message
    assert "Available: torch, onnx, int8." in message


def test_an_unknown_engine_in_python(tiny: MAKE, images: SPEC) -> None:
    with pytest.raises(UsageError, match="--engine all: no such engine"):
        hs.predict(tiny(), data=images(), engine="all")
    with pytest.raises(UsageError, match="--engine openvino: no such engine"):
        hs.Predictor(tiny(), engine="openvino")([])


@pytest.mark.usefixtures("labels_need_not_fit")
def test_a_decision_for_an_engine_that_is_not_here(
    tiny: MAKE, images: SPEC, tmp_path: Path
) -> None:
    data = images(rows=60)
    ready = hs.calibrate(tiny(), data=data, out=tmp_path / "ready.safetensors").path
    decision = open_checkpoint(ready).manifest.decision
    assert decision is not None
    elsewhere = decision.model_copy(update={"engine": "tpu"})
    other = edited(
        ready, tmp_path / "other.safetensors", lambda _, tensor: tensor, decision=elsewhere
    )
    with pytest.raises(CheckpointError, match="fitted for the engine tpu, which is not here") as e:
        hs.predict(other, data=data, device="cpu")
    assert "torch or onnx or int8" in str(e.value.hint)
    rows: list[str] = []
    with pytest.warns(match="another engine's outputs; run calibrate --engine torch"):
        hs.predict(other, data=data, device="cpu", engine="torch", each=rows.append)
    expected: list[str] = []
    hs.predict(ready, data=data, device="cpu", each=expected.append)
    assert rows == expected
