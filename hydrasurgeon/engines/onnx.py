"""Captured graphs → ONNX, by torch's own exporter; onnxruntime runs what was written.

A cascade is two graphs: `first` answers every row and says which go on, `rest` answers those with
all members.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from hydrasurgeon.anatomy.parts import Stack
from hydrasurgeon.decision.cascaded import gate_scores, lets, step_state
from hydrasurgeon.engines.lean import SPELLED_OUT, join_products
from hydrasurgeon.engines.program import (
    BATCH,
    CHECKED,
    DECIDED,
    LENGTH,
    ExactNumbers,
    Exported,
    Run,
    about,
    apart,
    captured,
    check_difference,
    decided,
    exported,
    logits_and_features,
    names_of,
    sample,
    settled,
    silent,
)
from hydrasurgeon.errors import SurgeryError
from hydrasurgeon.runtime.cascaded import cascade_in
from hydrasurgeon.runtime.classifier import Classifier
from hydrasurgeon.runtime.features import WithFeatures
from hydrasurgeon.runtime.hydra import Started

OPSET = 18
"""The version of ONNX's operators that is written: the oldest that torch's exporter has."""
SILENCE = "ORT_DISABLE_TELEMETRY"
"""Since 1.29 onnxruntime's Linux builds report sessions, with names and hashes of the models, to
their maker unless this is set when it is first imported.
"""


def to_onnx(model: Classifier, *, plain: bool = False, stock: bool = False) -> Exported:
    """An ONNX model with a dynamic batch (and text length), proven to give torch's outputs."""
    return exported(model, written, "onnxruntime", plain=plain, stock=stock)


