"""eval --cascade: two rows, the cascade's as `decide` answers, and costs by the shares of this data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_families import FAMILIES
from tiny_members import KEPTS, member, tune

import hydrasurgeon as hs
from hydrasurgeon.data import Batches, open_data
from hydrasurgeon.errors import CheckpointError, UsageError
from hydrasurgeon.measuring.cost import step_macs
from hydrasurgeon.statistics.metrics import auroc

VIT = FAMILIES["timm ViT"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evaluated")
    VIT.write(folder / "source")
    paths = [
        member(folder / "source", VIT, rows, folder / f"m{i}.safetensors")
        for i, rows in enumerate(KEPTS)
    ]
    parts = [tune(path, folder / f"t{i}.safetensors", i) for i, path in enumerate(paths)]
    hydra = hs.fuse(parts, out=folder / "hydra.safetensors", mlp="separate").path
    for name, rows in (("val", 120), ("test", 60)):
        Path(VIT.data(folder, rows=rows)).rename(folder / f"{name}.npz")
    noise = np.random.default_rng(3).integers(0, 255, (40, 28, 28, 3), dtype=np.uint8)
    np.savez(folder / "noise.npz", images=noise)
    hs.calibrate(
        hydra,
        data=str(folder / "val.npz"),
        ood_score="mds",
        cascade=True,
        budget=1.6,
        out=folder / "c.safetensors",
    )
    return folder


def decided(model: hs.Classifier, path: Path, **how: Any) -> tuple[Any, Any]:
    batches = list(Batches(open_data(str(path)), model.transform, batch_size=200, workers=0))
    return model.decide(batches[0].inputs, **how), batches[0]


def test_the_cascades_row(folder: Path) -> None:
    test, noise = folder / "test.npz", folder / "noise.npz"
    path = folder / "c.safetensors"
    report = hs.evaluate(
        [path],
        data=str(test),
        ood=[f"far:noise={noise}"],
        cascade=True,
        batch_size=16,
        shift=[f"again={test}"],
    ).report
    part, whole = report.results
    assert (part.name, whole.name) == ("c", "c (full)")
    assert report.settings["cascade"] is True
    model = hs.load(path, device="cpu")
    assert model.state is not None
    cascade = model.state.record.cascade
    assert cascade is not None
    for row, how in ((part, True), (whole, False)):
        found, batch = decided(model, test, cascade=how)
        outside, _ = decided(model, noise, cascade=how)
        right = (found.labels == batch.labels).double().mean()
        assert row.id.accuracy == pytest.approx(float(right))
        assert row.shift[0].accuracy == pytest.approx(float(right))
        nll = -found.probabilities.gather(1, batch.labels[:, None]).log().mean()
        assert row.id.nll == pytest.approx(float(nll), abs=1e-5)
        assert row.ood[0].auroc == pytest.approx(
            auroc(found.ood_score, outside.ood_score), abs=2e-3
        )
        assert row.id.coverage == pytest.approx(
            float(found.sets.gather(1, batch.labels[:, None]).double().mean())
        )
    found, batch = decided(model, test)
    share = float((found.members_run == 3).double().mean())
    assert part.cost is not None
    assert whole.cost is not None
    assert part.cost.macs == whole.cost.macs
    assert part.cost.latency_ms is not None
    assert whole.cost.expected_macs is None
    steps = step_macs(model, batch.inputs, cascade.starters)
    assert 0 < share < 1
    assert part.cost.expected_macs == round(steps.expected(share))
    # One member alone disagrees with nobody.
    assert part.diversity.mi < whole.diversity.mi
    assert "expected_macs" not in whole.model_dump()["cost"]
    again = hs.evaluate(
        [path], data=str(test), ood=[f"far:noise={noise}"], batch_size=16
    ).report.results[0]
    assert again.id == whole.id
    assert again.ood == whole.ood


def test_bench_times_batches_of_real_data(folder: Path) -> None:
    path, data = folder / "c.safetensors", str(folder / "test.npz")
    benched = hs.bench(
        [path],
        backbone=folder / "source",
        cascade=True,
        data=data,
        batch="1,20",
        runs=1,
        device="cpu",
    )
    kinds = {each.name: each.kind for each in benched.results}
    assert kinds == {
        "source": "backbone" if "backbone" in kinds.values() else "single",
        "c": "cascade",
        "c (full)": "hydra",
    }
    single, part, whole = benched.results
    assert single.macs < part.macs < whole.macs
    assert [point.batch for point in part.points] == [1, 20]
    model = hs.load(path, device="cpu")
    found, batch = decided(model, folder / "test.npz")
    assert model.state is not None
    assert model.state.record.cascade is not None
    share = float((found.members_run == 3).double().mean())  # three batches of 20 are all 60
    steps = step_macs(model, batch.inputs, model.state.record.cascade.starters)
    assert part.macs == round(steps.expected(share))
    with pytest.raises(UsageError, match="--cascade requires --data"):
        hs.bench([path], cascade=True)
    with pytest.raises(UsageError, match="--compile"):
        hs.bench([path], cascade=True, data=data, compile=True)
    with pytest.raises(CheckpointError, match="has no cascade"):
        hs.bench([folder / "hydra.safetensors"], cascade=True, data=data)
