"""Live models → ONNX (torch's tracing exporter), checked in onnxruntime against torch before the file is kept."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from hydrasurgeon.anatomy.layers import run_block
from hydrasurgeon.errors import CheckFailed
from hydrasurgeon.runtime.classifier import Classifier
from hydrasurgeon.runtime.hydra import Hydra

__all__ = ["Exported", "to_onnx"]

OPSET = 17
"""The version of ONNX's operators that is written."""
TOLERANCE = 1e-4
"""Largest difference from torch's outputs."""
OUTPUTS = ("logits", "probs")
"""Names of what the exported model gives."""


@dataclass(frozen=True)
class Exported:
    content: bytes
    inputs: tuple[str, ...]
    max_difference: float
    """Largest difference of any logit between onnxruntime and torch, over two batch sizes."""


class _Traced(nn.Module):
    """Tensors in, (logits [batch, member, class], probs [batch, class]) out: what a trace can hold."""

    def __init__(self, model: Classifier, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model = model
        self.names = names

    def forward(self, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        text = self.names[0] == "input_ids"
        inputs: Any = dict(zip(self.names, tensors, strict=True)) if text else tensors[0]
        module = self.model.module
        if isinstance(module, Hydra):
            logits: Tensor = module(inputs)
        else:
            # Layer by layer, as the fused runtime runs: libraries build masks in ways that a trace would freeze.
            anatomy = self.model.anatomy
            stack = anatomy.embed(inputs)
            hidden = stack.hidden
            for block in anatomy.blocks:
                hidden = run_block(block, hidden, stack.bias)
            logits = anatomy.readout(replace(stack, hidden=hidden))[:, None]
        return logits, logits.softmax(dim=-1).mean(dim=1)


def to_onnx(model: Classifier) -> Exported:
    """An ONNX model with a dynamic batch (and text length), proven to give torch's logits."""
    sample = _sample(model, batch=2, length=7)
    names = tuple(sample)
    traced = _Traced(model, names).eval()
    axes = {name: {0: "batch", **({1: "token"} if names[0] == "input_ids" else {})} for name in names}  # fmt: skip
    axes |= {name: {0: "batch"} for name in OUTPUTS}
    buffer: Any = io.BytesIO()  # torch's annotation knows only paths
    with torch.no_grad(), warnings.catch_warnings():
        traced(*sample.values())  # a zero-shot model's class features become constants
        warnings.simplefilter("ignore")  # the tracer warns of every Python number it freezes
        torch.onnx.export(
            traced, tuple(sample.values()), buffer, input_names=list(names), output_names=list(OUTPUTS),
            dynamic_axes=axes, opset_version=OPSET, dynamo=False,
        )  # fmt: skip
    content = buffer.getvalue()
    return Exported(content, names, _difference(content, traced, model))


def _difference(content: bytes, traced: _Traced, model: Classifier) -> float:
    import onnxruntime

    try:
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        differences = []
        for batch, length in ((1, 5), (3, 11)):
            sample = _sample(model, batch=batch, length=length)
            with torch.inference_mode():
                expected = traced(*sample.values())
            fed = {name: tensor.numpy() for name, tensor in sample.items()}
            for output, right in zip(session.run(list(OUTPUTS), fed), expected, strict=True):
                differences.append((torch.from_numpy(output) - right).abs().max())
    except Exception as error:  # onnxruntime has an exception of its own for every kind of failure
        raise CheckFailed(
            f"export: onnxruntime cannot run the result ({str(error).splitlines()[0]})",
            hint="Nothing was written; upgrade onnxruntime, or report the model.",
        ) from error
    worst = float(torch.stack(differences).max())  # unlike Python's max, this one keeps NaN
    if not worst <= TOLERANCE:
        raise CheckFailed(
            f"export: onnxruntime's logits differ from torch's by {worst:.3g}; allowed is {TOLERANCE:g}",
            hint="Nothing was written.",
        )
    return worst


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
