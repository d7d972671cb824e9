"""What tuning a hydra costs beside tuning one whole model for as many steps: whole processes, run in turn, medians.

A text encoder of MiniLM's sizes with random weights; three members that share half of its layers as they are, and in the others keep 8 of 12 heads
and half the neurons; or all of them. Writes benchmarks/results/tuning.json, from which tools/render_docs.py makes docs/reference/benchmarks.md.

    python benchmarks/tuning_speed.py [--runs 3]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from harness import hydrasurgeon, machine, processes

RESULTS = Path(__file__).parent / "results" / "tuning.json"
TEXTS, WORDS, CLASSES = 800, 20, 4
LAYERS = ("--layers", "3-5")
"""Behind the trunk."""
STEPS = ("--recipe", "text", "--set", "epochs=2", "--data", "texts.jsonl", "--force")
"""How every one is tuned."""
SIDES = {
    "one whole model": ("whole", ()),
    "three members, half of the branches cut": ("cut", ()),
    "the same, the trunk run in every step": ("cut", ("--trunk-cache", "off")),
    "three members, whole branches": ("full", ()),
}
"""What is tuned, and with which options."""


def make(folder: Path) -> None:
    """The model, two hydras of it, and texts."""
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{i}" for i in range(30517))]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    sizes: dict[str, Any] = {
        "hidden_size": 384,
        "num_hidden_layers": 6,
        "num_attention_heads": 12,
        "intermediate_size": 1536,
        "num_labels": CLASSES,
    }
    BertForSequenceClassification(BertConfig(**sizes)).save_pretrained(folder / "bert")
    BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder / "bert")
    rng = np.random.default_rng(0)
    lines = [
        {
            "text": " ".join(f"word{i}" for i in rng.integers(0, 30517, WORDS)),
            "label": int(rng.integers(CLASSES)),
        }
        for _ in range(TEXTS)
    ]
    (folder / "texts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def run(*words: str) -> None:
        subprocess.run(hydrasurgeon(*words), cwd=folder, check=True, capture_output=True)

    run("score", "bert", "--method", "magnitude", "-o", "whole")
    run("score", "whole", "--method", "magnitude", "--part", "neurons")
    for seed in "123":
        run(
            "prune",
            "whole",
            "--method",
            "random",
            "--seed",
            seed,
            "--keep",
            "8",
            *LAYERS,
            "-o",
            f"heads{seed}",
        )
        run(
            "prune",
            f"heads{seed}",
            "--method",
            "magnitude",
            "--neurons",
            "0.5",
            *LAYERS,
            "-o",
            f"cut{seed}",
        )
        run(
            "prune",
            "whole",
            "--method",
            "random",
            "--seed",
            seed,
            "--keep",
            "11",
            *LAYERS,
            "-o",
            f"full{seed}",
        )
    for name in ("cut", "full"):
        run("fuse", *(f"{name}{seed}" for seed in "123"), "-o", name)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder)
        commands = [
            hydrasurgeon("finetune", file, *STEPS, *more, "-o", "tuned")
            for file, more in SIDES.values()
        ]
        measured = dict(zip(SIDES, processes(*commands, runs=runs, cwd=folder), strict=True))
    first = measured["one whole model"][0]
    rows = {
        name: {"seconds": seconds, "ratio": seconds / first, "peak_mb": peak}
        for name, (seconds, peak) in measured.items()
    }
    results = {
        "machine": machine(),
        "runs": runs,
        "texts": TEXTS,
        "results": rows,
    }
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
