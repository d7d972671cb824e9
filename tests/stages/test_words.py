"""Words beside a model and before it, through the commands, against sums by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from own_models import probe_folder
from row_files import write_lines
from safetensors.torch import load_file
from tiny_families import FAMILIES
from tokenizers import Tokenizer

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint, undecided
from hydrasurgeon.cli.app import run
from hydrasurgeon.data.word_tokens import TokenizeWords
from hydrasurgeon.engines import engine_of
from hydrasurgeon.errors import CheckpointError, DataError, UsageError
from hydrasurgeon.files import decided
from hydrasurgeon.options.deciding import CalibrateOptions
from hydrasurgeon.run.bag_of_words import BUCKETS, FACTOR
from hydrasurgeon.serving.inputs import TOKENS
from hydrasurgeon.stages import calibrate_words, serve
from hydrasurgeon.stages.export import export

PREFIX = "hydrasurgeon.decision.words."


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A probe on a random BERT, its tables, and what calibrates it with words and without."""
    place = tmp_path_factory.mktemp("words")
    probe_folder(place, train=400, val=200, test=60)
    for words in ("off", "blend", "cascade"):
        calibrated(place, place / "probe", place / words, words=words)
    return place


def calibrated(place: Path, source: Path, out: Path, **options: Any) -> Any:
    about = {"data": str(place / "val.csv"), "fit_data": str(place / "train.csv")}
    more = {"ood_score": "msp", "device": "cpu"}
    return hs.calibrate(source, out=out, **{**about, **more, **options})


def decision(path: Path) -> dict[str, Any]:
    return json.loads(path.with_suffix(".heads.json").read_text())["decision"]


def parts_of(path: Path) -> dict[str, np.ndarray]:
    """The stored reader."""
    return {
        name.removeprefix(PREFIX): tensor.double().numpy()
        for name, tensor in load_file(path.with_suffix(".safetensors")).items()
        if name.startswith(PREFIX)
    }


def read(path: Path, sentences: list[str]) -> np.ndarray:
    """What it sees of each sentence, token by token."""
    parts, rows = parts_of(path), []
    tokenizer = Tokenizer.from_file(str(path.parent / "random" / "tokenizer.json"))
    tokenizer.no_truncation()
    ids = parts["ids"].astype(int).tolist()
    for sentence in sentences:
        tokens = tokenizer.encode(sentence, add_special_tokens=False).ids
        counts = np.zeros(len(parts["idf"]))
        for token in tokens:
            if token in ids:
                counts[ids.index(token)] += 1
        if len(parts["idf"]) > len(ids):
            for one, other in pairwise(tokens):
                counts[len(ids) + (one * FACTOR + other) % BUCKETS] += 1
        values = counts * parts["idf"]
        rows.append(values / max(np.linalg.norm(values), 1e-12))
    return np.array(rows)


def outputs(path: Path, sentences: list[str]) -> np.ndarray:
    """What the stored reader says."""
    parts = parts_of(path)
    return read(path, sentences) @ parts["weight"] + parts["bias"]


def sentences(place: Path) -> list[str]:
    return [line.split(",")[0] for line in (place / "test.csv").read_text().splitlines()[1:]]


def logits(path: Path, rows: list[str]) -> np.ndarray:
    """What the model itself says."""
    model = hs.load(path, device="cpu")
    with torch.inference_mode():
        return model(model.transform.collate(rows))[:, 0].double().numpy()


def softmax(values: np.ndarray) -> np.ndarray:
    values = np.exp(values - values.max(axis=1, keepdims=True))
    return values / values.sum(axis=1, keepdims=True)


def test_words_beside_are_a_sum(place: Path) -> None:
    rows, record = sentences(place), decision(place / "blend")
    words = record["words"]
    assert words["mode"] == "blend"
    model, reader = words["weights"]
    mixed = model * logits(place / "off", rows) + reader * outputs(place / "blend", rows)
    expected = softmax(mixed / record["temperature"])
    answers = hs.load(place / "blend", device="cpu").decide(rows)
    assert np.asarray(answers.probabilities) == pytest.approx(expected, abs=1e-5)
    without, together = words["worth"]["nll"]
    assert together < without


