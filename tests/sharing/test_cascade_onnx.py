"""A cascade as two ONNX graphs: run by the example's few lines, it answers as the cascade in Python does."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_families
import torch
from exporting import exports, fed
from runtime_states import cascade_by, lac, with_cascade
from runtime_states import state as made_state
from tiny_families import FAMILIES, Family
from tiny_members import KEPTS, member, tune

import hydrasurgeon as hs
from hydrasurgeon.decision.cascaded import own_score
from hydrasurgeon.decision.state import State
from hydrasurgeon.engines.onnx import two_graphs
from hydrasurgeon.engines.program import Exported
from hydrasurgeon.errors import CheckpointError, OutputError, SurgeryError
from hydrasurgeon.files.decided import Alone, Gate
from hydrasurgeon.stages.export import export

pytestmark = [exports, pytest.mark.slow]
RUNNER = Path(__file__).parents[2] / "examples" / "serve" / "cascade.py"
ORDER = (2, 0, 1)


def runner(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("cascade_runner", RUNNER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Cascade(path)


def hydra(folder: Path, family: Family, *, tuned: bool) -> hs.Classifier:
    family.write(folder / "source")
    parts = [
        member(folder / "source", family, rows, folder / f"m{i}.safetensors")
        for i, rows in enumerate(KEPTS)
    ]
    if tuned:
        parts = [tune(path, folder / f"t{i}.safetensors", i) for i, path in enumerate(parts)]
    return hs.load(
        hs.fuse(parts, out=folder / "hydra.safetensors", mlp="separate").path, device="cpu"
    )


def state(gate: Gate, first: int = 1) -> State:
    sets = lac(0.55, 0.8)
    cascade = cascade_by(gate, ORDER, first, temperature=1.7, ood_threshold=0.31, conformal=sets)
    return made_state(threshold=0.4, temperature=0.8, conformal=sets, cascade=cascade)


def write(graphs: Sequence[Exported], folder: Path) -> None:
    for name, graph in zip(("first", "rest"), graphs, strict=True):
        assert graph.max_difference < 1e-4
        (folder / f"c.{name}.onnx").write_bytes(graph.content)


def many(family: Family, count: int) -> Any:
    generator = torch.Generator().manual_seed(0)
    if not family.is_text:
        return torch.randn(count, 3, 28, 28, generator=generator)
    ids = torch.randint(4, 14, (count, 9), generator=generator)
    mask = (torch.arange(9)[None] < torch.randint(2, 10, (count, 1), generator=generator)).long()
    return {"input_ids": torch.where(mask == 1, ids, 1), "attention_mask": mask}


def some(inputs: Any, at: slice) -> Any:
    return {k: v[at] for k, v in inputs.items()} if isinstance(inputs, dict) else inputs[at]


@pytest.mark.parametrize(
    ("name", "tuned", "first", "score", "rest"),
    [
        ("timm ViT", True, 2, "disagreement", None),
        ("BERT", False, 1, "entropy", None),
        ("OpenCLIP", False, 1, "msp", None),
        ("BERT", True, 1, "msp", Alone(temperature=0.6)),
    ],
)
def test_rows_stop_and_go_on_as_in_python(
    name: str, tuned: bool, first: int, score: str, rest: Alone | None, tmp_path: Path
) -> None:
    family = FAMILIES[name]
    model = hydra(tmp_path, family, tuned=tuned)
    inputs = many(family, 300)
    with torch.inference_mode():
        scores = own_score(score, model(inputs)[:, list(ORDER[:first])])
    bound = float(scores.quantile(0.6))
    model.state = with_cascade(state(Gate(score=score, low=bound), first), rest=rest)
    late = 3 - (rest is not None)
    write(two_graphs(model), tmp_path)
    run = runner(tmp_path / "c.onnx")
    clear = ((scores - bound).abs() > 1e-5).numpy()
    for at in (slice(0, 1), slice(1, 300)):
        batch = some(inputs, at)
        answers, right, sure = run(fed(batch)), model.decide(batch, cascade=True), clear[at]
        assert answers["went_on"][sure].tolist() == (right.members_run == late)[sure].tolist()
        for key, value in (
            ("probabilities", right.probabilities),
            ("uncertainty", right.total),
            ("ood_score", right.ood_score),
        ):
            np.testing.assert_allclose(answers[key][sure], value.numpy()[sure], rtol=0, atol=1e-5)
    assert 0.3 < float((scores >= bound).double().mean()) < 0.5


def test_one_logit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate looks at σ(z / T + b) of the first member, by its own constants."""
    monkeypatch.setattr(tiny_families, "CLASSES", 1)
    model = hydra(tmp_path, FAMILIES["BERT"], tuned=True)
    inputs = many(FAMILIES["BERT"], 60)
    with torch.inference_mode():
        chances = (model(inputs)[:, ORDER[0], 0].double() / 1.7 - 0.4).sigmoid()
    doubts = torch.minimum(chances, 1 - chances)
    bound = float(doubts.quantile(0.6))
    record = state(Gate(score="msp", low=bound)).record
    assert record.cascade is not None
    cascade = record.cascade.model_copy(update={"bias": -0.4})
    model.state = State(
        record.model_copy(update={"bias": 0.3, "cascade": cascade}), problem=model.problem
    )
    write(two_graphs(model), tmp_path)
    answers, right = runner(tmp_path / "c.onnx")(fed(inputs)), model.decide(inputs)
    clear = ((doubts - bound).abs() > 1e-5).numpy()
    goes_on = (doubts >= bound).numpy()
    assert answers["went_on"][clear].tolist() == goes_on[clear].tolist()
    np.testing.assert_allclose(
        answers["probabilities"][clear], right.probabilities.numpy()[clear], rtol=0, atol=1e-5
    )
    early = clear & ~goes_on
    np.testing.assert_allclose(
        answers["probabilities"][early, 1], chances.numpy()[early], rtol=0, atol=1e-5
    )


