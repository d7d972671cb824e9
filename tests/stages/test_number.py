"""Numbers through every stage, against transformers, scikit-learn and the formulas."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny_families import FAMILIES, WORDS
from tiny_members import members_of, tuned_of

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.checkpoints.decided_words import decision_lines
from hydrasurgeon.errors import DataError
from hydrasurgeon.stages.monitor import monitor

BERT = FAMILIES["BERT"]
QUIET = {"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0}


def table(place: Path, rows: int, seed: int, noise: float = 0.1) -> str:
    """Each of two words adds to the number, which may be negative."""
    rng = np.random.default_rng(seed)
    lines = []
    for row in range(rows):
        there = rng.random(2) < 0.5
        words = [WORDS[at] for at in range(2) if there[at]]
        words += [*rng.choice(WORDS[4:], size=rng.integers(1, 4)), f"s{seed}r{row}"]
        number = 2.0 * there[0] - 1.0 * there[1] + noise * rng.normal()
        lines.append({"text": " ".join(rng.permutation(words)), "label": number})
    place.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(place)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("trained")
    BERT.write(home / "bert")
    place = home / "bert" / "config.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | QUIET))
    settings = {"task": "regression", "epochs": "6", "lr": "2e-3", "batch_size": "8"}
    hs.finetune(
        home / "bert",
        data=table(home / "train.jsonl", 200, 7),
        recipe="text",
        set={**settings, "classifier": "fresh"},
        out=home / "n.safetensors",
        device="cpu",
    )
    return home


@pytest.fixture
def learnt(tmp_path: Path, trained: Path) -> Path:
    for name in ("n.safetensors", "n.heads.json"):
        shutil.copy(trained / name, tmp_path)
    return tmp_path / "n.safetensors"


def values(checkpoint: Path, data: str, home: Path) -> tuple[np.ndarray, np.ndarray]:
    """What each member says, and the truth."""
    place = home / "said.safetensors"
    hs.evaluate(checkpoint, data=data, predictions=place, device="cpu", force=True)
    file = load_file(place)
    return file["logits"][..., 0].double().numpy(), file["labels"].numpy()


def hydra_of(learnt: Path, home: Path) -> Path:
    parts = members_of(learnt, BERT, home)
    parts = tuned_of(parts, home)
    hs.fuse(parts, out=home / "hydra.safetensors", mlp="separate")
    return home / "hydra.safetensors"


def test_it_learns_and_is_measured(learnt: Path, tmp_path: Path) -> None:
    from sklearn import metrics

    data = table(tmp_path / "test.jsonl", 150, 1)
    found = hs.evaluate(learnt, data=data, device="cpu", ci=0.9).report.results[0].id
    said, truth = values(learnt, data, tmp_path)
    assert found.rmse == pytest.approx(math.sqrt(metrics.mean_squared_error(truth, said[:, 0])))
    assert found.mae == pytest.approx(metrics.mean_absolute_error(truth, said[:, 0]))
    assert found.r2 == pytest.approx(metrics.r2_score(truth, said[:, 0]))
    assert found.r2 is not None
    assert found.rmse is not None
    assert found.r2 > 0.6
    assert found.accuracy is found.nll is found.coverage is None
    assert found.ci is not None
    assert found.ci["rmse"][0] < found.rmse < found.ci["rmse"][1]
    assert open_checkpoint(learnt).manifest.model.task == "regression"


def test_intervals_hold_what_they_promise(learnt: Path, tmp_path: Path) -> None:
    hydra = hydra_of(learnt, tmp_path)
    val, test = table(tmp_path / "val.jsonl", 400, 2), table(tmp_path / "test.jsonl", 400, 3)
    out = tmp_path / "c.safetensors"
    done = hs.calibrate(hydra, data=val, out=out, ood_score="knn", coverage=0.8, device="cpu")
    joint, half = done.decision.joint, done.decision.conformal.threshold
    assert joint is not None
    rows = list(hs.predict(out, data=test, device="cpu"))
    said, truth = values(hydra, test, tmp_path)
    sigma = np.sqrt(joint.aleatoric**2 + joint.epistemic**2 * said.var(axis=1))
    columns = ["id", "value", "low", "high", "spread", "ood_score", "unfamiliar", "answer"]
    assert [*rows[0]] == columns
    for name, expected in (
        ("value", said.mean(axis=1)),
        ("spread", said.std(axis=1)),
        ("low", said.mean(axis=1) - half * sigma),
        ("high", said.mean(axis=1) + half * sigma),
    ):
        assert [row[name] for row in rows] == pytest.approx(expected.tolist(), abs=1e-5)
    for row in rows:
        assert row["answer"] == ("unfamiliar" if row["unfamiliar"] else row["value"])
    held = np.mean([row["low"] <= y <= row["high"] for row, y in zip(rows, truth, strict=True)])
    assert 0.7 < held < 0.9
    done = hs.evaluate([out, hydra], data=test, device="cpu", markdown="-")
    assert "| `hydra` | +0.0000 [" in done.printed["markdown"]
    found = done.report.results[0].id
    assert found.coverage == pytest.approx(held, abs=0.01)
    assert found.width == pytest.approx(2 * half * sigma.mean(), rel=1e-4)
    errors = truth - said.mean(axis=1)
    nll = np.log(sigma) + (errors / sigma) ** 2 / 2 + math.log(2 * math.pi) / 2
    assert found.nll == pytest.approx(nll.mean(), rel=1e-4)
    hs.predict(out, data=test, out=tmp_path / "a.jsonl", device="cpu")
    seen = monitor(tmp_path / "a.jsonl", against=out).drift
    assert not seen.drifted
    assert seen.answers.rows == 400
    hs.predict(out, data=test, out=tmp_path / "a.csv", device="cpu")
    assert (tmp_path / "a.csv").read_text().splitlines()[0] == ",".join([*columns, "cut"])
    assert monitor(tmp_path / "a.csv", against=out).drift.answers.rows == 400


def test_other_values_drift(learnt: Path, tmp_path: Path) -> None:
    """Texts that look alike, of which only the higher numbers come: deciles of the values tell."""
    val, out = table(tmp_path / "val.jsonl", 400, 2), tmp_path / "c.safetensors"
    decision = hs.calibrate(learnt, data=val, out=out, ood_score="knn", device="cpu").decision
    said = values(learnt, val, tmp_path)[0][:, 0]
    counts = np.histogram(said, [-np.inf, *decision.levels, np.inf])[0]
    assert decision.seen is not None
    assert decision.seen.predicted == tuple(counts)
    assert len(counts) == 10
    rows = list(hs.predict(out, data=table(tmp_path / "new.jsonl", 300, 5), device="cpu"))
    for name, chosen, drifted in (
        ("same", rows, False),
        ("high", [row for row in rows if row["value"] > decision.levels[5]], True),
    ):
        answers = tmp_path / f"{name}.jsonl"
        answers.write_text("".join(json.dumps(row) + "\n" for row in chosen))
        found = {test.name: test.drifted for test in monitor(answers, against=out).drift.tests}
        assert found == {"unfamiliar": False, "classes": drifted}


def test_far_numbers_are_unfamiliar(learnt: Path, tmp_path: Path) -> None:
    val, out = table(tmp_path / "val.jsonl", 300, 2), tmp_path / "c.safetensors"
    place = tmp_path / "ood.jsonl"
    place.write_text(
        "".join(json.dumps({"text": " ".join([WORDS[3]] * (5 + i % 9))}) + "\n" for i in range(60))
    )
    done = hs.calibrate(learnt, data=val, ood=[str(place)], out=out, device="cpu")
    assert done.decision.ood.score in ("mds", "maha++", "residual", "knn")
    result = hs.evaluate(out, data=val, ood=[f"far:odd={place}"], device="cpu").report.results[0]
    assert result.ood[0].auroc > 0.9


def test_labels_of_other_rows_are_refused(learnt: Path, tmp_path: Path) -> None:
    data = Path(table(tmp_path / "val.jsonl", 200, 2))
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    for row, other in zip(rows, np.random.default_rng(0).permutation(200), strict=True):
        row["label"] = json.loads(data.read_text().splitlines()[other])["label"]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match="no better than the mean"):
        hs.calibrate(learnt, data=str(data), out=tmp_path / "c.safetensors", device="cpu")


@pytest.mark.usefixtures("own_module_cache")
def test_its_own_library_says_the_same(learnt: Path, tmp_path: Path) -> None:
    import transformers

    load = transformers.AutoModelForSequenceClassification.from_pretrained
    inputs = BERT.inputs()
    truth = torch.tensor([1.0, -2, 0.5, 0, 3])
    for number, checkpoint in enumerate((learnt,)):
        folder = tmp_path / f"folder{number}"
        model = hs.load(checkpoint, device="cpu")
        hs.finetune(
            checkpoint,
            data=table(tmp_path / "one.jsonl", 20, 0),
            recipe="text",
            device="cpu",
            set={"epochs": "1", "lr": "1e-9"},
            out=f"{folder}/",
        )
        with torch.inference_mode():
            theirs = load(folder, trust_remote_code=True).eval()(**inputs, labels=truth)
        expected = model.predict(inputs)
        torch.testing.assert_close(theirs.logits, expected, atol=1e-4, rtol=0)
        torch.testing.assert_close(theirs.loss, (theirs.logits[:, 0] - truth).square().mean())
        assert open_checkpoint(folder).manifest.model.task == "regression"
        torch.testing.assert_close(model(inputs).mean(dim=1), expected)


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
def test_anyones_regressor_gets_intervals(ending: str, tmp_path: Path) -> None:
    """Predictions of scikit-learn's forests, with the inputs as features."""
    from safetensors.numpy import save_file
    from sklearn.ensemble import RandomForestRegressor

    rng = np.random.default_rng(0)

    def drawn(rows: int, name: str, shift: float = 0.0, *, labelled: bool = True) -> Path:
        x = rng.normal(size=(rows, 3)) + shift
        y = x[:, 0] + x[:, 1] ** 2 + 0.3 * rng.normal(size=rows)
        if not forests:
            forests.extend(
                RandomForestRegressor(20, min_samples_leaf=5, random_state=at).fit(x, y)
                for at in range(2)
            )
        arrays = {
            "values": np.stack([forest.predict(x) for forest in forests], axis=1),
            "features": np.stack([x, x], axis=1),
        }
        if labelled:
            arrays["labels"] = y
        place = tmp_path / f"{name}.{ending}"
        if ending == "npz":
            np.savez(place, **arrays)  # type: ignore[arg-type]
        else:
            save_file(arrays, place)
        truth[name] = y
        return place

    forests: list[Any] = []
    truth: dict[str, np.ndarray] = {}
    drawn(400, "train")
    val, test = drawn(400, "val"), drawn(400, "test", labelled=False)
    odd = drawn(60, "odd", shift=8.0, labelled=False)
    out = tmp_path / "decision.safetensors"
    done = hs.calibrate(predictions=val, ood_predictions=[odd], out=out)
    assert "intervals hold the truth in 90 % of cases" in [*decision_lines(done.decision)]
    assert done.decision.ood.score in ("mds", "maha++", "residual", "knn")
    rows = list(hs.predict(decision=out, predictions=test))
    held = [row["low"] <= y <= row["high"] for row, y in zip(rows, truth["test"], strict=True)]
    assert 0.85 < np.mean(held) < 0.97
    decision = hs.Decision.load(out)
    arrays = arrays_of(odd)
    decided = decision.decide(arrays["values"], arrays["features"])
    assert decided.unfamiliar.mean() > 0.9
    assert decided.answer[0] == "unfamiliar"
    found = hs.evaluate(predictions_in=[val]).report.results[0].id
    expected = arrays_of(val)["values"].mean(axis=1)
    assert found.mae == pytest.approx(np.abs(expected - truth["val"]).mean())
    bare = tmp_path / "bare.npz"
    np.savez(bare, values=expected, labels=truth["val"])
    with pytest.raises(DataError, match="require features"):
        hs.calibrate(predictions=bare, out=tmp_path / "d2.safetensors")


def arrays_of(path: Path) -> dict[str, np.ndarray]:
    if path.suffix == ".npz":
        return dict(np.load(path))
    return {name: tensor.numpy() for name, tensor in load_file(path).items()}