@pytest.mark.parametrize("way", ["blend", "cascade"])
def test_words_of_the_file_stay_where_they_stand(place: Path, tmp_path: Path, way: str) -> None:
    """By new data, without what they were fitted on: the reader is the file's, its weights are anew."""
    again = calibrated(place, place / way, tmp_path / "again", fit_data=None)
    assert "the bag-of-words model of the file is kept, as no --fit-data is given" in again.notes
    before, after = decision(place / way), decision(tmp_path / "again")
    for name, part in parts_of(tmp_path / "again").items():
        assert np.array_equal(part, parts_of(place / way)[name])
    # By the same VAL they are the same, and so is what goes on.
    assert after["words"]["weights"] == pytest.approx(before["words"]["weights"], abs=1e-4)
    if way == "cascade":
        shares = [each["cascade"]["share_on"] for each in (before, after)]
        assert shares[0] == pytest.approx(shares[1], abs=0.02)
    else:
        rows = sentences(place)
        answers = [hs.load(path, device="cpu").decide(rows) for path in (place / way, again.path)]
        one, other = (np.asarray(each.probabilities) for each in answers)
        assert one == pytest.approx(other, abs=1e-4)
    # All that made them is told, and taken off with the state.
    steps = open_checkpoint(again.path).manifest.history
    assert [step.command for step in steps] == ["finetune", "calibrate", "calibrate"]
    assert run(["verify", str(again.path)]) == 0
    bare = undecided(open_checkpoint(again.path)).manifest
    probe = open_checkpoint(place / "probe").manifest
    assert (bare.history, bare.weights_sha256) == (probe.history, probe.weights_sha256)
    # They are weighed by the rows that can be read.
    lines = (place / "val.csv").read_text().splitlines()
    (tmp_path / "bad.csv").write_text("\n".join([*lines, ",praise"]) + "\n")
    bad = {"data": str(tmp_path / "bad.csv"), "fit_data": None, "skip_bad": True}
    calibrated(place, place / way, tmp_path / "bad", **bad)
    assert decision(tmp_path / "bad") == after
    # Half of VAL weighs them otherwise; nobody who says off has them.
    lines = (place / "val.csv").read_text().splitlines()
    (tmp_path / "half.csv").write_text("\n".join(lines[:101]) + "\n")
    half = {"data": str(tmp_path / "half.csv"), "fit_data": None}
    calibrated(place, place / way, tmp_path / "half", **half)
    assert decision(tmp_path / "half")["words"]["mode"] == way
    assert decision(tmp_path / "half")["words"]["weights"] != before["words"]["weights"]
    calibrated(place, place / way, tmp_path / "off", words="off", **half)
    assert "words" not in decision(tmp_path / "off")
    assert len(open_checkpoint(tmp_path / "off").manifest.history) == 2


def test_words_beside_a_hydras_own_cascade_stay_beside() -> None:
    words: Any = {"mode": "blend", "weights": (1.0, 0.5)}
    fields: Any = {"words": decided.BagOfWordsRecord.model_construct(**words)}
    fields |= {"cascade": decided.Cascade.model_construct(**{"share_on": 0.3})}
    options = CalibrateOptions(checkpoint="hydra", data="val.csv", out="out")
    record = decided.DecisionRecord.model_construct(**fields)
    assert calibrate_words.as_before(options, record) == options
    fields["words"] = decided.BagOfWordsRecord.model_construct(**{**words, "mode": "cascade"})
    first = calibrate_words.as_before(options, decided.DecisionRecord.model_construct(**fields))
    assert (first.words, first.budget) == ("cascade", "on=0.300000")


