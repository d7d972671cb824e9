"""monitor: answers of data like the calibration's do not drift, others do; states without counts; bad input."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from edited import edited
from tiny_families import FAMILIES

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.cli.app import run
from hydrasurgeon.stages.monitor import monitor

VIT = FAMILIES["timm ViT"]


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calibrated checkpoint, its answers on its own data, and on noise."""
    folder = tmp_path_factory.mktemp("ready")
    VIT.write(folder / "source")
    data = VIT.data(folder, rows=200)
    hs.calibrate(
        folder / "source",
        data=data,
        ood_score="mds",
        coverage=0.6,
        risk=0.9,
        out=folder / "c.safetensors",
    )
    pixels = np.load(data)["images"]
    np.savez(
        folder / "noise.npz",
        images=np.random.default_rng(0).integers(0, 256, pixels.shape, dtype=np.uint8),
    )
    for name, spec in (("same", data), ("noise", str(folder / "noise.npz"))):
        hs.predict(folder / "c", data=spec, out=folder / f"{name}.jsonl", device="cpu")
    return folder


def test_what_was_seen_is_what_predict_answers(ready: Path) -> None:
    decision = open_checkpoint(ready / "c").manifest.decision
    assert decision is not None
    assert decision.seen is not None
    rows = [json.loads(line) for line in (ready / "same.jsonl").read_text().splitlines()]
    seen, labels = decision.seen, Counter(row["label"] for row in rows)
    assert seen.rows == len(rows) == 200
    assert seen.predicted == tuple(labels[klass] for klass in range(len(seen.predicted)))
    assert seen.unfamiliar == sum(row["answer"] == "unfamiliar" for row in rows)
    assert seen.abstain == sum(row["answer"] == "abstain" for row in rows)
    assert seen.uncertainty == pytest.approx(np.mean([row["total"] for row in rows]), abs=1e-6)


def test_exit_codes_and_what_is_said(
    ready: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    against, page = ["--against", str(ready / "c.safetensors")], tmp_path / "page.html"
    assert run(["monitor", str(ready / "same.jsonl"), *against]) == 0
    assert "no drift shown" in capsys.readouterr().out
    assert (
        run(["monitor", str(ready / "noise.jsonl"), *against, "--json", "--report", str(page)]) == 1
    )
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert result["drifted"]
    assert result["answers"]["rows"] == 200
    assert [*result["answers"]["predicted"]] == ["0", "1", "2"]
    assert sum(result["answers"]["predicted"].values()) == 200
    assert [test["name"] for test in result["tests"]] == ["unfamiliar", "classes"]
    assert err.startswith("error: c.safetensors: drifted: ")
    content = page.read_text(encoding="utf-8")
    assert "c.safetensors: drifted: " in content
    assert "<script" not in content
    assert run(["monitor", str(ready / "same.jsonl"), *against, "--report", str(page)]) == 2
    assert page.read_text(encoding="utf-8") == content


def test_rows_that_could_not_be_read_are_not_compared(ready: Path, tmp_path: Path) -> None:
    lines = (ready / "same.jsonl").read_text().splitlines()
    (tmp_path / "a.jsonl").write_text(
        "\n".join([*lines, '{"id": "x", "error": "x: not a readable image"}'])
    )
    result = monitor(tmp_path / "a.jsonl", against=ready / "c")
    assert result.drift.answers.rows == 200
    assert result.notes == (
        "1 rows could not be read when they were answered, and are not compared",
    )


def test_a_state_of_an_older_version_is_compared_by_what_it_has(
    ready: Path, tmp_path: Path
) -> None:
    decision = json.loads((ready / "c.heads.json").read_text())["decision"]
    del decision["seen"]
    edited(
        ready / "c.safetensors",
        tmp_path / "old.safetensors",
        lambda name, tensor: tensor,
        decision=decision,
    )
    result = monitor(ready / "noise.jsonl", against=tmp_path / "old")
    assert [test.name for test in result.drift.tests] == ["unfamiliar"]
    assert result.drift.drifted
    assert "does not say which classes" in result.notes[0]
    assert result.drift.validation is None


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "holds no answers"),
        ("{\n", "line 1: is not JSON"),
        (
            '{"id": 1, "label": 0, "total": 0.1, "unfamiliar": null}\n',
            "line 1: is no answer of a calibrated checkpoint",
        ),
        (
            '{"id": 1, "label": "cat", "total": 0.1, "unfamiliar": false}\n',
            "line 1: cat is no class of the checkpoint",
        ),
        (
            '{"label": 0, "total": -5.0, "unfamiliar": false, "answer": "abstain"}\n',
            "line 1: a total uncertainty of -5",
        ),
        (
            '{"label": 0, "total": 1e308, "unfamiliar": false}\n' * 3,
            "line 1: a total uncertainty of 1e+308",
        ),
        ("3\n", "line 1: is no answer of a calibrated checkpoint"),
    ],
)
def test_what_is_no_file_of_answers(
    content: str, says: str, ready: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.jsonl").write_text(content)
    line = [
        "monitor",
        str(tmp_path / "a.jsonl"),
        "--against",
        str(ready / "c"),
        "--report",
        str(tmp_path / "p.html"),
    ]
    assert run(line) == 5
    assert says in capsys.readouterr().err
    assert not (tmp_path / "p.html").exists()
