"""eval --cascade: two rows, the cascade's as `decide` answers, and costs by the shares of this data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_families import FAMILIES
from tiny_members import members_of, tuned_of

import hydrasurgeon as hs
from hydrasurgeon.data import Batches, open_data
from hydrasurgeon.errors import CheckpointError
from hydrasurgeon.measuring.cost import stage_macs
from hydrasurgeon.statistics.metrics import auroc

VIT = FAMILIES["timm ViT"]


@pytest.mark.slow
def test_the_cascades_row(tmp_path: Path) -> None:
    VIT.write(tmp_path / "source")
    paths = members_of(tmp_path / "source", VIT, tmp_path)
    parts = tuned_of(paths, tmp_path)
    hydra = hs.fuse(parts, out=tmp_path / "hydra.safetensors", mlp="separate").path
    for name, rows in (("val", 120), ("test", 60)):
        Path(VIT.data(tmp_path, rows=rows)).rename(tmp_path / f"{name}.npz")
    test, noise = tmp_path / "test.npz", tmp_path / "noise.npz"
    np.savez(
        noise, images=np.random.default_rng(3).integers(0, 255, (40, 28, 28, 3), dtype=np.uint8)
    )
    path = tmp_path / "c.safetensors"
    hs.calibrate(
        hydra, data=str(tmp_path / "val.npz"), ood_score="mds", cascade=True, risk=0.9, out=path
    )
    sets: dict[str, Any] = {"data": str(test), "ood": [f"far:noise={noise}"], "batch_size": 16}
    report = hs.evaluate([path], cascade=True, time=True, shift=[f"again={test}"], **sets).report
    part, whole = report.results
    assert (part.name, whole.name) == ("c", "c (whole)")
    assert report.settings["cascade"] is True
    model = hs.load(path, device="cpu")

    def decided(data: Path, how: bool | None = None) -> tuple[Any, Any, Any]:
        (batch,) = Batches(open_data(str(data)), model.transform, batch_size=200, workers=0)
        return model.decide(batch.inputs, cascade=how), np.asarray(batch.labels), batch

    for row, how in ((part, True), (whole, False)):
        found, labels, _ = decided(test, how)
        outside, *_ = decided(noise, how)
        right = (found.labels == labels).mean()
        assert row.id.accuracy == pytest.approx(float(right))
        assert row.shift[0].accuracy == pytest.approx(float(right))
        given = ~(found.abstain | found.unfamiliar)
        assert row.id.answered == pytest.approx(given.mean())
        assert row.id.wrong == pytest.approx((found.labels != labels)[given].mean())
        nll = -np.log(np.take_along_axis(found.probabilities, labels[:, None], 1)).mean()
        assert row.id.nll == pytest.approx(float(nll), abs=1e-5)
        assert row.ood[0].auroc == pytest.approx(
            auroc(found.ood_score, outside.ood_score), abs=2e-3
        )
        assert row.id.coverage == pytest.approx(
            float(np.take_along_axis(found.sets, labels[:, None], 1).mean())
        )
    found, _, batch = decided(test)
    share = float((found.members_run == 3).mean())
    assert 0 < share < 1
    assert part.cost is not None
    assert whole.cost is not None
    assert part.cost.macs == whole.cost.macs
    assert min(part.cost.latency_ms or 0, whole.cost.latency_ms or 0) > 0
    assert part.cost.expected_macs == round(stage_macs(model, batch.inputs).expected(share))
    assert "expected_macs" not in whole.model_dump()["cost"]
    # The first alone disagrees with nobody.
    assert part.diversity.mi < whole.diversity.mi
    again = hs.evaluate([path], **sets).report.results[0]
    assert (again.id, again.ood) == (whole.id, whole.ood)
    with pytest.raises(CheckpointError, match="has no cascade"):
        hs.evaluate([hydra], cascade=True, **sets)
    # Beside a cascade, a model without one is measured as it is.
    beside = hs.evaluate([path, hydra], cascade=True, **sets).report.results
    assert [each.name for each in beside] == ["c", "c (whole)", "hydra"]
    assert beside[0].id == part.id