def written(
    program: torch.export.ExportedProgram,
    inputs: Sequence[str],
    outputs: Sequence[str],
    facts: Mapping[str, str],
) -> tuple[bytes, Run]:
    """The graph as a file that says what the labels and thresholds are, and of which weights; and
    what runs it.
    """
    import onnx

    with silent(), torch.no_grad():
        made = torch.onnx.export(
            program.run_decompositions(SPELLED_OUT),
            input_names=list(inputs),
            output_names=list(outputs),
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    assert made is not None
    proto: Any = made.model_proto
    _name_axes(proto.graph)
    _spell_norms_out(proto.graph)
    join_products(proto.graph)
    onnx.helper.set_model_props(proto, dict(facts))
    content: bytes = proto.SerializeToString()
    return content, in_onnxruntime(content, outputs)


def _name_axes(graph: Any) -> None:
    """Free axes by what they count, where the exporter numbers them."""
    for value in (*graph.input, *graph.output):
        for axis, dimension in enumerate(value.type.tensor_type.shape.dim):
            if dimension.dim_param:
                dimension.dim_param = "token" if axis else "batch"


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
    if len(nodes) > len(graph.node):
        del graph.node[:]
        graph.node.extend(nodes)


def quiet() -> None:
    """Before anything imports onnxruntime; what the user's environment says stays."""
    os.environ.setdefault(SILENCE, "1")


def in_onnxruntime(content: bytes, outputs: Sequence[str]) -> Run:
    """The file, ready to run on the processor."""
    return wanted(session_of(content), outputs)


def session_of(file: bytes | str) -> Any:
    """onnxruntime's session of a file, or of its content, on the processor."""
    quiet()
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    return onnxruntime.InferenceSession(
        file,
        options,
        providers=["CPUExecutionProvider"],
        disabled_optimizers=["SkipLayerNormFusion"],  # a norm alone is faster
    )


def wanted(session: Any, outputs: Sequence[str]) -> Run:
    """What runs a session for these outputs."""

    def run(inputs: Mapping[str, Tensor]) -> list[Tensor]:
        fed = {name: tensor.numpy() for name, tensor in inputs.items()}
        return [torch.from_numpy(made) for made in session.run(list(outputs), fed)]

    return run


GOES_ON = "goes_on"
"""The output of `first` that says which rows the other members must answer too."""


ALL_FEATURES = "all_features"
"""The output of a plain `rest` that holds every member's features: `features`, those of the first,
are an input.
"""


class _Step(nn.Module):
    """One graph: tensors by name in and out; if `plain` it gives what decisions are taken by."""

    def __init__(self, model: Classifier, read: WithFeatures | None, plain: bool) -> None:
        super().__init__()
        self.model = model
        self._read, self._plain = read, plain
        self.state, self.cascade = cascade_in(model)

    def answers(
        self, members: Sequence[int], logits: Tensor, features: Tensor | None
    ) -> dict[str, Tensor]:
        if self._plain:
            values = {"logits": logits}
            if features is not None:
                values[ALL_FEATURES] = features
            return values
        state = step_state(self.state, self.cascade, members)
        return dict(zip(DECIDED, (logits, *decided(state, logits, features)), strict=True))


class _First(_Step):
    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        hydra: Any = self.model.module
        started = hydra.start(inputs if "input_ids" in inputs else inputs["pixel_values"])
        logits, features = logits_and_features(
            self._read, hydra.part(self.cascade.starters).finish, started
        )
        with ExactNumbers():
            scores = gate_scores(self.state, self.cascade, logits.double(), features)
            going = lets(self.cascade.gate, scores)
        carried = {} if features is None else {"features": features}
        if started.stack is not None:
            bias = started.stack.bias
            carried["hidden"] = started.stack.hidden
            if bias is not None:
                carried["bias"] = bias.expand(logits.shape[0], *bias.shape[1:])
        answers = self.answers(self.cascade.starters, logits, features)
        answers.pop(ALL_FEATURES, None)  # they are among what is carried on
        # Another name than what `rest` gives of all members: one graph has either as an input.
        return {"first_logits": answers.pop("logits"), **answers, GOES_ON: going, **carried}


class _Rest(_Step):
    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        hydra: Any = self.model.module
        if "hidden" in inputs:
            started = Started(None, Stack(inputs["hidden"], inputs.get("bias")))
        else:
            named = {name: inputs[name] for name in names_of(self.model) if name in inputs}
            started = Started(named or inputs["pixel_values"], None)
        logits, features = logits_and_features(
            self._read, hydra.part(self.cascade.followers).finish, started
        )
        if self.cascade.rest is not None:
            return self.answers(self.cascade.finishers, logits, features)
        # Members as the file numbers them: place i of the whole is place back[i] of the order.
        order = list(self.cascade.order)
        back = [order.index(member) for member in range(len(order))]
        logits = torch.cat([inputs["first_logits"], logits], dim=1)[:, back]
        if features is not None:
            features = torch.cat([inputs["features"], features], dim=1)[:, back]
        return self.answers(self.cascade.finishers, logits, features)


def two_graphs(model: Classifier, *, plain: bool = False) -> tuple[Exported, Exported]:
    """Both graphs, each proven to give torch's outputs; what they answer together is what `decide`
    answers, or if `plain` what it decides by.
    """
    _, cascade = cascade_in(model)
    if cascade.gate.everything:
        raise SurgeryError(
            f"{model.name}: the gate of its cascade lets every row through",
            hint="Export it without --cascade: one graph answers the same.",
        )
    with settled(model) as read:
        first, rest = _First(model, read, plain).eval(), _Rest(model, read, plain).eval()
        inputs = sample(model, batch=BATCH, length=LENGTH)
        with torch.no_grad():
            early = first(dict(inputs))
            going = carried(inputs, early)
            late = rest(going)
        steps = (first, inputs, tuple(early)), (rest, going, tuple(late))
        files = [_exported(step, fed, outputs) for step, fed, outputs in steps]
        worst = float(torch.stack([*_differences(files, (first, rest), model)]).max())
    check_difference(worst, "onnxruntime")
    return replace(files[0], max_difference=worst), replace(files[1], max_difference=worst)


def carried(inputs: Mapping[str, Tensor], early: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What `rest` takes: what the first members said, and what the others go on from."""
    kept = [name for name in ("hidden", "bias", "first_logits", "features") if name in early]
    return {**({} if "hidden" in early else dict(inputs)), **{name: early[name] for name in kept}}


def _exported(step: _Step, inputs: Mapping[str, Tensor], outputs: tuple[str, ...]) -> Exported:
    tokens: dict[str, tuple[int, ...]] = dict.fromkeys(names_of(step.model), (1,))
    if "bias" in inputs:  # a text's: every token, or every pair of them
        tokens |= {
            "hidden": (1,),
            "bias": tuple(axis for axis in (2, 3) if inputs["bias"].shape[axis] == LENGTH),
        }
    axes = {
        name: dict.fromkeys((0, *tokens.get(name, ())), torch.export.Dim.DYNAMIC) for name in inputs
    }
    program = captured(step, (dict(inputs),), (axes,))
    content, run = written(program, [*inputs], outputs, about(step.model))
    return Exported(content, (*inputs,), outputs, run, float("nan"))


def _differences(
    files: Sequence[Exported], steps: Sequence[_Step], model: Classifier
) -> Iterator[Tensor]:
    """Difference in each output of both graphs."""
    for batch, length in CHECKED:
        inputs = sample(model, batch=batch, length=length)
        for file, step in zip(files, steps, strict=True):
            with torch.inference_mode():
                right: dict[str, Tensor] = step(dict(inputs))
            for name, value in zip(file.outputs, file.run(inputs), strict=True):
                if value.dtype != torch.bool:  # rounding may decide next to a threshold
                    yield apart(value, right[name])
            inputs = carried(inputs, right)
