"""The package as people use it from Python: what they may hand to a model, what comes back, and what editors know."""

from __future__ import annotations

import doctest
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_families import FAMILIES

import hydrasurgeon as hs
from hydrasurgeon.errors import DataError, HydraError

ROOT = Path(__file__).parents[1]
DEMO = Path(hs.__file__).with_name("demo")
PICTURES = {"bag.png": 0, "boot.png": 2}
"""Name → number in the demo's test set."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's backbone, calibrated too, and two pictures."""
    place = tmp_path_factory.mktemp("demo")
    for name in ("backbone.safetensors", "backbone.heads.json"):
        shutil.copy(DEMO / name, place)
    images = np.load(DEMO / "test.npz")["images"]
    for name, number in PICTURES.items():
        Image.fromarray(images[number]).save(place / name)
    ready = place / "ready.safetensors"
    hs.calibrate(
        place / "backbone", data="demo:val", limit=300, ood_score="energy", out=ready, device="cpu"
    )
    return place


@pytest.fixture
def demo(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same as the working folder."""
    monkeypatch.chdir(folder)
    return folder


def alike(first: Sequence[dict[str, Any]], second: Sequence[dict[str, Any]]) -> bool:
    """Whether rows tell the same; commands run single models in another way, to the last digits."""
    return all(
        (a["id"], a["label"]) == (b["id"], b["label"])
        and all(
            a[name] == pytest.approx(b[name], rel=1e-5, abs=1e-3)
            for name in ("probability", "total", "ood_score")
        )
        for a, b in zip(first, second, strict=True)
    )


def test_the_examples_of_docstrings_run(demo: Path) -> None:
    from hydrasurgeon.runtime.classifier import Classifier

    flags, runner = doctest.NORMALIZE_WHITESPACE, doctest.DocTestRunner(verbose=False)
    for each in (hs, Classifier, *(getattr(hs, name) for name in hs.__all__)):
        for example in doctest.DocTestFinder(recurse=each is Classifier).find(
            each, globs={"hs": hs}
        ):
            runner.optionflags = flags
            runner.run(example)
    assert runner.tries >= 12
    assert not runner.failures


def test_the_guide_is_a_session(
    demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in (*demo.glob("backbone.*"), *PICTURES):
        shutil.copy(file, tmp_path)
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "guide" / "python.md").read_text(encoding="utf-8").replace("```", "\n")
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    runner.run(doctest.DocTestParser().get_doctest(page, {}, "python.md", None, 0))
    assert runner.tries >= 15
    assert not runner.failures


def test_pictures_in_every_form_get_one_answer(demo: Path) -> None:
    model = hs.load("ready", device="cpu")
    pixels = torch.stack([model.transform(Image.open(name)) for name in PICTURES])
    table = list(hs.predict("ready", data=".", device="cpu"))
    assert [row["id"] for row in table] == list(PICTURES)
    forms: list[Any] = [list(PICTURES), [demo / name for name in PICTURES], demo]
    for inputs in forms:
        assert alike(model.predict(inputs), table)
        assert alike(model.decide(inputs).rows, table)
    numbered = [{**row, "id": i} for i, row in enumerate(table)]
    contents = [Path(name).read_bytes() for name in PICTURES]
    for inputs in ([Image.open(name) for name in PICTURES], contents):
        assert alike(model.predict(inputs), numbered)
    assert alike(model.decide(pixels).rows, numbered)
    for one in ("bag.png", Path("bag.png")):
        assert alike(model.predict(one), table[:1])
    assert alike(model.predict(Image.open("bag.png")), numbered[:1])
    assert len(model.predict([])) == len(model.decide([]).rows) == 0


def test_prepared_inputs_give_plain_probabilities(demo: Path) -> None:
    model = hs.load("ready", device="cpu")
    pixels = torch.stack([model.transform(Image.open(name)) for name in PICTURES])
    with torch.inference_mode():
        expected = model(pixels).softmax(-1).mean(1)
    probs = model.predict(pixels)
    torch.testing.assert_close(probs, expected, rtol=0, atol=1e-6)
    assert type(probs) is torch.Tensor


def test_texts_are_answered_with_and_without_a_state(tmp_path: Path) -> None:
    family = FAMILIES["BERT"]
    family.write(tmp_path / "m")
    model = hs.load(tmp_path / "m", device="cpu")
    texts = ["good film", "a very very bad film"]
    inputs = model.transform.collate(texts)
    plain = model.predict(texts)
    probs = model.predict(inputs)
    assert [row["probability"] for row in plain] == pytest.approx(probs.amax(-1).tolist(), rel=1e-6)
    assert model.predict("good film")[0]["label"] == int(probs[0].argmax())
    with pytest.raises(HydraError, match="no decision state"):
        model.decide("good film")
    family.data(tmp_path, rows=60)
    data = next(path for path in tmp_path.iterdir() if path.stem == "data")
    hs.calibrate(
        tmp_path / "m",
        data=str(data),
        out=tmp_path / "c.safetensors",
        ood_score="mds",
        device="cpu",
    )
    ready = hs.load(tmp_path / "c", device="cpu")
    rows = ready.predict(texts)
    decided = ready.decide(inputs)
    assert [row["probability"] for row in rows] == pytest.approx(
        decided.probability.tolist(), rel=1e-8
    )
    assert [row["unfamiliar"] for row in rows] == decided.unfamiliar.tolist()
    assert alike(ready.predict(data), hs.predict(tmp_path / "c", data=str(data), device="cpu"))


def test_classes_probabilities_and_embeddings(demo: Path, tmp_path: Path) -> None:
    model, pictures = hs.load("ready", device="cpu"), list(PICTURES)
    answers = model.predict(pictures)
    probs = model.predict_proba(pictures)
    assert [model.classes[at] for at in probs.argmax(axis=1)] == [row["label"] for row in answers]
    assert probs.max(axis=1) == pytest.approx([row["probability"] for row in answers], rel=1e-6)
    assert probs.sum(axis=1) == pytest.approx(1)
    assert model.decide(pictures).answer == [row["answer"] for row in answers]
    renamed = model.predict({"picture": pictures}, columns={"image": "picture"})
    assert [row["label"] for row in renamed] == [row["label"] for row in answers]
    assert len(repr(model).splitlines()) == 1
    # One linear layer away from the logits.
    read = torch.from_numpy(model.embed(pictures))
    pixels = torch.stack([model.transform(Image.open(name)) for name in pictures])
    with torch.inference_mode():
        logits = model.module.head(read)
        torch.testing.assert_close(logits, model(pixels)[:, 0], rtol=1e-4, atol=1e-4)
    place = tmp_path / "e.npz"
    rows = hs.predict("ready", data=".", embeddings=place, device="cpu")
    written = np.load(place)
    assert written["ids"].tolist() == [row["id"] for row in rows]
    np.testing.assert_allclose(written["embeddings"], read.numpy(), rtol=1e-4, atol=1e-4)


def test_notes_are_warnings_and_results_are_tables(demo: Path) -> None:
    with pytest.warns(hs.HydraWarning, match="not calibrated"):
        hs.predict("backbone", data="demo:test", limit=2, device="cpu")
    done = hs.evaluate(["backbone", "ready"], data="demo:test", limit=50, device="cpu")
    title, *rows = repr(done).split("\n\n")[0].splitlines()[-3:]
    assert "Acc" in title
    assert [row.split()[0] for row in rows] == ["backbone", "ready"]
    assert done._repr_html_().startswith("<pre>")


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (3, "row 0: holds int, not an image"),
        (["bag.png", "absent.png"], r"absent\.png: cannot be read"),
        ("absent", "absent: no such data"),
        (np.zeros((28, 28)), "row 0: holds ndarray, not an image"),
    ],
)
def test_what_cannot_be_read_is_named(demo: Path, inputs: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        hs.load("backbone", device="cpu").predict(inputs)


def test_the_public_names() -> None:
    assert {*hs.__all__, "__version__"} == {*dir(hs)}
    assert hs.__version__.split(".")[0].isdigit()
    assert all(getattr(hs, name).__doc__ for name in hs.__all__)
    with pytest.raises(AttributeError, match="no attribute 'pruned'"):
        hs.pruned  # noqa: B018


SCRIPT = """
from typing import Any

import torch
from numpy.typing import NDArray
from PIL import Image

import hydrasurgeon as hs

model = hs.load("m", device="cpu")
label: str = model.predict(["a", "b"])[0]["label"]
probs: torch.Tensor = model.predict(torch.zeros(1, 3, 8, 8))
unfamiliar: NDArray[Any] = model.decide(Image.new("L", (8, 8))).unfamiliar
rows: int = hs.predict("m", data="x.csv", keep_columns="a").rows
path = hs.prune("m", method="taylor", keep=6, compensate="lstsq").path
print(hs.fuse([path, "other"], out="h.safetensors").path.name, hs.__version__)
"""
"""What a user writes."""
WRONG = {
    'hs.prune("m", kept=6)': 'Unexpected keyword argument "kept" for "prune"',
    'hs.prune("m", compensate="some")': 'Argument "compensate" to "prune" has incompatible type',
    'hs.predict("m", data=3)': 'Argument "data" to "predict" has incompatible type "int"',
    "hs.pruned": 'Module has no attribute "pruned"',
}
"""What a type checker finds before it runs."""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, unpacked where nothing else of it is."""
    pytest.importorskip("hatchling", reason="needs hatchling, which builds wheels")
    place = tmp_path_factory.mktemp("wheel")
    for what in (
        ["wheel", "--no-build-isolation", "-w", str(place), str(ROOT)],
        ["install", "--target", str(place)],
    ):
        wheels = [str(each) for each in place.glob("*.whl")] if what[0] == "install" else []
        subprocess.run(
            [sys.executable, "-m", "pip", "--quiet", *what, "--no-deps", "--no-index", *wheels],
            check=True,
        )
    return place


@pytest.mark.slow
def test_a_users_script_is_typed(installed: Path, tmp_path: Path) -> None:
    mistakes = [f"{line}  # WRONG" for line in WRONG]
    (tmp_path / "script.py").write_text("\n".join([SCRIPT, *mistakes, ""]))
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--cache-dir",
            str(tmp_path / "cache"),
            "script.py",
        ],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert len(errors) == len(WRONG), done.stdout
    for message, line in zip(WRONG.values(), errors, strict=True):
        assert message in line


@pytest.mark.slow
def test_the_wheel_is_whole(installed: Path, tmp_path: Path) -> None:
    """Its demo builds a hydra, from nothing but what was installed."""
    code = "import sys, hydrasurgeon.__main__ as m; print(m.__file__); sys.argv[0] = 'hydrasurgeon'; m.main()"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            code,
            "predict",
            str(installed / "hydrasurgeon/demo/backbone"),
            "--data",
            "demo:test",
        ],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=True,
    )
    first, *rows = done.stdout.splitlines()
    assert Path(first).is_relative_to(installed)
    assert len(rows) == 2000
