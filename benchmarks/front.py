"""What every price is worth: one model, parts of it, hydras of parts, and what else the same price buys.

Three trainings of one architecture, each with its own order of samples, are the Deep Ensemble that a seed has. Parts keep some heads and neurons of every
layer, chosen by taylor and repaired by least squares; they are measured as they are, and taught: by the three whole models, or, inside a hydra,
each by the one that it was cut from. Beside them: the single model tuned as long, twice as long, and taught; the ensemble tuned as long;
the mean of their weights, and its parts; parts of a larger model, where one is trained here; branches of one model, each taught by one of the ensemble; and, of the
same price and the same steps, parts without repair, Torch-Pruning's and the first layers alone (front_rivals.py).

Every row is a file that `calibrate` gave a decision state on VAL (and on OOD data that no row is reported on) and that `eval` measured on TEST. Every training keeps the
epoch that VAL likes best; further training without teachers that is no better than its start, by the NLL of VAL once calibrated, counts as its
start. Models and predictions stay in --cache, so that an interrupted run goes on. Writes benchmarks/results/front.json,
under the task's name.

    python benchmarks/front.py fashion --shared ../shared --cache FOLDER --seeds 1
    python benchmarks/front.py clinc --shared ../shared --cache FOLDER --rows single,half,"half, taught"
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from front_models import TASKS, Place
from front_rivals import rivals
from harness import machine
from numpy.typing import NDArray

from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.files.atomic import write_text
from hydrasurgeon.measuring.predictions import read_predictions
from hydrasurgeon.statistics.metrics import ece
from hydrasurgeon.statistics.temperature import calibrated

RESULTS = Path(__file__).parent / "results" / "front.json"
CASCADES = {
    f"cascade of {name}": name for name in ("hydra of three: half", "hydra of three: half, taught")
}
"""Row → the row that it is a cascade of."""
RIVALS = ("Torch-Pruning by magnitude", "Torch-Pruning by taylor", "first layers")
"""What else a part's price buys."""
COMPARED = {
    "third, taught": ("single", *(f"third, {rival}, taught" for rival in RIVALS)),
    "half": ("single", "half, not repaired"),
    "half, taught": (
        "single, tuned as long",
        "single, taught",
        *(f"half, {rival}, taught" for rival in RIVALS),
        "half",
        "half, not repaired, taught",
        "half, taught by its own whole",
        "half, taught on other inputs",
        "half, tuned without a teacher",
        "half, taught twice as long",
    ),
    "larger, cut to three quarters": ("single", "three quarters"),
    "larger, cut to three quarters, taught": ("single, tuned as long", "single, taught"),
    "larger, cut to one": ("single",),
    "larger, cut to one, taught": (
        "single, tuned as long",
        "single, tuned twice as long",
        "single, taught",
    ),
    "hydra of three: third": (
        "single",
        "single, tuned as long",
        "single, tuned twice as long",
        "single, taught",
    ),
    "hydra of three: third, taught": (
        "single, tuned as long",
        "single, tuned twice as long",
        "single, taught",
    ),
    "hydra of three: half": ("Deep Ensemble", "single, taught", "hydra behind a mean trunk"),
    "mean of three": ("single", "single, taught", "Deep Ensemble"),
    "mean of three, taught": ("mean of three",),
    "mean of three: half": ("half", "single"),
    "mean of three: half, taught": ("half, taught", "mean of three: half"),
    "mean of three: third, taught": ("single", "mean of three: third"),
    "hydra behind a mean trunk": ("mean of three", "Deep Ensemble"),
    "hydra behind a mean trunk, taught": ("mean of three", "single, taught"),
    "hydra of three: half, taught": (
        "Deep Ensemble, tuned as long",
        "single, taught",
        "hydra of branches, taught",
        "hydra behind a mean trunk, taught",
    ),
}
"""Row → the rows that it is compared with, sample by sample."""
REPEATS = 1000
"""Resamples of the test and OOD samples behind a standard error."""
METRICS = ("accuracy", "nll", "ece", "msp", "auroc", "near", "far")
"""What a row has: msp is the mean AUROC by that score; auroc is the mean of near and far, by the score that `calibrate` chose."""


def halves(place: Place, size: str, *, taught: bool) -> list[Path]:
    """A part of each whole model, each taught by its own."""
    parts = [place.part(whole, size) for whole in place.wholes]
    if not taught:
        return parts
    return [
        place.tuned(part, f"{part.stem} taught by its own", teachers=[whole])
        for part, whole in zip(parts, place.wholes, strict=True)
    ]


