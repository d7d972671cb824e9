"""Live models → ONNX (torch's tracing exporter), checked in onnxruntime against torch before the file is kept.

With a decision state the graph goes on where `decide` does, in float64 as there: the same functions are traced.
"""

from __future__ import annotations

import contextlib
import io
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from hydrasurgeon.anatomy.layers import run_block
from hydrasurgeon.decision.probabilities import TINY
from hydrasurgeon.decision.state import State, uncertainties
from hydrasurgeon.errors import CheckFailed
from hydrasurgeon.runtime.classifier import Classifier
from hydrasurgeon.runtime.features import Reading, reading
from hydrasurgeon.runtime.hydra import Hydra

__all__ = ["OPSET", "Exported", "to_onnx"]

OPSET = 17
"""The version of ONNX's operators that is written."""
TOLERANCE = 1e-4
"""Largest difference from torch's outputs; of OOD scores, which have no scale of their own, relative to those above 1."""
OUTPUTS = ("logits", "probs")
"""Names of what the exported model gives."""
DECIDED = ("logits", "probabilities", "uncertainty", "ood_score", "unfamiliar")
"""Of a model with a decision state: calibrated probabilities, their entropy, and whether the score is above its threshold."""
METADATA = "hydrasurgeon."
"""How the keys in metadata_props begin that tell the decision state."""


@dataclass(frozen=True)
class Exported:
    content: bytes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    max_difference: float
    """Largest difference of any output between onnxruntime and torch, over two batch sizes."""


class _Traced(nn.Module):
    """Tensors in, `OUTPUTS` out, or `DECIDED` where there is a decision state: what a trace can hold."""

    def __init__(self, model: Classifier, names: tuple[str, ...], read: Reading | None) -> None:
        super().__init__()
        self.model = model
        self.names = names
        self._read = read

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        text = self.names[0] == "input_ids"
        inputs: Any = dict(zip(self.names, tensors, strict=True)) if text else tensors[0]
        state = self.model.state
        if state is None:
            logits = self._logits(inputs)
            return logits, logits.softmax(dim=-1).mean(dim=1)
        features = None
        if self._read is None:
            logits = self._logits(inputs)
        else:
            logits, features = self._read.of(self._logits, inputs)
        return logits, *_decided(state, logits, features)

    def _logits(self, inputs: Any) -> Tensor:
        """[batch, member, class]"""
        module = self.model.module
        if isinstance(module, Hydra):
            logits: Tensor = module(inputs)
            return logits
        # Layer by layer, as the fused runtime runs: libraries build masks in ways that a trace would freeze.
        anatomy = self.model.anatomy
        stack = anatomy.embed(inputs)
        hidden = stack.hidden
        for block in anatomy.blocks:
            hidden = run_block(block, hidden, stack.bias)
        return anatomy.readout(replace(stack, hidden=hidden))[:, None]


def _decided(state: State, logits: Tensor, features: Tensor | None) -> tuple[Tensor, ...]:
    """Behind the logits: probabilities and uncertainty in float32, the score and its threshold in float64."""
    total, _ = uncertainties(logits, state.temperature, state.joint)
    score = state.ood_score(logits, features)
    return state.probs(logits).float(), total.float(), score, score > state.ood.threshold


def to_onnx(model: Classifier) -> Exported:
    """An ONNX model with a dynamic batch (and text length), proven to give torch's outputs."""
    sample = _sample(model, batch=2, length=7)
    names = tuple(sample)
    outputs = OUTPUTS if model.state is None else DECIDED
    with reading(model) if model.state and model.state.needs_features else nullcontext() as read:
        traced = _Traced(model, names, read).eval()
        content = _export(traced, sample, outputs)
        if model.state is not None:
            content = _described(content, model)
        return Exported(content, names, outputs, _difference(content, traced, model, outputs))


def _export(traced: _Traced, sample: Mapping[str, Tensor], outputs: Sequence[str]) -> bytes:
    names = list(sample)
    axes = {name: {0: "batch", **({1: "token"} if names[0] == "input_ids" else {})} for name in names}  # fmt: skip
    axes |= {name: {0: "batch"} for name in outputs}
    buffer: Any = io.BytesIO()  # torch's annotation knows only paths
    with torch.no_grad(), warnings.catch_warnings(), _entropy():
        traced(*sample.values())  # a zero-shot model's class features become constants
        warnings.simplefilter("ignore")  # the tracer warns of every Python number it freezes
        torch.onnx.export(
            traced, tuple(sample.values()), buffer, input_names=names, output_names=list(outputs),
            dynamic_axes=axes, opset_version=OPSET, dynamo=False,
        )  # fmt: skip
    content: bytes = buffer.getvalue()
    return content