def test_words_learn_what_the_model_answers_to_unlabelled_texts(
    place: Path, tmp_path: Path
) -> None:
    header, *lines = (place / "train.csv").read_text().splitlines()
    few, more = tmp_path / "few.csv", tmp_path / "more.csv"
    wrong = [f"{one.split(',')[0]},{other.split(',')[1]}" for one, other in pairwise(lines[:61])]
    few.write_text("\n".join([header, *wrong]) + "\n")
    more.write_text("\n".join(["text", *(line.split(",")[0] for line in lines[60:])]) + "\n")
    about = {"fit_data": str(few), "words": "cascade", "unlabelled": str(more), "max_loss": 9.0}
    made = calibrated(place, place / "off", tmp_path / "taught", **about)
    assert "the bag-of-words model also learnt from --unlabelled" in made.notes
    # Where the loss is least, W = −strength · Σ v (p − t), with the model's answers among the t.
    names = sorted({line.split(",")[1] for line in lines})
    rows = [line.split(",")[0] for line in lines]
    target = np.eye(len(names))[[names.index(line.split(",")[1]) for line in lines]]
    words = made.decision.words
    assert words is not None
    target[:60] = target[1:61]
    target[60:] = softmax(words.alone * logits(place / "off", rows[60:]))
    (tmp_path / "random").symlink_to(place / "random")
    table, weight = read(tmp_path / "taught", rows), parts_of(tmp_path / "taught")["weight"]
    slope = table.T @ (softmax(outputs(tmp_path / "taught", rows)) - target)
    strength = -(weight * slope).sum() / (slope**2).sum()
    assert strength > 0.1
    # L-BFGS stops where the loss falls by less than a millionth, in nine columns early.
    start = table.T @ (1 / len(names) - target)
    assert np.linalg.norm(weight + strength * slope) < 0.01 * strength * np.linalg.norm(start)


def told(place: Path, name: str, *, tokens: bool) -> dict[str, np.ndarray]:
    """What any model answers of a table, and beside it tokens or texts."""
    lines = [line.split(",") for line in (place / f"{name}.csv").read_text().splitlines()[1:]]
    rows, names = [line[0] for line in lines], sorted({line[1] for line in lines})
    tokenizer = Tokenizer.from_file(str(place / "random" / "tokenizer.json"))
    tokenizer.enable_padding(length=64)
    ids = [np.array(tokenizer.encode(row, add_special_tokens=False).ids) for row in rows]
    beside = {"tokens": np.where(np.array(ids) == 0, -1, ids)} if tokens else {"texts": rows}
    labels = [names.index(line[1]) for line in lines]
    return {"logits": logits(place / "off", rows), "labels": np.array(labels), **beside}


