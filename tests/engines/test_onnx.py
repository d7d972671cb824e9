"""The engine `onnx`: what torch answers, from a checkpoint or from a file that `export` wrote."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from exporting import exports, onnx_writes
from tiny_families import FAMILIES, Family
from tiny_members import KEPTS, member, tune

import hydrasurgeon as hs
from hydrasurgeon.cli.app import run
from hydrasurgeon.errors import CheckpointError, MissingDependency, UsageError
from hydrasurgeon.stages.export import export

pytestmark = [exports, onnx_writes, pytest.mark.usefixtures("labels_need_not_fit")]


def rows(checkpoint: Path, data: str, **options: Any) -> list[dict[str, Any]]:
    return [*hs.predict(checkpoint, data=data, device="cpu", batch_size=7, **options)]


def check_alike(answers: list[dict[str, Any]], right: list[dict[str, Any]]) -> None:
    """Numbers to 1e-4; who is near a threshold may fall on its other side."""
    assert len(answers) == len(right)
    for one, other in zip(answers, right, strict=True):
        assert one.keys() == other.keys()
        assert (one["id"], one["label"]) == (other["id"], other["label"])
        assert one["members_run"] == other["members_run"]
        for name in ("probability", "total", "aleatoric", "epistemic", "ood_score"):
            same = one[name] == other[name]
            assert same or math.isclose(one[name], other[name], rel_tol=1e-4, abs_tol=1e-4), name


def calibrated(folder: Path, family: Family, data: str, score: str, **options: Any) -> Path:
    """A hydra of three with a decision state."""
    family.write(folder / "source")
    parts = [
        tune(
            member(folder / "source", family, kept, folder / f"m{i}.safetensors"),
            folder / f"t{i}.safetensors",
            i,
        )
        for i, kept in enumerate(KEPTS)
    ]
    hydra = hs.fuse(parts, out=folder / "hydra.safetensors", mlp="separate").path
    out = folder / "ready.safetensors"
    return hs.calibrate(hydra, data=data, ood_score=score, out=out, device="cpu", **options).path


@pytest.mark.slow  # seconds of exports
def test_a_hydra_with_a_cascade_and_a_score_of_features(tmp_path: Path) -> None:
    family = FAMILIES["timm ViT"]
    data = family.data(tmp_path, rows=90)
    ready = calibrated(tmp_path, family, data, "mds", cascade=True)
    assert {row["members_run"] for row in rows(ready, data)} == {1, 3}
    whole = rows(ready, data, cascade=False)
    # A graph answers whole, and so does the file of one, which decides by itself.
    check_alike(rows(ready, data, engine="onnx"), whole)
    graph = export(ready, out=tmp_path / "x.onnx").path
    check_alike(rows(graph, data), whole)
    with pytest.raises(UsageError, match="has no cascade in this engine"):
        rows(ready, data, engine="onnx", cascade=True)


def test_what_it_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import onnx

    family = FAMILIES["timm ViT"]
    family.write(tmp_path / "source")
    data = family.data(tmp_path, rows=8)
    nodes = [onnx.helper.make_node("Identity", ["x"], ["logits"])]
    values = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1])
        for name in ("x", "logits")
    ]
    graph = onnx.helper.make_graph(nodes, "g", values[:1], values[1:])
    other = tmp_path / "other.onnx"
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)])
    onnx.save(model, other)
    with pytest.raises(CheckpointError, match="is not a graph that `export` wrote") as refused:
        rows(other, data)
    assert refused.value.exit_code == 3
    other.write_bytes(b"no graph")
    with pytest.raises(CheckpointError, match="is not an ONNX graph"):
        rows(other, data)
    with pytest.raises(CheckpointError, match="cannot be read"):
        rows(tmp_path / "absent.onnx", data)
    with pytest.raises(UsageError, match="--engine onnx conflicts with --dtype bfloat16"):
        rows(tmp_path / "source", data, engine="onnx", dtype="bfloat16")
    monkeypatch.setattr("hydrasurgeon.lookup.find_spec", lambda name: None)
    for checkpoint, options in ((tmp_path / "source", {"engine": "onnx"}), (other, {})):
        with pytest.raises(MissingDependency, match="onnxruntime") as lacking:
            rows(checkpoint, data, **options)
        assert lacking.value.exit_code == 6


@pytest.mark.slow
def test_eval_measures_it(tmp_path: Path) -> None:
    family = FAMILIES["timm ViT"]
    data = family.data(tmp_path, rows=90)
    ready = calibrated(tmp_path, family, data, "mds")
    graph = export(ready, out=tmp_path / "x.onnx").path
    results = []
    for checkpoint, options in ((ready, {}), (ready, {"engine": "onnx"}), (graph, {})):
        out = tmp_path / f"{len(results)}.json"
        sets = {"data": data, "ood": [f"far:x={data}"]}
        hs.evaluate(checkpoint, time=True, json=out, device="cpu", **sets, **options)
        results.append(json.loads(out.read_text())["results"][0])
    torch, engine, file = results
    for each in (engine, file):
        assert each["id"]["nll"] == pytest.approx(torch["id"]["nll"], abs=1e-4)
        assert each["id"]["accuracy"] == torch["id"]["accuracy"]
        assert each["ood"][0]["auroc"] == pytest.approx(torch["ood"][0]["auroc"], abs=1e-2)
    for count in ("macs", "macs_all_tokens"):
        assert engine["cost"][count] == file["cost"][count] == torch["cost"][count]
    assert engine["cost"]["latency_ms"] > 0


@pytest.mark.slow
def test_bench_and_serve_run_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hydrasurgeon.stages.bench import bench
    from hydrasurgeon.stages.serve import serve

    family = FAMILIES["timm ViT"]
    family.write(tmp_path / "source")
    graph = export(tmp_path / "source", out=tmp_path / "x.onnx").path
    (torch,) = bench([tmp_path / "source"], batch="1", runs=1, device="cpu").results
    benched = bench([tmp_path / "source", graph], batch="1", runs=1, device="cpu", engine="onnx")
    engine, file = benched.results
    assert (engine.params, engine.macs) == (torch.params, torch.macs)
    assert (file.params, file.macs) == (torch.params, torch.macs)
    assert engine.macs_all_tokens == file.macs_all_tokens == torch.macs_all_tokens
    assert torch.macs_all_tokens > torch.macs
    assert min(engine.points[0].latency_ms, file.points[0].latency_ms) > 0
    assert run(["bench", str(graph), "--batch", "1", "--runs", "1"]) == 0
    uvicorn = pytest.importorskip("uvicorn")
    pytest.importorskip("fastapi")
    asked: list[Any] = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda server, sockets: asked.append(server))
    for options in ({"engine": "onnx"}, {}):
        serve(tmp_path / "source" if options else graph, port=0, device="cpu", **options)
    assert len(asked) == 2
