"""calibrate --predictions: a decision for any model, which answers as a calibrated checkpoint does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from row_files import read_lines
from safetensors.numpy import load_file, save_file
from tiny_families import FAMILIES
from tiny_members import members_of

import hydrasurgeon as hs
from hydrasurgeon.cli.app import run
from hydrasurgeon.data import Batches, open_data
from hydrasurgeon.errors import DataError, ManifestError
from hydrasurgeon.options.shared import Run
from hydrasurgeon.runtime.answering import collected

Arrays = dict[str, np.ndarray[Any, Any]]


def synthetic(rows: int, seed: int, *, shift: float = 0.0, members: int = 1) -> Arrays:
    """Three classes in five dimensions, and a linear classifier of each member."""
    rng = np.random.default_rng(seed)
    labels = np.arange(rows) % 3
    centres, weight = (
        np.random.default_rng(99).normal(size=(3, 5)) * 3,
        np.random.default_rng(98).normal(size=(3, 5)),
    )
    features = centres[labels][:, None] + rng.normal(size=(rows, members, 5)) + shift
    return {"logits": features @ weight.T + 0.3, "features": features, "labels": labels}


def images(folder: Path, name: str, rows: int, seed: int) -> str:
    """Three classes of stripes."""
    pixels = np.random.default_rng(seed).integers(0, 100, (rows, 28, 28, 3), dtype=np.uint8)
    labels = np.arange(rows) % 3
    for i, label in enumerate(labels):
        pixels[i, 9 * label : 9 * label + 9] = 230
    np.savez(folder / f"{name}.npz", images=pixels, labels=labels)
    return str(folder / f"{name}.npz")


def write(folder: Path, **files: Arrays) -> dict[str, Path]:
    paths = {name: folder / f"{name}.safetensors" for name in files}
    for name, arrays in files.items():
        save_file(arrays, paths[name])
    return paths


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """VAL, TRAIN and OOD data of one model."""
    odd = synthetic(80, 2, shift=6.0)
    del odd["labels"]
    return write(
        tmp_path, val=synthetic(240, 0), train=synthetic(300, 1), ood=odd, new=synthetic(50, 3)
    )


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hydra, its data, and what it says of them."""
    folder = tmp_path_factory.mktemp("said")
    family = FAMILIES["timm ViT"]
    family.write(folder / "source")
    members = members_of(folder / "source", family, folder)
    model = hs.load(hs.fuse(members, out=folder / "hydra.safetensors").path, device="cpu")
    for seed, (name, rows) in enumerate({"val": 120, "train": 120, "new": 30}.items()):
        samples = open_data(images(folder, name, rows, seed))
        outputs = collected([model], samples, Run(device="cpu"), features=True)
        assert outputs.features is not None
        assert outputs.labels is not None
        arrays = {"logits": outputs.logits, "features": outputs.features, "labels": outputs.labels}
        write(folder, **{f"{name}-said": arrays})
    return folder


@pytest.mark.parametrize("score", ["msp", "rmds"])
def test_it_decides_as_the_checkpoint_does(score: str, said: Path, tmp_path: Path) -> None:
    """A hydra calibrated as a checkpoint, and by what it said."""
    promised = {"ood_score": score, "risk": 0.9, "coverage": 0.8, "seed": 3}
    val, train, new = (str(said / f"{name}.npz") for name in ("val", "train", "new"))
    made = hs.calibrate(
        said / "hydra", data=val, fit_data=train, out=tmp_path / "c.safetensors", **promised
    )
    names = {
        "predictions": said / "val-said.safetensors",
        "fit_predictions": said / "train-said.safetensors",
    }
    alone = hs.calibrate(**names, out=tmp_path / "d", **promised)
    assert alone.path == tmp_path / "d.safetensors"
    assert alone.decision.temperature == made.decision.temperature
    assert alone.decision.conformal == made.decision.conformal
    assert alone.decision.abstain == made.decision.abstain
    assert alone.decision.ood.threshold == pytest.approx(made.decision.ood.threshold, abs=1e-4)
    model = hs.load(made.path, device="cpu")
    (batch,) = Batches(open_data(new), model.transform, batch_size=30, workers=0)
    theirs, arrays = model.decide(batch.inputs), load_file(said / "new-said.safetensors")
    ours = hs.Decision.load(alone.path).decide(arrays["logits"], arrays["features"])
    assert np.array_equal(ours.labels, theirs.labels)
    assert np.array_equal(ours.sets, theirs.sets)
    assert np.array_equal(ours.unfamiliar, theirs.unfamiliar)
    assert ours.answer == theirs.answer
    torch.testing.assert_close(ours.probabilities, theirs.probabilities, atol=1e-5, rtol=0)
    torch.testing.assert_close(ours.ood_score, theirs.ood_score, atol=1e-3, rtol=1e-4)


