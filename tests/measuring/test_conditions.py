"""eval names what models do not have in common besides their answers: training, OOD score, calibration, data."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from tiny_families import FAMILIES

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.stages.evaluate_models import recorded_steps, steps_trained

VIT = FAMILIES["timm ViT"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("conditions")
    VIT.write(folder / "source")
    VIT.data(folder, rows=90)
    noise = np.random.default_rng(1).integers(0, 255, (30, 28, 28, 3), dtype=np.uint8)
    np.savez(folder / "noise.npz", images=noise)
    return folder


def tuned(home: Path, source: Path, name: str, *, seed: int = 0, **changes: str) -> Path:
    return hs.finetune(
        source,
        data=str(home / "data.npz"),
        recipe="demo",
        set=changes,
        seed=seed,
        out=home / name,
        force=True,
    ).path


def headline(page: Path) -> str:
    (heading,) = re.findall(r"<h1>(.*?)</h1>", page.read_text(encoding="utf-8"))
    return unescape(heading)


def verdict(page: Path, name: str) -> str:
    (sentence,) = re.findall(
        rf"<h2>{re.escape(name)}</h2><p>([^<]*)</p>", page.read_text(encoding="utf-8")
    )
    return unescape(sentence)


def test_steps_are_counted_along_each_chain(home: Path) -> None:
    first = tuned(home, home / "source", "first.safetensors", steps="3")
    members = []
    for seed in (1, 2):
        pruned = hs.prune(
            first, method="random", keep=2, seed=seed, out=home / f"m{seed}.safetensors"
        ).path
        members.append(tuned(home, pruned, f"t{seed}.safetensors", seed=seed, steps=str(2 * seed)))
    hydra = hs.fuse(members, out=home / "hydra.safetensors").path
    last = tuned(home, members[0], "last.safetensors", epochs="2", batch_size="40")
    counts = [
        steps_trained(open_checkpoint(each).manifest.history)
        for each in (first, *members, hydra, last)
    ]
    assert counts == [3, 5, 7, 7, 5 + 2 * (90 // 40)]
    entry = open_checkpoint(last).manifest.history[-1]
    assert (
        recorded_steps(entry.model_copy(update={"args": {**entry.args, "recipe": "own.toml"}}))
        is None
    )


def test_training_is_named_with_the_verdict(home: Path) -> None:
    few, many = (tuned(home, home / "source", f"{n}.safetensors", steps=n) for n in ("2", "5"))
    page = home / "steps.html"
    done = hs.evaluate([few, many], data=str(home / "data.npz"), html=page)
    assert "5 against 2, the reference: trained 5 steps, the reference 2" in done.notes
    assert "trained" not in headline(page)
    assert verdict(page, "5").endswith("; not alike: trained 5 steps, the reference 2.")
    alike = hs.evaluate([few, few], data=str(home / "data.npz"), html=home / "alike.html")
    assert not any("against" in note for note in alike.notes)
    assert "not alike" not in (home / "alike.html").read_text(encoding="utf-8")


def test_a_calibrated_model_is_compared_with_a_calibrated_reference(home: Path) -> None:
    data, ood = str(home / "data.npz"), [f"near:noise={home / 'noise.npz'}"]
    decided = hs.calibrate(
        home / "source", data=data, ood_score="rmds", out=home / "decided.safetensors"
    ).path
    page = home / "plain.html"
    done = hs.evaluate([home / "source", decided], data=data, ood=ood, html=page)
    assert [row.name for row in done.report.results] == ["source", "decided"]
    named = "OOD by rmds, the reference by msp; calibrated, the reference not"
    assert "calibrated" not in headline(page)
    # Other scores detect OOD data, and one alone is calibrated: only accuracy is compared.
    assert verdict(page, "decided").startswith("Not distinguishable on 90 samples (accuracy +0.0 ")
    unfair = "not compared in Brier score, NLL, ECE, OOD AUROC and OOD FPR95"
    assert verdict(page, "decided").endswith(f"; {unfair}; not alike: {named}.")
    command = "calibrate source --data VAL --ood-score rmds -o calibrated.safetensors"
    assert any(command in note for note in done.notes)
