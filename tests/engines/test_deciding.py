"""What graphs that decide compute in torch is what numpy decides, for every kind and score."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from runtime_states import drawn

from hydrasurgeon.anatomy.word_logits import NOTHING
from hydrasurgeon.decision.state import State
from hydrasurgeon.engines.onnx.graph_scores import ood_score
from hydrasurgeon.files.decided import FITTED, LOGITS, OF_LABELS, PerLabel
from hydrasurgeon.runtime.kinds import kind_of
from hydrasurgeon.tasks import TASKS

CLASSES, WIDTH, MEMBERS = 5, 8, 3
CASES = [
    *(("single_label", score) for score in (*LOGITS, *FITTED)),
    *(("binary", score) for score in LOGITS),
    *(("multi_label", score) for score in OF_LABELS),
]


def state_of(kind: str, score: str) -> State:
    classes = 2 if kind == "binary" else CLASSES
    made = drawn(score, MEMBERS, width=WIDTH, classes=classes)
    record = made.record
    if kind == "binary":
        record = record.model_copy(update={"bias": -0.7})
    if kind == "multi_label":
        of_labels = PerLabel(temperatures=(0.5, 1, 2, 3, 1.5), thresholds=(0.5,) * CLASSES)
        record = record.model_copy(update={"temperature": 1.0, "labels": of_labels})
    return State(record, made.fitted, TASKS[kind])


@pytest.mark.parametrize(("kind", "score"), CASES)
def test_graphs_compute_what_is_decided(kind: str, score: str) -> None:
    state = state_of(kind, score)
    random = np.random.default_rng(0)
    outputs = 1 if kind == "binary" else CLASSES
    logits = (3 * random.normal(size=(40, MEMBERS, outputs))).astype(np.float32)
    features = random.normal(size=(40, MEMBERS, WIDTH)).astype(np.float32)
    tensors = torch.from_numpy(logits), torch.from_numpy(features)
    live, task = kind_of(state.task), state.task
    pairs = [
        (ood_score(state, *tensors), state.ood_score(logits, features)),
        (live.answers(tensors[0], state.record), state.answers(logits)),
        (
            live.uncertainty(tensors[0], state.record),
            task.decide(logits, state.record).uncertainty,
        ),
    ]
    answers, answered = pairs[1]
    said = live.logits_of(answers)
    back = {
        "single_label": (said.exp(), answered),
        "binary": (said.sigmoid(), answered[:, 1:]),
        "multi_label": (said.sigmoid(), answered),
    }
    pairs.append(back[kind])
    for graph, decided in pairs:
        np.testing.assert_allclose(graph.numpy(), decided, rtol=1e-9, atol=1e-9)


def test_tags_of_graphs() -> None:
    state = state_of("token_classification", "msp")
    logits = np.random.default_rng(1).normal(size=(9, MEMBERS, 4, CLASSES)).astype(np.float32)
    logits[3:, :, 2:] = -16384.0
    live, tensor = kind_of(state.task), torch.from_numpy(logits)
    graph = live.answers(tensor, state.record)
    np.testing.assert_allclose(graph.numpy(), state.answers(logits), rtol=1e-9, atol=1e-12)
    said = live.logits_of(graph).numpy()
    assert (said[3:, 2:] == NOTHING).all()
    np.testing.assert_allclose(np.exp(said), state.answers(logits), rtol=1e-9)
    score = ood_score(state, tensor, None).numpy()
    np.testing.assert_allclose(score, state.ood_score(logits, None), rtol=1e-9, atol=1e-9)
