"""eval names what models do not have in common besides their answers, and gives each of one name a name of its own."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_families import FAMILIES

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import Checkpoint, open_checkpoint
from hydrasurgeon.data import open_data
from hydrasurgeon.measuring.sets import by_path, name_of

VIT = FAMILIES["timm ViT"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("conditions")
    VIT.write(folder / "source")
    VIT.data(folder, rows=90)
    noise = np.random.default_rng(1).integers(0, 255, (30, 28, 28, 3), dtype=np.uint8)
    np.savez(folder / "noise.npz", images=noise)
    return folder


@pytest.mark.slow
def test_a_calibrated_model_is_compared_with_a_calibrated_reference(home: Path) -> None:
    data, ood = str(home / "data.npz"), [f"near:noise={home / 'noise.npz'}"]
    decided = hs.calibrate(
        home / "source", data=data, ood_score="rmds", out=home / "decided.safetensors"
    ).path
    page = home / "plain.html"
    done = hs.evaluate([home / "source", decided], data=data, ood=ood, html=page)
    assert [row.name for row in done.report.results] == ["source", "decided"]
    named = (
        "another OOD score (rmds, not msp); calibrated, unlike the reference: run `hydrasurgeon calibrate "
        "source --data VAL --ood-score rmds -o calibrated.safetensors` and compare with that"
    )
    assert any(note.endswith(named) for note in done.notes)
    turned = hs.evaluate(
        [home / "source", decided], data=data, ood=ood, reference="decided", markdown="-"
    )
    assert any("compare source with the reference, decided," in note for note in turned.notes)
    text = page.read_text(encoding="utf-8")
    assert "<code>hydrasurgeon calibrate source --data VAL" in text
    assert "decided is not distinguishable at the same cost" in text
    for name, sha256 in (
        ("decided", open_checkpoint(decided).manifest.weights_sha256),
        ("data", open_data(data).fingerprint()["sha256"]),
        ("near-OOD noise", open_data(str(home / "noise.npz")).fingerprint()["sha256"]),
    ):
        assert f"<dt>content hash of {name}</dt><dd>{sha256}</dd>" in text
    # Other scores detect OOD data, and one alone is calibrated: only accuracy is compared.
    table = page.read_text(encoding="utf-8").partition("<caption>Differences")[2]
    heads = table.partition("</thead>")[0]
    assert re.findall("[A-Za-z0-9]+&nbsp;[↑↓]", heads) == ["accuracy&nbsp;↑"]


MAKE = Callable[..., Path]


@pytest.fixture
def named(tiny: MAKE) -> Callable[[str], Checkpoint]:
    opened = open_checkpoint(tiny())
    return lambda path: replace(opened, path=Path(path))


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["/x/a.safetensors", "/y/b.safetensors"], ["a", "b"]),
        (["/x/a.safetensors", "/x/b.safetensors", "/y/a.safetensors"], ["/x/a", "b", "/y/a"]),
        (["/x/a.safetensors", "/x/a.safetensors"], ["a", "a"]),
        ([f"{os.getcwd()}/a.safetensors", "a.safetensors"], ["a", "a"]),
    ],
    ids=["other names", "one apart", "one file twice", "one file, named in two ways"],
)
def test_the_path_tells_them_apart(
    paths: list[str], names: list[str], named: Callable[[str], Checkpoint]
) -> None:
    assert [name_of([each]) for each in by_path([named(path) for path in paths], paths)] == names
