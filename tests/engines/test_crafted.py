"""Graphs of others: what runs for ever or reads elsewhere is refused, and the rest fails in one message."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from exporting import exports, onnx_writes
from tiny_families import FAMILIES

import hydrasurgeon as hs
from hydrasurgeon.cli.app import run
from hydrasurgeon.engines.onnx import onnx_header as graph_files
from hydrasurgeon.engines.onnx import runtimes
from hydrasurgeon.engines.onnx.onnx_header import SEAL, sealed
from hydrasurgeon.stages.export import export

pytestmark = [pytest.mark.slow, exports, onnx_writes]
FAMILY = FAMILIES["timm ViT"]
NOT_TEXT = (b"hydrasurgeon.labels", b"hydrasurgeon.labe\xff\xfe")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph that decides, and data."""
    folder = tmp_path_factory.mktemp("made")
    FAMILY.write(folder / "source")
    data = FAMILY.data(folder, rows=60)
    ready = hs.calibrate(folder / "source", data=data, ood_score="msp", out=folder / "ready").path
    export(ready, out=folder / "ready.onnx")
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    here = shutil.copytree(made, tmp_path / "made")
    monkeypatch.chdir(here)
    return here


def crafted(path: Path, change: Callable[[Any], object]) -> None:
    """The file with another graph, sealed anew: a seal is no signature."""
    import onnx

    model = onnx.load_from_string(path.read_bytes()[:-SEAL])
    change(model)
    path.write_bytes(sealed(model.SerializeToString()))


def instead(model: Any, name: str, *nodes: Any) -> None:
    """Nodes that make the output `name` in place of what made it; they read `was_NAME`."""
    for node in model.graph.node:
        for at, output in enumerate(node.output):
            if output == name:
                node.output[at] = f"was_{name}"
        for at, read in enumerate(node.input):
            if read == name:
                node.input[at] = f"was_{name}"
    model.graph.node.extend(nodes)
    (info,) = [info for info in model.graph.output if info.name == name]
    info.type.tensor_type.ClearField("shape")


def endless(model: Any) -> None:
    from onnx import TensorProto, helper, numpy_helper

    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Identity", ["x"], ["y"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
        ],
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array(2**62), "times"))
    node = helper.make_node("Loop", ["times", "", "was_logits"], ["logits"], body=body)
    instead(model, "logits", node)


def external(model: Any) -> None:
    from onnx import TensorProto

    tensor = next(each for each in model.graph.initializer if len(each.raw_data) > 64)
    Path("ext.bin").write_bytes(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="ext.bin")


def more_classes(model: Any) -> None:
    from onnx import helper

    node = helper.make_node("Concat", ["was_logits", "was_logits"], ["logits"], axis=2)
    instead(model, "logits", node)


def scalar_score(model: Any) -> None:
    from onnx import helper

    instead(
        model,
        "ood_score",
        helper.make_node("ReduceMax", ["was_ood_score"], ["ood_score"], keepdims=0),
    )