def test_rows_are_what_the_decision_says(files: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "d.safetensors"
    fit = ["--fit-predictions", str(files["train"]), "--ood-predictions", str(files["ood"])]
    assert run(["calibrate", "--predictions", str(files["val"]), *fit, "-o", str(out)]) == 0
    read = rows_by(out, files["new"], tmp_path / "rows.jsonl")
    new = load_file(files["new"])
    decision = hs.Decision.load(out)
    assert decision.state.record.ood.score in ("mds", "rmds", "maha++", "vim", "residual", "knn")
    expected = decision.decide(new["logits"], new["features"])
    assert [row["id"] for row in read] == list(range(50))
    assert [row["answer"] for row in read] == expected.answer
    assert [row["ood_score"] for row in read] == pytest.approx(
        expected.ood_score.tolist(), rel=1e-8
    )
    # OOD data is set aside, and the same arguments make the same bytes.
    odd = load_file(files["ood"])
    assert decision.decide(odd["logits"], odd["features"]).unfamiliar.mean() > 0.9
    again = tmp_path / "again.safetensors"
    assert run(["calibrate", "--predictions", str(files["val"]), *fit, "-o", str(again)]) == 0
    assert again.read_bytes() == out.read_bytes()


@pytest.mark.parametrize(
    ("change", "score"),
    [
        (lambda a: a, "vim"),
        (lambda a: a | {"logits": np.cbrt(a["logits"])}, "mds"),
        (lambda a: a | {"features": None}, "msp"),
    ],
    ids=["linear classifier", "another classifier", "logits alone"],
)
def test_without_ood_data_the_score_is_the_most_reliable(
    change: Callable[[Arrays], Any], score: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arrays = {name: array for name, array in change(synthetic(240, 0)).items() if array is not None}
    arrays["logits"] = arrays["logits"][:, 0]  # a single model needs no dimension of members
    val, out = write(tmp_path, val=arrays)["val"], tmp_path / "d.safetensors"
    assert run(["calibrate", "--predictions", str(val), "-o", str(out)]) == 0
    printed = capsys.readouterr()
    assert f"--ood-score auto took {score}" in printed.err.replace("\n", " ")
    assert f"  OOD score {score}\n" in printed.out
    assert hs.Decision.load(out).state.record.ood.chosen_by == "default"
    decided = hs.Decision.load(out).decide(arrays["logits"], arrays.get("features"))
    assert 0.02 < decided.unfamiliar.mean() < 0.12


def softmax(logits: Any) -> Any:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


BROKEN: dict[str, tuple[Callable[[Arrays], Arrays], *tuple[str, ...]]] = {
    "no labels": (
        lambda a: {k: v for k, v in a.items() if k != "labels"},
        "tensor labels is missing",
    ),
    "probabilities as logits": (
        lambda a: a | {"logits": softmax(a["logits"])},
        "probabilities",
        "logarithms",
    ),
    "-inf": (
        lambda a: a | {"logits": np.where(a["logits"] < -9, -np.inf, a["logits"])},
        "clip",
        "probabilities",
    ),
    "logits as probabilities": (
        lambda a: {"probabilities": a["logits"], "labels": a["labels"]},
        "sum to 1",
        "logits",
    ),
    "few ids": (lambda a: a | {"ids": np.arange(3)}, "ids", "240 rows"),
    "label": (lambda a: a | {"labels": a["labels"] + 1}, "labels must lie in 0 to 2"),
    "nan": (
        lambda a: a | {"features": a["features"] * np.nan},
        "features holds values that are not finite",
    ),
    "rows": (lambda a: a | {"features": a["features"][:-1]}, "features must be floating-point"),
    "one class": (
        lambda a: a | {"logits": a["logits"][..., :1], "labels": a["labels"] * 0},
        "has only one class",
    ),
    "few": (lambda a: {k: v[:12] for k, v in a.items()}, "at least 20"),
    "other width": (
        lambda a: a | {"features": a["features"][..., :4]},
        "classes and features of width 4, as the other files have, found",
    ),
    "no features": (
        lambda a: {k: v for k, v in a.items() if k != "features"},
        "classes and no features, as the other files have, found",
    ),
    "other members": (
        lambda a: {k: np.repeat(v, 2, 1) if v.ndim == 3 else v for k, v in a.items()},
        "expected 2 members, 3 classes and features of width 5, as the other files have, found 1",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_bad_predictions_are_one_message(
    name: str, files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, *words = BROKEN[name]
    bad, out = write(tmp_path, bad=change(synthetic(240, 0)))["bad"], tmp_path / "d.safetensors"
    both = ["--predictions", str(bad), "--fit-predictions", str(files["train"])]
    assert run(["calibrate", *both, "-o", str(out)]) == 5
    printed = " ".join(capsys.readouterr().err.split())
    assert all(word in printed for word in words), printed
    assert "Traceback" not in printed
    assert not out.exists()


def rows_by(decision: Path, predictions: Path, out: Path) -> list[dict[str, Any]]:
    command = ["predict", "--decision", str(decision), "--predictions", str(predictions)]
    assert run([*command, "-o", str(out)]) == 0
    return read_lines(out)


def test_probabilities_are_logits_whose_logarithms_are_taken(tmp_path: Path) -> None:
    """In an .npz too, with names and ids; of ours and of anyone's the same decision and rows."""
    rows: dict[str, list[dict[str, Any]]] = {}
    temperatures = []
    for kind in ("logits", "probabilities"):
        for name, count, seed in (("val", 240, 0), ("new", 50, 3)):
            arrays = synthetic(count, seed)
            logits = np.log(softmax(arrays["logits"]).clip(1e-6))
            answers = logits if kind == "logits" else softmax(arrays["logits"])
            texts = {"ids": [f"t{row}" for row in range(count)], "names": ["ant", "bee", "cat"]}
            np.savez(
                tmp_path / f"{kind}-{name}.npz", labels=arrays["labels"], **texts, **{kind: answers}
            )
        path = hs.calibrate(
            predictions=tmp_path / f"{kind}-val.npz", out=tmp_path / f"{kind}.safetensors"
        ).path
        temperatures.append(hs.Decision.load(path).state.record.temperature)
        rows[kind] = rows_by(path, tmp_path / f"{kind}-new.npz", tmp_path / f"{kind}.jsonl")
    assert temperatures[0] == pytest.approx(temperatures[1], rel=1e-5)
    assert [row["id"] for row in rows["logits"]] == [f"t{row}" for row in range(50)]
    assert {row["label"] for row in rows["logits"]} == {"ant", "bee", "cat"}
    for one, other in zip(*rows.values(), strict=True):
        assert one["probability"] == pytest.approx(other["probability"], abs=1e-6)
        assert (one["label"], one["set"]) == (other["label"], other["set"])


@pytest.mark.parametrize("classes", [3, 77])
@pytest.mark.parametrize("digits", [2, 3])
def test_rounded_probabilities(classes: int, digits: int, tmp_path: Path) -> None:
    """They are what they would be with all digits, and no logits."""
    random = np.random.default_rng(0)
    labels = random.integers(classes, size=400)
    exact = softmax(random.normal(size=(400, classes)) + 4 * np.eye(classes)[labels])
    temperatures = []
    for name, probabilities in (("exact", exact), ("rounded", exact.round(digits))):
        values = probabilities.astype(np.float32)
        np.savez(tmp_path / f"{name}.npz", probabilities=values, labels=labels)
        done = hs.calibrate(predictions=tmp_path / f"{name}.npz", out=tmp_path / name)
        temperatures.append(done.decision.temperature)
        np.savez(tmp_path / "wrong.npz", logits=values, labels=labels)
        with pytest.raises(DataError, match="logits holds probabilities") as error:
            hs.calibrate(predictions=tmp_path / "wrong.npz", out=tmp_path / "w")
        assert "Call it probabilities" in str(error.value.hint)
    assert temperatures[1] == pytest.approx(temperatures[0], rel=0.2 if digits == 2 else 0.02)
    np.savez(tmp_path / "scores.npz", probabilities=exact * 1.9, labels=labels)
    with pytest.raises(DataError, match="sum to 1") as error:
        hs.calibrate(predictions=tmp_path / "scores.npz", out=tmp_path / "s")
    assert "Normalise the rows" in str(error.value.hint)


def test_names_of_the_decision_are_those_of_the_rows(tmp_path: Path) -> None:
    """Ids are integers here, and texts of safetensors stand in its metadata."""
    val, new = synthetic(240, 0), synthetic(50, 3) | {"ids": np.arange(100, 150)}
    save_file(val, tmp_path / "val.safetensors", metadata={"names": '["ant", "bee", "cat"]'})
    save_file(new, tmp_path / "new.safetensors")
    path = hs.calibrate(predictions=tmp_path / "val.safetensors", out=tmp_path / "d").path
    rows = rows_by(path, tmp_path / "new.safetensors", tmp_path / "rows.jsonl")
    assert [row["id"] for row in rows] == list(range(100, 150))
    decided = hs.Decision.load(path).decide(new["logits"], new["features"])
    assert [row["label"] for row in rows] == [
        ["ant", "bee", "cat"][label] for label in decided.labels.tolist()
    ]
    assert decided.rows[0]["label"] == rows[0]["label"]
    save_file(new, tmp_path / "other.safetensors", metadata={"names": '["bee", "ant", "cat"]'})
    words = ["--decision", str(path), "--predictions", str(tmp_path / "other.safetensors")]
    assert run(["predict", *words, "-o", str(tmp_path / "x.jsonl")]) == 5


def test_the_same_predictions_twice_are_refused(files: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the same predictions as another file"):
        hs.calibrate(
            predictions=files["val"], fit_predictions=files["val"], out=tmp_path / "d.safetensors"
        )
    arrays = {name: array for name, array in synthetic(90, 7).items() if name != "features"}
    plain = write(tmp_path, plain=arrays)["plain"]
    with pytest.raises(DataError, match="vim: cannot be fitted to predictions without features"):
        hs.calibrate(predictions=plain, ood_score="vim", out=tmp_path / "d.safetensors")


@pytest.mark.parametrize("score", ["msp", "mds"])
def test_a_decision_file_is_inspected(
    score: str, files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The state of a score of logits has no tensors."""
    out = tmp_path / "d.safetensors"
    done = hs.calibrate(predictions=files["val"], ood_score=score, out=out)
    assert run(["inspect", str(out)]) == 0
    printed = capsys.readouterr().out
    assert f"OOD score {score}" in printed
    assert "calibrate" in printed
    assert run(["inspect", str(out.with_suffix("")), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["decision"]["temperature"] == done.decision.temperature
    assert (shown["classes"], shown["members"]) == (3, 1)


def test_a_decision_file_is_not_trusted(files: dict[str, Path], tmp_path: Path) -> None:
    path = hs.calibrate(
        predictions=files["val"], ood_score="mds", out=tmp_path / "d.safetensors"
    ).path
    decision, new = hs.Decision.load(path), load_file(files["new"])
    for logits, features, says in (
        (new["logits"][..., :2], new["features"], "expected .sample, 1, 3."),
        (new["logits"], None, "mds, requires features"),
        (new["logits"], new["features"][1:], "50 rows of logits but 49 rows of features"),
        (new["logits"] * np.nan, new["features"], "row 0 of logits holds NaN"),
    ):
        with pytest.raises(DataError, match=says):
            decision.decide(logits, features)
    content = path.read_bytes()
    broken = {
        content.replace(b"decision/1", b"decision/9"): "format: Input should be",
        content.replace(b'\\"classes\\":3', b'\\"classes\\":4'): "not those of the decision",
        content.replace(b'\\"temperature\\":', b'\\"temperatuer\\":'): "temperatu",
        content[:-1] + bytes([content[-1] ^ 1]): "belongs to other tensors",
    }
    for change, says in broken.items():
        path.write_bytes(change)
        with pytest.raises(ManifestError, match=says):
            hs.Decision.load(path)
    with pytest.raises(ManifestError, match="format: Field required") as refused:
        hs.Decision.load(files["val"])
    assert "calibrate --predictions" in str(refused.value.hint)
