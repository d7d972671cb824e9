"""What every millisecond is worth: the probe, one model, means, parts of the mean, hydras and the Deep Ensemble, in float32 and in 8 bits.

Three trainings of one body, each from the probe and with its own order of samples, are the Deep Ensemble that a seed has. Parts keep some
heads and neurons of every layer, chosen by taylor and repaired by least squares; they are measured as they are, and distilled from the three models.

Every row is a file that `calibrate` gave a decision state on VAL (and on OOD data that no row is reported on) and that `eval` measured on TEST; in 8 bits,
the state is fitted again. Every training keeps the epoch of the least calibrated NLL of VAL. Time is the median of runs in turn, one thread, as a
multiple of the single model's in float32, in the faster of torch and onnxruntime. Models and predictions stay in --cache, so that an interrupted
run goes on. Writes benchmarks/results/front.json, under the task's name.

    python benchmarks/front.py clinc --shared ../shared --cache FOLDER --seeds 1
    python benchmarks/front.py clinc --shared ../shared --cache FOLDER --rows "single;Deep Ensemble"
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from front_models import COSTS, TASKS, Place, seconds_of_a_batch
from front_rivals import rivals
from harness import machine
from numpy.typing import NDArray

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.files.atomic import write_text
from hydrasurgeon.measuring.predictions import read_predictions
from hydrasurgeon.statistics.metrics import ece
from hydrasurgeon.statistics.temperature import calibrated

RESULTS = Path(__file__).parent / "results" / "front.json"
RIVALS = (
    "probe",
    "single",
    "single, tuned longer",
    "single, distilled",
    "mean",
    "Deep Ensemble",
)
"""Rows that every other one is compared with, sample by sample."""
REPEATS = 400
"""Resamples of the test and OOD samples behind a standard error."""
CALLED = {"float32": "torch", "int8": "int8"}
"""Column → the engine that answers; in float32, torch's answers are onnxruntime's."""
BATCHES = (1, 16)
RUNS = 40
"""Of which the median is taken."""
METRICS = ("accuracy", "nll", "ece", "auroc", "near", "far")
"""What a row has; auroc is the mean of near and far, by the score that `calibrate` chose."""


def _rows() -> dict[str, Callable[[Place], Path]]:
    """Name → the file; in the order in which they are worth having."""
    rows: dict[str, Callable[[Place], Path]] = {
        "probe": Place.probe,
        "single": lambda p: p.whole(0),
        "mean": Place.mean,
        "Deep Ensemble": Place.ensemble,
        "hydra behind the mean trunk": Place.behind_mean,
        "half of the mean": lambda p: p.part(p.mean(), "half"),
        "half of the mean, distilled": lambda p: p.distilled(p.part(p.mean(), "half")),
        "single, distilled": lambda p: p.distilled(p.whole(0)),
        "single, tuned longer": lambda p: p.whole(0, times=2),
        "hydra behind the mean trunk, distilled": lambda p: p.distilled(p.behind_mean()),
        "third of the mean": lambda p: p.part(p.mean(), "third"),
        "third of the mean, distilled": lambda p: p.distilled(p.part(p.mean(), "third")),
    }
    for size in COSTS:
        rows[f"hydra of three: {size}"] = partial(_hydra, size=size, distil=False)
        rows[f"hydra of three: {size}, distilled"] = partial(_hydra, size=size, distil=True)
    rows["half of the single, distilled"] = lambda p: p.distilled(p.part(p.whole(0), "half"))
    return rows | rivals()


def _hydra(place: Place, size: str, *, distil: bool) -> Path:
    """A part of each whole model, distilled from that model."""
    parts = [place.part(whole, size) for whole in place.wholes]
    if not distil:
        return place.fused(f"hydra {size}", parts)
    taught = [place.distilled(part, whole) for part, whole in zip(parts, place.wholes, strict=True)]
    return place.fused(f"hydra {size} distilled", taught)


@dataclass(frozen=True)
class Answers:
    """What one row said, sample by sample."""

    probs: Mapping[str, NDArray[np.float64]]
    """test and val → [sample, class]: the mean of its members, calibrated."""
    labels: Mapping[str, NDArray[np.int64]]
    unsure: Mapping[str, NDArray[np.float64]]
    """test, near and far → the chosen score."""

    @property
    def sizes(self) -> dict[str, int]:
        return {name: len(scores) for name, scores in self.unsure.items()}

    def figures(self, rows: Mapping[str, NDArray[np.int64]] | None = None) -> dict[str, float]:
        """METRICS, of all samples or of some."""
        rows = rows or {name: np.arange(size) for name, size in self.sizes.items()}
        probs, labels = self.probs["test"][rows["test"]], self.labels["test"][rows["test"]]
        inside = self.unsure["test"][rows["test"]]
        areas = {name: _auroc(inside, self.unsure[name][rows[name]]) for name in ("near", "far")}
        return {
            "accuracy": float((probs.argmax(-1) == labels).mean()),
            "nll": _nll(probs, labels),
            "ece": ece(probs, labels),
            "auroc": statistics.fmean(areas.values()),
            **areas,
        }


def _nll(probs: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    right = probs[np.arange(len(labels)), labels]
    return float(-np.log(np.clip(right, 1e-12, None)).mean())


def _auroc(inside: NDArray[np.float64], outside: NDArray[np.float64]) -> float:
    """The chance that OOD data have the higher score; ties count half."""
    ordered = np.sort(inside)
    below = np.searchsorted(ordered, outside, "left")
    upto = np.searchsorted(ordered, outside, "right")
    return float((below + upto).mean() / 2 / len(inside))


def answered(place: Place, path: Path, engine: str) -> Answers:
    """As a checkpoint answers once it is calibrated for the engine."""
    ready, name = place.ready(path, engine), path.stem
    if engine != "float32":
        name = f"{name} {engine}"

    def ask(out: Path, data: str, ood: Sequence[str]) -> None:
        run: dict[str, Any] = {"engine": CALLED[engine], "device": "cpu", "predictions": out}
        hs.evaluate([ready], data=[data], ood=list(ood), **run)

    foreign = [f"{part}:{part}={place.data(part)}" for part in ("near", "far")]
    test = place.once(f"{name} on test", lambda out: ask(out, place.data("test"), foreign))
    val = place.once(f"{name} on val", lambda out: ask(out, place.data("val"), ()))
    decision = hs.load(ready, device="cpu").manifest.decision
    assert decision is not None
    on_test, on_val = read_predictions(test), read_predictions(val)
    probs, labels = {}, {}
    for part, read in (("test", on_test), ("val", on_val)):
        probs[part] = calibrated(read.outputs.logits, decision.temperature)
        labels[part] = read.outputs.truth
    unsure = {name or "test": scores for name, scores in on_test.scores.items()}
    msp = {name: each.logits for name, each in {"test": on_test.outputs, **on_test.ood}.items()}
    scored = {}
    for part, scores in unsure.items():
        logits = msp[part]
        fallback = calibrated(logits, decision.temperature)
        scored[part] = next((s for s in scores.values()), 1 - fallback.max(-1))
    return Answers(probs, labels, scored)


def errors(row: Answers, rival: Answers) -> dict[str, float]:
    """Standard error of each metric's difference, both measured on the same resamples."""
    rng = np.random.default_rng(0)
    differences: dict[str, list[float]] = {name: [] for name in METRICS}
    for _ in range(REPEATS):
        drawn = {name: rng.integers(0, size, size) for name, size in row.sizes.items()}
        figures, others = row.figures(drawn), rival.figures(drawn)
        for name in METRICS:
            differences[name].append(figures[name] - others[name])
    return {name: float(np.std(values)) for name, values in differences.items()}


