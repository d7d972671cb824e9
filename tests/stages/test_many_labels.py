"""Many labels beside the life of a task: OOD data, heads, circuits, thresholds, sets and refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from row_files import read_lines, write_lines
from safetensors.torch import load_file
from slow_circuits import greedy
from tiny_families import FAMILIES, WORDS

import hydrasurgeon as hs
from hydrasurgeon.errors import DataError, HydraError, UsageError

BERT, NAMES = FAMILIES["BERT"], ("red", "round", "small")
MANY = {
    "problem_type": "multi_label_classification",
    "id2label": {str(i): name for i, name in enumerate(NAMES)},
    "label2id": {name: i for i, name in enumerate(NAMES)},
    "attention_probs_dropout_prob": 0.0,
    "hidden_dropout_prob": 0.0,
}


@pytest.fixture
def tagger(tmp_path: Path) -> Path:
    return untrained(tmp_path)


@pytest.fixture
def learnt(tmp_path: Path, trained: Path) -> Path:
    for name in ("l.safetensors", "l.heads.json"):
        shutil.copy(trained / name, tmp_path)
    return tmp_path / "l.safetensors"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("trained")
    rates = {"epochs": "8", "lr": "1e-3", "batch_size": "8"}
    how = {"data": table(home / "train.jsonl", 200, 7), "set": rates, "device": "cpu"}
    hs.finetune(untrained(home), recipe="text", out=home / "l.safetensors", **how)
    return home


def untrained(home: Path) -> Path:
    BERT.write(home / "many")
    place = home / "many" / "config.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | MANY))
    return home / "many"


def table(place: Path, rows: int, seed: int = 0) -> str:
    """A word for each label that holds."""
    rng = np.random.default_rng(seed)
    lines = []
    for row in range(rows):
        holds = rng.random(3) < (0.6, 0.4, 0.3)
        words = [WORDS[label] for label in range(3) if holds[label]]
        words += [*rng.choice(WORDS[4:], size=rng.integers(1, 4)), f"s{seed}r{row}"]
        names = [name for name, there in zip(NAMES, holds, strict=True) if there]
        lines.append({"text": " ".join(rng.permutation(words)), "labels": names})
    return write_lines(place, lines)


def stored(checkpoint: Path, data: str, home: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities and labels of a single model."""
    hs.evaluate(
        checkpoint,
        data=data,
        predictions=home / "p.safetensors",
        device="cpu",
        force=True,
        no_decision=True,
    )
    file = load_file(home / "p.safetensors")
    return file["logits"][:, 0].double(), file["labels"]


@pytest.mark.slow
def test_foreign_texts_are_told_apart_as_scikit_learn_does(tagger: Path, tmp_path: Path) -> None:
    from sklearn.metrics import roc_auc_score

    data, other = table(tmp_path / "d.jsonl", 60), table(tmp_path / "o.jsonl", 30, 3)
    foreign = {"ood": [f"far:o={other}"], "ood_score": "all", "device": "cpu"}
    (ood,) = hs.evaluate(tagger, data=data, **foreign).report.results[0].ood
    logits = torch.cat([stored(tagger, table, tmp_path)[0] for table in (data, other)])
    truth = [0] * 60 + [1] * 30
    energy = -logits.exp().log1p().sum(dim=1)
    assert ood.auroc == pytest.approx(roc_auc_score(truth, -logits.amax(dim=1)), abs=1e-9)
    assert (ood.scores or {})["energy"] == pytest.approx(roc_auc_score(truth, energy), abs=1e-9)


def test_each_label_needs_its_own_weight(tagger: Path, tmp_path: Path) -> None:
    with pytest.raises(HydraError, match="is not one positive number for each of 3 labels"):
        hs.finetune(
            tagger,
            recipe="text",
            data=table(tmp_path / "d.jsonl", 40),
            set={"pos_weight": "[1, 2]"},
            out=tmp_path / "x.safetensors",
        )


