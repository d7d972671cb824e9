"""The engine `int8`: bytes times bytes by a formula, rows that do not see each other, and a decision
state of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from exporting import exports, onnx_writes
from tiny_families import FAMILIES

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.cli.app import run
from hydrasurgeon.engines.int8.quantising import quantised
from hydrasurgeon.engines.onnx.graph import open_graph
from hydrasurgeon.engines.onnx.program import sample
from hydrasurgeon.errors import Disagreement, UsageError
from hydrasurgeon.measuring.cost import macs
from hydrasurgeon.runtime.classifier import as_classifier
from hydrasurgeon.stages.export import export

pytestmark = [exports, onnx_writes]


def session(
    nodes: list[Any],
    constants: dict[str, Any],
    shape: list[Any],
    kind: int = 1,
    inputs: Any = None,
) -> Any:
    """A graph of x and y in 8 bits, in onnxruntime."""
    import onnxruntime

    content = in_bytes(nodes, constants, shape, kind, inputs)
    return onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])


def stored_bytes(nodes: list[Any], constants: dict[str, Any], shape: list[Any]) -> Any:
    """The weights of a product in 8 bits."""
    graph = onnx.load_from_string(in_bytes(nodes, constants, shape)).graph
    (stored,) = (each for each in graph.initializer if each.name.endswith(".weight"))
    return onnx.numpy_helper.to_array(stored).astype(int)


def in_bytes(
    nodes: list[Any],
    constants: dict[str, Any],
    shape: list[Any],
    kind: int = 1,
    inputs: Any = None,
) -> bytes:
    """A graph of x and y in 8 bits."""
    x = onnx.helper.make_tensor_value_info("x", kind, shape)
    y = onnx.helper.make_tensor_value_info("y", 1, None)
    stored = [onnx.numpy_helper.from_array(values, name) for name, values in constants.items()]
    graph = onnx.helper.make_graph(nodes, "g", [x], [y], stored)
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10
    )
    return quantised(model.SerializeToString(), inputs or {})


def steps(values: Any, axis: int) -> tuple[Any, Any]:
    """Whole numbers and their scale, as the module's docstring has them."""
    scale = np.abs(values).max(axis=axis, keepdims=True) / 127
    return np.rint(values / scale), scale


def columns(weight: Any) -> tuple[Any, Any]:
    """Columns, one by one: neighbours of one sign add up to at most 128 with their rounding."""
    scale = []
    for column in weight.T:
        most = max(abs(column)) / 127
        for first, second in zip(column[::2], column[1::2], strict=False):
            if first * second > 0:
                most = max(most, abs(first + second) / 127)
        scale.append(most)
    return np.rint(weight / scale), np.array(scale)


def test_a_product_is_that_of_whole_numbers() -> None:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((6, 4)).astype(np.float32)
    bias = rng.standard_normal(4).astype(np.float32)
    x = (rng.standard_normal((5, 6)) * np.array([[1], [100], [1e-3], [7], [0]])).astype(np.float32)
    node = onnx.helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=1)
    constants = {"w": np.ascontiguousarray(weight.T), "b": bias}
    made = session([node], constants, ["row", 6])
    rows, row_scale = steps(x[:4], 1)
    whole, column_scale = columns(weight)
    expected = (rows @ whole) * row_scale * column_scale + bias
    answers = made.run(None, {"x": x})[0]
    np.testing.assert_allclose(answers[:4], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(answers[4], bias)  # a row of zeros
    alone = np.concatenate([made.run(None, {"x": row[None]})[0] for row in x])
    np.testing.assert_array_equal(answers, alone)


@pytest.mark.parametrize("rows", [1, 2, 7, 64])
def test_neighbours_fit_into_16_bits(rows: int) -> None:
    """Unsigned bytes times signed ones, two and two, as processors without VNNI add them."""
    rng = np.random.default_rng(rows)
    weights = [
        rng.standard_normal((rows, 300)),
        rng.uniform(0.9, 1, (rows, 30)),
        np.ones((rows, 3)),
    ]
    weights += [weights[0] * size for size in (1e-25, 1e30)]
    for weight in weights:
        x = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
        constants = {"w": weight.astype(np.float32)}
        stored = stored_bytes([x], constants, ["row", rows])
        assert np.abs(stored).max() > 60
        padded = np.concatenate([stored, np.zeros((rows % 2, stored.shape[1]), int)])
        pairs = padded[::2], padded[1::2]
        for high in (1, 255):
            for low in (1, 255):
                sums = high * pairs[0] + low * pairs[1]
                assert -(2**15) <= sums.min() <= sums.max() < 2**15


def test_channels_of_a_norm_are_balanced() -> None:
    """A channel a hundred times the others takes the bits of all, unless the weights take its size."""
    rng = np.random.default_rng(0)
    gain = np.ones(8, np.float32)
    gain[3] = 100
    weight = rng.standard_normal((8, 5)).astype(np.float32) / gain[:, None]
    norm = onnx.helper.make_node("LayerNormalization", ["x", "g"], ["n"], axis=-1)
    product = onnx.helper.make_node("MatMul", ["n", "w"], ["y"])
    constants = {"g": gain, "w": weight}
    x = rng.standard_normal((64, 8)).astype(np.float32)
    seen = {"x": torch.from_numpy(rng.standard_normal((16, 8)).astype(np.float32))}
    made = session([norm, product], constants, ["row", 8], inputs=seen)
    centred = x - x.mean(axis=1, keepdims=True)
    right = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5) * gain @ weight
    error = np.abs(made.run(None, {"x": x})[0] - right).max()
    assert error < 0.05  # in bytes of the largest channel it is 0.8
    alone = np.concatenate([made.run(None, {"x": row[None]})[0] for row in x])
    np.testing.assert_array_equal(made.run(None, {"x": x})[0], alone)
    gain[3], weight[5] = 0, 0
    huge = session([norm, product], {"g": gain, "w": weight * 1e30}, ["row", 8], inputs=seen)
    right = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5) * gain @ weight
    assert np.abs(huge.run(None, {"x": x})[0] / 1e30 - right).max() < 0.05


