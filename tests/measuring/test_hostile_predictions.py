"""Predictions files of strangers: read when they are what they say, refused by name when not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hostile_data import damaged
from safetensors.torch import save_file

import hydrasurgeon as hs
from hydrasurgeon.decision.state import State
from hydrasurgeon.errors import DataError, UsageError
from hydrasurgeon.measuring.measure import row_of
from hydrasurgeon.measuring.predictions import read_predictions
from hydrasurgeon.statistics.scores.on_logits import ON_LOGITS

Tensors = dict[str, torch.Tensor]


def tensors() -> Tensors:
    generator = torch.Generator().manual_seed(0)
    return {
        "logits": torch.randn(6, 2, 3, generator=generator),
        "labels": torch.arange(6) % 3,
        "ood.a.logits": torch.randn(4, 2, 3, generator=generator),
        "ood.b.logits": torch.randn(5, 2, 3, generator=generator),
        "shift.fog.1.logits": torch.randn(4, 2, 3, generator=generator),
        "shift.fog.1.labels": torch.tensor([0, 1, 2, 0]),
    }


ABOUT: dict[str, Any] = {
    "name": "theirs",
    "kind": "hydra",
    "ood": [["a", "near"]],
    "shift": [["fog", 1]],
    "cost": {"params": 10, "macs": 100},
}


def write(path: Path, *, about: Any = ABOUT, **changes: torch.Tensor | None) -> Path:
    """A good file with some tensors replaced or left out."""
    changed = {
        name: tensor for name, tensor in {**tensors(), **changes}.items() if tensor is not None
    }
    text = about if isinstance(about, str) else json.dumps(about)
    save_file(changed, path, metadata={"hydrasurgeon.predictions": text})
    return path


def test_a_good_file_is_read_whole(tmp_path: Path) -> None:
    found = read_predictions(write(tmp_path / "p.safetensors"))
    assert (found.name, found.kind, found.outputs.logits.shape[1]) == ("theirs", "hydra", 2)
    assert [(name, found.group(name)) for name in found.ood] == [("a", "near"), ("b", "far")]
    assert next(iter(found.shift.values())).truth.tolist() == [0, 1, 2, 0]
    assert np.array_equal(found.outputs.logits, tensors()["logits"].numpy())
    assert found.cost is not None
    assert (found.cost.params, found.cost.macs) == (10, 100)


def value(name: str, row: int, number: float) -> Tensors:
    tensor = tensors()[name]
    tensor.view(-1)[row] = number
    return {name: tensor}


# What is wrong, with which tensors, and what is said.
MISTAKES: list[tuple[str, Tensors | dict[str, None], str]] = [
    ("no logits", {"logits": None}, "tensor logits is missing"),
    ("no labels", {"labels": None}, "tensor labels is missing"),
    (
        "logits of one dimension",
        {"logits": torch.randn(6)},
        "logits must be floating-point [sample, member, class]",
    ),
    (
        "logits of integers",
        {"logits": torch.ones(6, 2, 3, dtype=torch.int64)},
        "logits must be floating-point",
    ),
    (
        "no rows",
        {"logits": torch.randn(0, 2, 3), "labels": torch.arange(0)},
        "logits must be floating-point",
    ),
    ("no members", {"logits": torch.randn(6, 0, 3)}, "logits must be floating-point"),
    ("no classes", {"logits": torch.randn(6, 2, 0)}, "logits must be floating-point"),
    ("NaN", value("logits", 7, float("nan")), "logits holds values that are not finite"),
    (
        "infinity in an OOD set",
        value("ood.b.logits", 0, float("inf")),
        "ood.b.logits holds values that are not finite",
    ),
    ("beyond float32", {"logits": torch.full((6, 2, 3), 1e300, dtype=torch.float64)}, "not finite"),
    ("labels of floats", {"labels": torch.arange(6).float()}, "labels must be integer"),
    ("labels of booleans", {"labels": torch.ones(6, dtype=torch.bool)}, "labels must be integer"),
    ("too few labels", {"labels": torch.arange(3)}, "labels must be integer [sample=6]"),
    ("labels in a column", {"labels": torch.arange(6)[:, None]}, "labels must be integer"),
    (
        "a label of no class",
        {"labels": torch.tensor([0, 1, 3, 0, 0, 0])},
        "row 2 has the label 3; labels must lie in 0 to 2",
    ),
    (
        "a negative label",
        {"labels": torch.tensor([0, 1, 2, 0, -1, 0], dtype=torch.int8)},
        "row 4 has the label -1",
    ),
    (
        "other classes for OOD",
        {"ood.a.logits": torch.randn(4, 2, 5)},
        "ood.a.logits must be floating-point [sample, member=2, class=3], found F32 (4, 2, 5)",
    ),
    (
        "other members for OOD",
        {"ood.b.logits": torch.randn(4, 3, 3)},
        "ood.b.logits must be floating-point [sample, member=2, class=3], found F32 (4, 3, 3)",
    ),
    (
        "a shift without labels",
        {"shift.fog.1.labels": None},
        "tensor shift.fog.1.labels is missing",
    ),
    (
        "a shift with too few labels",
        {"shift.fog.1.labels": torch.tensor([0])},
        "shift.fog.1.labels must be integer",
    ),
    (
        "a shift of other classes",
        {"shift.fog.1.logits": torch.randn(4, 2, 9)},
        "shift.fog.1.logits must be floating-point [sample, member=2, class=3]",
    ),
    (
        "a shift with a label of no class",
        {"shift.fog.1.labels": torch.tensor([0, 1, 7, 0])},
        "row 2 has the label 7",
    ),
    ("an OOD set that is not there", {"ood.a.logits": None}, "tensor ood.a.logits is missing"),
    ("a name that moves the cursor", {"ood.\x1b[2J.logits": torch.randn(4, 2, 3)}, "is not a name"),
    ("a name of blanks", {"ood. .logits": torch.randn(4, 2, 3)}, "is not a name of a set"),
]


@pytest.mark.parametrize(("name", "changes", "says"), MISTAKES, ids=[m[0] for m in MISTAKES])
def test_tensors_that_do_not_fit(name: str, changes: Any, says: str, tmp_path: Path) -> None:
    path = write(tmp_path / "p.safetensors", **changes)
    with pytest.raises(DataError) as caught:
        hs.evaluate([], predictions_in=[path])
    assert says in caught.value.message
    assert str(path) in caught.value.message


DECISION = {
    "temperature": 2.0,
    "ood": {"score": "energy", "threshold": 9.0, "id_flagged": 0.05, "chosen_by": "option"},
    "conformal": {"method": "lac", "coverage": 0.9, "threshold": 0.8},
    "fitted": 100,
    "certified": 100,
}
"""A decision state of a model that chooses one class."""
DESCRIPTIONS: list[tuple[str, Any, str]] = [
    ("no record", [], "valid dictionary"),
    ("not JSON", "{", "is not JSON"),
    ("nested beyond reason", "[" * 100_000, "nested more than"),
    ("a key twice", '{"name": "a", "name": "b"}', "occurs twice"),
    ("NaN", '{"cost": {"params": NaN, "macs": 1}}', "is not JSON"),
    ("a name of two lines", {"name": "a\nb"}, "is not a valid name"),
    ("no name at all", {"name": ""}, "is not a valid name"),
    ("a name without end", {"name": "x" * 100_000}, "is not a valid name"),
    ("a kind that is a number", {"kind": 3}, "valid string"),
    ("OOD sets as a record", {"ood": {"a": "near"}}, "valid list"),
    ("a group of its own", {"ood": [["a", "middle"]]}, "'near' or 'far'"),
    ("an OOD set twice", {"ood": [["a", "near"], ["a", "far"]]}, "names a set twice"),
    ("a shift of three parts", {"shift": [["fog", 1, 2]]}, "shift.0"),
    ("two shifts of one name", {"shift": [["fog", 1], ["fog.1", None]]}, "names a set twice"),
    ("a severity below zero", {"shift": [["fog", -1]]}, "greater than or equal to 0"),
    ("no cost", {"cost": {}}, "cost.params: Field required"),
    ("a cost beyond 64 bits", {"cost": {"params": 2**70, "macs": 1}}, "cost.params"),
    ("a negative cost", {"cost": {"params": -1, "macs": 1}}, "greater than or equal to 0"),
    ("no decision", {"decision": {}}, "decision.temperature: Field required"),
    (
        "a decision of other labels",
        {"decision": {**DECISION, "labels": {"temperatures": [1, 1], "thresholds": [0.5, 0.5]}}},
        "its decision is not for 3 labels",
    ),
]


@pytest.mark.parametrize(("name", "about", "says"), DESCRIPTIONS, ids=[d[0] for d in DESCRIPTIONS])
def test_descriptions_that_do_not_fit(name: str, about: Any, says: str, tmp_path: Path) -> None:
    path = write(tmp_path / "p.safetensors", about=about)
    with pytest.raises(DataError) as caught:
        read_predictions(path)
    assert "its description" in caught.value.message
    assert says in caught.value.message
    assert len(caught.value.message) < 1000


def test_damaged_files(tmp_path: Path) -> None:
    """Read, or refused by a DataError; what is read can be measured and written as strict JSON."""
    path = write(tmp_path / "p.safetensors")
    whole = path.read_bytes()
    measured = 0
    for seed in range(150):
        path.write_bytes(damaged(whole, seed))
        try:
            found = read_predictions(path)
        except DataError:
            continue
        for kind in ON_LOGITS:
            text = row_of(found, State.unfitted(), (kind,)).result.model_dump_json()
            json.loads(text, parse_constant=pytest.fail)
        measured += 1
    assert 0 < measured < 150


@pytest.mark.parametrize("temperature", ["nan", "inf", "-1", "0", "1e-300", "1e300"])
def test_temperatures_that_leave_no_probabilities(tmp_path: Path, temperature: str) -> None:
    path = write(tmp_path / "p.safetensors")
    with pytest.raises(UsageError, match="--temperature"):
        hs.evaluate([], predictions_in=[path], temperature=temperature)
