"""The paper's Tables 13 and 14 in small: accuracy and Brier scores under corruptions, of models that
benchmarks/quality.py made.

ImageNet-C's fifteen of images, typos and dropped words of texts, each at five severities, on the first samples of the
task's test data. It reads
what lies in quality.py's --cache, makes what is not there, and adds its figures to benchmarks/results/quality.json.

    python benchmarks/quality_shift.py fashion-mnist --cache FOLDER [--shared ../shared] [--seeds 1,2,3]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from quality import ROOT, changing, recorded
from quality_tasks import TASKS, Place
from quality_workshop import Workshop

import hydrasurgeon as hs

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "paper"))
from corrupt import write

LIMITS = {"fashion-mnist": 300, "dinov2": 300, "minilm": 1000}
"""Samples of the test data; each is spoiled by every corruption at every severity: seventy-five times an image, ten
times a text."""


def hydra(shop: Workshop) -> list[Path]:
    """The tuned hydra of quality.py, as one file."""
    out = shop.folder / "shift-taylor.safetensors"
    if not out.exists():
        members = [shop.tuned(shop.member("taylor", draw=i + 1), i) for i in range(3)]
        hs.fuse(members, out=out, mlp="separate", force=True)
    return [out]


MODELS: dict[str, Callable[[Workshop], Sequence[Path]]] = {
    "Single": lambda shop: [shop.base],
    "Deep Ensemble": lambda shop: [path for _, path in shop.place.ensemble(shop.seed)],
    "Hydra (Taylor), tuned": hydra,
}


def measured(paths: Sequence[Path], place: Place, out: Path) -> dict[str, Any]:
    shifts = write(place.specs["test"], out, limit=LIMITS[place.name])
    evaluation = hs.evaluate(
        list(paths),
        data=place.specs["test"],
        limit=LIMITS[place.name],
        shift=shifts,
        ensemble=len(paths) > 1,
        no_decision=True,
        device="cpu",
        dtype=place.dtype,
    )
    average = evaluation.report.results[0].shift_average
    assert average is not None
    found: dict[str, Any] = {
        "samples": LIMITS[place.name],
        "shift_accuracy": average.accuracy,
        "shift_brier": average.brier,
    }
    for severity, mean in average.severities.items():
        found |= {
            f"shift_accuracy_{severity}": mean.accuracy,
            f"shift_brier_{severity}": mean.brier,
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=tuple(TASKS))
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument(
        "--shared", type=Path, default=ROOT.parent / "shared", help="data and models"
    )
    parser.add_argument("--cache", type=Path, required=True, help="quality.py's")
    options = parser.parse_args()
    place = Place(options.task, options.cache / options.task, options.shared)
    for seed in map(int, options.seeds.split(",")):
        shop = Workshop(place, seed)
        for name, make in MODELS.items():
            if recorded(options.task, "shift", name, seed):
                continue
            cells = measured(make(shop), place, shop.folder / "corrupted")
            with changing(options.task) as about:
                about.setdefault("shift", {}).setdefault(name, {})[str(seed)] = cells
            print(
                options.task, seed, name, cells["shift_accuracy"], cells["shift_brier"], flush=True
            )


if __name__ == "__main__":
    main()
