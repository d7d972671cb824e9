"""Labels that are probabilities: how they are written, and what is learnt of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from row_files import read_lines, write_lines
from safetensors.torch import load_file
from tiny_families import FAMILIES, WORDS

import hydrasurgeon as hs
from hydrasurgeon.data import open_data
from hydrasurgeon.errors import DataError
from hydrasurgeon.files.manifest import Model

BERT = FAMILIES["BERT"]
NAMES = ("bad", "fine", "good")
SHARES = [[0.1, 0.2, 0.7], [0.9, 0.1, 0.0], [0.0, 0.5, 0.5], [0.3, 0.4, 0.3]]
TEXTS = [f"{WORDS[at]} {WORDS[-1 - at]}" for at in range(len(SHARES))]
MODEL = Model(family="timm", arch="x", num_classes=3, labels=NAMES)


def table(place: Path, rows: list[dict[str, Any]]) -> str:
    lines = [{"text": text, **row} for text, row in zip(TEXTS * len(rows), rows, strict=False)]
    return write_lines(place, lines)


def named(shares: list[float]) -> dict[str, float]:
    """What has none is left out, and the order is another one."""
    return {name: p for name, p in reversed([*zip(NAMES, shares, strict=True)]) if p}


def written(home: Path, how: str) -> str:
    if how == "objects":
        return table(home / "t.jsonl", [{"said": named(row)} for row in SHARES])
    if how == "cells":
        return table(home / "t.jsonl", [{"said": json.dumps(named(row))} for row in SHARES])
    if how == "lists":
        return table(home / "t.jsonl", [{"said": row} for row in SHARES])
    columns = [{f"p.{n}": p for n, p in zip(NAMES, row, strict=True)} for row in SHARES]
    if how == "columns":
        return table(home / "t.jsonl", columns)
    import pandas as pd

    frame = pd.DataFrame({"text": TEXTS, **{k: [row[k] for row in columns] for k in columns[0]}})
    place = home / f"t{how}"
    frame.to_csv(place, index=False) if how == ".csv" else frame.to_parquet(place)
    return str(place)


@pytest.mark.parametrize("how", ["objects", "cells", "lists", "columns", ".csv", ".parquet"])
def test_the_same_however_they_are_written(how: str, tmp_path: Path) -> None:
    spec = written(tmp_path, how)
    if how in ("objects", "cells", "lists"):
        spec += "#label,said"
    samples = open_data(spec, model=MODEL)
    assert samples.written is not None
    assert samples.written.chances == pytest.approx(np.array(SHARES), abs=1e-6)
    assert samples.labels is not None
    assert samples.labels.tolist() == [2, 0, 1, 1]
    assert samples.note is not None
    assert "which training learns; all else takes the most probable" in samples.note
    some = open_data(spec, model=MODEL, limit=2, seed=1)
    assert some.written is not None
    assert some.written.chances is not None
    assert some.written.chances.argmax(axis=1).tolist() == some.labels.tolist()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({"bad": 0.5, "good": 0.4}, "row 1: its probabilities sum to 0.9"),
        ({"bad": 1.5, "good": -0.5}, "row 1 has the probability -0.5"),
        ({"bad": True}, "row 1 has the probability True"),
        ({"bad": "often"}, "row 1 has the probability 'often'"),
        ({"bad": "1.0"}, "row 1 has the probability '1.0'"),
        ({}, "row 1: its probabilities sum to 0"),
        ("good", "row 1 has the label 'good' where others have an object"),
        ({"awful": 0.1, "good": 0.9}, "row 1: the model has no class awful"),
    ],
)
def test_what_are_no_probabilities(said: Any, says: str, tmp_path: Path) -> None:
    place = table(tmp_path / "t.jsonl", [{"label": named(SHARES[0])}, {"label": said}])
    with pytest.raises(DataError, match=says):
        open_data(place, model=MODEL)


def test_objects_without_any_probability(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="row 0: its probabilities sum to 0"):
        open_data(table(tmp_path / "t.jsonl", [{"label": {}}, {"label": {}}]), model=MODEL)


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ([0.5, 0.5], "others have 3 numbers"),
        ([0.5, 0.2, 0.2], "row 1: its probabilities sum to"),
        ([None, 0.5, 0.5], "row 1 has the probability None"),
        ([0.25, "0.5", 0.25], "row 1 has the probability '0.5'"),
    ],
)
def test_lists_that_are_no_probabilities(said: Any, says: str, tmp_path: Path) -> None:
    place = table(tmp_path / "t.jsonl", [{"label": SHARES[0]}, {"label": said}])
    with pytest.raises(DataError, match=says):
        open_data(place, model=MODEL)


@pytest.mark.parametrize("row", [[0.25, 0.75], [0.1, 0.2, 0.7, 0.0]])
def test_lists_have_a_probability_for_each_class(row: list[float], tmp_path: Path) -> None:
    """Neither fewer, where the last class would have none, nor more that are 0."""
    place = table(tmp_path / "t.jsonl", [{"label": row}] * 2)
    with pytest.raises(DataError, match=f"row 0 has {len(row)} probabilities, .* has 3 classes"):
        open_data(place, model=MODEL)


def test_rounded_ones_sum_to_one(tmp_path: Path) -> None:
    place = table(tmp_path / "t.jsonl", [{"label": [0.33, 0.33, 0.335]}] * 2)
    samples = open_data(place, model=MODEL)
    assert samples.written is not None
    assert samples.written.chances is not None
    assert samples.written.chances.sum(axis=1) == pytest.approx([1, 1])
    other = table(tmp_path / "u.jsonl", [{"label": [0.3, 0.3, 0.4]}] * 2)
    # Both say the same labels, and are not the same data.
    assert samples.labels is not None
    assert samples.fingerprint()["sha256"] != open_data(other, model=MODEL).fingerprint()["sha256"]


def test_sums_of_exactly_a_hundredth_more_or_less(tmp_path: Path) -> None:
    place = table(tmp_path / "t.jsonl", [{"label": [0.33] * 3}, {"label": [0.34, 0.34, 0.33]}])
    samples = open_data(place, model=MODEL)
    assert samples.written is not None
    assert samples.written.chances is not None
    assert samples.written.chances[0] == pytest.approx(np.full(3, 1 / 3))
    assert samples.written.chances[1] == pytest.approx(np.array([0.34, 0.34, 0.33]) / 1.01)


@pytest.mark.parametrize("kind", [".csv", ".parquet"])
def test_an_empty_cell_is_no_probability(kind: str, tmp_path: Path) -> None:
    import pandas as pd

    shares = {"p.bad": [0.5, 0.4], "p.fine": [0.5, 0.6], "p.good": [0.0, None]}
    place = tmp_path / f"t{kind}"
    frame = pd.DataFrame({"text": TEXTS[:2], **shares})
    frame.to_csv(place, index=False) if kind == ".csv" else frame.to_parquet(place)
    with pytest.raises(DataError, match="row 1 has the probability"):
        open_data(str(place), model=MODEL)


def test_labels_beside_probabilities(tmp_path: Path) -> None:
    """Training learns the probabilities; all else takes the labels, where there are some."""
    given = ["bad", "", None, "good"]
    rows = [
        {"label": label, **{f"p.{n}": p for n, p in zip(NAMES, row, strict=True)}}
        for label, row in zip(given, SHARES, strict=True)
    ]
    samples = open_data(place := table(tmp_path / "t.jsonl", rows), model=MODEL)
    assert samples.written is not None
    assert samples.labels is not None
    assert samples.labels.tolist() == [0, 0, 1, 2]
    assert samples.written.held == pytest.approx(np.array(SHARES), abs=1e-6)
    assert "takes the labels beside them, and the most probable where" in (samples.note or "")
    with pytest.raises(DataError, match="row 1 has no label"):
        open_data(f"{place}#label,label", model=MODEL)
    for row in rows:
        row["label"] = "good"
        row |= {"p.bad": 0.5, "p.fine": 0.5, "p.good": 0.0}
    never = open_data(table(tmp_path / "v.jsonl", rows), model=MODEL)
    assert never.labels is not None
    assert never.labels.tolist() == [2] * 4
    assert (never.note or "").endswith("all else takes the labels beside them")


def test_columns_that_are_no_probabilities_of_the_labels(tmp_path: Path) -> None:
    foreign = table(tmp_path / "u.jsonl", [{"label": "bad", "p.raw": 0.2, "p.adjusted": 0.3}] * 4)
    alone = open_data(foreign, model=MODEL)
    assert alone.written is not None
    assert alone.written.chances is None
    assert "the columns p.raw, … are not read, as the label bad has none" in (alone.note or "")
    wrong = table(tmp_path / "w.jsonl", [{"label": "bad", "p.bad": 0.2, "p.good": 0.3}] * 4)
    assert len(open_data(wrong)) == 4  # where nothing asks for labels
    with pytest.raises(DataError, match=r"sum to 0\.5") as refused:
        open_data(wrong, model=MODEL)
    assert "--columns label=label" in str(refused.value.hint)


def test_parquet_has_all_names_in_all_rows(tmp_path: Path) -> None:
    import pandas as pd

    place = tmp_path / "t.parquet"
    labels = [{"bad": 1.0}, {"bad": 0.2, "good": 0.8}]
    pd.DataFrame({"text": TEXTS[:2], "label": labels}).to_parquet(place)
    samples = open_data(str(place), model=MODEL)
    assert samples.written is not None
    assert samples.written.chances == pytest.approx(np.array([[1, 0, 0], [0.2, 0, 0.8]]))


def test_of_one_output_they_are_a_mean(tmp_path: Path) -> None:
    one = Model(family="timm", arch="x", num_classes=1, task="binary")
    for name, rows in {
        "names": [{"no": 0.25, "yes": 0.75}, {"no": 1}],
        "lists": [[0.25, 0.75], [1.0, 0.0]],
    }.items():
        place = table(tmp_path / f"{name}.jsonl", [{"label": row} for row in rows])
        assert open_data(place, model=one).labels == pytest.approx([0.75, 0])
    levels = table(tmp_path / "n.jsonl", [{"label": {"1": 0.5, "4": 0.5}}, {"label": {"2": 1}}])
    number = Model(family="timm", arch="x", num_classes=1, task="regression")
    assert open_data(levels, model=number).labels == pytest.approx([2.5, 2])
    beside = [{"label": "no", "p.no": 0.4, "p.yes": 0.6}, {"label": "", "p.no": 0.4, "p.yes": 0.6}]
    both = open_data(table(tmp_path / "b.jsonl", beside), model=one)
    assert both.labels == pytest.approx([0, 0.6])
    three = table(tmp_path / "3.jsonl", [{"label": [0.5, 0.4, 0.1]}] * 2)
    with pytest.raises(DataError, match="a probability of 2"):
        open_data(three, model=one)


def test_a_probe_and_training_learn_what_as_many_copies_say(tmp_path: Path) -> None:
    """Ten copies of each text, labelled as often as it is probable, have the same loss."""
    BERT.write(tmp_path / "bert")
    soft = table(tmp_path / "soft.jsonl", [{"label": row} for row in SHARES])
    lines = [
        {"text": text, "label": label}
        for text, row in zip(TEXTS, SHARES, strict=True)
        for label, p in enumerate(row)
        for _ in range(round(10 * p))
    ]
    hard = tmp_path / "hard.jsonl"
    write_lines(hard, lines)
    made = []
    for data in (soft, str(hard)):
        how = {"data": data, "device": "cpu", "recipe": "probe", "force": True}
        out = hs.finetune(tmp_path / "bert", out=tmp_path / "p.safetensors", **how).path
        made.append({n: t for n, t in load_file(out).items() if n.startswith("classifier")})
    for name, tensor in made[0].items():
        torch.testing.assert_close(tensor, made[1][name], atol=2e-3, rtol=1e-2)

    def trained(data: str) -> dict[str, torch.Tensor]:
        steps = {"epochs": "1", "lr": "1e-3", "dropout": "0", "classifier": "keep"}
        how = {"data": data, "device": "cpu", "recipe": "text", "set": steps, "force": True}
        return load_file(hs.finetune(tmp_path / "bert", out=tmp_path / "t.safetensors", **how).path)

    certain = table(
        tmp_path / "certain.jsonl",
        [
            {
                "label": [
                    float(at == max(range(3), key=row.__getitem__)) * 0.999999 + 1e-7
                    for at in range(3)
                ]
            }
            for row in SHARES
        ],
    )
    one_each = table(tmp_path / "one.jsonl", [{"label": int(np.argmax(row))} for row in SHARES])
    sure, plain, unsure = trained(certain), trained(one_each), trained(soft)
    for name in plain:
        torch.testing.assert_close(sure[name], plain[name], atol=5e-4, rtol=1e-3)
    assert any(not torch.allclose(unsure[name], plain[name], atol=1e-4) for name in plain)


def test_calibration_takes_the_most_probable(tmp_path: Path) -> None:
    from stock_models import labelled, texts

    BERT.write(tmp_path / "bert")
    hard = labelled(tmp_path / "bert", tmp_path / "val.jsonl", texts(200))
    rows = read_lines(hard)
    for row in rows:
        row["label"] = [0.8 if at == row["label"] else 0.1 for at in range(3)]
    soft = tmp_path / "soft.jsonl"
    write_lines(soft, rows)
    made = [
        hs.calibrate(
            tmp_path / "bert", data=str(data), ood_score="msp", out=tmp_path / f"{n}.safetensors"
        )
        for n, data in enumerate((hard, soft))
    ]
    assert made[0].decision.temperature == made[1].decision.temperature
    assert any("takes the most probable" in note for note in made[1].notes)


def test_columns_that_are_none_matter_where_labels_do(tmp_path: Path) -> None:
    """P-values are called so, too."""
    BERT.write(tmp_path / "bert")
    place = table(tmp_path / "t.jsonl", [{"p.raw": 0.2, "p.adjusted": 0.3}] * 4)
    assert len(hs.predict(tmp_path / "bert", data=place, device="cpu")) == 4
    for limit in (None, 2):
        with pytest.raises(DataError, match=r"row 0: its probabilities sum to 0\.5"):
            open_data(place, model=MODEL, limit=limit)


def test_the_reader_of_words_learns_them(tmp_path: Path) -> None:
    from stock_models import labelled, texts

    BERT.write(tmp_path / "bert")
    val = labelled(tmp_path / "bert", tmp_path / "val.jsonl", texts(200))
    others = [text for text in texts(200, seed=3) if text not in texts(200)]
    hard = labelled(tmp_path / "bert", tmp_path / "hard.jsonl", others)
    rows = read_lines(hard)

    def fitted(share: float) -> dict[str, torch.Tensor]:
        rest = (1 - share) / 2
        said = [
            {**row, "label": [share if at == row["label"] else rest for at in range(3)]}
            for row in rows
        ]
        place = tmp_path / "soft.jsonl"
        write_lines(place, said)
        return read(str(place))

    def read(data: str) -> dict[str, torch.Tensor]:
        options = {"fit_data": data, "ood_score": "msp", "words": "blend", "device": "cpu"}
        made = hs.calibrate(
            tmp_path / "bert", data=val, out=tmp_path / "c.safetensors", force=True, **options
        )
        return {n: t for n, t in load_file(made.path).items() if "words" in n}

    plain, sure, unsure = read(hard), fitted(1 - 1e-9), fitted(0.5)
    assert plain
    for name, tensor in plain.items():
        torch.testing.assert_close(sure[name], tensor, atol=1e-4, rtol=1e-3)
    # Words that are half sure add less, or nothing, which leaves them out.
    assert not unsure or any(not torch.equal(unsure[name], plain[name]) for name in plain)
