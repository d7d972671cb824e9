"""Decision states that someone changed: numbers near float32's end, and tables of words that are none."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edited import edited
from own_models import probe_folder
from torch import Tensor

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.cli.app import run
from hydrasurgeon.files.decided import DecisionRecord
from hydrasurgeon.files.manifest import parse_manifest
from hydrasurgeon.files.tensors import TensorFile

IDS, IDF = (
    "hydrasurgeon.decision.words.ids",
    "hydrasurgeon.decision.words.idf",
)


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A probe on a random BERT before which words answer, and texts for it."""
    place = tmp_path_factory.mktemp("hostile")
    probe_folder(place, train=400, val=200, test=3)
    hs.calibrate(
        place / "probe",
        data=str(place / "val.csv"),
        fit_data=str(place / "train.csv"),
        words="cascade",
        ood_score="mds",
        device="cpu",
        out=place / "ready",
    )
    return place


def numbers(schema: dict[str, Any], path: str = "") -> list[tuple[str, dict[str, Any]]]:
    """Every number of a JSON schema, with the way to it."""
    found = [(path, schema)] if schema.get("type") == "number" else []
    for key, value in schema.items():
        for at, part in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(part, dict):
                found += numbers(part, f"{path}.{key}.{at}")
    return found


def test_every_number_of_a_decision_is_bounded() -> None:
    """By the schema, so that a new field cannot be forgotten: products of two are finite in float32."""
    found = numbers(DecisionRecord.model_json_schema())
    assert len(found) > 30
    for path, schema in found:
        low = schema.get("minimum", schema.get("exclusiveMinimum"))
        high = schema.get("maximum", schema.get("exclusiveMaximum"))
        assert low is not None, path
        assert high is not None, path
        assert np.isfinite(np.float32(low) * np.float32(high)), path


def changed(ready: Path, out: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """The checkpoint with another decision record and hashes that fit it."""
    record = open_checkpoint(ready / "ready").manifest.decision
    assert record is not None
    decision = json.loads(record.model_dump_json())
    change(decision)
    shutil.copy(ready / "ready.safetensors", out)
    content = out.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    manifest = json.loads(header["__metadata__"]["hydrasurgeon"])
    del manifest["record_sha256"]
    manifest["decision"] = decision
    try:
        text = parse_manifest(json.dumps(manifest), "test").to_json()
    except hs.errors.ManifestError:
        text = json.dumps(manifest)
    header["__metadata__"]["hydrasurgeon"] = text
    new = json.dumps(header).encode()
    out.write_bytes(len(new).to_bytes(8, "little") + new + content[8 + size :])
    return out


def answered(path: Path, ready: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit code of `predict`, and what it says on stderr."""
    code = run(["predict", str(path), "--data", str(ready / "test.csv"), "--device", "cpu", "-q"])
    return code, " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
@pytest.mark.parametrize("value", [1e308, -1e308, 1e30])
@pytest.mark.parametrize("field", ["cascade.floor", "ood.threshold", "conformal.threshold"])
def test_numbers_near_the_end_are_refused(
    ready: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], field: str, value: float
) -> None:
    holder, name = field.split(".")

    def change(decision: dict[str, Any]) -> None:
        decision[holder][name] = value

    code, said = answered(changed(ready, tmp_path / "x.safetensors", change), ready, capsys)
    assert code == 3
    assert f"decision.{field}" in said


@pytest.mark.slow
def test_a_state_that_is_left_alone_answers(
    ready: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = changed(ready, tmp_path / "x.safetensors", lambda _: None)
    assert answered(path, ready, capsys) == (0, "")
    same = edited(ready / "ready", tmp_path / "y.safetensors", lambda _, tensor: tensor)
    assert answered(same, ready, capsys) == (0, "")


def falling(ids: Tensor) -> Tensor:
    return ids.flip(0)


TABLES: dict[str, tuple[str, Callable[[Tensor], Tensor], str]] = {
    "falling": (IDS, falling, "rising order"),
    "equal": (IDS, lambda ids: ids * 0 + 5, "rising order"),
    "halves": (IDS, lambda ids: ids + 0.5, "rising order"),
    "negative": (IDS, lambda ids: ids - 1e6, "rising order"),
    "large": (IDS, lambda ids: ids + 2.0**24, "rising order"),
    "beyond the vocabulary": (IDS, lambda ids: ids + 1000, "its tokenizer does not have"),
    "no idf": (IDF, lambda idf: -idf, "not positive"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", TABLES)
def test_tables_of_words_are_looked_at(
    ready: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    """Their hashes fit: whoever changes a table can make them anew."""
    at, change, message = TABLES[what]
    path = edited(
        ready / "ready",
        tmp_path / "x.safetensors",
        lambda name, tensor: change(tensor) if name == at else tensor,
    )
    assert at in TensorFile(path).infos
    code, said = answered(path, ready, capsys)
    assert code == 3
    assert message in said
    assert "Traceback" not in said


@pytest.mark.slow
def test_words_of_another_tokenizer_are_refused(
    ready: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def change(decision: dict[str, Any]) -> None:
        decision["words"]["tokenizer"] = "0" * 64

    code, said = answered(changed(ready, tmp_path / "x.safetensors", change), ready, capsys)
    assert code == 3
    assert "another tokenizer" in said


@pytest.mark.slow
def test_answers_that_overflow_are_refused(
    ready: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By finite tensors of an OOD score: `ood_score` would be infinite, which is no JSON."""
    path = edited(
        ready / "ready",
        tmp_path / "x.safetensors",
        lambda name, tensor: tensor * 0 + 3e38 if name.endswith("decision.0.means") else tensor,
    )
    line = ["predict", str(path), "--data", str(ready / "test.csv"), "--no-cascade", "-q"]
    assert run(line) == 3
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "its answers hold NaN or infinity (ood_score)" in " ".join(printed.err.split())


def test_numbers_that_no_record_holds_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their variance is far above the bound of what a decision state holds."""
    random = np.random.default_rng(0)
    features = random.normal(size=(150, 1, 2)).astype("f4")
    values = 1e25 * features[:, :, :1]
    truth = 1e10 * (features[:, 0, 0] + 0.1 * random.normal(size=150)).astype("f4")
    np.savez(tmp_path / "p.npz", values=values[..., 0], features=features, labels=truth)
    out = tmp_path / "d.safetensors"
    line = ["calibrate", "--predictions", str(tmp_path / "p.npz"), "-o", str(out), "-q"]
    assert run(line) == 5
    assert "the decision state cannot be stored: joint.aleatoric" in capsys.readouterr().err
    assert not out.exists()
