"""bench: what it counts is right, of a cascade too, and it says what it compared."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from exporting import exports, onnx_writes
from runtime_states import cascade_by
from runtime_states import state as made_state
from tiny_families import FAMILIES, Family, thoroughly
from tiny_members import KEPTS, member
from torch import nn

import hydrasurgeon as hs
from hydrasurgeon.cli.app import run
from hydrasurgeon.data import open_data
from hydrasurgeon.engines import engine_of, runnable
from hydrasurgeon.errors import DataError, HydraError
from hydrasurgeon.measuring.cost import (
    InTurn,
    MultiplyAdds,
    macs,
    peak_bytes,
    stage_macs,
    timed_samples,
    without_padding,
)
from hydrasurgeon.runtime.answering import outputs_in_stages

MAKE = Callable[..., Path]


@pytest.fixture
def parts(tiny: MAKE, tmp_path: Path) -> tuple[Path, list[Path], Path]:
    whole = tiny()
    members = [
        hs.prune(whole, method="random", keep=2, seed=s, out=tmp_path / f"m{s}.safetensors").path
        for s in (1, 2, 3)
    ]
    return whole, members, hs.fuse(members, out=tmp_path / "hydra.safetensors").path


def test_report(parts: tuple[Path, list[Path], Path], tmp_path: Path) -> None:
    whole, members, hydra = parts
    out = tmp_path / "bench.json"
    words = ["bench", str(hydra), "--vs", *map(str, members), "--backbone", str(whole)]
    assert run([*words, "--batch", "1,3", "--runs", "2", "--json", str(out), "--quiet"]) == 0
    report = json.loads(out.read_text())
    assert report["format"] == "hydrasurgeon.bench/1"
    single, apart, fused = report["results"]
    assert [r["kind"] for r in (single, apart, fused)] == ["single", "in sequence", "hydra"]
    assert [p["batch"] for p in fused["points"]] == [1, 3]
    assert single["macs_ratio"] == 1
    assert all(p["ratio"] == 1 for p in single["points"])
    # The same figures that eval gives for the same models.
    model = hs.load(hydra, device="cpu")
    assert fused["params"] == sum(p.numel() for p in model.parameters())
    assert apart["params"] == sum(
        p.numel() for m in members for p in hs.load(m, device="cpu").parameters()
    )
    # Members that keep half of the heads: less than three models, and the hydra less than its members.
    assert fused["macs"] < apart["macs"] < 3 * single["macs"]
    for entry in (single, apart, fused):
        for point in entry["points"]:
            assert point["throughput"] == pytest.approx(1000 * point["batch"] / point["latency_ms"])
            assert point["peak_bytes"] > 4 * entry["params"]


def test_peak_memory_is_weights_and_activations() -> None:
    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(64, 4096), nn.Linear(4096, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(self.a(x))

    model, inputs = Chain(), torch.randn(128, 64)
    weights = 4 * sum(p.numel() for p in model.parameters())
    hidden, out = 128 * 4096 * 4, 128 * 64 * 4
    assert peak_bytes(model, lambda: model(inputs)) == pytest.approx(
        weights + hidden + out, rel=0.05
    )
    # One after another: all weights, but only one model's activations at a time.
    both = InTurn([model, Chain()])
    twice = peak_bytes(both, lambda: both(inputs))
    assert twice == pytest.approx(2 * weights + hidden + 2 * out, rel=0.05)


def test_what_cannot_be_read_is_not_timed(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("image,label\na.png,0\n")
    (tmp_path / "a.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match="none of its 1 samples can be read"):
        timed_samples(open_data(str(tmp_path / "d.csv")), [], 1, skip_bad=True)


def test_contenders_must_read_the_same_inputs(
    tiny: MAKE, parts: tuple[Path, list[Path], Path]
) -> None:
    other = tiny(
        "other.safetensors",
        arch="timm:vit_tiny_patch16_224,img_size=14,patch_size=7,in_chans=1,embed_dim=32,depth=3,num_heads=4,num_classes=5",
    )
    with pytest.raises(HydraError, match="read different inputs"):
        hs.bench([parts[2], other])


@pytest.mark.slow
@exports
@onnx_writes
def test_every_engine_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    FAMILIES["ViT"].write(tmp_path / "source")
    source, data = tmp_path / "source", FAMILIES["ViT"].data(tmp_path, rows=90)
    words = ["bench", str(source), "--engine", "all", "--batch", "1,16", "--runs", "2"]
    assert run([*words, "--data", data, "--json", str(tmp_path / "b.json")]) == 0
    report = json.loads((tmp_path / "b.json").read_text())
    assert [each["engine"] for each in report["engines"]] == ["torch", "onnx", "int8"]
    best = min(report["engines"], key=lambda each: each["ms"]["16"])
    assert best["engine"] == report["use"]
    assert f"use --engine {report['use']}" in capsys.readouterr().out
    torch, onnx, int8 = (each["difference"] for each in report["engines"])
    assert torch == 0
    assert onnx < 1e-5
    samples, said = open_data(data), []  # their difference on these samples
    for name, opened in runnable(source).items():
        live = engine_of(opened, engine=name)
        batch = live.prepared([samples.read(int(i)) for i in np.linspace(0, 89, 16).round()])
        said.append(live.answered(batch).probabilities)
    assert int8 == pytest.approx(np.abs(said[2] - said[0]).max(), rel=1e-3)
    assert 1e-7 < int8 < 1e-2
    assert run([*words, "--vs", str(source)]) == 2


FULL = [0, 1, 2, 3]
TRUNKED = ([FULL, FULL, [0, 1]], [FULL, [1, 2], [0, 1]], [FULL, [1, 2], []])


def fused(folder: Path, family: Family, kepts: tuple[list[list[int]], ...]) -> hs.Classifier:
    paths = [
        member(folder / "source", family, rows, folder / f"m{i}.safetensors")
        for i, rows in enumerate(kepts)
    ]
    made = hs.fuse(paths, out=folder / "hydra.safetensors", force=True)
    return hs.load(made.path, device="cpu")


@pytest.mark.parametrize("family", thoroughly())
def test_parts_cost_no_less_than_the_whole(family: Family, tmp_path: Path) -> None:
    family.write(tmp_path / "source")
    inputs = family.inputs()
    for number, kepts in enumerate((KEPTS, TRUNKED)):
        (folder := tmp_path / str(number)).mkdir()
        (folder / "source").symlink_to(tmp_path / "source")
        model = fused(folder, family, kepts)
        counted = stage_macs(model, inputs)
        # Heads in common the whole computes once, the parts do not.
        assert macs(model, inputs) <= counted.expected(1.0)


def test_all_rows_through_count_what_runs(tmp_path: Path) -> None:
    """Counted while the cascade runs, with every row going on."""
    family = FAMILIES["timm ViT"]
    family.write(tmp_path / "source")
    model, inputs = fused(tmp_path, family, TRUNKED), family.inputs(4)
    model.state = made_state(cascade=cascade_by(1.0))
    with torch.inference_mode(), without_padding(model):
        outputs_in_stages(model, inputs, features=False)
        with MultiplyAdds() as counter:
            outputs_in_stages(model, inputs, features=False)
    assert counter.count == 4 * stage_macs(model, inputs).expected(1.0)
