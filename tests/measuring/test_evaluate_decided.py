"""eval with a decision state: its probabilities, its score, its sets; and what overrides them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file
from tiny_families import FAMILIES

import hydrasurgeon as hs
from hydrasurgeon.data import Batches, open_data
from hydrasurgeon.errors import UsageError
from hydrasurgeon.render.described import evaluated
from hydrasurgeon.statistics import metrics
from hydrasurgeon.statistics.metrics import smooth_ece
from hydrasurgeon.statistics.temperature import nll_of, temperature_of

VIT = FAMILIES["timm ViT"]


@pytest.fixture
def ready(tmp_path: Path) -> Path:
    VIT.write(tmp_path / "source")
    VIT.data(tmp_path, rows=90)
    noise = np.random.default_rng(1).integers(0, 255, (30, 28, 28, 3), dtype=np.uint8)
    np.savez(tmp_path / "noise.npz", images=noise)
    hs.calibrate(
        tmp_path / "source",
        data=harder(tmp_path),
        out=tmp_path / "c.safetensors",
        ood_score="rmds",
        coverage=0.6,
        id_flagged=0.1,
        risk=0.2,
    )
    return tmp_path


def harder(folder: Path) -> str:
    """The data, but what the model is least sure of is wrong."""
    rows = hs.predict(folder / "source", data=str(folder / "data.npz"))
    unsure = np.argsort([row["probability"] for row in rows])[:25]
    with np.load(folder / "data.npz") as data:
        labels = data["labels"].copy()
        labels[unsure] = (labels[unsure] + 1) % 3
        np.savez(folder / "harder.npz", images=data["images"], labels=labels)
    return str(folder / "harder.npz")


def mixed(folder: Path) -> str:
    """The data, every third label wrong, and noise."""
    with np.load(folder / "data.npz") as data, np.load(folder / "noise.npz") as noise:
        images = np.concatenate([data["images"], noise["images"]])
        labels = np.concatenate([data["labels"], np.arange(30) % 3])
    labels[::3] = (labels[::3] + 1) % 3
    np.savez(folder / "mixed.npz", images=images, labels=labels)
    return str(folder / "mixed.npz")


def test_what_is_answered_and_wrong_is_counted_as_predict_answers(
    ready: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = mixed(ready)
    evaluation = hs.evaluate([ready / "c"], data=data, ci=0.9, asserts=["id.wrong<=0.05"])
    truth = np.load(data)["labels"].tolist()
    rows = hs.predict(ready / "c", data=data)
    answers = [row["answer"] for row in rows]
    given = [at for at, each in enumerate(answers) if each not in ("abstain", "unfamiliar")]
    assert {"abstain", "unfamiliar"} < set(answers)
    wrong = sum(answers[at] != truth[at] for at in given)
    found = evaluation.report.results[0].id
    assert 0 < wrong < len(given)
    assert found.answered == pytest.approx(len(given) / len(rows))
    assert found.wrong == pytest.approx(wrong / len(given))
    assert found.ci is not None
    for name in ("coverage", "set_size", "answered", "wrong"):
        low, high = found.ci[name]
        assert low < getattr(found, name) < high
    capsys.readouterr()
    evaluated(evaluation, json=False, quiet=False)
    for table in (capsys.readouterr().out, repr(evaluation)):
        lines = table.splitlines()
        assert max(map(len, lines)) <= 80
        at = next(at for at, line in enumerate(lines) if "answered" in line)
        heads, row, low, high = (line.split() for line in lines[at : at + 4])
        assert heads[-4:] == ["answered", "of", "these", "wrong"]
        assert (low[0], high[0]) == ("from", "to")
        assert row[-2:] == [f"{found.answered:.3f}", f"{found.wrong:.3f}"]
        ends = zip(found.ci["answered"], found.ci["wrong"], strict=True)
        assert [low[-2:], high[-2:]] == [[f"{each:.3f}" for each in pair] for pair in ends]
    assert [each.value for each in evaluation.report.asserts or ()] == [found.wrong]
    # By the decision's own score, whichever OOD detection is measured by; and on each data set.
    other = hs.evaluate([ready / "c"], data=[data, f"b={data}"], ood_score="energy").report
    assert other.results[0].id.wrong == found.wrong
    assert other.results[0].sets is not None
    assert [each.answered for each in other.results[0].sets] == [found.answered] * 2


def test_the_share_of_an_ood_set_that_predict_calls_unfamiliar(ready: Path) -> None:
    """A model without a decision state flags nothing."""
    noise = str(ready / "noise.npz")
    models = [ready / "c", ready / "source"]
    decided, plain = hs.evaluate(
        models, data=mixed(ready), ood=[f"far:noise={noise}"]
    ).report.results
    unfamiliar = [row["unfamiliar"] for row in hs.predict(ready / "c", data=noise)]
    assert decided.ood[0].flagged == pytest.approx(np.mean(unfamiliar))
    assert decided.ood_average["all"].flagged == decided.ood[0].flagged > 0
    assert plain.ood[0].flagged is None


def test_a_predictions_file_says_by_which_decision(ready: Path) -> None:
    """What was measured of a model is measured of its logits."""
    data, file = mixed(ready), ready / "p.safetensors"
    ood = [f"near:noise={ready / 'noise.npz'}"]
    first = hs.evaluate([ready / "c"], data=data, ood=ood, predictions=file, ci=0.9).report
    again = hs.evaluate(predictions_in=[file], ci=0.9).report
    assert again.results[0].id == first.results[0].id
    assert again.results[0].ood == first.results[0].ood
    for name in ("temperature", "ood_score"):
        assert again.settings[name] == first.settings[name] == "decision"
    plain = hs.evaluate(predictions_in=[file], no_decision=True).report
    assert plain.settings["ood_score"] == "msp"
    bare = hs.evaluate([ready / "source"], data=data, ood=ood).report.results[0]
    assert (plain.results[0].id, plain.results[0].ood) == (bare.id, bare.ood)


def test_the_state_is_in_use(ready: Path) -> None:
    data, noise = str(ready / "data.npz"), str(ready / "noise.npz")
    report = hs.evaluate(
        [ready / "c"], data=data, ood=[f"near:noise={noise}"], predictions=ready / "p.safetensors"
    ).report
    (found,) = report.results
    model = hs.load(ready / "c", device="cpu")
    assert model.state is not None
    decided = []
    for spec in (data, noise):
        (batch,) = Batches(open_data(spec), model.transform, batch_size=90, workers=0)
        decided.append(model.decide(batch.inputs))
    inside, outside = decided
    labels = open_data(data).labels
    right = inside.labels == labels
    area = float(np.trapezoid(metrics.risks(inside.probability, right))) / (len(right) - 1)
    assert found.id.aurc == pytest.approx(area, rel=1e-4)
    assert found.id.smece == pytest.approx(smooth_ece(inside.probability, right), abs=1e-4)
    expected = metrics.auroc(inside.ood_score, outside.ood_score)
    assert found.ood[0].auroc == pytest.approx(expected, abs=2e-3)
    stored = load_file(ready / "p.safetensors")
    np.testing.assert_allclose(stored["scores.rmds"], inside.ood_score, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        stored["ood.noise.scores.rmds"], outside.ood_score, rtol=1e-4, atol=1e-4
    )


def test_options_override_the_state(ready: Path) -> None:
    data, ood = str(ready / "data.npz"), [str(ready / "noise.npz")]
    plain = hs.evaluate([ready / "source"], data=data, ood=ood).report.results[0]
    left = hs.evaluate([ready / "c"], data=data, ood=ood, no_decision=True).report.results[0]
    assert left.id == plain.id
    assert left.ood == plain.ood
    assert left.id.coverage is None
    assert "coverage" not in left.model_dump()["id"]
    report = hs.evaluate([ready / "c"], data=data, ood=ood, temperature=1.0, ood_score="msp").report
    assert (report.settings["temperature"], report.settings["ood_score"]) == (1.0, "msp")
    (given,) = report.results
    assert given.id == plain.id
    assert given.ood == plain.ood
    every = hs.evaluate([ready / "c"], data=data, ood=ood, ood_score="all").report.results[0]
    assert every.ood[0].scores is not None
    assert set(every.ood[0].scores) == {"msp", "entropy", "energy", "max-logit", "mi"}
    evaluation = hs.evaluate([ready / "c"], data=data, ood=ood, ood_score="msp,rmds")
    assert "out of distribution, by msp " in repr(evaluation)
    two = evaluation.report.results[0]
    assert two.ood[0].scores is not None
    assert two.ood[0].scores["rmds"] == pytest.approx(every.ood[0].auroc)
    assert two.ood[0].auroc == pytest.approx(every.ood[0].scores["msp"])
    table = next(table for table in evaluation.tables if table.title == "AUROC by other OOD scores")
    assert [column.metric.name for column in table.columns] == ["rmds"]
    mean = sum(found.scores["rmds"] for found in two.ood if found.scores) / len(two.ood)
    assert table.rows[0][0].text == f"{mean:.3f}"
    evaluation = hs.evaluate([ready / "c"], data=data, ood_score="msp")
    assert "--ood-score: without OOD data (--ood) no AUROC is measured" in evaluation.notes
    pair = hs.evaluate([ready / "c", ready / "source"], data=data, ensemble=True).report.results[0]
    assert pair.id.coverage is None


def test_what_is_not_used_is_not_read(ready: Path) -> None:
    """A state that does not fit what is run."""
    data, model = str(ready / "data.npz"), ready / "c"
    with pytest.raises(UsageError, match="--val requires --temperature"):
        hs.evaluate([model], data=data, val="gone.npz")
    both = hs.evaluate([model, ready / "source"], data=data, ensemble=True)
    assert both.report.settings["temperature"] == 1.0
    with pytest.raises(UsageError, match=r"--predictions requires CKPT\.\.\."):
        hs.evaluate([], predictions_in=[ready / "p"], predictions=ready / "q")


def test_a_temperature_is_fitted_to_other_data(ready: Path, tmp_path: Path) -> None:
    data, out = str(ready / "data.npz"), tmp_path / "p.safetensors"
    options: dict[str, Any] = {"data": data, "device": "cpu", "no_decision": True}
    found = hs.evaluate(
        [ready / "c"], temperature="fit", val=data, predictions=out, **options
    ).report
    stored = load_file(out)
    logits, labels = stored["logits"].numpy(), stored["labels"].numpy()
    fitted = nll_of(logits, labels, temperature_of(logits, labels))
    assert found.results[0].id.nll == pytest.approx(fitted, abs=1e-6)
    assert found.results[0].id.nll != pytest.approx(nll_of(logits, labels, 1.0), abs=1e-4)
    assert found.settings["val"] == "data.npz"
    with pytest.raises(UsageError, match="--temperature fit requires --val"):
        hs.evaluate([ready / "c"], temperature="fit", **options)