@pytest.mark.parametrize("tokens", [True, False])
def test_any_model_s_answers_have_words_beside_them(
    tokens: bool, place: Path, tmp_path: Path
) -> None:
    files = {name: tmp_path / f"{name}.npz" for name in ("val", "train", "test")}
    for name, file in files.items():
        np.savez(file, **told(place, name, tokens=tokens))
    about = {"predictions": files["val"], "fit_predictions": files["train"], "ood_score": "msp"}
    made = hs.calibrate(**about, out=tmp_path / "d.safetensors").decision
    test = told(place, "test", tokens=tokens)
    read = test["tokens" if tokens else "texts"]
    decided = hs.Decision.load(tmp_path / "d.safetensors").decide(test["logits"], None, read)
    if tokens:  # the tokenizer's own: what the checkpoint itself reads
        record = decision(place / "blend")
        assert made.words is not None
        assert made.words.weights == pytest.approx(record["words"]["weights"], rel=1e-3)
        answers = hs.load(place / "blend", device="cpu").decide(sentences(place))
        assert decided.probabilities == pytest.approx(np.asarray(answers.probabilities), abs=1e-4)
        assert decided.ood_score == pytest.approx(np.asarray(answers.ood_score), abs=1e-4)
    rows = hs.predict(decision=tmp_path / "d.safetensors", predictions=files["test"])
    assert [row["label"] for row in rows] == decided.labels.tolist()
    plain = hs.calibrate(**about, words="off", out=tmp_path / "off").decision
    assert made.nll["temperature"] < plain.nll["temperature"]
    np.savez(files["test"], **told(place, "test", tokens=not tokens))
    with pytest.raises(DataError, match="uses a bag-of-words model"):
        hs.predict(decision=tmp_path / "d.safetensors", predictions=files["test"])
    with pytest.raises(UsageError, match="tokens in both"):
        hs.calibrate(
            **{**about, "fit_predictions": files["test"]}, words="blend", out=tmp_path / "x"
        )


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["torch", "onnx"])
def test_models_side_by_side_read_each_with_its_own_words(
    engine: str, place: Path, tmp_path: Path
) -> None:
    """Or with none."""
    if engine == "onnx":
        pytest.importorskip("onnxruntime")
    some = (place / "train.csv").read_text().splitlines()[:201]
    (tmp_path / "some.csv").write_text("\n".join(some) + "\n")
    read = {"words": "blend", "fit_data": str(tmp_path / "some.csv")}
    calibrated(place, place / "probe", tmp_path / "other", **read)

    def outputs(*models: Path) -> np.ndarray:
        more = {"data": str(place / "test.csv"), "engine": engine, "ensemble": len(models) > 1}
        file = tmp_path / "said.safetensors"
        hs.evaluate([*models], predictions=file, device="cpu", force=True, **more)
        return load_file(file)["logits"].numpy()

    models = [place / "blend", place / "off", tmp_path / "other"]
    apart = [outputs(model) for model in models]
    assert not np.allclose(apart[0], apart[2], atol=1e-3)
    for first, second in ((0, 1), (1, 0), (0, 2)):
        both = np.concatenate([apart[first], apart[second]], axis=1)
        np.testing.assert_allclose(outputs(models[first], models[second]), both, atol=1e-5)


def test_tokens_are_counted_as_the_model_reads_them(place: Path) -> None:
    """By every engine; a text in windows counts as none."""
    texts = ["good film", "bad plot " * 300, "good"]
    live = engine_of(open_checkpoint(place / "cascade"), device="cpu")
    tokenizer = Tokenizer.from_file(str(place / "random" / "tokenizer.json"))
    most = live.transform.max_length
    counts = [{TOKENS: min(most, len(tokenizer.encode(text).ids))} for text in texts]
    assert counts[1] == {TOKENS: most}
    for batch in (live.prepared(texts), live.transform.arrays(texts)):  # tensors, and for graphs
        assert serve._tokens_of(batch, live.transform) == counts
    tags = TokenizeWords(lambda: live.transform.tokenizer, max_length=most)
    batch = tags.arrays(texts)
    assert len(batch["input_ids"]) > len(texts)
    assert serve._tokens_of(batch, tags) == []


@pytest.mark.slow
@pytest.mark.parametrize("score", ["msp", "vim", "mds"])
def test_ood_scores_are_the_model_s_own(score: str, place: Path, tmp_path: Path) -> None:
    rows, files = sentences(place), place
    if score != "msp":  # fitted to features; vim reads logits too
        files = tmp_path
        for words in ("off", "blend", "cascade"):
            calibrated(place, place / "probe", files / words, words=words, ood_score=score)
    alone, beside, first = (
        hs.load(files / name, device="cpu").decide(rows) for name in ("off", "blend", "cascade")
    )
    assert np.asarray(beside.ood_score) == pytest.approx(np.asarray(alone.ood_score), abs=1e-5)
    assert np.asarray(beside.unfamiliar).tolist() == np.asarray(alone.unfamiliar).tolist()
    late = np.asarray(first.members_run) > 0
    whole = np.asarray(alone.ood_score)[late]
    assert np.asarray(first.ood_score)[late] == pytest.approx(whole, abs=1e-5)
    assert not np.asarray(first.unfamiliar)[~late].any()
    table = str(place / "test.csv")
    foreign = {"ood": [f"near:other={table}"], "data": [table], "device": "cpu"}
    report = hs.evaluate([place / "blend"], **foreign).report.results[0]
    assert report.ood[0].auroc == pytest.approx(0.5)


