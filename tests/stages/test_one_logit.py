"""One logit beside the life of a task: fractions, names, groups, promises and a cascade."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_families
import torch
from any_labels import any_labels
from row_files import read_lines, write_lines
from safetensors.torch import load_file
from tiny_families import FAMILIES, WORDS
from tiny_members import members_of, tuned_of

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.decision.split import split_rows
from hydrasurgeon.errors import DataError, HydraError
from hydrasurgeon.stages.monitor import monitor

BERT = FAMILIES["BERT"]


@pytest.fixture
def reranker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tiny_families, "CLASSES", 1)
    BERT.write(tmp_path / "one")
    return tmp_path / "one"


def table(place: Path, labels: list[Any], *, seed: int = 0, groups: bool = True) -> str:
    """Texts whose first word tells yes from no, mostly; five to a group."""
    rng = np.random.default_rng(seed)
    lines = []
    for row, label in enumerate(labels):
        number = label if isinstance(label, int | float) else 0
        words = [WORDS[0 if number >= 0.5 else 1], *rng.choice(WORDS[2:], size=rng.integers(1, 6))]
        words.append(f"s{seed}r{row}")  # no two rows are alike
        lines.append(
            {
                "text": " ".join(words),
                "label": label,
                **({"group": f"q{row // 5}"} if groups else {}),
            }
        )
    return write_lines(place, lines)


def mixed(rows: int, seed: int = 0) -> list[int]:
    """As many yes as no, in every group of five some of both."""
    rng = np.random.default_rng(seed)
    return [
        int(each) for five in range(rows // 5) for each in rng.permutation([0, 1, five % 2, 0, 1])
    ]


def likely(place: Path, model: Path, rows: int) -> str:
    """Labels drawn by what a model says, so that there is something to calibrate."""
    plain = table(place, mixed(rows), groups=False)
    rng = np.random.default_rng(5)
    logits = [row["logit"] for row in hs.predict(model, data=plain, device="cpu")]
    apart = 2 * (logits - np.mean(logits)) / np.std(logits)
    truth = [int(rng.random() < 1 / (1 + np.exp(-z))) for z in apart]
    return write_lines(
        place, (row | {"label": y} for row, y in zip(read_lines(plain), truth, strict=True))
    )


def test_fractions_count_as_much_as_they_say(reranker: Path, tmp_path: Path) -> None:
    labels, saved = [0.0, 0.25, 0.5, 0.75, 1.0, 0.1] * 5, tmp_path / "p.safetensors"
    data = table(tmp_path / "d.jsonl", labels)
    measured = hs.evaluate(reranker, data=data, predictions=saved).report.results[0].id
    z, y = load_file(saved)["logits"][:, 0, 0].double(), torch.tensor(labels).double()
    loss = float(torch.nn.functional.binary_cross_entropy_with_logits(z, y))
    assert measured.nll == pytest.approx(loss, abs=1e-9)
    assert measured.brier == pytest.approx(float((z.sigmoid() - y).square().mean()), abs=1e-9)
    place = reranker / "config.json"
    still = {"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0}
    place.write_text(json.dumps(json.loads(place.read_text()) | still))
    step = {"epochs": "1", "lr": "1e-12", "batch_size": "30", "dropout": "0", "warmup": "0"}
    options = {"recipe": "text", "set": {**step, "label_smoothing": "0"}, "device": "cpu"}
    trained = hs.finetune(reranker, data=data, out=tmp_path / "still", **options).trained
    assert trained.loss == pytest.approx(loss, abs=1e-5)


def test_a_new_classifier_of_one_logit(tmp_path: Path) -> None:
    """Fractions can only be those of one."""
    BERT.write(tmp_path / "three")
    soft = table(tmp_path / "s.jsonl", [0.2, 0.9] * 10)
    about = {"recipe": "text", "device": "cpu", "out": tmp_path / "f.safetensors"}
    data = table(tmp_path / "d.jsonl", mixed(20))
    with pytest.raises(HydraError, match="the model's classifier is single_label"):
        hs.finetune(tmp_path / "three", data=data, set={"task": "binary"}, **about)
    new = {"classifier": "fresh", "epochs": "1"}
    made = hs.finetune(tmp_path / "three", data=soft, set=new, **about)
    assert (made.manifest.model.task, made.manifest.model.num_classes) == ("binary", 1)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1, 2], "row 2 has the label 2"),
        ([0, 0.5, 1.5], r"row 2 has the label 1\.5"),
        ([0.1, -0.2, 1], r"row 1 has the label -0\.2"),
        (["a", "yes", "no"], "row 0 has the label 'a'"),
        ([["yes"], [], ["no"]], "row 0 has a list"),
        ([0.5, None, 1], "row 1 has no label"),
        ([0.5, [1], 1], r"row 0 has the label 0\.5 where others have a list"),
    ],
)
def test_labels_that_it_cannot_have(
    labels: list[Any], message: str, reranker: Path, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=message) as refused:
        hs.evaluate(reranker, data=table(tmp_path / "d.jsonl", labels, groups=False), device="cpu")
    assert refused.value.exit_code == 5
    assert refused.value.hint


def test_yes_and_no_by_name(reranker: Path, tmp_path: Path) -> None:
    numbers = table(tmp_path / "n.jsonl", [0, 1, 1, 0], groups=False)
    rows = [row | {"label": ("no", "yes")[row["label"]]} for row in read_lines(numbers)]
    named = write_lines(tmp_path / "y.jsonl", rows)
    one, other = (
        hs.evaluate(reranker, data=str(each)).report.results[0].id for each in (numbers, named)
    )
    assert one == other


@pytest.mark.parametrize("classes", [1, 3])
def test_calibrate_keeps_groups_whole(
    classes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups of eight rows and of two: a third of the groups is no third of the rows."""
    monkeypatch.setattr(tiny_families, "CLASSES", classes)
    BERT.write(tmp_path / "model")
    groups = np.concatenate([np.arange(72) // 8, 9 + np.arange(88) // 2])
    labels = [row % max(2, classes) for row in range(160)]
    place = Path(table(tmp_path / "d.jsonl", labels, groups=False))
    rows = zip(read_lines(place), groups, strict=True)
    write_lines(place, [{**row, "group": f"q{group}"} for row, group in rows])
    how = {"data": str(place), "ood_score": "msp", "device": "cpu"}
    with any_labels():
        done = hs.calibrate(tmp_path / "model", out=tmp_path / "c.safetensors", **how)
    split = split_rows(160, 0, groups=groups)
    assert {*groups[split.fitting]}.isdisjoint(groups[split.certifying])
    assert len(split.fitting) != 160 // 3
    sizes = done.decision.fitted, done.decision.certified
    assert sizes == (len(split.fitting), len(split.certifying))


@pytest.mark.slow
def test_its_cascade_answers_in_two_stages(reranker: Path, tmp_path: Path) -> None:
    """Row by row in a plain loop: σ(z / T + b) of the first where it is far enough from ½, else of all."""
    from sklearn.linear_model import LogisticRegression

    parts = tuned_of(members_of(reranker, BERT, tmp_path), tmp_path)
    hydra = hs.fuse(parts, out=tmp_path / "h.safetensors", mlp="separate").path
    data, out = likely(tmp_path / "d.jsonl", hydra, 400), tmp_path / "c.safetensors"
    how = {"data": data, "ood_score": "energy", "risk": 0.55, "cascade": True, "device": "cpu"}
    hs.calibrate(hydra, out=out, **how)
    decision = open_checkpoint(out).manifest.decision
    assert decision is not None
    cascade = decision.cascade
    assert cascade is not None
    assert cascade.bias is not None
    assert decision.bias is not None
    assert cascade.limits is not None
    assert cascade.abstain is None
    hs.evaluate(hydra, data=data, predictions=tmp_path / "p.safetensors", device="cpu")
    stored = load_file(tmp_path / "p.safetensors")
    z, y = stored["logits"][:, :, 0].double().numpy(), stored["labels"].numpy()

    def probability(logits: Any, at: float, bias: float) -> float:
        mean = np.mean(1 / (1 + np.exp(-(logits + bias * at))))
        return float(1 / (1 + np.exp(-np.log(mean / (1 - mean)) / at)))

    run, chances = [], []
    for row in z:
        first = probability(row[:1], cascade.temperature, cascade.bias)
        unfamiliar = -np.logaddexp(0, row[0]) > decision.ood.threshold
        goes_on = max(first, 1 - first) < cascade.threshold or unfamiliar
        run.append(3 if goes_on else 1)
        chances.append(probability(row, decision.temperature, decision.bias) if goes_on else first)
    rows = hs.predict(out, data=data, device="cpu")
    assert [row["members_run"] for row in rows] == run
    assert 0 < run.count(3) < len(run)
    assert cascade.share_on == run.count(3) / len(run)
    assert [row["probability"] for row in rows] == pytest.approx(chances, abs=1e-5)
    limits = cascade.limits
    for row in rows:
        sure = "no" if row["probability"] < limits.no else "abstain"
        if row["probability"] >= limits.yes - 1e-9:
            sure = "yes"
        # One sample is the threshold itself, and rows have nine digits.
        unfamiliar = row["ood_score"] > decision.ood.threshold + 1e-9
        assert row["answer"] == ("unfamiliar" if unfamiliar else sure)
    # The first member's own constants, of the third that fits.
    fitting = np.random.default_rng(0).permutation(400)[:133]
    platt = LogisticRegression(C=1e12, tol=1e-10, max_iter=10_000)
    platt.fit(z[fitting][:, :1], y[fitting])
    assert 1 / cascade.temperature == pytest.approx(platt.coef_[0, 0], rel=1e-3)
    assert cascade.bias == pytest.approx(platt.intercept_[0], abs=1e-3)
    part, _ = hs.evaluate(out, data=data, cascade=True, device="cpu").report.results
    p = np.array(chances)
    assert part.id.accuracy == pytest.approx(((p >= 0.5) == y).mean())
    assert part.id.nll == pytest.approx(-np.log(np.where(y == 1, p, 1 - p)).mean(), abs=1e-5)


def test_labels_test_both_promises(reranker: Path, tmp_path: Path) -> None:
    """Of what is answered yes, what is not; of what is, what is answered no."""
    data, out = likely(tmp_path / "d.jsonl", reranker, 200), tmp_path / "c.safetensors"
    hs.calibrate(reranker, data=data, ood_score="msp", risk=0.55, out=out, device="cpu")
    hs.predict(out, data=data, device="cpu", out=tmp_path / "a.jsonl")
    rows = read_lines(tmp_path / "a.jsonl")
    truth = [at % 3 == 0 for at in range(len(rows))]
    labels = zip((row["id"] for row in rows), truth, strict=True)
    write_lines(tmp_path / "l.jsonl", ({"id": name, "label": label} for name, label in labels))
    state = tmp_path / "s.json"
    found = monitor(tmp_path / "a.jsonl", against=out, state=state, labels=tmp_path / "l.jsonl")
    answers = [row["answer"] for row in rows]
    pairs = [*zip(answers, truth, strict=True)]
    assert json.loads(state.read_text())["looks"][0]["kept"] == {
        "risk of no": [sum(truth), pairs.count(("no", True))],
        "risk of yes": [answers.count("yes"), pairs.count(("yes", False))],
    }
    assert [test.name for test in found.drift.tests] == ["unfamiliar", "classes", "risk"]


def test_fractions_are_no_classes(tmp_path: Path) -> None:
    BERT.write(tmp_path / "three")
    with pytest.raises(DataError, match=r"row 0 has the label 0\.5"):
        hs.evaluate(tmp_path / "three", data=table(tmp_path / "s.jsonl", [0.5, 0.2]), device="cpu")