@pytest.mark.slow
def test_a_file_in_int8_answers_as_the_engine_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    family = FAMILIES["timm ViT"]
    family.write(tmp_path / "source")
    data = family.data(tmp_path, rows=90)
    out = tmp_path / "ready.safetensors"
    ready = hs.calibrate(tmp_path / "source", data=data, engine="int8", ood_score="msp", out=out)
    again = hs.calibrate(ready.path, data=data, ood_score="msp", out=tmp_path / "again")
    assert again.decision.engine == "int8"
    made = export(ready.path, out=tmp_path / "x.onnx", int8=True, check=data, tolerance=1.0)
    assert not any("float32" in note for note in made.notes)
    engine = hs.predict(ready.path, data=data, engine="int8")
    for row, other in zip(engine, hs.predict(made.path, data=data), strict=True):
        assert row["probability"] == pytest.approx(other["probability"], abs=1e-5)
        assert row["ood_score"] == pytest.approx(other["ood_score"], abs=1e-5)
    assert run(["verify", str(made.path)]) == 0
    assert "graph hash" in capsys.readouterr().out
    with pytest.raises(
        UsageError, match=r"--engine onnx conflicts with .*, which is a graph for int8"
    ):
        hs.predict(made.path, data=data, engine="onnx")
    for path, told in ((ready.path, 1), (tmp_path / "source", 0)):
        benched = hs.bench([path], batch="1", runs=1, device="cpu")
        assert len([note for note in benched.notes if "runs in int8" in note]) == told
    plain = hs.evaluate([ready.path], data=data, device="cpu", engine="torch")
    assert any("calibrate --engine torch" in note for note in plain.notes)
    assert not any("calibrate --engine" in note for note in engine.notes)
    content = made.path.read_bytes()
    at = content.index(b"MatMulIntegerToFloat")
    made.path.write_bytes(content[:at] + b"m" + content[at + 1 :])
    assert run(["verify", str(made.path)]) in (1, 3)


@pytest.mark.slow
def test_a_file_that_was_changed_is_refused(tmp_path: Path) -> None:
    family = FAMILIES["BERT"]
    family.write(tmp_path / "source")
    path = export(tmp_path / "source", out=tmp_path / "x.onnx").path
    graph = open_graph(path)
    assert graph.costs is not None
    live = as_classifier(open_checkpoint(tmp_path / "source"), device="cpu", lean=True)
    for length in (3, 16, 20):  # counted at 3, 6 and 9
        assert graph.costs.macs_of(length) == macs(live, sample(live, batch=1, length=length))
    other = onnx.load(path)
    bias = next(each for each in other.graph.initializer if each.name.endswith("classifier.bias"))
    bias.raw_data = bytes(reversed(bias.raw_data))
    path.write_bytes(other.SerializeToString())
    with pytest.raises(Disagreement, match="is not the graph that `export` wrote") as refused:
        open_graph(path)
    assert refused.value.exit_code == 3