def _rows() -> dict[str, Callable[[Place], Path]]:
    """Name → the file; in the order in which they are worth having."""
    rows: dict[str, Callable[[Place], Path]] = {
        "single": lambda p: p.whole(0),
        "single, second training": lambda p: p.whole(1),
        "single, third training": lambda p: p.whole(2),
        "Deep Ensemble": lambda p: p.fused("ensemble", p.wholes),
    }

    def part(size: str) -> None:
        rows[size] = lambda p: p.part(p.whole(0), size)
        rows[f"{size}, not repaired"] = lambda p: p.part(p.whole(0), size, "none")
        rows[f"hydra of three: {size}"] = lambda p: p.fused(
            f"hydra {size}", halves(p, size, taught=False)
        )

    def taught(size: str) -> None:
        rows[f"{size}, taught"] = lambda p: p.tuned(
            p.part(p.whole(0), size), f"{size} taught", teachers=p.wholes
        )
        rows[f"hydra of three: {size}, taught"] = lambda p: p.fused(
            f"hydra {size} taught", halves(p, size, taught=True)
        )

    for size in ("third", "half", "three quarters"):
        part(size)
    rows["single, tuned as long"] = lambda p: p.tuned(p.whole(0), "single tuned")
    rows["single, taught"] = lambda p: p.tuned(p.whole(0), "single taught", teachers=p.wholes)
    taught("half")
    taught("third")
    rows["single, tuned twice as long"] = lambda p: p.tuned(
        p.whole(0), "single tuned twice", times=2
    )
    rows["Deep Ensemble, tuned as long"] = lambda p: p.fused(
        "ensemble tuned",
        [p.tuned(w, f"{w.stem} tuned" if i else "single tuned") for i, w in enumerate(p.wholes)],
    )
    rows["half, not repaired, taught"] = lambda p: p.tuned(
        p.part(p.whole(0), "half", "none"), "half unrepaired taught", teachers=p.wholes
    )
    rows["half, taught by its own whole"] = lambda p: halves(p, "half", taught=True)[0]
    rows["half, taught on other inputs"] = lambda p: p.tuned(
        p.part(p.whole(0), "half"), "half taught other", teachers=p.wholes, other=True
    )
    rows["half, tuned without a teacher"] = lambda p: p.tuned(
        p.part(p.whole(0), "half"), "half tuned"
    )
    rows["half, taught twice as long"] = lambda p: p.tuned(
        p.part(p.whole(0), "half"), "half taught twice", times=2, teachers=p.wholes
    )
    rows["mean of three"] = lambda p: p.mean()
    rows["mean of three, taught"] = lambda p: p.tuned(p.mean(), "mean taught", teachers=p.wholes)
    for size in ("half", "third"):
        rows[f"mean of three: {size}"] = lambda p, s=size: p.part(p.mean(), s)  # type: ignore[misc]
        rows[f"mean of three: {size}, taught"] = lambda p, s=size: p.tuned(  # type: ignore[misc]
            p.part(p.mean(), s), f"mean {s} taught", teachers=p.wholes
        )
    rows["larger"] = lambda p: p.larger()
    for size in ("three quarters", "one"):
        rows[f"larger, cut to {size}"] = lambda p, s=size: p.part(p.larger(), s)  # type: ignore[misc]
        rows[f"larger, cut to {size}, taught"] = lambda p, s=size: p.tuned(  # type: ignore[misc]
            p.part(p.larger(), s), f"larger {s} taught", teachers=p.wholes
        )
    rows["hydra of branches, taught"] = lambda p: p.tuned(
        p.branches(), "branches taught", teachers=p.wholes
    )
    rows["hydra behind a mean trunk"] = lambda p: p.branches(behind_mean=True)
    rows["hydra behind a mean trunk, taught"] = lambda p: p.tuned(
        p.branches(behind_mean=True), "branches behind mean taught", teachers=p.wholes
    )
    return rows


@dataclass(frozen=True)
class Answers:
    """What one row said, sample by sample."""

    probs: NDArray[np.float64]
    """[sample, class]: the mean of its members."""
    labels: NDArray[np.int64]
    unsure: Mapping[str, Mapping[str, NDArray[np.float64]]]
    """msp, and the chosen score → its values on test, near and far."""
    disagreement: float

    def figures(self, rows: Mapping[str, NDArray[np.int64]] | None = None) -> dict[str, float]:
        """METRICS, of all samples or of some."""
        rows = rows or {name: np.arange(len(scores)) for name, scores in self.unsure["msp"].items()}
        probs, labels = self.probs[rows["test"]], self.labels[rows["test"]]
        right = probs[np.arange(len(labels)), labels]
        msp = [
            _auroc(self.unsure["msp"]["test"][rows["test"]], self.unsure["msp"][x][rows[x]])
            for x in ("near", "far")
        ]
        chosen = self.unsure["chosen"]
        by_set = {
            x: _auroc(chosen["test"][rows["test"]], chosen[x][rows[x]]) for x in ("near", "far")
        }
        return {
            "accuracy": float((probs.argmax(-1) == labels).mean()),
            "nll": float(-np.log(np.clip(right, 1e-12, None)).mean()),
            "ece": ece(torch.from_numpy(probs), torch.from_numpy(labels)),
            "msp": statistics.fmean(msp),
            "auroc": statistics.fmean(by_set.values()),
            **by_set,
        }


