"""Numbers beside the life of a task: drift, foreign texts, labels of other rows, anyone's regressor."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from row_files import read_lines, write_lines
from safetensors.torch import load_file
from tiny_families import FAMILIES, WORDS

import hydrasurgeon as hs
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
    return write_lines(place, lines)


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


@pytest.mark.slow
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
        write_lines(answers, chosen)
        found = {test.name: test.drifted for test in monitor(answers, against=out).drift.tests}
        assert found == {"unfamiliar": False, "classes": drifted}


@pytest.mark.slow
def test_far_numbers_are_unfamiliar(learnt: Path, tmp_path: Path) -> None:
    val, out = table(tmp_path / "val.jsonl", 300, 2), tmp_path / "c.safetensors"
    place = tmp_path / "ood.jsonl"
    write_lines(place, ({"text": " ".join([WORDS[3]] * (5 + i % 9))} for i in range(60)))
    done = hs.calibrate(learnt, data=val, ood=[str(place)], out=out, device="cpu")
    assert done.decision.ood.score in ("mds", "maha++", "residual", "knn")
    result = hs.evaluate(out, data=val, ood=[f"far:odd={place}"], device="cpu").report.results[0]
    assert result.ood[0].auroc > 0.9
    both = hs.evaluate([out, learnt], data=val, device="cpu", markdown="-")
    assert "| `n` | +0.0000 [" in both.printed["markdown"]


def test_labels_of_other_rows_are_refused(learnt: Path, tmp_path: Path) -> None:
    data = Path(table(tmp_path / "val.jsonl", 200, 2))
    rows = read_lines(data)
    for row, other in zip(rows, np.random.default_rng(0).permutation(200), strict=True):
        row["label"] = json.loads(data.read_text().splitlines()[other])["label"]
    write_lines(data, rows)
    with pytest.raises(DataError, match="no better than the mean"):
        hs.calibrate(learnt, data=str(data), out=tmp_path / "c.safetensors", device="cpu")


def test_anyones_regressor_gets_intervals(tmp_path: Path) -> None:
    """Predictions of scikit-learn's forests in either format, with the inputs as features."""
    from safetensors.numpy import save_file
    from sklearn.ensemble import RandomForestRegressor

    rng = np.random.default_rng(0)

    def drawn(rows: int, name: str, shift: float = 0.0, *, labelled: bool = True) -> Path:
        """One in two files is an .npz."""
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
        place = tmp_path / f"{name}.{('safetensors', 'npz')[len(truth) % 2]}"
        if place.suffix == ".npz":
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
