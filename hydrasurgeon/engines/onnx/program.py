"""A classifier as one graph of torch.export: batch and text length stay free, and what `decide`
computes is in it.

With a decision state the graph goes on where `decide` does, in float64 as there: `deciding` and
`runtime.kinds` say in torch what is captured. A file made of the graph must give torch's outputs before it is kept.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.export.graph_signature import InputKind
from torch.overrides import TorchFunctionMode

from hydrasurgeon.anatomy.layers import run
from hydrasurgeon.data.texts import IDS
from hydrasurgeon.decision.state import State
from hydrasurgeon.engines.onnx.graph_scores import ood_score
from hydrasurgeon.engines.onnx.onnx_header import METADATA
from hydrasurgeon.errors import CheckpointError, MissingDependency
from hydrasurgeon.runtime.classifier import Classifier
from hydrasurgeon.runtime.features import WithFeatures
from hydrasurgeon.runtime.hydra import Hydra
from hydrasurgeon.runtime.kinds import kind_of

OUTPUTS = ("logits", "probs")
"""Names of what an exported model gives."""
STOCK = ("logits", "ood_score", "unfamiliar")
"""Outputs of a graph for clients that read logits [batch, class] alone: these are calibrated, and a
decision state says the rest.
"""
READ = ("logits", "features")
"""Outputs of a graph that an engine runs: what a decision state decides by."""
TORCH = (2, 9)
"""The oldest torch that captures every family."""
BATCH, LENGTH = 2, 7
"""Batch size and text length of the inputs that the graph is captured with; neither becomes part of
it.
"""
BALANCED = 8, 16
"""Batch size and text length of random inputs that graphs are balanced on."""
CHECKED = ((1, 5), (3, 11))
"""Batch sizes and text lengths on which a file must give torch's outputs."""
ARITHMETIC = {
    "add",
    "sub",
    "mul",
    "div",
    "gt",
    "ge",
    "le",
    "pow",
    "clamp_min",
    "__rsub__",
    "__rdiv__",
}
"""The operations of a tensor with a number that decisions are made of."""


class ImageProgram(nn.Module):
    """Pictures in, `OUTPUTS` out, or `DECIDED` where there is a decision state."""

    def __init__(
        self, model: Classifier, read: WithFeatures | None, plain: bool, stock: bool = False
    ) -> None:
        super().__init__()
        self.model = model
        self._read = read
        self._plain = plain
        self._stock = stock

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, ...]:
        return self.answers(pixel_values)

    def answers(self, inputs: Any) -> tuple[Tensor, ...]:
        if self._read is None:
            logits, features = self._logits(inputs), None
        else:
            logits, features = self._read.of(self._logits, inputs)
        if self._plain:
            return (logits,) if features is None else (logits, features)
        state = self.model.state
        if self._stock:
            raw_outputs = (logits,) if features is None else (logits, features)
            if state is None or not clients_decide(self.model):
                return kind_of(self.model.task).merged(logits), *raw_outputs
            return (
                calibrated(state, logits),
                *decision_outputs(state, logits, features)[2:],
                *raw_outputs,
            )
        if state is None:
            return logits, kind_of(self.model.task).probs(logits).mean(dim=1)
        return logits, *decision_outputs(state, logits, features)

    def _logits(self, inputs: Any) -> Tensor:
        """Return logits, [batch, member, class]."""
        module = self.model.module
        if isinstance(module, Hydra):
            logits: Tensor = module(inputs)
            return logits
        # Layer by layer, as the fused runtime runs: libraries build masks in ways that a capture
        # would freeze.
        return run(self.model.anatomy, inputs)[:, None]


