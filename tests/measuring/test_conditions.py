"""eval names what models do not have in common besides their answers: training, OOD score, calibration, data."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from tiny_families import FAMILIES

import hydrasurgeon as hs

VIT = FAMILIES["timm ViT"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("conditions")
    VIT.write(folder / "source")
    VIT.data(folder, rows=90)
    noise = np.random.default_rng(1).integers(0, 255, (30, 28, 28, 3), dtype=np.uint8)
    np.savez(folder / "noise.npz", images=noise)
    return folder


def test_a_calibrated_model_is_compared_with_a_calibrated_reference(home: Path) -> None:
    data, ood = str(home / "data.npz"), [f"near:noise={home / 'noise.npz'}"]
    decided = hs.calibrate(
        home / "source", data=data, ood_score="rmds", out=home / "decided.safetensors"
    ).path
    page = home / "plain.html"
    done = hs.evaluate([home / "source", decided], data=data, ood=ood, html=page)
    assert [row.name for row in done.report.results] == ["source", "decided"]
    named = "OOD by rmds, the reference by msp; calibrated, the reference not: calibrate both, and compare again"
    assert any(note.endswith(named) for note in done.notes)
    # Other scores detect OOD data, and one alone is calibrated: only accuracy is compared.
    table = page.read_text(encoding="utf-8").partition("<caption>Differences")[2]
    heads = table.partition("</thead>")[0]
    assert re.findall("[A-Za-z0-9]+&nbsp;[↑↓]", heads) == ["accuracy&nbsp;↑"]
