"""The same in Python: a training-free Hydra of three members, and its prediction for a batch of images.

python examples/pipeline.py BACKBONE VAL TEST OUT_FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import hydrasurgeon as hs
from hydrasurgeon.data import Batches, open_data


def main(backbone: str, val: str, test: str, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    scored = hs.score(backbone, method="taylor", data=val, out=out / "scored.safetensors")
    members = [
        hs.prune(
            scored.path,
            method="taylor",
            sample="6/20",
            seed=seed,
            out=out / f"member-{seed}.safetensors",
        ).path
        for seed in range(3)
    ]
    hydra = hs.fuse(members, out=out / "hydra.safetensors")
    report = hs.evaluate([backbone, hydra.path], data=test).report
    for result in report.results:
        sys.stdout.write(
            f"{result.name}: accuracy {result.id.accuracy:.3f}, ECE {result.id.ece:.3f}\n"
        )
    model = hs.load(hydra.path)
    batch = next(iter(Batches(open_data(test), model.transform, batch_size=4)))
    device = next(model.parameters()).device
    probs = model.predict(batch.inputs.to(device))
    uncertainty = 1 - probs.amax(dim=-1)
    torch.testing.assert_close(probs.sum(dim=-1), torch.ones(len(probs), device=device))
    sys.stdout.write(
        f"classes {probs.argmax(dim=-1).tolist()}, uncertainty {uncertainty.round(decimals=3).tolist()}\n"
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
