"""Other packages' criteria, scores, families and tasks, by entry points, as pip installs
them: the snippets of docs/guide/extending.md, and examples/plugin.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fitted_heads import solved, with_head
from row_files import read_lines

import hydrasurgeon as hs
from hydrasurgeon import criteria, families, lookup
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint, rewritten
from hydrasurgeon.cli.app import run
from hydrasurgeon.data import open_data
from hydrasurgeon.files import decided
from hydrasurgeon.files.manifest import parse_manifest
from hydrasurgeon.tasks import TASKS
from hydrasurgeon.tuning.losses import losses_of

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/guide/extending.md").read_text("utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL)
ORDINAL = ROOT / "examples/plugin"
FAMILY = """
from hydrasurgeon.families.timm_vit.family import TimmViT

class Family(TimmViT):
    name = "theirs"
"""


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    site = tmp_path / "site"
    site.mkdir()
    texts = {kind: [text for other, text in BLOCKS if other == kind] for kind in ("python", "toml")}
    assert sum(map(len, texts.values())) == len(BLOCKS), "a snippet that nothing runs"
    (site / "my_package.py").write_text("\n".join(texts["python"]))
    (site / "their_family.py").write_text(FAMILY)
    ordinal = (ORDINAL / "pyproject.toml").read_text()
    pages = [*texts["toml"], ordinal, FAMILIES]
    for number, page in enumerate(pages):
        _install(site, f"package{number}", tomllib.loads(page)["project"]["entry-points"])
    monkeypatch.syspath_prepend(ORDINAL)
    monkeypatch.syspath_prepend(site)
    monkeypatch.setattr(criteria, "CRITERIA", {**criteria.CRITERIA})
    lookup.plugins.cache_clear()
    yield
    lookup.plugins.cache_clear()
    for table, name in ((decided.LOGITS, "purity"), (decided.FITTED, "distance")):
        table.pop(name, None)  # type: ignore[attr-defined]
    TASKS.pop("ordinal", None)
    for name in ("my_package", "their_family", "ordinal", "ordinal_losses"):
        sys.modules.pop(name, None)


FAMILIES = '[project.entry-points."hydrasurgeon.families"]\ntheirs = "their_family:Family"'


def _install(site: Path, name: str, groups: Mapping[str, Mapping[str, str]]) -> None:
    """As pip does."""
    about = site / f"{name}-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    points = [
        f"[{group}]\n" + "\n".join(f"{key} = {place}" for key, place in named.items())
        for group, named in groups.items()
    ]
    (about / "entry_points.txt").write_text("\n".join(points))


def test_a_criterion(tiny: Callable[..., Path], tmp_path: Path) -> None:
    path = tiny()
    kept = hs.prune(path, method="diagonal", keep=1, out=tmp_path / "m").manifest.kept
    assert kept == {"vision": ((0,), (1,), (2,))}


def test_a_misspelt_criterion_is_told_the_near_one(
    tiny: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["prune", str(tiny()), "--method", "diagnal", "--keep", "1"]) == 2
    assert "did you mean diagonal?" in capsys.readouterr().err


def test_a_family(tiny: Callable[..., Path]) -> None:
    manifest = open_checkpoint(tiny()).manifest
    model = manifest.model.model_copy(update={"family": "theirs"})
    theirs = parse_manifest(rewritten(manifest, model=model).to_json(), "test")
    assert families.family_of(theirs.model).name == "theirs"
    assert "theirs" in [family.name for family in families.families()]


@pytest.fixture
def knows(tiny: Callable[..., Path], images: Callable[..., str], tmp_path: Path) -> Path:
    return with_head(tiny(), tmp_path / "k.safetensors", solved(tiny(), images()))


def test_a_score(knows: Path, images: Callable[..., str], tmp_path: Path) -> None:
    path = hs.calibrate(knows, data=images(), ood_score="purity", out=tmp_path / "c").path
    del decided.LOGITS["purity"]  # as in another process
    model = hs.load(path, device="cpu", dtype="float64")
    inputs = torch.randn(3, 1, 28, 28, dtype=torch.float64)
    squares = model.predict(inputs).double().square().sum(dim=-1)
    np.testing.assert_allclose(model.decide(inputs).ood_score, -squares, atol=1e-5, rtol=0)


def test_a_score_of_features(knows: Path, images: Callable[..., str], tmp_path: Path) -> None:
    """By hand: squared distances from the mean of TRAIN, standardised on the half of VAL that fits."""
    train = images("train.npz", rows=60, seed=1)
    options = {"data": images(), "fit_data": train, "ood_score": "distance"}
    done = hs.calibrate(knows, **options, out=tmp_path / "c")
    (standard,) = done.decision.ood.members
    del decided.FITTED["distance"]  # type: ignore[attr-defined]
    model = hs.load(done.path, device="cpu", dtype="float64")
    inputs = torch.randn(3, 1, 28, 28, dtype=torch.float64)
    known = [open_data(train).read(i) for i in range(60)]
    distances = np.square(model.embed(inputs) - model.embed(known).mean(axis=0)).sum(axis=-1)
    expected = (distances - standard.mean) / standard.deviation
    np.testing.assert_allclose(model.decide(inputs).ood_score, expected, atol=1e-5, rtol=1e-5)


def _unclear(path: str) -> str:
    """Data of which some show what two classes show, and have the label of either."""
    arrays = dict(np.load(path))
    for i in range(0, len(arrays["labels"]), 3):
        label = int(arrays["labels"][i])
        other = (label + 2) % 5
        arrays["images"][i, 5 * other : 5 * other + 5] = 220
        arrays["labels"][i] = label if i % 2 else other
    np.savez(path, **arrays)
    return path


def _rows(path: Path) -> list[dict[str, Any]]:
    return read_lines(path)


@pytest.mark.slow
def test_a_kind_from_finetune_to_build(
    tiny: Callable[..., Path], images: Callable[..., str], tmp_path: Path
) -> None:
    """The kind of examples/plugin; answers and measures by hand."""
    train, val, test = (
        _unclear(images(f"{name}.npz", rows=rows, seed=seed))
        for seed, (name, rows) in enumerate({"train": 90, "val": 120, "test": 60}.items())
    )
    tuned, ready, built = (tmp_path / f"{name}.safetensors" for name in ("m", "c", "b"))
    words = ["finetune", tiny(), "--data", train, "--recipe", "probe"]
    assert run([*map(str, words), "--set", "task=ordinal", "-o", str(tuned)]) == 0
    assert open_checkpoint(tuned).manifest.model.task == "ordinal"
    words = ["calibrate", str(tuned), "--data", val, "-o", str(ready)]
    assert run([*words, "--risk", "0.3"]) == 2
    assert run(words) == 0
    assert run(["predict", str(ready), "--data", test, "-o", str(tmp_path / "a.jsonl")]) == 0
    rows = _rows(tmp_path / "a.jsonl")
    chances = np.zeros((len(rows), 5))
    for i, row in enumerate(rows):
        for klass, p in row["top"]:
            chances[i, klass] = p
        assert sorted(row["set"]) == [*range(min(row["set"]), max(row["set"]) + 1)]
    medians = (chances.cumsum(axis=1) < 0.5).sum(axis=1)
    assert [row["label"] for row in rows] == medians.tolist()
    assert medians.tolist() != chances.argmax(axis=1).tolist()
    decision = open_checkpoint(ready).manifest.decision
    assert decision is not None
    assert decision.seen is not None
    labels = [row["label"] for row in hs.predict(ready, data=val)]
    counts = np.bincount(labels, minlength=5).tolist()
    assert [*decision.seen.predicted] == counts, "monitor counts the answers as calibrate does"
    said = hs.evaluate(ready, data=test).report.results[0].id
    truth = np.load(test)["labels"]
    assert said.mae == pytest.approx(np.abs(medians - truth).mean(), abs=1e-9)
    ranked = np.square(chances.cumsum(axis=1) - (np.arange(5) >= truth[:, None])).sum(axis=1)
    assert said.model_dump()["rps"] == pytest.approx(ranked.mean(), abs=1e-7)
    assert said.accuracy == pytest.approx((medians == truth).mean(), abs=1e-9)
    inside = [klass in row["set"] for klass, row in zip(truth.tolist(), rows, strict=True)]
    assert said.coverage == pytest.approx(np.mean(inside), abs=1e-9)
    assert said.set_size == pytest.approx(np.mean([len(row["set"]) for row in rows]), abs=1e-9)
    words = ["build", str(tuned), "--data", train, "--val", val, "--budget", "macs=0.5"]
    assert run([*words, "-o", str(built), "--cache", str(tmp_path / "work")]) == 0
    assert open_checkpoint(built).manifest.decision is not None
    assert hs.predict(built, data=test)[0].keys() == rows[0].keys()


def test_a_kinds_loss() -> None:
    """By hand: the cross-entropy, and (1 − P(y ≤ 0))² + P(y ≤ 0)² … of cumulated probabilities."""
    logits = torch.tensor([[0.0, np.log(2.0), np.log(5.0)]])
    losses = losses_of(TASKS["ordinal"]).losses(logits, torch.tensor([1]))
    ranked = 0.125**2 + (0.375 - 1) ** 2
    torch.testing.assert_close(losses, torch.tensor([-np.log(0.25) + ranked], dtype=torch.float64))


def test_a_plugin_that_raises_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site" / "their_family.py").write_text("raise RuntimeError('plugin raised')")
    monkeypatch.delitem(sys.modules, "their_family", raising=False)
    (tmp_path / "config.json").write_text("{}")
    assert run(["inspect", str(tmp_path)]) == 6
    said = capsys.readouterr().err
    assert re.match(r"error: package\d: its hydrasurgeon\.", said)
    assert "(plugin raised)" in said
    assert "Traceback" not in said
