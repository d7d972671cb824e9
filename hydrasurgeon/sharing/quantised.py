"""ONNX files with weights in 8 bits (onnxruntime's dynamic quantisation), kept only if they answer as well as
before."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hydrasurgeon.errors import CheckFailed
from hydrasurgeon.sharing.onnx import silent
from hydrasurgeon.sharing.trial import Compared, Trial, in_onnxruntime, measured

if TYPE_CHECKING:
    from hydrasurgeon.runtime.classifier import Classifier
    from hydrasurgeon.sharing.onnx import Exported


def in_int8(made: Exported, model: Classifier, trial: Trial, *, tolerance: float) -> tuple[Exported, Compared]:
    """The file in int8, and what that changes; CheckFailed where something is worse by more than `tolerance`."""
    content = _int8(made.content)
    compared = Compared(
        *(
            measured(in_onnxruntime(each, made.outputs), model, trial, who)
            for each, who in ((made.content, "the file"), (content, "the file in int8"))
        )
    )
    broken = compared.broken(tolerance, "in int8")
    if broken:
        raise CheckFailed(
            f"export --int8: worse by more than {tolerance:g} on {trial.samples.spec}: {'; '.join(broken)}",
            hint="Nothing was written: allow more with --tolerance, or export without --int8.",
        )
    return replace(made, content=content), compared


def _int8(content: bytes) -> bytes:
    """Products with float32 weights in int8; what decides, in float64, stays as it is."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    proto = onnx.load_from_string(content)
    precise = {each.name for each in proto.graph.initializer if each.data_type != onnx.TensorProto.FLOAT}
    untouched = [node.name for node in proto.graph.node if precise & set(node.input)]
    with tempfile.TemporaryDirectory() as folder, silent():
        source, target = Path(folder) / "whole.onnx", Path(folder) / "int8.onnx"
        del proto.graph.value_info[:]  # of weights that are about to be turned round
        source.write_bytes(proto.SerializeToString())
        quantize_dynamic(
            source,
            target,
            weight_type=QuantType.QInt8,
            per_channel=True,
            op_types_to_quantize=["MatMul", "Gemm"],
            nodes_to_exclude=untouched,
            extra_options={"MatMulConstBOnly": True},
        )
        return target.read_bytes()
