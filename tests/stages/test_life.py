"""The life of a task: finetune, fuse, calibrate, predict, eval, export, monitor and build, each
beside the sums of `task_references`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exporting import exports, onnx_writes
from lives import BERT, CPU, SIZES, Life
from row_files import read_lines, write_lines
from task_references import REFERENCES

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.stages.export import export
from hydrasurgeon.stages.monitor import monitor
from hydrasurgeon.tasks import TASKS

SHEETS = json.loads((Path(__file__).parents[1] / "golden" / "sheets.json").read_text())
"""First lines of the CSV files of `predict`."""
STILL = {"epochs": "1", "lr": "1e-12", "batch_size": "60", "label_smoothing": "0", "warmup": "0"}
"""Settings of one step that changes nothing and tells the loss."""


@pytest.fixture(
    scope="module",
    params=[task for task in REFERENCES if task.name in TASKS],
    ids=lambda task: task.name,
)
def life(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Life:
    return Life(request.param, tmp_path_factory.mktemp(request.param.name))


def alike(value: Any, expected: Any, close: float = 1e-5) -> None:
    """Compare parts of rows, numbers as `close` as that."""
    if isinstance(expected, list | tuple | np.ndarray):
        assert len(value) == len(expected)
        for pair in zip(value, expected, strict=True):
            alike(*pair, close)
    elif isinstance(expected, dict):
        for name, part in expected.items():
            alike(value[name], part, close)
    elif isinstance(expected, float):
        assert value == pytest.approx(expected, abs=close, rel=close)
    else:
        assert value == expected


def test_every_task_has_a_life() -> None:
    assert {*TASKS} <= {task.name for task in REFERENCES}


@pytest.mark.slow
def test_training_starts_from_torchs_loss_and_learns(life: Life, tmp_path: Path) -> None:
    reference = life.reference(life.model)
    logits, labels = (torch.tensor(array) for array in life.outputs(life.model, "few"))
    options = {"data": life.tables["few"], "recipe": "text", **CPU}
    settings = {**STILL, "dropout": "0"}
    weight = reference.weight
    if weight is not None:
        settings["pos_weight"] = json.dumps(weight)
    still = hs.finetune(life.model, set=settings, out=tmp_path / "still", **options)
    loss = reference.loss(logits[:, 0].float(), labels, weight)
    assert still.trained.loss == pytest.approx(float(loss), abs=1e-5)
    metric, least = reference.learnt
    assert getattr(life.measured(life.model, "test"), metric) > least
    trained = life.trained.trained
    (logged,) = (row["val_nll"] for row in trained.log if row["epoch"] == trained.kept_epoch)
    few = life.measured(life.model, "few")
    nll = few.rmse**2 if life.task.name == "regression" else few.nll
    assert nll == pytest.approx(logged, abs=1e-4)


@pytest.mark.slow
@pytest.mark.usefixtures("own_module_cache")
def test_its_library_answers_the_same(life: Life) -> None:
    import transformers

    if life.task.name == "token_classification":
        pytest.skip("its library answers for tokens; test_spans compares words")
    load = transformers.AutoModelForSequenceClassification.from_pretrained
    inputs, labels = BERT.inputs(), torch.tensor(life.outputs(life.model, "few")[1][:5])
    for folder, parts in ((life.model, [life.model]), (life.hydra, life.members)):
        model = hs.load(folder, **CPU)
        reference = life.task(None)
        with torch.inference_mode():
            apart = torch.cat([hs.load(part, **CPU)(inputs) for part in parts], dim=1)
            torch.testing.assert_close(model(inputs), apart, rtol=0, atol=1e-5)
            library = load(folder, trust_remote_code=True).eval()(**inputs, labels=labels)
        logits = reference.pooled(apart.double().numpy())
        again = reference.pooled(library.logits.double().numpy()[:, None])
        np.testing.assert_allclose(again, logits, rtol=0, atol=1e-5)
        if life.task.name != "binary":  # whose one label is a number to transformers
            loss = reference.loss(torch.tensor(logits).float(), labels)
            assert float(library.loss) == pytest.approx(float(loss), abs=1e-4)
        answers = np.asarray(model.predict(inputs), dtype=np.float64)
        expected = reference.answers(apart.double().numpy()).reshape(5, -1)
        alike(answers.reshape(5, -1), expected[:, : logits.shape[1]])
        assert open_checkpoint(folder).manifest.model.task == life.task.name


@pytest.mark.parametrize("name", ["model", "hydra", "ready"])
def test_eval_measures_what_other_libraries_do(life: Life, name: str, tmp_path: Path) -> None:
    checkpoint, saved = getattr(life, name), tmp_path / "p.safetensors"
    logits, labels = life.outputs(checkpoint, "test")
    reference = life.reference(checkpoint)
    measured = life.measured(checkpoint, "test", predictions=saved, ci=0.9)
    expected = reference.quality(reference.answers(logits), labels)
    if name == "ready":
        column = [row.get(life.task.column) for row in read_lines(life.tables["test"])]
        expected |= reference.kept(life.rows, column)
    assert {metric: getattr(measured, metric) for metric in expected} == pytest.approx(
        expected, abs=1e-5
    )
    assert measured.n == SIZES["test"]
    assert measured.ci
    for metric, (low, high) in measured.ci.items():
        assert low <= getattr(measured, metric) <= high
    assert hs.evaluate(predictions_in=[saved], ci=0.9).report.results[0].id == measured


def test_rows_follow_from_the_decision_state(life: Life) -> None:
    logits, _ = life.outputs(life.ready, "test")
    reference = life.reference(life.ready)
    scores = reference.ood(logits)
    if scores is None:
        scores = np.array([row["ood_score"] for row in life.rows])
    unfamiliar = scores > reference.record.ood.threshold
    columns = reference.columns(logits, unfamiliar)
    for at, (row, odd) in enumerate(zip(life.rows, unfamiliar, strict=True)):
        expected = {name: values[at] for name, values in columns.items()}
        if odd and "answer" in columns:
            expected["answer"] = "unfamiliar"
        alike(row, {"id": at, **expected, "ood_score": scores[at], "unfamiliar": odd})
    named = [name for name in TASKS[life.task.name].columns if name != "error"]
    assert [*life.rows[0]] == ["id", *named]
    assert 0 < unfamiliar.sum() < SIZES["test"] / 5


def test_constants_are_the_best_and_sets_as_large_as_promised(life: Life) -> None:
    """On the third that fits no other constants have a lower NLL; a quantile of the rest bounds sets."""
    logits, labels = life.outputs(life.ready, "val")
    order = np.random.default_rng(0).permutation(SIZES["val"])
    fitting, certifying = order[:100], order[100:]
    reference = life.reference(life.ready)
    record, tried = reference.record, 0

    def nll(changed: Any) -> float:
        other = life.task(reference.names, changed)
        return other.quality(other.answers(logits[fitting]), labels[fitting])["nll"]

    for holder, name in (
        (None, "temperature"),
        (None, "bias"),
        ("labels", "temperatures"),
        ("joint", "aleatoric"),
        ("joint", "epistemic"),
    ):
        fields = record if holder is None else getattr(record, holder)
        number = getattr(fields, name, None)
        for factor in (0.97, 1.03) if number else ():
            moved = tuple(x * factor for x in number) if holder == "labels" else number * factor
            changed = fields.model_copy(update={name: moved})
            whole = changed if holder is None else record.model_copy(update={holder: changed})
            assert nll(whole) >= nll(record) - 1e-9
            tried += nll(whole) > nll(record)
    assert tried > 1
    scores = reference.misfit(reference.answers(logits[certifying]), labels[certifying])
    if scores is not None:
        rank = int(np.ceil(201 * record.conformal.coverage))
        assert record.conformal.threshold == pytest.approx(np.sort(scores)[rank - 1], abs=1e-6)


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_monitor_counts_the_rows(life: Life, kind: str, tmp_path: Path) -> None:
    answers = tmp_path / f"a.{kind}"
    hs.predict(life.ready, data=life.tables["test"], out=answers, **CPU)
    drift = monitor(answers, against=life.ready).drift
    reference = life.reference(life.ready)
    counts = np.zeros(len(drift.answers.predicted), dtype=int)
    np.add.at(counts, [reference.tally(row) for row in life.rows], 1)
    assert drift.answers.predicted == tuple(counts)
    assert drift.answers.unfamiliar == sum(row["unfamiliar"] for row in life.rows)
    assert drift.answers.rows == SIZES["test"]
    assert not drift.drifted
    if kind == "csv":
        assert answers.read_text().splitlines()[0] == SHEETS[life.task.name]


@exports
@onnx_writes
@pytest.mark.slow
def test_graphs_answer_the_same(life: Life, tmp_path: Path) -> None:
    source = life.hydra if life.task.name == "regression" else life.ready
    # Texts that the tokenizer reads like validation rows may lie on a threshold; these are longer.
    texts = read_lines(life.tables["test"])
    longer = [
        {"tokens": row["tokens"] * 2}
        if "tokens" in row
        else {"text": f"{row['text']} {row['text']}"}
        for row in texts
    ]
    data = {"data": write_lines(tmp_path / "longer.jsonl", longer), **CPU}
    rows = [*hs.predict(source, engine="torch", **data)]
    graph = export(source, out=f"{tmp_path / 'graph'}/").path
    alike([*hs.predict(graph, **data)], rows, 1e-4)
    # engines/test_onnx and families/test_words compare what other tasks get from a graph.
    if life.task.name == "regression":
        alike([*hs.predict(source, engine="onnx", **data)], rows, 1e-4)


@pytest.mark.slow
def test_build_shows_what_eval_measures(life: Life, tmp_path: Path) -> None:
    options = {"data": life.tables["train"], "val": life.tables["val"], **CPU}
    front = hs.build(life.model, budget="macs=0.8,1", out=f"{tmp_path / 'front'}/", **options)
    record = json.loads((front.path / "front.json").read_text())
    single = next(row for row in record["references"] if row["name"].startswith("single"))
    measured = life.measured(life.model, "val")
    for metric in life.task.uncalibrated:
        assert single[metric] == pytest.approx(getattr(measured, metric), abs=1e-6)
    for rung in record["rungs"]:
        measured = life.measured(front.path / rung["path"], "val")
        for metric in ("accuracy", "f1", "mae", "nll", "rmse", "token_accuracy"):
            if metric in rung:  # of both halves' constants
                assert rung[metric] == pytest.approx(getattr(measured, metric), abs=0.03)
                assert rung["errors"].get(metric, 1) > 0