def _auroc(inside: NDArray[np.float64], outside: NDArray[np.float64]) -> float:
    """The chance that OOD data have the higher score; ties count half."""
    ordered = np.sort(inside)
    below, upto = (
        np.searchsorted(ordered, outside, "left"),
        np.searchsorted(ordered, outside, "right"),
    )
    return float((below + upto).mean() / 2 / len(inside))


def answers(path: Path) -> Answers:
    """As the calibrated checkpoint answers."""
    read = read_predictions(path)
    ready = path.with_name(path.name.replace(".predictions.", ".ready."))
    decision = open_checkpoint(ready).manifest.decision
    assert decision is not None
    sets = {"test": (read.logits, read.scores), **{s.name: (s.logits, s.scores) for s in read.ood}}
    probs = {
        name: calibrated(logits, decision.temperature, decision.joint).numpy()
        for name, (logits, _) in sets.items()
        if logits is not None
    }
    msp = {name: 1 - each.max(-1) for name, each in probs.items()}
    scored = {
        name: next((s.numpy() for s in scores.values()), msp[name])
        for name, (_, scores) in sets.items()
    }
    classes = read.logits.argmax(-1)
    pairs = [(i, j) for i in range(classes.shape[1]) for j in range(i)]
    apart = statistics.fmean(
        [float((classes[:, i] != classes[:, j]).double().mean()) for i, j in pairs] or [0.0]
    )
    return Answers(probs["test"], read.labels.numpy(), {"msp": msp, "chosen": scored}, apart)


def resampled(row: Answers, rival: Answers) -> dict[str, float]:
    """Standard error of each metric's difference, both measured on the same resamples."""
    rng = np.random.default_rng(0)
    sizes = {name: len(scores) for name, scores in row.unsure["msp"].items()}
    differences: dict[str, list[float]] = {name: [] for name in METRICS}
    for _ in range(REPEATS):
        drawn = {name: rng.integers(0, size, size) for name, size in sizes.items()}
        mine, other = row.figures(drawn), rival.figures(drawn)
        for name in METRICS:
            differences[name].append(mine[name] - other[name])
    return {name: float(np.std(values)) for name, values in differences.items()}


def measured(
    place: Place, wanted: Sequence[str], before: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """The rows of one seed, each time that there is one more; `before`: what was measured already."""
    rows, makers = dict(before), {**_rows(), **rivals()}
    cached: dict[str, Answers] = {}
    for name in [name for name in (*makers, *CASCADES) if name in wanted or not wanted]:
        if name.startswith("larger") and place.task.larger is None:
            continue
        if name in CASCADES:
            rows[name] = place.cascade(makers[CASCADES[name]](place))
        else:
            path = makers[name](place)
            cached[name] = answers(place.predictions(path))
            apart = {"disagreement": cached[name].disagreement}
            told = {"price": place.price(path), **cached[name].figures(), **apart}
            same = {
                key: value for key, value in rows.get(name, {}).items() if key != "against"
            } == told
            rows[name] = (
                rows[name] if same else told
            )  # the same again: what it was compared with holds
        print(
            f"{name:40}",
            "  ".join(
                f"{key} {value:.3f}" for key, value in rows[name].items() if key != "against"
            ),
            flush=True,
        )
        yield in_order(rows)
    for name, others in COMPARED.items():
        if name in cached:
            known = [other for other in others if other in rows]
            for other in known:
                cached[other] = cached.get(other) or answers(
                    place.predictions(makers[other](place))
                )
            compared = {other: resampled(cached[name], cached[other]) for other in known}
            rows[name]["against"] = rows[name].get("against", {}) | compared
    yield in_order(rows)


def in_order(rows: Mapping[str, Any]) -> dict[str, Any]:
    return {name: rows[name] for name in (*_rows(), *rivals(), *CASCADES) if name in rows}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--shared", type=Path, default=Path(), help="the folder with data")
    parser.add_argument("--cache", type=Path, required=True, help="where models are kept")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", default="", help="only these, with semicolons")
    parser.add_argument("--seed", type=int, default=None, help="only this one")
    options = parser.parse_args()
    wanted = [name.strip() for name in options.rows.split(";") if name.strip()]
    for seed in range(options.seeds) if options.seed is None else [options.seed]:
        place = Place(
            TASKS[options.task], options.shared, options.cache / options.task / str(seed), seed
        )
        place.cache.mkdir(parents=True, exist_ok=True)
        before = results().get(options.task, {}).get("seeds", {}).get(str(seed), {})
        for rows in measured(place, wanted, before):
            write(options.task, seed, rows)


def results() -> dict[str, Any]:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def write(task: str, seed: int, rows: dict[str, Any]) -> None:
    """Into the file as it is now: another task's run may have written since."""
    every = results()
    seeds = every.get(task, {}).get("seeds", {}) | {str(seed): rows}
    every[task] = {**machine(), "seeds": dict(sorted(seeds.items()))}
    write_text(
        RESULTS, json.dumps({name: every[name] for name in TASKS if name in every}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
