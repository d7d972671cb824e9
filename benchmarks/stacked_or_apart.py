"""The two ways in which a hydra runs its members, stacked and apart, around the size where `auto` changes over.

Three members of random weights, two thirds of the heads, over widths and batch sizes; both ways and the single model
are timed in turn. `hydra.FULL` is chosen from the result: benchmarks/results/modes-<cpu|cuda>.json.

    python benchmarks/stacked_or_apart.py [--dtype float32] [--batch 1,4,16,64] [--runs 9]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from hydra_speed import RESULTS, members, random_backbone

import hydrasurgeon as hs
from hydrasurgeon.families import family_of
from hydrasurgeon.measuring.cost import interleaved, machine
from hydrasurgeon.runtime.classifier import Classifier
from hydrasurgeon.runtime.hydra import FULL, Hydra, Mode

WIDTHS = {192: 3, 384: 6, 768: 12}
TOKENS, LARGEST = 17, 2**20
WAYS: tuple[Mode, ...] = ("stacked", "apart")


def hydra(path: Path, mode: Mode) -> Classifier:
    model = hs.load(path)
    assert isinstance(model.module, Hydra)
    model.module.mode = mode
    return model


def measure(
    width: int,
    *,
    tuned: bool,
    batches: list[int],
    dtypes: list[str],
    runs: int,
    device: torch.device,
) -> list[dict[str, Any]]:
    """Six layers of a ViT on images of 64 pixels."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shape = f"embed_dim={width},num_heads={WIDTHS[width]},depth=6,img_size=64"
        backbone = random_backbone(f"vit_tiny_patch16_224,{shape}", folder)
        parts = members(backbone, first=0, tuned=tuned, folder=folder)
        hs.fuse(parts, out=folder / "hydra.safetensors")
        ways: dict[str, Classifier] = {
            mode: hydra(folder / "hydra.safetensors", mode) for mode in WAYS
        }
        models = {"single": hs.load(backbone), **ways}
        for dtype in dtypes:
            precision = getattr(torch, dtype)
            models = {k: m.to(device, precision).eval() for k, m in models.items()}
            told = models["single"].manifest.model
            for batch in batches:
                if batch * TOKENS * width > LARGEST:
                    continue
                inputs = family_of(told).example(told, batch, device=device, dtype=precision)
                seconds = interleaved(models, inputs, runs=runs)
                ratios: dict[str, float] = {way: seconds[way] / seconds["single"] for way in WAYS}
                rows.append(
                    {
                        "width": width,
                        "tokens": TOKENS,
                        "batch": batch,
                        "size": batch * TOKENS * width,
                        "dtype": dtype,
                        "tuned": tuned,
                        "runs": runs,
                        "ms": 1000 * seconds["single"],
                        **ratios,
                    }
                )
                print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", default="1,2,4,8,16,32,64,128")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    device = torch.device(given.device)
    rows = [
        row
        for width in WIDTHS
        for tuned in (True, False)
        for row in measure(
            width,
            tuned=tuned,
            batches=[int(b) for b in given.batch.split(",")],
            dtypes=given.dtype.split(","),
            runs=given.runs,
            device=device,
        )
    ]
    found = {"machine": machine(device), "full": FULL[device.type], "results": rows}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"modes-{device.type}.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
