"""Quality against cost over the trunk's length: hydras whose members lose heads in late layers only.

Members lose a quarter of the heads of the layers after the trunk, drawn from the half of them with the
lowest taylor scores; then those layers are tuned. Real data and a backbone trained from random weights.
Writes benchmarks/results/trunk.json, from which tools/render_docs.py makes a table and docs/trunk.svg.

    python benchmarks/trunk.py [--seeds 3]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from harness import machine
from scratch_vits import NAMES, scratch_vit

import hydrasurgeon as hs

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "trunk.json"
OOD = ["near:held-out=demo:near", "far:digits=demo:digits", "far:textures=demo:textures"]
LAYERS, HEADS, MEMBERS = 6, 8, 3


def hydra(backbone: Path, folder: Path, trunk: int, seed: int, *, tuned: bool) -> Path:
    """Three members that equal the backbone in the first `trunk` layers."""
    late = LAYERS - trunk
    gone, pool = late * HEADS // 4, late * HEADS // 2
    members = []
    for i in range(MEMBERS):
        path = folder / f"m{i}.safetensors"
        hs.prune(
            backbone,
            method="taylor",
            sample=f"{gone}/{pool}",
            layers=f"{trunk}-{LAYERS - 1}",
            seed=MEMBERS * seed + i,
            out=path,
            force=True,
        )
        if tuned:
            tuned_path = folder / f"t{i}.safetensors"
            hs.finetune(
                path,
                data="demo:train",
                recipe="demo",
                set={"last_blocks": str(late)},
                freeze="mlp,embedding",
                seed=MEMBERS * seed + i,
                out=tuned_path,
                force=True,
            )
            path = tuned_path
        members.append(path)
    out = folder / f"hydra-{trunk}-{seed}-{'tuned' if tuned else 'free'}.safetensors"
    fused = hs.fuse(members, out=out, force=True)
    assert fused.manifest.fusion is not None
    # With one layer pruned, no head at all may be in common in it; the layers before are the trunk for sure.
    assert fused.manifest.fusion.trunk >= trunk
    return out


def row(results: list[Any], single: Any) -> dict[str, float]:
    """Means over the seeds."""

    def mean(get: Any) -> float:
        return statistics.mean(get(r) for r in results)

    return {
        "accuracy": mean(lambda r: r.id.accuracy),
        "nll": mean(lambda r: r.id.nll),
        "ece": mean(lambda r: r.id.ece),
        "auroc_near": mean(lambda r: r.ood_average["near"].auroc),
        "auroc_far": mean(lambda r: r.ood_average["far"].auroc),
        "mi": mean(lambda r: r.diversity.mi),
        "macs_ratio": mean(lambda r: r.cost.macs) / single.cost.macs,
        "params_ratio": mean(lambda r: r.cost.params) / single.cost.params,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    points: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        backbone = folder / "backbone.safetensors"
        hs.score(scratch_vit("backbone"), method="taylor", data="demo:val", out=backbone)
        apart = [scratch_vit(name) for name in NAMES]
        (single,) = hs.evaluate([backbone], data="demo:test", ood=OOD).report.results
        (deep,) = hs.evaluate(apart, ensemble=True, data="demo:test", ood=OOD).report.results
        points.append(
            {"what": "single model", "trunk": None, "tuned": None, **row([single], single)}
        )
        points.append(
            {"what": "Deep Ensemble", "trunk": None, "tuned": None, **row([deep], single)}
        )
        for tuned in (False, True):
            for trunk in range(LAYERS):
                made = [hydra(backbone, folder, trunk, seed, tuned=tuned) for seed in range(seeds)]
                results = hs.evaluate(made, data="demo:test", ood=OOD).report.results
                points.append(
                    {"what": "hydra", "trunk": trunk, "tuned": tuned, **row(list(results), single)}
                )
                print(points[-1], flush=True)
    RESULTS.parent.mkdir(exist_ok=True)
    report = {"machine": machine(), "seeds": seeds, "points": points}
    RESULTS.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
