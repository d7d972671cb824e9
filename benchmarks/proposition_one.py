"""Whether the conditions of the paper's Proposition 1 hold, and what circuits do to the separation of OOD data
(B.1, B.2).

    conditions   three ViTs trained on Fashion-MNIST from random weights, and DINOv2-small at 84 pixels behind a linear
    classifier:
                 a third of the heads removed by taylor, by magnitude and by chance; noise: each sample by one of the
                 fifteen corruptions at one
                 of five severities in turn
    separation   those three ViTs whole, and without 18 of 48 heads by a circuit for OOD detection (found on
                 textures, counted on others): mean distances of the last layer

Writes benchmarks/results/probe.json, piece by piece; a piece that stands there is not made again.

    python benchmarks/proposition_one.py [--shared ../shared] [--cache FOLDER]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from decision_models import _dinov2_probe, images
from harness import machine
from scratch_vits import NAMES, scratch_vit

import hydrasurgeon as hs

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "paper"))
from probing.probe import probe
from probing.report import ProbeReport

RESULTS = Path(__file__).parent / "results" / "probe.json"
METHODS = ("taylor", "magnitude", "random")
LIMITS = {"demo": 300, "dinov2": 64}
DRAWS = {"demo": 6, "dinov2": 4}
REMOVED = 18
FOREIGN = ("near", "digits")


def conditions(report: ProbeReport) -> dict[str, Any]:
    """The figures of the docs, six digits of each."""
    about = report.proposition
    hessian = about.hessian.model_dump(exclude={"heads"})
    parts = {
        "losses": about.losses.model_dump(),
        "gradient": about.gradient.model_dump(),
        "hessian": hessian,
    }
    rounded = {
        key: {k: v if isinstance(v, bool) else float(f"{v:.6g}") for k, v in part.items()}
        for key, part in parts.items()
    }
    return {
        "removed": len(about.removed),
        "samples": about.samples,
        "draws": about.draws,
        **rounded,
    }


def probe_conditions(path: Path, kind: str) -> dict[str, Any]:
    rows = {}
    for method in METHODS:
        report = probe(
            path,
            data="demo:val",
            method=method,
            limit=LIMITS[kind],
            draws=DRAWS[kind],
            device="cpu",
        )
        rows[method] = conditions(report)
        print(path.name, method, rows[method], flush=True)
    return rows


def separation(name: str, folder: Path) -> dict[str, Any]:
    """Separation by the model as it is, and by its circuit for OOD detection."""
    path = scratch_vit(name)
    scored = hs.score(
        path,
        method="circuit",
        objective="ood",
        search="attribution",
        data="demo:val",
        ood=["demo:textures"],
        limit=400,
        remove=REMOVED,
        out=folder / f"{name}-circuit.safetensors",
        force=True,
        device="cpu",
    )
    circuit = hs.prune(
        scored.path,
        method="circuit-ood",
        remove=REMOVED,
        out=folder / f"{name}-pruned.safetensors",
        force=True,
    )
    rows: dict[str, Any] = {}
    for kind, checkpoint in (("dense", path), ("circuit", circuit.path)):
        foreign = [f"{each}=demo:{each}" for each in FOREIGN]
        report = probe(
            checkpoint,
            data="demo:test",
            ood=foreign,
            method="random",
            remove=1,
            draws=1,
            limit=1000,
            corrupt=["brightness:1"],
            batch_size=100,
            device="cpu",
        )
        rows[kind] = {
            each.name: {k: round(v, 4) for k, v in each.last_layer.items()}
            for each in report.separation
        }
        evaluated = hs.evaluate(
            [checkpoint],
            data="demo:test",
            ood=[f"far:{each}" for each in foreign],
            limit=1000,
            device="cpu",
        )
        result = evaluated.report.results[0]
        rows[kind]["auroc"] = {each.name: round(each.auroc, 4) for each in result.ood}
        rows[kind]["accuracy"] = round(result.id.accuracy or 0.0, 4)
    print(name, rows, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--cache", type=Path, default=None)
    arguments = parser.parse_args()
    folder = arguments.cache or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    result = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}

    def keep(part: str, name: str, rows: dict[str, Any]) -> None:
        result.setdefault(part, {})[name] = rows
        result["machine"] = machine()
        RESULTS.write_text(json.dumps(result, indent=1) + "\n")

    for name in NAMES:
        if name not in result.get("separation", {}):
            keep("separation", name, separation(name, folder))
    for name in NAMES:
        if name not in result.get("conditions", {}):
            keep("conditions", name, probe_conditions(scratch_vit(name), "demo"))
    if "dinov2" not in result["conditions"] and (arguments.shared / "models").exists():
        source = folder / "dinov2"
        if not (source / "model.safetensors").exists():
            _dinov2_probe(
                source, arguments.shared, folder, images(arguments.shared, large=True)["train"]
            )
        keep("conditions", "dinov2", probe_conditions(source, "dinov2"))
    for kind in ("dense", "circuit"):
        means = [
            row[kind][each]["mahalanobis"]
            for row in result["separation"].values()
            for each in FOREIGN
        ]
        print(kind, "Mahalanobis", round(statistics.mean(means), 3))


if __name__ == "__main__":
    main()
