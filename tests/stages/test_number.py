"""Numbers beside the life of a task: drift, foreign texts, labels of other rows, anyone's regressor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lives import CPU, Life
from row_files import read_lines, write_lines
from safetensors.torch import load_file
from task_references import Regression, write_table
from tiny_families import WORDS

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.decided_words import decision_lines
from hydrasurgeon.errors import DataError
from hydrasurgeon.stages.monitor import monitor


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Life:
    return Life(Regression, tmp_path_factory.mktemp("life"))


@pytest.mark.slow
def test_other_values_drift(life: Life, tmp_path: Path) -> None:
    """Texts that look alike, of which only the higher numbers come: deciles of the values tell."""
    val, out = life.tables["val"], tmp_path / "c.safetensors"
    decision = hs.calibrate(life.model, data=val, out=out, ood_score="knn", **CPU).decision
    said, _ = life.outputs(life.model, "val")
    counts = np.histogram(said, [-np.inf, *decision.levels, np.inf])[0]
    assert decision.seen is not None
    assert decision.seen.predicted == tuple(counts)
    assert len(counts) == 10
    rows = [*hs.predict(out, data=write_table(tmp_path / "new.jsonl", Regression, 300, 5), **CPU)]
    for name, chosen, drifted in (
        ("same", rows, False),
        ("high", [row for row in rows if row["value"] > decision.levels[5]], True),
    ):
        answers = tmp_path / f"{name}.jsonl"
        write_lines(answers, chosen)
        found = {test.name: test.drifted for test in monitor(answers, against=out).drift.tests}
        assert found == {"unfamiliar": False, "classes": drifted}


@pytest.mark.slow
def test_far_numbers_are_unfamiliar(life: Life, tmp_path: Path) -> None:
    val, out = life.tables["val"], tmp_path / "c.safetensors"
    place = tmp_path / "ood.jsonl"
    write_lines(place, ({"text": " ".join([WORDS[3]] * (12 + i % 9))} for i in range(60)))
    done = hs.calibrate(life.model, data=val, ood=[str(place)], out=out, **CPU)
    assert done.decision.ood.score in ("mds", "maha++", "residual", "knn")
    result = hs.evaluate(out, data=val, ood=[f"far:odd={place}"], **CPU).report.results[0]
    assert result.ood[0].auroc > 0.9
    both = hs.evaluate([out, life.model], data=val, markdown="-", **CPU)
    assert "| `model` | +0.0000 [" in both.printed["markdown"]


def test_labels_of_other_rows_are_refused(life: Life, tmp_path: Path) -> None:
    rows = read_lines(life.tables["val"])
    others = np.random.default_rng(0).permutation(len(rows))
    mixed = [row | {"label": rows[other]["label"]} for row, other in zip(rows, others, strict=True)]
    data = write_lines(tmp_path / "val.jsonl", mixed)
    with pytest.raises(DataError, match="no better than the mean"):
        hs.calibrate(life.model, data=data, out=tmp_path / "c.safetensors", **CPU)


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
