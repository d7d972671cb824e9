"""Labels go by name: what is matched, what is refused, what is assumed, and what a checkpoint learns of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fitted_heads import solved, with_head
from row_files import write_lines
from tiny_families import FAMILIES

import hydrasurgeon as hs
from hydrasurgeon.data import fit_classes, open_data, sources
from hydrasurgeon.errors import DataError
from hydrasurgeon.files.manifest import Model
from hydrasurgeon.files.rows import writing
from hydrasurgeon.options.measuring import ExportOptions
from hydrasurgeon.sharing.trial import opened_trial

MAKE = Callable[..., Path]
NAMES = ("ant", "bee", "cat", "dog", "eel")


def named(labels: Sequence[str] | None, count: int = 5, **config: Any) -> Model:
    names = None if labels is None else tuple(labels)
    return Model(family="timm", arch="vit", num_classes=count, labels=names, config=config)


def table(path: Path, names: Sequence[str]) -> str:
    rows = "".join(f"text {i},{name}\n" for i, name in enumerate(names))
    path.write_text(f"text,label\n{rows}")
    return str(path)


def npz(path: Path, names: Sequence[str] | None, labels: Sequence[int], seed: int = 0) -> str:
    images = np.random.default_rng(seed).integers(0, 255, (len(labels), 28, 28), np.uint8)
    arrays = {"images": images, "labels": np.array(labels)}
    np.savez(path, **arrays, **({} if names is None else {"classes": np.array(names)}))
    return str(path)


def test_names_are_matched_in_any_order_and_some_may_lack(tmp_path: Path) -> None:
    samples = open_data(table(tmp_path / "t.csv", ["eel", "ant", "cat"]))
    fitted = fit_classes(samples, named(NAMES[::-1]))
    assert fitted.labels is not None
    assert fitted.labels.tolist() == [0, 4, 2]
    assert fitted.classes == NAMES[::-1]
    assert fitted.note is None


def test_names_are_read_back_as_predict_writes_them(tmp_path: Path) -> None:
    """With a quote before what a spreadsheet would run; a class that has the quote comes first."""
    names = ("-", "=x", "@home", "C++", "'@home")
    with writing(tmp_path / "rows.csv", {"text": "text", "label": "text"}, dict) as write:
        write([{"text": f"t{at}", "label": name} for at, name in enumerate(names[:4])])
    fitted = fit_classes(open_data(str(tmp_path / "rows.csv")), named(names))
    assert fitted.labels is not None
    assert fitted.labels.tolist() == [0, 1, 4, 3]
    plain = fit_classes(open_data(str(tmp_path / "rows.csv")), named((*names[:4], "eel")))
    assert plain.labels is not None
    assert plain.labels.tolist() == [0, 1, 2, 3]


def test_a_class_cannot_have_the_name_of_no_answer(tiny: MAKE, tmp_path: Path) -> None:
    """`answer` could not be told from a refusal to answer: not learnt, and not calibrated."""
    names, labels = (*NAMES[:4], "abstain"), [at % 5 for at in range(60)]
    data, out = npz(tmp_path / "d.npz", names, labels), tmp_path / "o.safetensors"
    with pytest.raises(DataError, match=r"d.npz: has a class 'abstain'"):
        hs.finetune(tiny(), data=data, recipe="probe", set=("classifier=fresh",), out=out)
    with pytest.raises(DataError, match="has a class 'abstain'"):
        hs.calibrate(tiny(), data=data, out=out)


def test_a_class_that_the_model_lacks_is_refused(tmp_path: Path) -> None:
    samples = open_data(table(tmp_path / "t.csv", ["ant", "bee", "cat", "doggy", "eel"]))
    with pytest.raises(DataError) as refused:
        fit_classes(samples, named(NAMES))
    message = refused.value.message
    assert "no class doggy" in message
    assert "the model's: dog, ant" in message


def test_one_side_has_names(tmp_path: Path) -> None:
    numbers = fit_classes(open_data(npz(tmp_path / "a.npz", None, [0, 4])), named(NAMES))
    assert numbers.note is not None
    assert "0 is ant, 4 is eel" in numbers.note
    words = fit_classes(open_data(npz(tmp_path / "b.npz", NAMES, [0, 4])), named(None))
    assert words.classes == NAMES
    assert (
        words.note
        == "the classes of b.npz are taken as the model's 0…4, in this order: ant, bee, cat, dog, eel"
    )
    with pytest.raises(DataError, match="has 3 classes, the model has 5"):
        fit_classes(open_data(npz(tmp_path / "c.npz", NAMES[:3], [0, 2])), named(None))
    assert fit_classes(open_data(npz(tmp_path / "d.npz", None, [0])), named(None)).note is None


def test_clip_takes_other_words_in_the_same_places_only(tmp_path: Path) -> None:
    words = ("an_ant", "bee", "cat", "dog", "an_eel")
    prompts = {"zero_shot": {"templates": ["{label}"]}}
    samples = open_data(npz(tmp_path / "d.npz", words, [0, 4]))
    fitted = fit_classes(samples, named(NAMES, **prompts))
    assert fitted.labels is not None
    assert fitted.labels.tolist() == [0, 4]
    assert fitted.note is not None
    with pytest.raises(DataError, match="no class an_ant, an_eel"):
        fit_classes(samples, named(("bee", "ant", "cat", "dog", "eel"), **prompts))


@pytest.mark.usefixtures("labels_need_not_fit")
def test_data_that_names_the_classes_is_opened_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe or a stream cannot be read twice."""
    family = FAMILIES["CLIP by class names"]
    family.write(tmp_path / "clip")
    config = tmp_path / "clip" / "config.json"
    pixels = np.random.default_rng(0).integers(0, 255, (60, 28, 28, 3), np.uint8)
    data = str(tmp_path / "data.npz")
    names = np.array(["good", "bad", "dull"])
    np.savez(data, images=pixels, labels=np.arange(60) % 3, classes=names)
    assert "labels" not in config.read_text()
    opened: list[str] = []
    located = sources.located

    def noted(place: str) -> list[Path]:
        opened.append(place)
        return located(place)

    monkeypatch.setattr(sources, "located", noted)
    clip, out = tmp_path / "clip", tmp_path / "out"
    for command in (
        lambda: hs.calibrate(clip, data=data, ood_score="msp", out=out),
        lambda: hs.predict(clip, data=data, limit=3),
        lambda: hs.evaluate([clip, out], data=data),
        lambda: hs.score(clip, method="taylor", data=data),
        lambda: hs.fuse([clip, clip], check=data, out=tmp_path / "hydra"),
    ):
        opened.clear()
        command()
        assert opened == [data]


