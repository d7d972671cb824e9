"""`export --format stock`, and a folder of graphs: calibrated for clients that read logits alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exporting import exports, fed, onnx_writes
from safetensors.torch import load_file
from stock_models import ready
from tiny_families import FAMILIES, LAYERS
from tiny_members import RAGGED, member, members_of

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.cli.app import run
from hydrasurgeon.errors import OutputError, SurgeryError, UsageError
from hydrasurgeon.stages.export import export

BERT = FAMILIES["BERT"]
KINDS: dict[str, dict[str, Any]] = {
    "choice": {},
    "yes or no": {"classes": 1},
    "unpruned": {"neurons": None},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A calibrated model of each kind."""
    return {
        kind: ready(BERT, tmp_path_factory.mktemp(kind.replace(" ", "-")), **how)[0]
        for kind, how in KINDS.items()
    }


def hydra_of(source: Path, home: Path) -> Path:
    parts = members_of(source, BERT, home)
    return hs.fuse(parts, out=home / "hydra.safetensors", mlp="separate").path


def in_its_library(folder: Path, inputs: Any) -> torch.Tensor:
    import transformers

    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    with torch.inference_mode():
        return model(**inputs).logits


def read(folder: Path) -> Any:
    return json.loads((folder / "decision.json").read_text())


@pytest.mark.parametrize("kind", KINDS)
def test_stock_transformers_gives_calibrated_probabilities(
    kind: str, made: dict[str, Path], tmp_path: Path
) -> None:
    done = export(made[kind], format="stock", out=f"{tmp_path / 'stock'}/")
    assert done.max_difference < 1e-6
    assert "auto_map" not in json.loads((done.path / "config.json").read_text())
    inputs = BERT.inputs()
    logits = in_its_library(done.path, inputs)
    right = hs.load(made[kind], device="cpu").decide(inputs).probabilities
    if kind == "yes or no":
        np.testing.assert_allclose(logits.sigmoid(), right[:, 1:], rtol=0, atol=1e-5)
    else:
        np.testing.assert_allclose(logits.softmax(-1), right, rtol=0, atol=1e-5)
    plain = hs.load(made[kind], device="cpu").predict(inputs).numpy()
    assert np.abs(plain - right[:, -plain.shape[1] :]).max() > 1e-2


def test_the_classifier_is_divided_by_the_temperature(
    made: dict[str, Path], tmp_path: Path
) -> None:
    path = made["yes or no"]
    folder = export(path, format="stock", out=f"{tmp_path / 'stock'}/").path
    decision = open_checkpoint(path).manifest.decision
    assert decision is not None
    assert decision.bias is not None
    before, after = load_file(path), load_file(folder / "model.safetensors")
    weight, bias = before["classifier.weight"], before["classifier.bias"]
    torch.testing.assert_close(after["classifier.weight"], weight / decision.temperature)
    torch.testing.assert_close(
        after["classifier.bias"], bias / decision.temperature + decision.bias
    )
    same = [name for name in after if not name.startswith("classifier")]
    assert len(same) == len(after) - 2
    assert all(torch.equal(before[name], after[name]) for name in same)


def test_thresholds_lie_beside_it(made: dict[str, Path], tmp_path: Path) -> None:
    path = made["choice"]
    folder = export(path, format="stock", out=f"{tmp_path / 'stock'}/").path
    decision = open_checkpoint(path).manifest.decision
    assert decision is not None
    said = read(folder)
    assert said["folded"] == {"temperature": decision.temperature}
    assert said["conformal"]["threshold"] == decision.conformal.threshold
    card = (folder / "README.md").read_text()
    assert "decision.json holds the thresholds" in card
    assert f"temperature {decision.temperature:.3f}" in card
    # The OOD score by what decision.json says that it reads, in numpy.
    inputs = BERT.inputs()
    z = in_its_library(folder, inputs).double().numpy()
    assert said["ood"]["reads"] == "temperature * logits"
    raw = np.exp(said["folded"]["temperature"] * z)
    score = 1 - (raw / raw.sum(axis=1, keepdims=True)).max(axis=1)
    right = hs.load(path, device="cpu").decide(inputs)
    np.testing.assert_allclose(score, right.ood_score, atol=1e-6)
    assert (score > said["ood"]["threshold"]).tolist() == right.unfamiliar.tolist()


