"""ONNX files with weights in 8 bits (onnxruntime's dynamic quantisation), kept only if they answer as well as before."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hydrasurgeon.data import Batches, Samples, by_length, fit_classes, open_data
from hydrasurgeon.errors import CheckFailed, UsageError
from hydrasurgeon.measuring.metrics import accuracy, auroc, ece
from hydrasurgeon.measuring.sets import parse_ood
from hydrasurgeon.sharing.onnx import silent

if TYPE_CHECKING:
    from hydrasurgeon.decision.state import State
    from hydrasurgeon.files.manifest import Model
    from hydrasurgeon.runtime.classifier import Classifier
    from hydrasurgeon.sharing.onnx import Exported

__all__ = ["Compared", "Trial", "opened_trial", "quantised"]

OF_STATE = ("flagged", "coverage", "answered")
"""What thresholds of a decision state amount to: they were fitted on the float model, so that neither more nor less is as good."""


@dataclass(frozen=True)
class Compared:
    """Metrics on the same samples, before and after."""

    before: dict[str, float]
    after: dict[str, float]

    @property
    def worse(self) -> dict[str, float]:
        """By how much each metric is worse: less accuracy, less AUROC, more ECE, another share that the decision state flags, covers or answers."""
        changes = {name: self.after[name] - value for name, value in self.before.items()}
        return {
            name: abs(change) if name in OF_STATE else change if name == "ece" else -change
            for name, change in changes.items()
        }


@dataclass(frozen=True)
class Trial:
    """What answers are compared on."""

    samples: Samples
    foreign: dict[str, Samples]


def opened_trial(about: Model, *, check: str, ood: Sequence[str], limit: int | None) -> Trial:
    """Open the data, before a graph is made in vain."""
    samples = open_data(check, limit=limit)
    foreign: dict[str, Samples] = {}
    for _, name, spec in map(parse_ood, ood):
        if name in foreign:
            raise UsageError(f"--ood: {name} is there twice", hint="Tell them apart by NAME=D.")
        foreign[name] = open_data(spec, limit=limit)
    return Trial(fit_classes(samples, num_classes=about.num_classes, labels=about.labels), foreign)


def quantised(
    made: Exported, model: Classifier, trial: Trial, *, tolerance: float
) -> tuple[Exported, Compared]:
    """The file in int8, and what that changes; CheckFailed where something is worse by more than `tolerance`."""
    samples, foreign = trial.samples, trial.foreign
    content = _int8(made.content)
    compared = Compared(
        *(_metrics(each, made.outputs, model, samples, foreign) for each in (made.content, content))
    )
    broken = [
        f"{name}: {compared.before[name]:.4f} before, {compared.after[name]:.4f} in int8"
        for name, worse in compared.worse.items()
        if not worse <= tolerance
    ]
    if broken:
        raise CheckFailed(
            f"export --int8: worse by more than {tolerance:g} on {samples.spec}: {'; '.join(broken)}",
            hint="Nothing was written: allow more with --tolerance, or export without --int8.",
        )
    return replace(made, content=content), compared


def _int8(content: bytes) -> bytes:
    """Products with float32 weights in int8; what decides, in float64, stays as it is."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    proto = onnx.load_from_string(content)
    precise = {each.name for each in proto.graph.initializer if each.data_type != onnx.TensorProto.FLOAT}  # fmt: skip
    untouched = [node.name for node in proto.graph.node if precise & set(node.input)]
    with tempfile.TemporaryDirectory() as folder, silent():
        source, target = Path(folder) / "whole.onnx", Path(folder) / "int8.onnx"
        del proto.graph.value_info[:]  # of weights that are about to be turned round
        source.write_bytes(proto.SerializeToString())
        quantize_dynamic(
            source, target, weight_type=QuantType.QInt8, per_channel=True, op_types_to_quantize=["MatMul", "Gemm"],
            nodes_to_exclude=untouched, extra_options={"MatMulConstBOnly": True},
        )  # fmt: skip
        return target.read_bytes()


def _metrics(
    content: bytes, outputs: Sequence[str], model: Classifier, samples: Samples, foreign: dict[str, Samples]
) -> dict[str, float]:  # fmt: skip
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    probs, scores, labels = _answers(session, outputs, model, samples)
    assert labels is not None
    measures = {"accuracy": accuracy(probs, labels), "ece": ece(probs, labels)}
    if model.state is not None:
        measures |= _of_state(model.state, probs, scores, labels)
    for name, others in foreign.items():
        area = auroc(scores, _answers(session, outputs, model, others)[1])
        measures[f"auroc.{name}"] = float("nan") if area is None else area
    return measures


def _of_state(state: State, probs: Tensor, scores: Tensor, labels: Tensor) -> dict[str, float]:
    """What the thresholds of a decision state make of these answers: the share flagged, covered by its sets, and answered."""
    covered = state.conformal.sets(probs).gather(1, labels[:, None])[:, 0]
    shares = {"flagged": scores > state.ood.threshold, "coverage": covered}
    if state.abstention is not None:
        shares["answered"] = probs.amax(dim=-1) >= state.abstention.threshold
    return {name: float(share.double().mean()) for name, share in shares.items()}


def _answers(
    session: Any, outputs: Sequence[str], model: Classifier, samples: Samples
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Probabilities, OOD scores (1 − max p without a decision state) and labels, sample after sample."""
    probs, scores, labels = [], [], []
    for batch in Batches(samples, model.transform, batch_size=None, order=by_length(samples)):
        inputs = batch.inputs if isinstance(batch.inputs, dict) else {"pixel_values": batch.inputs}
        answer = dict(zip(outputs, session.run(list(outputs), {k: v.numpy() for k, v in inputs.items()}), strict=True))  # fmt: skip
        p = torch.from_numpy(answer.get("probabilities", answer.get("probs"))).double()
        probs.append(p)
        score = answer.get("ood_score")
        scores.append(1 - p.amax(dim=-1) if score is None else torch.from_numpy(score))
        if batch.labels is not None:
            labels.append(batch.labels)
    return torch.cat(probs), torch.cat(scores), torch.cat(labels) if labels else None