def test_a_name_that_the_model_has_twice(tmp_path: Path) -> None:
    crane = ("crane", "crane", "cat", "dog", "eel")
    with pytest.raises(DataError, match="several classes named crane"):
        fit_classes(open_data(npz(tmp_path / "d.npz", ["crane", "cat"], [0, 1])), named(crane))
    same = fit_classes(open_data(npz(tmp_path / "e.npz", crane, [1])), named(crane))
    assert same.labels is not None
    assert same.labels.tolist() == [1]


def test_every_stage_teaches_and_heeds_names(tiny: MAKE, tmp_path: Path) -> None:
    """score, finetune and calibrate record the data's names; what comes later is matched by them."""
    vit, labels = tiny(), [i % 5 for i in range(60)]
    train = npz(tmp_path / "train.npz", NAMES, labels)
    scored = hs.score(
        vit, method="taylor", data=train, device="cpu", out=tmp_path / "s.safetensors"
    )
    assert scored.manifest.model.labels == NAMES
    assert any("taken as the model's 0…4" in note for note in scored.notes)
    knows = with_head(vit, tmp_path / "k.safetensors", solved(vit, train))
    calibrated = hs.calibrate(knows, data=train, device="cpu", out=tmp_path / "c.safetensors")
    assert calibrated.manifest.model.labels == NAMES
    tuned = hs.finetune(vit, data=train, out=f"{tmp_path}/t/", set={"epochs": "1"}, device="cpu")
    assert tuned.manifest.model.labels == NAMES
    assert json.loads((tmp_path / "t" / "config.json").read_text())["label_names"] == list(NAMES)
    permuted = npz(tmp_path / "permuted.npz", NAMES[::-1], [4 - label for label in labels])
    (straight,) = hs.evaluate([tuned.path], data=train, device="cpu").report.results
    (turned,) = hs.evaluate([tuned.path], data=permuted, device="cpu").report.results
    assert straight.id == turned.id
    renamed = npz(tmp_path / "renamed.npz", ("ant", "bee", "cat", "doggy", "eel"), labels)
    out = tmp_path / "out.safetensors"
    attempts: list[Callable[[], object]] = [
        lambda: hs.evaluate([tuned.path], data=renamed),
        lambda: hs.evaluate([tuned.path], data=train, shift=[f"x={renamed}"]),
        lambda: hs.score(tuned.path, method="taylor", data=renamed),
        lambda: hs.prune(tuned.path, method="taylor", keep=2, data=renamed, out=out),
        lambda: hs.finetune(tuned.path, data=renamed, out=out),
        lambda: hs.finetune(tuned.path, data=train, val=renamed, out=out),
        lambda: hs.calibrate(tuned.path, data=renamed, out=out),
        lambda: hs.fuse([tuned.path, calibrated.path], out=out, check=renamed),
        lambda: hs.build(tuned.path, data=train, val=renamed, budget="macs=2", out=out),
        lambda: opened_trial(
            tuned.manifest.model, renamed, ExportOptions(checkpoint="t", check=renamed)
        ),
    ]
    for attempt in attempts:
        with pytest.raises(DataError, match="no class doggy"):
            attempt()
    assert not out.exists()
    fresh = hs.finetune(
        tuned.path, data=renamed, out=out, set={"classifier": "fresh", "epochs": "1"}, device="cpu"
    )
    assert fresh.manifest.model.labels == ("ant", "bee", "cat", "doggy", "eel")
    with pytest.raises(DataError, match=r"calls class 3 dog, out\.safetensors doggy"):
        hs.evaluate([tuned.path, out], data=train)


