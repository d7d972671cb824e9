"""Other packages' criteria and families, by entry points, as pip installs them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from fitted_heads import solved, with_head

import hydrasurgeon as hs
from hydrasurgeon import criteria, families, lookup
from hydrasurgeon.checkpoints.reading import open_checkpoint, rewritten
from hydrasurgeon.cli.app import run
from hydrasurgeon.files import decided
from hydrasurgeon.files.manifest import parse_manifest
from hydrasurgeon.problems import PROBLEMS, SINGLE, problem_of
from hydrasurgeon.tuning.losses import losses_of

MODULE = """
from hydrasurgeon.criteria.base import Criterion
from hydrasurgeon.families.timm_vit.family import TimmViT
from hydrasurgeon.files.decided import OnLogits
from hydrasurgeon.problems.classes import Classes
from hydrasurgeon.tuning.losses import OfClasses

def score(subject):
    kept = subject.checkpoint.manifest.kept
    return {(tower, layer): [float(head == layer) for head in row]
            for tower, rows in kept.items() for layer, row in enumerate(rows)}

diagonal = Criterion("their_package:score", needs_data=False)

class Family(TimmViT):
    name = "theirs"

def score_purity(probs):
    return -(probs**2).sum(axis=-1)

purity = OnLogits("probabilities", home="their_package")

class Sharp(Classes):
    name = "sharp"
    trained_by = "their_package:Losses"

class Losses(OfClasses):
    def losses(self, logits, labels, **how):
        return 2 * super().losses(logits, labels, **how)
"""
POINTS = """
[hydrasurgeon.criteria]
diagonal = their_package:diagonal
[hydrasurgeon.families]
theirs = their_package:Family
[hydrasurgeon.scores]
purity = their_package:purity
[hydrasurgeon.problems]
sharp = their_package:Sharp
"""


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    site = tmp_path / "site"
    about = site / "their_package-1.dist-info"
    about.mkdir(parents=True)
    (site / "their_package.py").write_text(MODULE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1\n")
    (about / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(site)
    monkeypatch.setattr(criteria, "CRITERIA", {**criteria.CRITERIA})
    lookup.plugins.cache_clear()
    yield
    lookup.plugins.cache_clear()
    families._plugged.cache_clear()
    decided.LOGITS.pop("purity", None)
    PROBLEMS.pop("sharp", None)
    sys.modules.pop("their_package", None)


def test_a_criterion(tiny: Callable[..., Path], tmp_path: Path) -> None:
    path = tiny()
    kept = hs.prune(path, method="diagonal", keep=1, out=tmp_path / "m").manifest.kept
    assert kept == {"vision": ((0,), (1,), (2,))}
    assert run(["prune", str(path), "--method", "diagnal", "--keep", "1"]) == 2


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


def test_a_score(tiny: Callable[..., Path], images: Callable[..., str], tmp_path: Path) -> None:
    data = images()
    knows = with_head(tiny(), tmp_path / "k.safetensors", solved(tiny(), data))
    path = hs.calibrate(knows, data=data, ood_score="purity", out=tmp_path / "c").path
    del decided.LOGITS["purity"]  # as in another process
    model = hs.load(path, device="cpu", dtype="float64")
    inputs = torch.randn(3, 1, 28, 28, dtype=torch.float64)
    squares = model.predict(inputs).double().square().sum(dim=-1)
    np.testing.assert_allclose(model.decide(inputs).ood_score, -squares, atol=1e-5, rtol=0)


def test_a_problem(tiny: Callable[..., Path]) -> None:
    manifest = open_checkpoint(tiny()).manifest
    model = manifest.model.model_copy(update={"problem": "sharp"})
    sharp = parse_manifest(rewritten(manifest, model=model).to_json(), "test")
    logits, labels = torch.randn(4, 5), torch.arange(4)
    losses = losses_of(problem_of(sharp.model)).losses(logits, labels)
    torch.testing.assert_close(losses, 2 * losses_of(SINGLE).losses(logits, labels))


def test_a_plugin_that_raises_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site" / "their_package.py").write_text("raise RuntimeError('plugin raised')")
    monkeypatch.delitem(sys.modules, "their_package", raising=False)
    (tmp_path / "config.json").write_text("{}")
    assert run(["inspect", str(tmp_path)]) == 6
    said = capsys.readouterr().err
    assert said.startswith("error: their-package: its hydrasurgeon.")
    assert "(plugin raised)" in said
    assert "Traceback" not in said