def test_words_first_answer_what_they_are_sure_of(place: Path) -> None:
    rows, record = sentences(place), decision(place / "cascade")
    words, cascade = record["words"], record["cascade"]
    assert words["mode"] == "cascade"
    assert words["threshold"] == cascade["threshold"]
    early = softmax(outputs(place / "cascade", rows) / cascade["temperature"])
    model, reader = words["weights"]
    mixed = model * logits(place / "off", rows) + reader * outputs(place / "cascade", rows)
    late = softmax(mixed / record["temperature"])
    sure = early.max(axis=1) >= cascade["threshold"]
    assert sure.any()
    answers = hs.load(place / "cascade", device="cpu").decide(rows)
    assert np.asarray(answers.members_run).tolist() == [int(not each) for each in sure]
    expected = np.where(sure[:, None], early, late)
    assert np.asarray(answers.probabilities) == pytest.approx(expected, abs=1e-5)
    scores = np.asarray(answers.ood_score)
    assert scores[sure].max() <= cascade["floor"]  # more familiar than all that the model reads
    table = [line.split(",")[0] for line in (place / "val.csv").read_text().splitlines()[1:]]
    known = np.asarray(hs.load(place / "off", device="cpu").decide(table).ood_score)
    assert np.abs(known - cascade["floor"]).min() < 1e-6
    assert (known < cascade["floor"]).mean() < 0.05
    alone = hs.load(place / "cascade", device="cpu").decide([rows[0]])
    assert np.asarray(alone.probabilities)[0] == pytest.approx(expected[0], abs=1e-5)
    whole = hs.load(place / "cascade", device="cpu").decide(rows, cascade=False)
    assert np.asarray(whole.probabilities) == pytest.approx(late, abs=1e-5)


def test_eval_can_leave_words_out(place: Path) -> None:
    table, record = str(place / "test.csv"), decision(place / "cascade")
    options: dict[str, Any] = {"data": [table], "device": "cpu"}
    alone = hs.evaluate([place / "cascade"], no_words=True, **options).report.results[0].id
    rows = sentences(place)
    scale = record["words"]["alone"] / record["temperature"]
    chances = softmax(scale * logits(place / "off", rows))
    labels = [line.split(",")[1] for line in (place / "test.csv").read_text().splitlines()[1:]]
    names = [str(name) for name in hs.load(place / "off").classes]
    own = chances[np.arange(len(rows)), [names.index(label) for label in labels]]
    assert alone.nll == pytest.approx(-np.log(own).mean(), abs=1e-5)
    done = hs.evaluate([place / "cascade"], **options)
    assert done.report.results[0].id.nll != alone.nll
    told = "cascade: measured without its cascade; --cascade measures it as deployed"
    assert told in done.notes
    assert told not in hs.evaluate([place / "blend"], **options).notes
    staged = hs.evaluate([place / "cascade"], cascade=True, **options)
    assert told not in staged.notes
    answers = np.asarray(hs.load(place / "cascade", device="cpu").decide(rows).probabilities)
    own = answers[np.arange(len(rows)), [names.index(label) for label in labels]]
    assert staged.report.results[0].id.nll == pytest.approx(-np.log(own).mean(), abs=1e-5)


@pytest.mark.parametrize("way", ["off", "blend", "cascade"])
def test_of_nothing_there_are_no_answers(way: str, place: Path) -> None:
    model = hs.load(place / way, device="cpu")
    assert len(model.decide([]).probabilities) == len(model.predict([])) == 0
    assert len(hs.Predictor(place / way)([])) == 0