PAIRED = ("sentence2", "hypothesis", "passage", "query", "question2", "context")


@pytest.mark.parametrize("second", PAIRED)
@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_second_text_is_refused(tmp_path: Path, second: str, suffix: str) -> None:
    path = tmp_path / f"d.{suffix}"
    row = {"text": "a", second: "b", "label": 0}
    if suffix == "csv":
        path.write_text(",".join(row) + "\na,b,0\n")
    else:
        path.write_text(json.dumps(row) + "\n")
    with pytest.raises(DataError, match=f"columns text, {second} hold more than one text"):
        open_data(str(path))


@pytest.mark.parametrize(
    "labels", [("0.5", "0.7"), ("[0, 2]", "[1]"), ("0;2", "1;2"), ("0,5", "1,5")]
)
def test_labels_that_are_lists_or_fractions(tmp_path: Path, labels: tuple[str, str]) -> None:
    path = tmp_path / "d.csv"
    path.write_text(
        "".join(f"{row}\n" for row in ("text,label", *(f'x,"{label}"' for label in labels)))
    )
    with pytest.raises(DataError, match=r"row 0 has (the|a list of) label") as refused:
        open_data(str(path), model=Model(family="timm", arch="a", num_classes=3))
    assert "whole numbers or names, one for each row" in str(refused.value.hint)


@pytest.mark.parametrize("kind", [int, float, bool])
@pytest.mark.parametrize("names", [("red", "round", "big"), ("2", "0", "1")])
def test_a_0_or_1_for_every_label(tmp_path: Path, kind: type, names: tuple[str, ...]) -> None:
    """Not positions, of which a list would hold none twice."""
    holds = [[0, 0, 1], [1, 0, 1], [0, 0, 0]]
    lists = [[kind(value) for value in row] for row in holds]
    path = tmp_path / "d.jsonl"
    write_lines(path, ({"text": "x", "labels": row} for row in lists))
    about = named(names, 3).model_copy(update={"task": "multi_label"})
    labels = open_data(str(path), model=about).labels
    assert labels is not None
    assert labels.tolist() == holds
    path.write_text('{"text": "x", "labels": [0, 1]}\n{"text": "x", "labels": []}\n')
    plain = about.model_copy(update={"labels": ("a", "b", "c")})
    listed = open_data(str(path), model=plain).labels
    assert listed is not None
    assert listed.tolist() == [[1, 1, 0], [0, 0, 0]]
