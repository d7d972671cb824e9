"""A checkpoint for clients that do not know us: what calibrates is in its last layer, or in the
graph, and the thresholds lie beside it in decision.json.

Of one model z/T + b is linear in the classifier: its weights are divided by T, and its bias becomes
b_0/T + b. Of several, or where no library has a class for a cut, the graph ends in logits that say
the calibrated answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hydrasurgeon.checkpoints.card import CARD, model_card
from hydrasurgeon.checkpoints.checkpoint import (
    Checkpoint,
    Single,
    as_single,
    rewritten,
    undecided,
)
from hydrasurgeon.checkpoints.folder import THRESHOLDS
from hydrasurgeon.errors import CheckFailed, SurgeryError
from hydrasurgeon.files.decided import FITTED
from hydrasurgeon.files.history import step
from hydrasurgeon.files.manifest import OF_WORDS, SingleManifest
from hydrasurgeon.files.tensors import Planned, as_float, from_float
from hydrasurgeon.runtime.classifier import as_classifier
from hydrasurgeon.runtime.kinds import kind_of
from hydrasurgeon.runtime.torch_tensors import to_weights
from hydrasurgeon.surgery.cut import check_stock
from hydrasurgeon.tasks import task_of

FORMAT = "hydrasurgeon.thresholds/1"
"""Format identifier of decision.json."""
CONSTANTS = ("temperature", "bias", "joint")
"""Constants of the calibration."""
PROMISES = ("abstain", "cover", "entities", "limits", "labels", "conformal")
"""Rules that decide when to answer, and with which sets."""
TOLERANCE = {"F64": 1e-6, "F32": 1e-5, "F16": 1e-2, "BF16": 1e-2}
"""Largest difference of a probability that rounding to a type may make."""
EVEN = "`prune --even` makes members that their own library can load."


def thresholds(opened: Checkpoint, reads: str) -> dict[str, str]:
    """Return decision.json if there is a decision state: when to answer, in the manifest's words.

    `reads` names the input of the OOD score.
    """
    decision, model = opened.manifest.decision, opened.manifest.model
    if decision is None:
        return {}
    fields = decision.model_dump(mode="json", exclude_none=True)
    record = {
        "format": FORMAT,
        "task": model.task,
        "names": model.labels,
        "folded": {name: fields[name] for name in CONSTANTS if name in fields},
        "ood": {"score": decision.ood.score, "threshold": decision.ood.threshold, "reads": reads},
        **{name: fields[name] for name in PROMISES if name in fields},
    }
    return {THRESHOLDS: json.dumps(record, indent=2) + "\n"}


def _reads(opened: Single) -> str:
    """Return the input of the OOD score for a client with folded logits."""
    decision = opened.manifest.decision
    if decision is None or decision.ood.score in FITTED:
        return "features, which the model does not give"
    if decision.bias is not None:
        return "temperature * (logits - bias)"
    return "temperature * logits"


@dataclass(frozen=True)
class Folded:
    """A model with its calibration in its last layer."""

    planned: list[Planned]
    manifest: Callable[[str], SingleManifest]
    more: Mapping[str, str]
    """Texts beside the weights."""
    calibrated: bool
    """False where there was no calibration to put into the last layer."""


def folded(checkpoint: Checkpoint) -> Folded:
    """Plan the model as its own library has it; raise SurgeryError if that has no class for it."""
    opened = _of_its_library(checkpoint)
    plain = undecided(opened)
    arrays = _classifier(opened)
    tensors = plain.tensors
    planned = []
    for name in tensors:
        blocks = partial(tensors.blocks, name)
        if name in arrays:
            blocks = partial(iter, [from_float(arrays[name], tensors[name].dtype)])
        planned.append(Planned(name, tensors[name].dtype, tensors[name].shape, blocks))
    source = opened.record(opened.digests())
    entry = step("export", args={"format": "stock"}, inputs=[source])

    def manifest(sha256: str) -> SingleManifest:
        history = (*opened.manifest.history, entry.wrote(sha256))
        changes = {"decision": None, "weights_sha256": sha256, "history": history}
        return rewritten(plain.manifest, **changes)

    about = manifest(plain.manifest.weights_sha256)
    decision = opened.manifest.decision
    card = model_card(about, opened.family.usage(about), folded=decision)
    more = {CARD: card, **thresholds(opened, _reads(opened))}
    return Folded(planned, manifest, more, calibrated=bool(arrays))


def _of_its_library(checkpoint: Checkpoint) -> Single:
    """Return the checkpoint as one model; refuse it if its library does not build such a model."""
    name, manifest = checkpoint.name, checkpoint.manifest
    if manifest.kind == "hydra":
        subject = f"{name} is a hydra of {len(manifest.members)} members"
        raise SurgeryError(
            f"{subject}, which no other library can load", hint=_as_graph(checkpoint)
        )
    opened = as_single(checkpoint)
    hint = _as_graph(checkpoint)
    if manifest.model.pooling in (None, OF_WORDS):
        hint = f"{EVEN} {hint}"
    check_stock(opened, undecided(opened).manifest, hint=hint)
    return opened


def _as_graph(checkpoint: Checkpoint) -> str:
    """Return the hint that says how a graph of this model is written, and what runs it."""
    if checkpoint.family.graph_clients:
        return "`export -o DIR/` writes a graph that any client of ONNX runs."
    return "`export -o FILE.onnx` writes a graph that onnxruntime runs."


def _classifier(opened: Single) -> dict[str, NDArray[np.float64]]:
    """Return the tensors of the classifier, with the calibration folded in."""
    decision, model = opened.manifest.decision, opened.manifest.model
    if decision is None or task_of(model).link == "square":
        return {}
    of_labels = () if decision.labels is None else decision.labels.temperatures
    temperatures = np.array(of_labels or [decision.temperature])
    arrays = {}
    for weight in opened.weights.values():
        if weight.part != "classifier" or weight.shape[0] != model.num_classes:
            continue
        stored = opened.tensors[weight.name]
        values = as_float(opened.tensors.read(weight.name), stored.dtype)
        arrays[weight.name] = (values.T / temperatures).T
    biases = [name for name in arrays if name.endswith("bias")]
    if decision.bias and not biases:
        raise SurgeryError(
            f"{opened.name}: its classifier has no bias that could hold the decision state's",
            hint=_as_graph(opened),
        )
    for name in biases:
        arrays[name] += decision.bias or 0.0
    return arrays


@torch.inference_mode()
def difference_when_folded(checkpoint: Checkpoint) -> float:
    """Return the largest difference of a calibrated answer; raise CheckFailed beyond rounding."""
    opened = as_single(checkpoint)
    arrays = _classifier(opened)
    if not arrays:
        return 0.0
    model = as_classifier(opened, device="cpu", dtype="float64")
    changed = as_classifier(undecided(opened), device="cpu", dtype="float64")
    dtypes = {opened.tensors[name].dtype for name in arrays}
    state = {}
    for name, values in arrays.items():
        dtype = opened.tensors[name].dtype
        raw = from_float(values, dtype)
        state[name] = to_weights(raw, dtype, name=name, path=opened.path).double()
    changed.module.load_state_dict(state, strict=False)
    assert model.state is not None
    kind = kind_of(model.task)
    worst = 0.0
    for batch in (1, 3):
        inputs: Any = opened.family.example(
            opened.manifest.model, batch, device=torch.device("cpu"), dtype=torch.float64
        )
        expected = kind.answers(model(inputs), model.state.record)
        actual = kind.answers(changed(inputs), None)
        worst = max(worst, float((actual - expected).abs().max()))
    allowed = max(TOLERANCE[dtype] for dtype in dtypes)
    if not worst <= allowed:
        raise CheckFailed(
            f"export: with its calibration folded a probability differs by {worst:.3g}; allowed is {allowed:g}",
            hint=f"Nothing was written. {_as_graph(opened)}",
        )
    return worst