@contextlib.contextmanager
def _entropy() -> Iterator[None]:
    """Within the block the exporter knows −p ln p, which ONNX has no operator for."""

    def entr(graph: Any, p: Any) -> Any:
        tiny = graph.op("Constant", value_t=torch.tensor(TINY, dtype=torch.float64))
        return graph.op("Neg", graph.op("Mul", p, graph.op("Log", graph.op("Max", p, tiny))))

    name = "aten::special_entr"
    torch.onnx.register_custom_op_symbolic(name, entr, OPSET)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.onnx.unregister_custom_op_symbolic(name, OPSET)  # type: ignore[attr-defined]


def _described(content: bytes, model: Classifier) -> bytes:
    """The same file, which says in its metadata what the labels and thresholds are, and of which weights."""
    import onnx

    manifest = model.manifest
    decision = manifest.decision
    assert decision is not None
    proto = onnx.load_from_string(content)
    _spell_norms_out(proto.graph)
    about = {
        "labels": json.dumps(manifest.model.labels),
        "weights_sha256": manifest.weights_sha256,
        # Without the AUROCs that chose the score: what acts is the score and its threshold.
        "decision": decision.model_dump_json(exclude={"ood": {"auroc"}, "nll": True}),
    }
    onnx.helper.set_model_props(proto, {f"{METADATA}{key}": text for key, text in about.items()})
    described: bytes = proto.SerializeToString()
    return described


def _spell_norms_out(graph: Any) -> None:
    """Norms as the root of a sum of squares: older onnxruntimes have ReduceL2 in float32 only."""
    import onnx

    nodes = []
    for node in graph.node:
        nodes.append(node)
        if node.op_type == "ReduceL2":
            norm, squares = node.output[0], f"{node.output[0]}_squared"
            node.op_type, node.output[0] = "ReduceSumSquare", squares
            nodes.append(onnx.helper.make_node("Sqrt", [squares], [norm], name=f"{node.name}_root"))
    del graph.node[:]
    graph.node.extend(nodes)


def _difference(
    content: bytes, traced: _Traced, model: Classifier, outputs: Sequence[str]
) -> float:
    import onnxruntime

    try:
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        differences = []
        for batch, length in ((1, 5), (3, 11)):
            sample = _sample(model, batch=batch, length=length)
            with torch.inference_mode():
                expected = traced(*sample.values())
            fed = {name: tensor.numpy() for name, tensor in sample.items()}
            answers = [torch.from_numpy(output) for output in session.run(list(outputs), fed)]
            differences += [
                _apart(name, answer, right)
                for name, answer, right in zip(outputs, answers, expected, strict=True)
                if name != "unfamiliar"
            ]
            # Not against torch's: rounding may decide about a score next to the threshold.
            if model.state is not None and not torch.equal(
                answers[4], answers[3] > model.state.ood.threshold
            ):
                differences.append(torch.tensor(float("inf")))
    except Exception as error:  # onnxruntime has an exception of its own for every kind of failure
        raise CheckFailed(
            f"export: onnxruntime cannot run the result ({str(error).splitlines()[0]})",
            hint="Nothing was written; upgrade onnxruntime, or report the model.",
        ) from error
    worst = float(torch.stack(differences).max())  # unlike Python's max, this one keeps NaN
    if not worst <= TOLERANCE:
        raise CheckFailed(
            f"export: onnxruntime's outputs differ from torch's by {worst:.3g}; allowed is {TOLERANCE:g}",
            hint="Nothing was written.",
        )
    return worst


def _apart(name: str, answer: Tensor, right: Tensor) -> Tensor:
    apart = (answer - right).abs()
    if name == "ood_score":
        apart = apart / right.abs().clamp_min(1.0)
    return apart.max().double()


def _sample(model: Classifier, *, batch: int, length: int) -> Mapping[str, Tensor]:
    """Inputs of the model's kind; texts with padding in all rows but the first."""
    generator = torch.Generator().manual_seed(batch)
    facts = model.manifest.model
    if "input_size" in facts.preprocess:
        return {
            "pixel_values": torch.randn(batch, *facts.preprocess["input_size"], generator=generator)
        }
    words = int(facts.config.get("vocab_size", 100))
    pad = int(facts.config.get("pad_token_id") or 0)
    real = torch.full((batch, 1), length)
    real[1:] = length - 2
    mask = (torch.arange(length)[None] < real).long()
    ids = torch.randint(0, words, (batch, length), generator=generator)
    return {"input_ids": torch.where(mask == 1, ids, pad), "attention_mask": mask}