def test_it_is_a_checkpoint_whose_history_holds(made: dict[str, Path], tmp_path: Path) -> None:
    path = made["choice"]
    folder = export(path, format="stock", out=f"{tmp_path / 'stock'}/").path
    assert [step.command for step in open_checkpoint(folder).manifest.history] == [
        "prune",
        "calibrate",
        "export",
    ]
    assert hs.verify(folder).holds
    inputs = BERT.inputs()
    again = hs.load(folder, device="cpu").predict(inputs)
    right = hs.load(path, device="cpu").decide(inputs).probabilities
    np.testing.assert_allclose(again, right, rtol=0, atol=1e-5)
    with pytest.raises(OutputError, match="already exists"):
        export(path, format="stock", out=f"{folder}/")
    export(path, format="stock", out=f"{folder}/", force=True)
    (folder / "mine.txt").write_text("x")
    with pytest.raises(OutputError, match=r"mine\.txt"):
        export(path, format="stock", out=f"{folder}/", force=True)


def test_what_no_library_has_a_class_for_is_refused(tmp_path: Path) -> None:
    BERT.write(tmp_path / "source")
    uneven = member(tmp_path / "source", BERT, RAGGED, tmp_path / "uneven.safetensors")
    even = member(tmp_path / "source", BERT, [[0, 1]] * LAYERS, tmp_path / "even.safetensors")
    hydra = hydra_of(tmp_path / "source", tmp_path)
    for path, what in (
        (uneven, "different numbers of heads"),
        (even, "cannot load a model with this number"),
        (hydra, "is a hydra of 3 members"),
    ):
        with pytest.raises(SurgeryError, match=what) as refused:
            export(path, format="stock", out=f"{tmp_path / 'stock'}/")
        assert "`export -o DIR/`" in str(refused.value.hint)
    assert not (tmp_path / "stock").exists()
    with pytest.raises(UsageError, match="--format stock writes a directory"):
        export(tmp_path / "source", format="stock", out=tmp_path / "stock.safetensors")
    FAMILIES["OpenCLIP"].write(tmp_path / "clip")
    assert run(["export", str(tmp_path / "clip"), "--format", "stock", "--quiet"]) == 4


@exports
@onnx_writes
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["choice", "yes or no"])
def test_a_graph_gives_calibrated_logits(kind: str, made: dict[str, Path], tmp_path: Path) -> None:
    import onnxruntime

    done = export(made[kind], out=f"{tmp_path / 'graph'}/")
    session = onnxruntime.InferenceSession(done.path / "onnx" / "model.onnx")
    inputs = BERT.inputs()
    names = {each.name for each in session.get_inputs()}
    typed = {"token_type_ids": np.zeros_like(inputs["input_ids"].numpy())}
    arrays = {name: value for name, value in {**typed, **fed(inputs)}.items() if name in names}
    logits, score, flag = session.run(["logits", "ood_score", "unfamiliar"], arrays)
    right = hs.load(made[kind], device="cpu").decide(inputs)
    if kind == "yes or no":
        probs = 1 / (1 + np.exp(-logits))
        expected = right.probabilities[:, 1:]
    else:
        probs = np.exp(logits)  # which are ln p
        expected = right.probabilities
    np.testing.assert_allclose(probs, expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(score, right.ood_score, rtol=0, atol=1e-5)
    assert flag.tolist() == right.unfamiliar.tolist()
    config = json.loads((done.path / "config.json").read_text())
    assert config["intermediate_size"] == 48  # of the unpruned model: it says what the classes are
    assert "ORTModelForSequenceClassification" in (done.path / "README.md").read_text()
    export(made[kind], out=f"{done.path}/", force=True)


def test_even_cuts_are_chosen_within_each_layer(tmp_path: Path) -> None:
    """Of an order, the last heads of each layer stay; the best of all layers would be uneven."""
    family = FAMILIES["ViT"]
    family.write(tmp_path / "source")
    data = family.data(tmp_path)
    scored = hs.score(
        tmp_path / "source",
        method="circuit",
        objective="acc",
        data=data,
        search="attribution",
        out=tmp_path / "scored.safetensors",
    ).path
    order = open_checkpoint(scored).manifest.scores["circuit-acc"].order
    assert order is not None
    done = hs.prune(scored, method="circuit", keep=2, even=True, out=f"{tmp_path / 'even'}/")
    gone = [head for _, _, head in order]
    for layer in range(LAYERS):
        within = [head for _, at, head in order if at == layer]
        missing = [head for head in range(4) if head not in within]
        assert done.manifest.kept["vision"][layer] == tuple(sorted([*within[2:], *missing]))
    assert len(gone) >= 2 * LAYERS
    assert "auto_map" not in json.loads((done.path / "config.json").read_text())