def test_new_words_go_on(place: Path) -> None:
    model = hs.load(place / "cascade", device="cpu")
    assert np.asarray(model.decide(["[UNK] [UNK] [UNK]"]).members_run).tolist() == [1]


def test_a_text_is_read_to_its_end(place: Path) -> None:
    model = hs.load(place / "blend", device="cpu")
    longest = model.transform.max_length
    start = " ".join(["film"] * longest)
    one, other = (
        np.asarray(model.decide([f"{start} {end}"]).probabilities) for end in ("", "good")
    )
    assert np.abs(one - other).max() > 1e-4


def test_auto_keeps_what_pays(place: Path, tmp_path: Path) -> None:
    auto = calibrated(place, place / "probe", tmp_path / "auto")
    before, after = decision(place / "blend")["words"]["worth"]["nll"]
    assert (auto.decision.words is not None) == (after < before)
    few = tmp_path / "few.csv"
    few.write_text("\n".join((place / "train.csv").read_text().splitlines()[:21]) + "\n")
    made = calibrated(place, place / "probe", tmp_path / "few", fit_data=str(few))
    assert made.decision.words is None
    assert any("words: left out, for 20 samples" in note for note in made.notes)


def test_refusals(place: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="words: are fitted on --fit-data"):
        calibrated(place, place / "probe", tmp_path / "x", words="blend", fit_data=None)
    one = tmp_path / "one.csv"
    lines = (place / "train.csv").read_text().splitlines()
    one.write_text("\n".join([lines[0], *(line for line in lines if "praise" in line)]) + "\n")
    made = calibrated(place, place / "probe", tmp_path / "y", words="blend", fit_data=str(one))
    assert made.decision.words is not None  # the other classes have their bias alone
    images = FAMILIES["ViT"]
    images.write(tmp_path / "images")
    data = images.data(tmp_path, rows=20)
    with pytest.raises(UsageError, match="--words blend is for text models, and images"):
        hs.calibrate(tmp_path / "images", data=data, words="blend", out=tmp_path / "z")


