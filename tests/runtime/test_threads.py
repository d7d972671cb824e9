"""Threads that share a loaded model get the answers that one thread gets."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from runtime_states import cascade_by, lac
from runtime_states import state as made_state
from tiny_families import FAMILIES
from tiny_members import KEPTS, member, tune

import hydrasurgeon as hs
from hydrasurgeon.files.decided import Standard
from hydrasurgeon.statistics.scores.fitted import EnsembleScore

THREADS, CALLS, MEMBERS = 8, 40, 2


def hydra(folder: Path) -> hs.Classifier:
    """Two members whose OOD score reads features, with a cascade that reads them too."""
    family = FAMILIES["timm ViT"]
    family.write(folder / "source")
    parts = [
        tune(
            member(folder / "source", family, rows, folder / f"m{i}.safetensors"),
            folder / f"t{i}.safetensors",
            i,
        )
        for i, rows in enumerate(KEPTS[:MEMBERS])
    ]
    fused = hs.fuse(parts, out=folder / "hydra.safetensors", mlp="separate")
    model = hs.load(fused.path, device="cpu", dtype="float64")
    generator = torch.Generator().manual_seed(0)
    shapes = {"centre": (32,), "factor": (32, 32), "means": (3, 32)}
    fits = tuple(
        {name: torch.randn(shape, generator=generator).numpy() for name, shape in shapes.items()}
        for _ in range(MEMBERS)
    )
    standards = tuple(Standard(mean=m + 1.0, deviation=m + 4.0) for m in range(MEMBERS))
    cascade = cascade_by(0.0, conformal=lac(0.7, 0.8))
    fitted = EnsembleScore("mds", fits, standards)
    model.state = made_state("mds", 0.5, fitted=fitted, conformal=lac(0.7, 0.8), cascade=cascade)
    return model


@pytest.mark.slow
@pytest.mark.usefixtures("switching")
@pytest.mark.parametrize("cascade", [False, True])
def test_ood_scores_are_those_of_one_thread(tmp_path: Path, cascade: bool) -> None:
    model = hydra(tmp_path)
    batches = [
        FAMILIES["timm ViT"].inputs(1 + number % 3, torch.float64) + 0.1 * number
        for number in range(THREADS)
    ]
    alone = [model.decide(batch, cascade=cascade).ood_score for batch in batches]

    def ask(number: int) -> None:
        for _ in range(CALLS):
            scores = model.decide(batches[number], cascade=cascade).ood_score
            np.testing.assert_allclose(scores, alone[number], rtol=1e-4, atol=1e-4)

    with ThreadPoolExecutor(THREADS) as threads:
        assert [*threads.map(ask, range(THREADS))] == [None] * THREADS