def test_heads_are_scored_by_torchs_loss(tagger: Path, tmp_path: Path) -> None:
    data = table(tmp_path / "d.jsonl", 20)
    hs.score(tagger, method="taylor", data=data, device="cpu")
    values = json.loads((tagger / "heads.json").read_text())["scores"]["taylor"]["values"]["text"]
    assert np.isfinite(values).all()
    assert np.min(values) > 0
    with pytest.raises(HydraError, match="--method cahp is only for models that choose one class"):
        hs.score(tagger, method="cahp", data=data, device="cpu")


@pytest.mark.slow
@pytest.mark.parametrize("search", ["exact", "attribution"])
def test_circuits_keep_whole_answers_right(search: Any, learnt: Path, tmp_path: Path) -> None:
    """Algorithm 1 on transformers' model: the share of samples with every label right, and the AUROC of their
    surest label."""
    import transformers
    from sklearn.metrics import accuracy_score, roc_auc_score

    data, other = table(tmp_path / "d.jsonl", 24), table(tmp_path / "o.jsonl", 16, 7)
    how = {"search": search, "remove": 4, "device": "cpu"}
    hs.score(learnt, method="circuit-avg", data=data, ood=[other], **how)
    (found,) = json.loads((tmp_path / "l.heads.json").read_text())["scores"].values()
    weights, start = load_file(learnt), untrained(tmp_path)
    words = transformers.AutoTokenizer.from_pretrained(start)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(start)
    model.load_state_dict(weights)
    layers = model.bert.encoder.layer
    width = model.config.hidden_size // model.config.num_attention_heads

    @torch.inference_mode()
    def worth(off: list[tuple[int, int]]) -> float:
        for layer, head in off:
            layers[layer].attention.output.dense.weight.data[
                :, head * width : (head + 1) * width
            ] = 0
        inside, outside = (
            model(
                **words([row["text"] for row in rows], padding=True, return_tensors="pt")
            ).logits.double()
            for rows in (read_lines(data), read_lines(other))
        )
        model.load_state_dict(weights)
        truth = [[name in row["labels"] for name in NAMES] for row in read_lines(data)]
        scores = [1 - float(z.sigmoid().max()) for z in (*inside, *outside)]
        auroc = roc_auc_score([0] * len(inside) + [1] * len(outside), scores)
        return (accuracy_score(truth, [(z > 0).tolist() for z in inside]) + auroc) / 2

    assert found["settings"]["start"] == pytest.approx(worth([]), abs=1e-9)
    heads = [
        (layer, head)
        for layer in range(len(layers))
        for head in range(model.config.num_attention_heads)
    ]
    order = [tuple(head) for _, *head in found["order"]]
    if search == "exact":
        assert order == greedy(heads, 4, worth)[0]
    trace = [worth(order[: at + 1]) for at in range(4)]
    assert found["trace"] == pytest.approx(trace, abs=1e-9)


@pytest.mark.slow
def test_thresholds_have_the_best_f1_and_sets_miss_few_labels(learnt: Path, tmp_path: Path) -> None:
    from sklearn import metrics

    data, out = table(tmp_path / "v.jsonl", 300, 2), tmp_path / "c.safetensors"
    done = hs.calibrate(learnt, data=data, out=out, coverage=0.8, device="cpu")
    constants = done.decision.labels
    assert constants is not None
    z, y = stored(learnt, data, tmp_path)
    p = (z / torch.tensor(constants.temperatures)).sigmoid()
    order = torch.from_numpy(np.random.default_rng(0).permutation(300))
    fitting, certifying = order[:100], order[100:]
    for label, threshold in enumerate(constants.thresholds):
        truth, chances = y[fitting, label], p[fitting, label]
        best = max(metrics.f1_score(truth, chances >= chance) for chance in chances)
        assert metrics.f1_score(truth, chances >= threshold) == pytest.approx(best, abs=1e-12)
    # The largest λ on a fine grid that conformal risk control allows.
    labelled = certifying[(y[certifying] > 0).any(dim=1)]
    some, truth, n = p[labelled], y[labelled] > 0, len(labelled)
    assert n < 200

    def missed(at: float) -> float:
        return float(((some < at) & truth).sum(dim=1).div(truth.sum(dim=1)).mean())

    limit = 1 - done.decision.conformal.threshold
    assert n / (n + 1) * missed(limit - 1e-7) + 1 / (n + 1) <= 0.2 + 1e-9
    assert n / (n + 1) * missed(limit + 1e-7) + 1 / (n + 1) > 0.2