def edited(path: Path, out: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> Path:
    from safetensors import safe_open
    from safetensors.torch import save_file

    with safe_open(path.with_suffix(".safetensors"), "pt") as file:
        metadata = file.metadata()
    tensors = load_file(path.with_suffix(".safetensors"))
    change(tensors)
    save_file(tensors, out, metadata=metadata)
    return out


def test_a_changed_reader_is_noticed(place: Path, tmp_path: Path) -> None:
    def turn(tensors: dict[str, torch.Tensor]) -> None:
        tensors[f"{PREFIX}weight"] = -tensors[f"{PREFIX}weight"]

    def cut(tensors: dict[str, torch.Tensor]) -> None:
        tensors[f"{PREFIX}weight"] = tensors[f"{PREFIX}weight"][:-1].contiguous()

    for number, change in enumerate((turn, cut)):
        path = edited(place / "blend", tmp_path / f"{number}.safetensors", change)
        with pytest.raises(CheckpointError):
            hs.load(path)


def answered(path: Path, table: str, engine: str = "auto") -> list[Any]:
    return [
        (row["label"], pytest.approx(row["probability"], abs=1e-4), row["members_run"])
        for row in hs.predict(path, data=table, device="cpu", engine=engine)
    ]


@pytest.mark.slow
def test_exports_answer_alike_or_leave_the_decision_out(place: Path, tmp_path: Path) -> None:
    table = str(place / "test.csv")
    folder = export(place / "cascade", out=f"{tmp_path / 'cascade'}/")
    assert not any("has no decision state" in note for note in folder.notes)
    assert answered(folder.path, table) == answered(place / "cascade", table, "torch")
    for mode in ("blend", "cascade"):
        by_engine = (answered(place / mode, table, engine) for engine in ("torch", "onnx"))
        assert next(by_engine) == next(by_engine)
    plain = answered(place / "probe", table)
    alone = export(place / "blend", out=tmp_path / "alone.onnx")
    stock = export(place / "cascade", format="stock", out=f"{tmp_path / 'stock'}/")
    for made in (alone, stock):
        assert any(
            "has no decision state, as that uses a bag-of-words model" in note
            for note in made.notes
        )
        assert answered(made.path, table) == plain
    assert not (tmp_path / "stock" / "decision.json").exists()


@pytest.mark.parametrize("task", ["binary", "multi_label"])
def test_other_kinds(task: str, place: Path, tmp_path: Path) -> None:
    labels: dict[str, Callable[[str], Any]] = {
        "binary": lambda label: int(label == "praise"),
        "multi_label": lambda label: {"praise": ["a", "b"], "blame": ["b"], "shrug": ["c"]}[label],
    }
    role = "labels" if task == "multi_label" else "label"
    for name in ("train", "val"):
        rows = [line.split(",") for line in (place / f"{name}.csv").read_text().splitlines()[1:]]
        made = [{"text": text, role: labels[task](label)} for text, label in rows]
        write_lines(tmp_path / f"{name}.jsonl", made)
    about = {"data": str(tmp_path / "train.jsonl"), "device": "cpu"}
    hs.finetune(
        place / "random",
        recipe="probe",
        set={"task": task},
        out=tmp_path / "probe",
        val=str(tmp_path / "val.jsonl"),
        **about,
    )
    done = hs.calibrate(
        tmp_path / "probe",
        data=str(tmp_path / "val.jsonl"),
        fit_data=str(tmp_path / "train.jsonl"),
        words="blend",
        out=tmp_path / "blend",
        device="cpu",
        ood_score="msp",
    )
    assert done.decision.words is not None
    before, after = done.decision.words.worth.nll
    assert after <= before + 0.02
    rows = sentences(place)
    model, reader = done.decision.words.weights
    read = outputs_of(place, tmp_path / "blend", rows)
    mixed = model * logits(tmp_path / "blend", rows) + reader * read
    loaded = hs.load(tmp_path / "blend", device="cpu")
    (said,) = loaded.ask(loaded.transform.collate(rows))
    assert np.asarray(said.logits)[:, 0] == pytest.approx(mixed, abs=1e-4)


def outputs_of(place: Path, path: Path, rows: list[str]) -> np.ndarray:
    (path.parent / "random").mkdir(exist_ok=True)
    source = place / "random" / "tokenizer.json"
    (path.parent / "random" / "tokenizer.json").write_bytes(source.read_bytes())
    return outputs(path, rows)


def test_entities_have_none(place: Path) -> None:
    from hydrasurgeon.decision.text_model import lacks
    from hydrasurgeon.tasks import TASKS

    why = lacks(TASKS["token_classification"], None, None, first=False)  # type: ignore[arg-type]
    assert why is not None
    assert "every word has an answer of its own" in why


def test_bench_runs_only_what_goes_on(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 60 samples in one round and a warm-up, those that words are unsure of."""
    from hydrasurgeon.runtime.classifier import Classifier

    half = tmp_path / "half"
    calibrated(place, place / "probe", half, words="cascade", budget="on=0.5")
    going = np.asarray(hs.load(half, device="cpu").decide(sentences(place)).members_run)
    ran, compute = [], Classifier.compute

    def counting(model: Any, inputs: Any, *, features: bool) -> Any:
        ran.append(len(inputs["input_ids"]))
        return compute(model, inputs, features=features)

    monkeypatch.setattr(Classifier, "compute", counting)
    about = {"data": str(place / "test.csv"), "batch": "1", "runs": 1, "device": "cpu"}
    hs.bench([half], engine="torch", **about)
    assert sum(ran) == 2 * (going > 0).sum()
    assert 0 < sum(ran) < 2 * 60