def measured(
    place: Place, wanted: Sequence[str], before: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """The rows of one seed, each time that there is one more; `before`: what was measured already."""
    makers, rows = _rows(), dict(before)
    known: dict[str, Answers] = {}

    def rival(name: str) -> Answers:
        if name not in known:
            known[name] = answered(place, makers[name](place), "float32")
        return known[name]

    for name in [name for name in makers if name in wanted or not wanted]:
        path = makers[name](place)
        row: dict[str, Any] = {**rows.get(name, {}), "cost": place.cost(path)}
        for engine in CALLED:
            answers = answered(place, path, engine)
            if engine == "float32":
                known[name] = answers
            row[engine] = {
                **answers.figures(),
                "val": _nll(answers.probs["val"], answers.labels["val"]),
                "against": {
                    other: errors(answers, rival(other))
                    for other in RIVALS
                    if other == name or other in rows
                },
            }
            shown = {key: value for key, value in row[engine].items() if key != "against"}
            told = "  ".join(f"{key} {value:.3f}" for key, value in shown.items())
            print(f"{name:40} {engine:8} {row['cost']:.2f}  {told}", flush=True)
        rows[name] = row
        yield {name: rows[name] for name in makers if name in rows}


def timed(place: Place, rows: dict[str, Any]) -> dict[str, Any]:
    """Milliseconds of a sample, alone and among others: each engine of each row, in turn."""
    makers = _rows()
    opened = {name: open_checkpoint(place.ready(makers[name](place))) for name in rows}
    for size in BATCHES:
        for name, by_engine in seconds_of_a_batch(place, opened, size, RUNS).items():
            times = rows[name].setdefault("ms", {})
            for engine, taken in by_engine.items():
                times.setdefault(engine, {})[str(size)] = 1000 * taken / size
            print(f"{name:40} {size:3} ", by_engine, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--shared", type=Path, default=Path(), help="the folder with data")
    parser.add_argument("--cache", type=Path, required=True, help="where models are kept")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", default="", help="only these, with semicolons")
    parser.add_argument("--time", action="store_true", help="time the rows of seed 0, and no more")
    parser.add_argument("--seed", type=int, default=None, help="only this one")
    options = parser.parse_args()
    wanted = [name.strip() for name in options.rows.split(";") if name.strip()]
    for seed in range(options.seeds) if options.seed is None else [options.seed]:
        place = Place(
            TASKS[options.task], options.shared, options.cache / options.task / str(seed), seed
        )
        place.cache.mkdir(parents=True, exist_ok=True)
        before = results().get(options.task, {}).get("seeds", {}).get(str(seed), {})
        if options.time:
            torch.set_num_threads(1)
            write(options.task, seed, timed(place, before))
            break
        for rows in measured(place, wanted, before):
            write(options.task, seed, rows)


def results() -> dict[str, Any]:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def write(task: str, seed: int, rows: dict[str, Any]) -> None:
    """Into the file as it is now: another task's run may have written since."""
    every = results()
    seeds = every.get(task, {}).get("seeds", {}) | {str(seed): rows}
    every[task] = {**machine(), "seeds": dict(sorted(seeds.items()))}
    write_text(RESULTS, json.dumps({name: every[name] for name in TASKS if name in every}) + "\n")


if __name__ == "__main__":
    main()