class TextProgram(ImageProgram):
    def forward(  # type: ignore[override]
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        return self.answers(
            inputs if token_type_ids is None else {**inputs, "token_type_ids": token_type_ids}
        )


def clients_decide(model: Classifier) -> bool:
    """Return True if a graph can decide within itself, for other clients too."""
    state = model.state
    in_graph = "a decision state in a graph" not in model.task.lacks
    return state is not None and state.words is None and in_graph


def decision_outputs(state: State, logits: Tensor, features: Tensor | None) -> tuple[Tensor, ...]:
    """Return the outputs behind the logits: probabilities and uncertainty in float32, the score and
    the comparison with its threshold in float64.
    """
    with ExactNumbers():
        kind, record = kind_of(state.task), state.record
        uncertainty = kind.uncertainty(logits, record)
        score = ood_score(state, logits, features)
        unfamiliar = score > record.ood.threshold
        return kind.answers(logits, record).float(), uncertainty.float(), score, unfamiliar


def calibrated(state: State, logits: Tensor) -> Tensor:
    """Return logits [batch, class] whose softmax is the calibrated answer."""
    with ExactNumbers():
        kind = kind_of(state.task)
        return kind.logits_of(kind.answers(logits, state.record)).float()


class ExactNumbers(TorchFunctionMode):
    """Within the block numbers that meet float64 tensors are such tensors: ONNX's exporter rounds
    plain ones to float32.
    """

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if getattr(func, "__name__", "") in ARITHMETIC and args[0].dtype == torch.float64:
            args = [
                torch.tensor(a, dtype=torch.float64) if isinstance(a, float) else a for a in args
            ]
        return func(*args, **(kwargs or {}))


Run = Callable[[Mapping[str, Tensor]], Sequence[Tensor]]
"""Runs a file: inputs by name → its outputs in order."""


@dataclass(frozen=True)
class Exported:
    """A file that was proven to give torch's outputs."""

    content: bytes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    run: Run
    max_difference: float
    """Largest difference of any output from torch's, over two batch sizes."""


def captured(
    module: nn.Module, arguments: tuple[Any, ...], axes: Any
) -> torch.export.ExportedProgram:
    """Capture a module's graph, in which the sizes of `axes` stay free."""
    _check_torch()
    with torch.no_grad():
        program = torch.export.export(module, arguments, dynamic_shapes=axes, strict=False)
    _drop_unused(program)
    return program


def _check_torch() -> None:
    """Refuse a torch that cannot capture."""
    installed = torch.__version__.partition("+")[0]
    if tuple(int(part) for part in installed.split(".")[:2]) < TORCH:
        raise MissingDependency(
            (
                f"export needs torch {'.'.join(map(str, TORCH))} or newer for a graph; this is "
                f"{installed}"
            ),
            hint="Run `pip install --upgrade torch torchvision`.",
        )


def _drop_unused(program: torch.export.ExportedProgram) -> None:
    """Drop weights that nothing reads: a text tower whose features are constants, a layer's without
    heads (torch cannot store empty ones).
    """
    weights = (InputKind.PARAMETER, InputKind.BUFFER)
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    signature = program.graph_signature
    unused = [
        spec
        for spec in signature.input_specs
        if spec.kind in weights and not nodes[spec.arg.name].users
    ]
    for spec in unused:
        program.graph.erase_node(nodes[spec.arg.name])
        program.state_dict.pop(spec.target, None)
        program.constants.pop(spec.target, None)
    signature.input_specs[:] = [spec for spec in signature.input_specs if spec not in unused]
    program.graph_module.recompile()


@contextlib.contextmanager
def settled(model: Classifier, *, reads: bool = False) -> Iterator[WithFeatures | None]:
    """Make the model fit to capture within the block: nothing depends on the size of a batch, and
    class features are constants. Yield a reader of features if they are needed.
    """
    with contextlib.ExitStack() as stack:
        module = model.module
        if isinstance(module, Hydra) and module.mode == "auto":
            module.mode = "apart"
            stack.callback(setattr, module, "mode", "auto")
        parts: Iterable[Any] = module.modules()
        for part in parts:
            if hasattr(part, "class_features"):
                with torch.no_grad():
                    features = part.class_features().detach().clone()
                part.class_features = partial(_constant, features)
                stack.callback(delattr, part, "class_features")
        needed = reads or model.reads
        yield WithFeatures(model) if needed else None


def _constant(features: Tensor) -> Tensor:
    return features


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Suppress what exporters and compilers print, warn and log for their authors."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def about(model: Classifier) -> dict[str, str]:
    """Return the metadata of a file: the labels, the hash of the weights, and the decision state's
    numbers.
    """
    manifest = model.manifest
    facts = {
        "labels": json.dumps(manifest.model.labels),
        "weights_sha256": manifest.weights_sha256,
        "manifest": manifest.model_dump_json(),
        "files": json.dumps(dict(model.files), sort_keys=True, separators=(",", ":")),
    }
    if "max_length" in manifest.model.preprocess:
        with contextlib.suppress(CheckpointError):  # one that has no tokenizer reads ids
            facts["tokenizer"] = model.transform.backend.to_str()  # type: ignore[attr-defined]
    if manifest.decision is not None:
        # Without the AUROCs that chose the score: what acts is the score and its threshold.
        facts["decision"] = manifest.decision.model_dump_json(
            exclude={"ood": {"auroc"}, "nll": True}
        )
    return {f"{METADATA}{key}": text for key, text in facts.items()}


def differences(model: Classifier, graph: nn.Module, run: Run, outputs: Sequence[str]) -> Tensor:
    """Return the largest difference of each output from torch's, over other batch sizes and
    lengths.
    """
    worst = []
    for batch, length in CHECKED:
        inputs = sample(model, batch=batch, length=length)
        with torch.inference_mode():
            expected = dict(zip(outputs, graph(*inputs.values()), strict=True))
        answers = dict(zip(outputs, run(inputs), strict=True))
        worst += [
            apart(value, expected[name])
            for name, value in answers.items()
            if value.dtype != torch.bool
        ]
        # Not against torch's: rounding may decide about a score next to the threshold.
        if model.state is not None and "ood_score" in answers:
            flagged = answers["ood_score"] > model.state.record.ood.threshold
            if not torch.equal(answers["unfamiliar"], flagged):
                worst.append(torch.tensor(float("inf"), dtype=torch.float64))
    return torch.stack(worst)


def apart(answer: Tensor, right: Tensor) -> Tensor:
    """Return the largest difference of two outputs, relative where they are above 1."""
    return ((answer - right).abs() / right.abs().clamp_min(1)).max().double()


def inputs_of(model: Classifier) -> Mapping[str, Tensor]:
    """Return random inputs to balance a model's graph on."""
    batch, length = BALANCED
    return sample(model, batch=batch, length=length)


def sample(model: Classifier, *, batch: int, length: int) -> Mapping[str, Tensor]:
    """Return inputs of the model's kind: texts with padding in all rows but the first, pairs with
    the types of tokens.
    """
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
    types = mask * (torch.arange(length)[None] >= length // 2)
    inputs = {
        "input_ids": torch.where(mask == 1, ids, pad),
        "attention_mask": mask,
        "token_type_ids": types,
    }
    return {name: inputs[name] for name in getattr(model.transform, "names", IDS)}