def test_rows_that_all_stop_or_all_go_on(tmp_path: Path) -> None:
    family = FAMILIES["timm ViT"]
    model = hydra(tmp_path, family, tuned=False)
    inputs = many(family, 20)
    for gate, share in ((Gate(score="msp", low=2.0), 0.0), (Gate(score="msp", low=-1.0), 1.0)):
        model.state = state(gate)
        write(two_graphs(model), tmp_path)
        answers = runner(tmp_path / "c.onnx")(fed(inputs))
        assert answers["went_on"].mean() == share
        np.testing.assert_allclose(
            answers["probabilities"], model.decide(inputs).probabilities.numpy(), rtol=0, atol=1e-5
        )
    assert model.state is not None
    model.state = with_cascade(model.state, gate=Gate(score="msp"))
    with pytest.raises(SurgeryError, match="lets every row through"):
        two_graphs(model)


def test_what_calibrate_fitted_as_two_files(tmp_path: Path) -> None:
    family = FAMILIES["timm ViT"]
    hydra(tmp_path, family, tuned=False)
    path = hs.calibrate(
        tmp_path / "hydra.safetensors",
        data=family.data(tmp_path, rows=160),
        ood_score="msp",
        cascade=True,
        budget=1.15,
        out=tmp_path / "c.safetensors",
    ).path
    made = export(path, cascade=True)
    assert (made.path, made.beside) == (tmp_path / "c.first.onnx", tmp_path / "c.rest.onnx")
    model = hs.load(path, device="cpu")
    inputs = family.inputs(rows=7)
    right = model.decide(inputs)
    answers = runner(tmp_path / "c.onnx")(fed(inputs))
    np.testing.assert_allclose(
        answers["probabilities"], right.probabilities.numpy(), rtol=0, atol=1e-5
    )
    with pytest.raises(OutputError, match=r"c\.first\.onnx: already exists"):
        export(path, cascade=True)
    with pytest.raises(CheckpointError, match="has no cascade"):
        export(tmp_path / "hydra.safetensors", cascade=True)
