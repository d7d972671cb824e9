"""One logit through every stage: rerankers and reward models, against their own library, scikit-learn and
torchmetrics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_families
import torch
from any_labels import any_labels
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
    place.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(place)


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
    lines = [
        json.loads(line) | {"label": y}
        for line, y in zip(Path(plain).read_text().splitlines(), truth, strict=True)
    ]
    place.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(place)


def hydra_of(source: Path, home: Path, out: str | Path) -> Path:
    parts = members_of(source, BERT, home)
    return hs.fuse(
        tuned_of(parts, home),
        out=out,
        mlp="separate",
    ).path


def own(path: Path) -> Any:
    import transformers

    load = transformers.AutoModelForSequenceClassification.from_pretrained
    return load(path, trust_remote_code=True).eval()


@pytest.mark.usefixtures("own_module_cache")
def test_its_own_library_says_the_same(reranker: Path, tmp_path: Path) -> None:
    model, inputs = hs.load(reranker, device="cpu"), BERT.inputs()
    with torch.inference_mode():
        theirs = own(reranker)(**inputs).logits
    assert torch.allclose(model(inputs)[:, 0], theirs, atol=1e-5)
    assert torch.allclose(torch.as_tensor(model.predict(inputs)), theirs.sigmoid(), atol=1e-6)
    manifest = open_checkpoint(reranker).manifest
    assert manifest.model.task == "binary"
    # A hydra's logit is the log-odds of the members' mean probability.
    folder = hydra_of(reranker, tmp_path, f"{tmp_path / 'hydra'}/")
    each = torch.cat(
        [hs.load(tmp_path / f"t{i}.safetensors", device="cpu")(inputs) for i in range(3)], dim=1
    )
    with torch.inference_mode():
        logits = own(folder)(**inputs).logits
    assert torch.allclose(logits.sigmoid(), each.sigmoid().mean(dim=1), atol=1e-6)
    assert torch.allclose(
        torch.as_tensor(hs.load(folder, device="cpu").predict(inputs)), logits.sigmoid(), atol=1e-6
    )
    assert '"task"' in (folder / "heads.json").read_text()


def test_eval_is_scikit_learns_and_torchmetrics(reranker: Path, tmp_path: Path) -> None:
    from sklearn import metrics
    from torchmetrics.functional.classification import binary_calibration_error

    labels = mixed(60)
    data = table(tmp_path / "d.jsonl", labels)
    saved = tmp_path / "p.safetensors"
    result = hs.evaluate(reranker, data=data, predictions=saved).report.results[0].id
    stored = load_file(saved)
    p, y = stored["logits"][:, 0, 0].double().sigmoid(), torch.tensor(labels)
    assert result.n == 60
    expected = {
        "accuracy": metrics.accuracy_score(y, p >= 0.5),
        "brier": metrics.brier_score_loss(y, p),
        "nll": metrics.log_loss(y, p),
        "ece": float(binary_calibration_error(p, y, n_bins=15)),
        "auroc": metrics.roc_auc_score(y, p),
        "ap": metrics.average_precision_score(y, p),
    }
    assert {name: getattr(result, name) for name in expected} == pytest.approx(expected, abs=1e-6)
    again = hs.evaluate(predictions_in=[saved]).report.results[0].id
    assert again == result


def test_fractions_count_as_much_as_they_say(reranker: Path, tmp_path: Path) -> None:
    labels = [0.0, 0.25, 0.5, 0.75, 1.0, 0.1] * 5
    result = hs.evaluate(
        reranker, data=table(tmp_path / "d.jsonl", labels), predictions=tmp_path / "p.safetensors"
    )
    z, y = (
        load_file(tmp_path / "p.safetensors")["logits"][:, 0, 0].double(),
        torch.tensor(labels).double(),
    )
    found = result.report.results[0].id
    assert found.nll == pytest.approx(
        float(torch.nn.functional.binary_cross_entropy_with_logits(z, y)), abs=1e-9
    )
    assert found.brier == pytest.approx(float((z.sigmoid() - y).square().mean()), abs=1e-9)


def test_training_starts_from_torchs_loss_and_learns(reranker: Path, tmp_path: Path) -> None:
    config = json.loads((reranker / "config.json").read_text())
    still = {"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0}
    (reranker / "config.json").write_text(json.dumps(config | still))
    labels: list[Any] = [*mixed(40)]
    labels[3] = 0.5
    data, val = (
        table(tmp_path / "d.jsonl", labels),
        table(tmp_path / "v.jsonl", mixed(40, 1), seed=1),
    )
    common = {"recipe": "text", "data": data, "val": val, "device": "cpu"}
    slow = {
        "epochs": "1",
        "lr": "1e-12",
        "batch_size": "40",
        "dropout": "0",
        "label_smoothing": "0",
        "warmup": "0",
    }
    made = hs.finetune(reranker, out=tmp_path / "still.safetensors", set=slow, **common)
    before = hs.evaluate(reranker, data=data).report.results[0].id
    assert made.trained.loss == pytest.approx(before.nll, abs=1e-5)
    weighted = hs.finetune(
        reranker, out=tmp_path / "w.safetensors", set={**slow, "pos_weight": "3"}, **common
    )
    z = hs.evaluate(reranker, data=data, predictions=tmp_path / "p.safetensors") and load_file(
        tmp_path / "p.safetensors"
    )
    expected = torch.nn.BCEWithLogitsLoss(pos_weight=torch.tensor(3.0))(
        z["logits"][:, 0, 0], z["labels"].float()
    )
    assert weighted.trained.loss == pytest.approx(float(expected), abs=1e-5)
    learnt = hs.finetune(
        reranker,
        out=tmp_path / "l.safetensors",
        set={"epochs": "30", "lr": "1e-3", "batch_size": "8"},
        **common,
    )
    after = hs.evaluate(tmp_path / "l.safetensors", data=val).report.results[0].id
    assert after.accuracy >= 0.95
    kept = learnt.trained.kept_epoch
    (logged,) = (each["val_nll"] for each in learnt.trained.log if each["epoch"] == kept)
    assert after.nll == pytest.approx(logged, abs=1e-4)


def test_a_new_classifier_of_one_logit(tmp_path: Path) -> None:
    BERT.write(tmp_path / "three")
    data = table(tmp_path / "d.jsonl", mixed(20))
    new = {"classifier": "fresh", "task": "binary", "epochs": "1"}
    made = hs.finetune(
        tmp_path / "three",
        recipe="text",
        data=data,
        set=new,
        device="cpu",
        out=tmp_path / "o.safetensors",
    )
    assert (made.manifest.model.task, made.manifest.model.num_classes) == ("binary", 1)
    # Fractions can only be those of one logit.
    soft = table(tmp_path / "s.jsonl", [0.2, 0.9] * 10)
    new = {"classifier": "fresh", "epochs": "1"}
    made = hs.finetune(
        tmp_path / "three",
        recipe="text",
        data=soft,
        set=new,
        device="cpu",
        out=tmp_path / "f.safetensors",
    )
    assert made.manifest.model.task == "binary"
    with pytest.raises(HydraError, match="the model's classifier is single_label"):
        hs.finetune(
            tmp_path / "three",
            recipe="text",
            data=data,
            set={"task": "binary"},
            out=tmp_path / "x.safetensors",
        )


def test_calibrated_as_platt(reranker: Path, tmp_path: Path) -> None:
    from sklearn.linear_model import LogisticRegression

    data = likely(tmp_path / "d.jsonl", reranker, 200)
    out = tmp_path / "c.safetensors"
    done = hs.calibrate(reranker, data=data, ood_score="msp", out=out, device="cpu")
    hs.evaluate(reranker, data=data, predictions=tmp_path / "p.safetensors")
    stored = load_file(tmp_path / "p.safetensors")
    third = torch.from_numpy(np.random.default_rng(0).permutation(200)[:66])
    z, y = stored["logits"][third, 0].double(), stored["labels"][third]
    fitted = LogisticRegression(C=1e12, tol=1e-10, max_iter=10_000).fit(z, y)
    assert 1 / done.decision.temperature == pytest.approx(fitted.coef_[0, 0], rel=1e-3)
    assert done.decision.bias == pytest.approx(fitted.intercept_[0], abs=1e-3)
    rows = hs.predict(out, data=data, device="cpu")
    expected = fitted.predict_proba(stored["logits"][:, 0].double())[:, 1]
    assert [row["probability"] for row in rows] == pytest.approx(expected.tolist(), abs=1e-4)
    for row in rows[:3]:
        assert row["probability"] == pytest.approx(1 / (1 + np.exp(-row["logit"])), abs=1e-8)
    assert done.decision.nll["temperature"] < done.decision.nll["before"]
    calibrated = hs.evaluate(out, data=data, device="cpu").report.results[0].id
    assert calibrated.nll == pytest.approx(
        float(torch.nn.BCELoss()(torch.tensor(expected), stored["labels"])), abs=1e-4
    )


def test_what_is_promised_holds(tmp_path: Path) -> None:
    """Over many draws, precision and the miss rate break their bound in at most δ of them."""
    from hydrasurgeon.statistics.abstain import Graded, fit_limits

    random = torch.Generator().manual_seed(0)

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        p, other = torch.rand(2, count, generator=random, dtype=torch.float64).numpy()
        return p, other < 1 / (1 + np.exp(4 - 8 * p))

    p, y = draw(50_000)
    broken = [0, 0]
    for _ in range(50):
        limits = fit_limits(Graded(*draw(200)), [Graded(*draw(400))], risk=0.3, delta=0.1)
        said = p >= limits.yes
        broken[0] += float((~y)[said].astype(np.float64).mean()) > 0.3
        broken[1] += float((p < limits.no)[y].astype(np.float64).mean()) > 0.3
        assert max(limits.bounds) <= 0.3
    # 0.1 of 50 and three deviations.
    assert max(broken) <= 5 + 6
    assert limits.no > 0


def test_answers(reranker: Path, tmp_path: Path) -> None:
    data = table(tmp_path / "d.jsonl", mixed(200))
    common = {"recipe": "text", "data": data, "device": "cpu"}
    hs.finetune(
        reranker,
        out=tmp_path / "l.safetensors",
        set={"epochs": "4", "lr": "3e-3", "batch_size": "8"},
        **common,
    )
    out = tmp_path / "c.safetensors"
    done = hs.calibrate(
        tmp_path / "l.safetensors",
        data=table(tmp_path / "v.jsonl", mixed(200, 2), seed=2),
        out=out,
        risk=0.2,
        device="cpu",
    )
    limits = done.decision.limits
    assert limits is not None
    assert done.decision.abstain is None
    rows = hs.predict(out, data=data, device="cpu")
    for row in rows:
        assert [*row][:3] == ["id", "probability", "logit"]
        assert {"label", "top", "set"}.isdisjoint(row)
        # One sample is the threshold itself, and rows have nine digits.
        unfamiliar = row["ood_score"] > done.decision.ood.threshold + 1e-8
        sure = (
            "yes"
            if row["probability"] >= limits.yes
            else "no"
            if row["probability"] < limits.no
            else "abstain"
        )
        assert row["answer"] == ("unfamiliar" if unfamiliar else sure)
    truth = [("no", "yes")[label] for label in mixed(200)]
    pairs = zip((row["answer"] for row in rows), truth, strict=True)
    wrong = [answer != true for answer, true in pairs if answer in ("yes", "no")]
    found = hs.evaluate(out, data=data, device="cpu").report.results[0].id
    assert found.answered == pytest.approx(len(wrong) / 200)
    assert found.wrong == pytest.approx(sum(wrong) / len(wrong))
    hs.predict(out, data=data, device="cpu", out=tmp_path / "a.csv")
    header = (tmp_path / "a.csv").read_text().splitlines()[0]
    assert (
        header
        == "id,probability,logit,total,aleatoric,epistemic,ood_score,unfamiliar,members_run,answer,cut"
    )
    model = hs.load(out, device="cpu")
    assert "yes" in {
        row["answer"] for row in model.predict(["good film", "bad plot", "good the", "good a"])
    }


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
    named = tmp_path / "y.jsonl"
    named.write_text(
        Path(numbers)
        .read_text()
        .replace('"label": 0', '"label": "no"')
        .replace('"label": 1', '"label": "yes"')
    )
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
    texts = [json.loads(line) for line in place.read_text().splitlines()]
    lines = [
        json.dumps({**text, "group": f"q{group}"}) + "\n"
        for text, group in zip(texts, groups, strict=True)
    ]
    place.write_text("".join(lines))
    how = {"data": str(place), "ood_score": "msp", "device": "cpu"}
    with any_labels():
        done = hs.calibrate(tmp_path / "model", out=tmp_path / "c.safetensors", **how)
    rows = split_rows(160, 0, groups=groups)
    assert {*groups[rows.fitting]}.isdisjoint(groups[rows.certifying])
    assert len(rows.fitting) != 160 // 3
    sizes = done.decision.fitted, done.decision.certified
    assert sizes == (len(rows.fitting), len(rows.certifying))


@pytest.mark.slow
def test_its_cascade_answers_in_two_stages(reranker: Path, tmp_path: Path) -> None:
    """Row by row in a plain loop: σ(z / T + b) of the first where it is far enough from ½, else of all."""
    from sklearn.linear_model import LogisticRegression

    hydra = hydra_of(reranker, tmp_path, tmp_path / "h.safetensors")
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
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    truth = [at % 3 == 0 for at in range(len(rows))]
    labels = zip((row["id"] for row in rows), truth, strict=True)
    (tmp_path / "l.jsonl").write_text(
        "".join(json.dumps({"id": name, "label": label}) + "\n" for name, label in labels)
    )
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
