"""What `predict` costs against the loop one would write by hand: whole processes in turn over the same pictures.

The model is a ViT-S/16 with random weights and ten classes, with a decision state whose OOD score reads features
(rmds). The
plain loop reads the same files through the same transform in as many worker processes, asks timm's own model with the
same
weights, and writes a row of id, label and probability for each; the labels must agree. Figures are ratios of paired
runs and
their median. Writes benchmarks/results/predict.json, from which tools/render_docs.py makes docs/reference/benchmarks.md.

    python benchmarks/predict_speed.py [--pictures 512] [--runs 4]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results" / "predict.json"
ARCH = "vit_small_patch16_224"
CLASSES, BATCH, SIDE = 10, 32, 256
# Pictures that the decision state is fitted on.
CALIBRATION = 200


def pictures(folder: Path, count: int) -> Path:
    """Smooth coloured noise, as JPEG files."""
    from PIL import Image

    place = folder / "pictures"
    place.mkdir()
    random = np.random.default_rng(0)
    for i in range(count):
        coarse = Image.fromarray(random.integers(0, 256, (12, 12, 3), dtype=np.uint8))
        coarse.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(place / f"{i:04d}.jpg")
    return place


def prepared(folder: Path, count: int) -> None:
    """The checkpoint with its state, and the pictures."""
    import hydrasurgeon as hs
    from hydrasurgeon.tuning.start import fresh

    fresh(f"init:timm:{ARCH},num_classes={CLASSES}", folder / "vit", seed=0)
    random = np.random.default_rng(1)
    images = random.integers(0, 256, (CALIBRATION, 64, 64, 3), dtype=np.uint8)
    np.savez(folder / "val.npz", images=images, labels=np.arange(CALIBRATION) % CLASSES)
    hs.calibrate(
        folder / "vit",
        data=str(folder / "val.npz"),
        ood_score="rmds",
        out=folder / "ready.safetensors",
        device="cpu",
    )
    pictures(folder, count)


def plain(folder: Path) -> None:
    """The loop by hand."""
    import timm
    import torch
    from PIL import Image
    from safetensors.torch import load_file
    from torch.utils.data import DataLoader, Dataset

    model = timm.create_model(ARCH, num_classes=CLASSES)
    model.load_state_dict(load_file(folder / "vit.safetensors"))
    model.eval()
    data: Any = timm.data
    transform = data.create_transform(**data.resolve_model_data_config(model))
    paths = sorted((folder / "pictures").iterdir())

    class Pictures(Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return len(paths)

        def __getitem__(self, i: int) -> torch.Tensor:
            with Image.open(paths[i]) as image:
                return transform(image.convert("RGB"))

    workers = max(1, (os.cpu_count() or 1) - 1)
    rows = iter(paths)
    with (folder / "plain.jsonl").open("w", encoding="utf-8") as out, torch.inference_mode():
        for batch in DataLoader(Pictures(), batch_size=BATCH, num_workers=workers):
            values, labels = model(batch).softmax(dim=-1).max(dim=-1)
            for value, label in zip(values.tolist(), labels.tolist(), strict=True):
                row = {"id": next(rows).name, "label": label, "probability": value}
                out.write(json.dumps(row) + "\n")


def measure(command: list[str], folder: Path) -> tuple[float, float]:
    """Seconds on the clock, and of the processors."""
    start = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    said = process.stderr.read().decode() if process.stderr else ""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if status:
        raise SystemExit(f"{command}: {said}")
    return time.perf_counter() - start, usage.ru_utime + usage.ru_stime


def agree(folder: Path) -> None:
    """Both sides said the same of every picture."""
    sides: list[list[dict[str, Any]]] = [
        [json.loads(line) for line in (folder / name).read_text(encoding="utf-8").splitlines()]
        for name in ("ours.jsonl", "plain.jsonl")
    ]
    labels = [[(str(row["id"]), str(row["label"])) for row in rows] for rows in sides]
    if labels[0] != labels[1]:
        raise SystemExit(f"the two sides disagree: {labels[0][:3]} and {labels[1][:3]}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pictures", type=int, default=512)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--plain", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.plain is not None:
        return plain(arguments.plain)
    ours = [
        sys.executable,
        "-m",
        "hydrasurgeon",
        "predict",
        "ready",
        "--data",
        "pictures",
        "-o",
        "ours.jsonl",
        "--batch-size",
        str(BATCH),
        "--device",
        "cpu",
        "--force",
        "--quiet",
    ]
    times: dict[str, list[tuple[float, float]]] = {"ours": [], "plain": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepared(folder, arguments.pictures)
        loop = [sys.executable, str(Path(__file__).resolve()), "--plain", name]
        for run in range(arguments.runs + 1):
            # The first run fills the caches; then each goes first in every other pair.
            for side, command in sorted(
                {"ours": ours, "plain": loop}.items(), reverse=bool(run % 2)
            ):
                times[side].append(measure(command, folder))
            print(
                {side: [round(t, 1) for t in each[-1]] for side, each in times.items()}, flush=True
            )
        agree(folder)

    from harness import machine

    pairs = list(zip(times["plain"][1:], times["ours"][1:], strict=True))
    results = {
        "machine": machine(),
        "model": ARCH,
        "pictures": arguments.pictures,
        "batch": BATCH,
        "runs": arguments.runs,
        "throughput": {
            "wall": [p[0] / o[0] for p, o in pairs],
            "cpu": [p[1] / o[1] for p, o in pairs],
        },
        "pictures_per_second": {
            side: arguments.pictures / statistics.median(t[0] for t in each[1:])
            for side, each in times.items()
        },
    }
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    return None


if __name__ == "__main__":
    main()