@pytest.mark.parametrize("rare", [1.0, 0.15])
def test_few_labels_are_missed_on_average(rare: float) -> None:
    """Over many draws of calibration data the mean fraction missed of samples that have a label is at
    most what was promised, and not far below, where most samples have none too.
    """
    from hydrasurgeon.statistics.conformal import prediction_sets
    from hydrasurgeon.tasks.multi_label import fit_sets

    random = torch.Generator().manual_seed(0)
    lost, labelled = 0.0, 0
    for _ in range(300):
        drawn = torch.rand(2, 400, 4, generator=random, dtype=torch.float64).numpy()
        chances = drawn[0] ** (1 / rare)
        truth = drawn[1] < chances
        sets = prediction_sets(fit_sets(chances[:200], truth[:200], 0.9), chances[200:])
        have = truth[200:].any(axis=1)
        missed = (~sets & truth[200:])[have].sum(axis=1) / truth[200:][have].sum(axis=1)
        lost, labelled = lost + float(missed.sum()), labelled + len(missed)
    assert (labelled < 0.5 * 300 * 200) == (rare < 1)
    assert 0.085 < lost / labelled < 0.1 + 0.003


def test_samples_without_labels_promise_nothing() -> None:
    from hydrasurgeon.tasks.multi_label import fit_sets

    truth = np.zeros((500, 3), dtype=bool)
    truth[:8, 0] = True
    with pytest.raises(DataError, match="8 rows with a label are too few"):
        fit_sets(np.random.default_rng(0).random((500, 3)), truth, 0.9)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([["red"], ["blue"]], "row 1: the model has no class blue"),
        ([["red"], "round"], "row 1 has the label 'round' where others have a list"),
        (["red", "round"], "row 0 has one label, expected a list of labels"),
        ([[0], [3]], "row 1 has label 3, the model has classes 0-2"),
        ([["red"], [1]], r"row 1 has the label \[1\] where others have a list"),
        ([["red"], None], "row 1 has the label None where others have a list"),
    ],
)
def test_labels_that_it_cannot_have(
    labels: list[Any], message: str, tagger: Path, tmp_path: Path
) -> None:
    data = tmp_path / "d.jsonl"
    write_lines(data, ({"text": "good film", "labels": each} for each in labels))
    with pytest.raises(DataError, match=message) as refused:
        hs.evaluate(tagger, data=str(data), device="cpu")
    assert refused.value.exit_code == 5
    assert refused.value.hint


def test_a_list_where_a_name_is_due(tmp_path: Path) -> None:
    BERT.write(tmp_path / "plain")
    with pytest.raises(DataError, match="row 0 has a list of labels, expected one label"):
        hs.evaluate(tmp_path / "plain", data=table(tmp_path / "d.jsonl", 5), device="cpu")


@pytest.mark.parametrize("option", [{"risk": 0.1}, {"ood_score": "knn"}])
def test_what_many_labels_have_no_meaning_for(
    option: dict[str, Any], tagger: Path, tmp_path: Path
) -> None:
    data = table(tmp_path / "d.jsonl", 50)
    with pytest.raises(HydraError, match="is not supported for multi_label models"):
        hs.calibrate(tagger, data=data, out=tmp_path / "x.safetensors", device="cpu", **option)


def test_members_that_answer_many_labels_are_not_chosen_by_ood_data(
    tagger: Path, tmp_path: Path
) -> None:
    data = table(tmp_path / "d.jsonl", 50)
    with pytest.raises(
        UsageError, match="--objective ood is only for models that choose one class"
    ):
        hs.build(tagger, data=data, val=data, ood=data, objective="avg", out=tmp_path / "b")