def fails(model: Any) -> None:
    """A shape that does not fit, which onnxruntime finds when it runs."""
    from onnx import helper, numpy_helper

    model.graph.initializer.append(numpy_helper.from_array(np.array([7, 7, 7]), "seven"))
    instead(model, "logits", helper.make_node("Reshape", ["was_logits", "seven"], ["logits"]))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (endless, "holds a graph within a graph"),
        (external, "holds data in another file"),
        (more_classes, "its graph gives logits"),
        (scalar_score, "its graph gives ood_score"),
        (fails, "its graph cannot be run"),
    ],
)
def test_a_crafted_graph_ends_in_one_message(
    folder: Path, change: Callable[[Any], object], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    crafted(folder / "ready.onnx", change)
    assert run(["predict", "ready.onnx", "--data", "data.npz", "--quiet"]) == 3
    said = capsys.readouterr()
    assert says in said.err
    assert "Traceback" not in said.err
    assert said.out == ""


@pytest.mark.parametrize("command", ["verify", "predict"])
def test_metadata_that_is_no_text(
    folder: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "ready.onnx"
    content = path.read_bytes()[:-SEAL]
    assert NOT_TEXT[0] in content
    path.write_bytes(sealed(content.replace(*NOT_TEXT)))
    data = ["--data", "data.npz"] if command == "predict" else []
    assert run([command, "ready.onnx", *data, "--quiet"]) == 3
    assert "is not an ONNX graph" in capsys.readouterr().err


def test_what_is_cut_off_is_no_graph(folder: Path) -> None:
    content = (folder / "ready.onnx").read_bytes()
    for size in (1, len(content) // 2, len(content) - SEAL - 3):
        (folder / "ready.onnx").write_bytes(content[:size])
        assert run(["verify", "ready.onnx", "--quiet"]) == 3


def test_weights_are_mapped_from_the_file(folder: Path) -> None:
    """The same answers as of a graph that holds them, also through a link and odd names."""
    place = folder / "größe dir" / "a b#.onnx"
    place.parent.mkdir()
    shutil.move(folder / "ready.onnx", place)
    (folder / "link.onnx").symlink_to(place)
    content = place.read_bytes()
    rest = graph_files.without_weights(content, place.name)
    assert len(rest) < len(content) / 2
    runs = [runtimes.session_of(each) for each in (content, place, folder / "link.onnx")]
    (read,) = runs[0].get_inputs()
    shape = (3, *read.shape[1:])
    inputs = {read.name: np.random.default_rng(0).random(shape, np.float32)}
    right, *others = [run.run(["logits"], inputs)[0] for run in runs]
    for found in others:
        np.testing.assert_allclose(found, right, atol=1e-6)


def test_a_signal_ends_a_run() -> None:
    """A graph that runs until it is told to end."""

    class Ended(Exception):
        pass

    def end(number: int, frame: FrameType | None) -> None:
        raise Ended

    begun = threading.Event()

    class Endless:
        def run(self, names: list[str], fed: dict[str, Any], options: Any) -> None:
            begun.set()
            while not options.terminate:
                threading.Event().wait(0.01)
            raise RuntimeError("ended")

    def send() -> None:
        begun.wait()
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, end)
    try:
        sender = threading.Thread(target=send)
        sender.start()
        with pytest.raises(Ended):
            runtimes.ended_by_signals(Endless(), ["logits"])({"x": np.zeros(1)})
        sender.join()
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_cached_graph_says_whose_it_is(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HYDRASURGEON_CACHE", str(tmp_path / "cache"))
    hs.prune(folder / "source", method="magnitude", remove=6, out=folder / "other.safetensors")
    data = str(folder / "data.npz")
    options = {"data": data, "engine": "onnx", "device": "cpu"}
    right = [row["probability"] for row in hs.predict(folder / "source", **options)]
    (first,) = (tmp_path / "cache" / "graphs").iterdir()
    others = [row["probability"] for row in hs.predict(folder / "other", **options)]
    assert right != others
    (second,) = {*(tmp_path / "cache" / "graphs").iterdir()} - {first}
    shutil.copyfile(second, first)
    assert [row["probability"] for row in hs.predict(folder / "source", **options)] == right
    assert first.read_bytes() != second.read_bytes()


def test_what_calibrate_asked_answers_what_it_decided(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Making a graph takes half a minute: the decision is no part of it."""
    monkeypatch.setenv("HYDRASURGEON_CACHE", str(tmp_path / "cache"))
    options = {"data": str(folder / "data.npz"), "engine": "onnx", "device": "cpu"}
    hs.calibrate(folder / "source", out=tmp_path / "decided.safetensors", **options)
    (made,) = (tmp_path / "cache" / "graphs").iterdir()
    assert "ood_score" in next(iter(hs.predict(tmp_path / "decided.safetensors", **options)))
    assert [*(tmp_path / "cache" / "graphs").iterdir()] == [made]
