"""Worth of every millisecond: the probe, one model, its mean, parts and hydras, the Deep Ensemble,
and a bag-of-words model in a blend and in a cascade with them, in float32 and in 8 bits.

Three trainings of one body, each from the probe and with its own order of samples, are the Deep Ensemble that a seed has. Parts keep some
heads and neurons of every layer, chosen by taylor and repaired by least squares; they are measured as they are, or distilled from the three models.

Every row is a file that `calibrate` gave a decision state on VAL (and on OOD data that no row is reported on), for the engine that it is measured in.
TEST and the OOD data that are reported were not used before. Models, and what each said of each sample, stay in --cache, so that an interrupted
run goes on. Writes benchmarks/results/front.json, under the task's name.

--time takes times and does no more, as bench does: from text or image to answer, one thread, all rows in turn, as
multiples of the single model in float32, in the faster of torch and onnxruntime; the other rows run in onnxruntime.

    python benchmarks/front.py clinc --shared ../shared --cache FOLDER --seeds 1
    python benchmarks/front.py clinc --shared ../shared --cache FOLDER --rows "single;Deep Ensemble"
    python benchmarks/front.py clinc --shared ../shared --cache FOLDER --time
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from front_models import COSTS, TASKS, Place
from harness import machine
from numpy.typing import NDArray

from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.data import Samples, open_data
from hydrasurgeon.decision import text_model
from hydrasurgeon.decision.split import split_rows
from hydrasurgeon.engines import engine_of
from hydrasurgeon.engines.onnx import graph
from hydrasurgeon.errors import DataError
from hydrasurgeon.files.atomic import write_text
from hydrasurgeon.measuring.cost import seconds_of
from hydrasurgeon.options.shared import Run
from hydrasurgeon.runtime.answering import Answering, Engine
from hydrasurgeon.statistics.abstain import Graded, fit_abstention
from hydrasurgeon.statistics.metrics import auroc, ece
from hydrasurgeon.tasks.base import Prediction, joined

RESULTS = Path(__file__).parent / "results" / "front.json"
RIVALS = ("probe", "single", "single, tuned longer", "single, distilled", "mean", "Deep Ensemble")
"""Rows that every other one is compared with, sample by sample."""
REPEATS = 200
"""Resamples of the test and OOD samples behind a standard error."""
ENGINES = {"float32": "onnx", "int8": "int8"}
"""Column → the engine that is calibrated for, and answers."""
OOD = 500
"""OOD samples of each kind, at most."""
RISKS = (0.02, 0.05)
"""Fractions of the answers that may be wrong."""
TIMED = 128
"""Samples whose time is taken."""
BATCHES = (1, 16)
RUNS = 3
"""Runs behind a median."""
METRICS = ("accuracy", "nll", "ece", "auroc")
"""Metrics with a standard error. auroc is the mean of near and far, by the score that `calibrate`
chose.
"""


Choices = tuple[NDArray[np.float64], NDArray[np.int64]]
"""Chances of classes, and the true ones."""


@dataclass(frozen=True)
class Row:
    """A model, and how a bag-of-words model is used."""

    make: Callable[[Place], Path]
    words: str = "off"
    pseudo_labels: bool = False
    """True if the reader also learns from the model's answers to texts without labels."""

    @property
    def way(self) -> str:
        return f"{self.words}{' taught' * self.pseudo_labels}"


def rows(place: Place) -> dict[str, Row]:
    """Return the rows, the most useful ones first."""
    alone: dict[str, Callable[[Place], Path]] = {
        "probe": Place.probe,
        "single": lambda p: p.unpruned(0),
        "mean": Place.mean,
        "half of the mean": lambda p: p.part(p.mean(), "half"),
    }
    text = place.task.recipe == "text"
    table: dict[str, Row] = {}
    for name, make in alone.items():
        table[name] = Row(make)
        if text:
            table[f"{name}, words blend"] = Row(make, "blend")
            table[f"{name}, words cascade"] = Row(make, "cascade")
    if place.task.tuned:
        return {name: row for name, row in table.items() if name.startswith(("probe", "single"))}
    if "unlabelled" in place.task.sets:
        for way in ("blend", "cascade"):
            table[f"single, words {way}, taught"] = Row(alone["single"], way, pseudo_labels=True)
    table["Deep Ensemble"] = Row(Place.ensemble)
    table["hydra behind the mean trunk"] = Row(Place.behind_mean)
    table |= {f"hydra of three: {size}": Row(partial(_hydra, size=size)) for size in COSTS}
    table["single, tuned longer"] = Row(lambda p: p.unpruned(0, times=2))
    table["single, distilled"] = Row(lambda p: p.distilled(p.unpruned(0)))
    table["half of the mean, distilled"] = Row(lambda p: p.distilled(p.part(p.mean(), "half")))
    return table


def _hydra(place: Place, size: str) -> Path:
    return place.fused(f"hydra {size}", [place.part(model, size) for model in place.wholes])


@dataclass(frozen=True)
class Said:
    """Outputs of one row, sample by sample."""

    arrays: Mapping[str, NDArray[Any]]
    """chances and truth of test and val; of all sets the OOD score, what was flagged, and what the model
    itself read.
    """

    def figures(self, drawn: Mapping[str, NDArray[np.int64]] | None = None) -> dict[str, float]:
        """Return METRICS, of all samples or of some."""
        arrays = self.arrays
        if drawn is not None:
            arrays = {name: values[drawn[name.split()[0]]] for name, values in arrays.items()}
        chances, truth = choices(arrays["test chances"], arrays["test truth"])
        inside = arrays["test ood"]
        return {
            "accuracy": float((chances.argmax(-1) == truth).mean()),
            "nll": nll(chances, truth),
            "ece": ece(chances, truth),
            "auroc": statistics.fmean(
                auroc(inside, arrays[f"{name} ood"]) or 0.0 for name in ("near", "far")
            ),
        }

    @cached_property
    def resampled(self) -> NDArray[np.float64]:
        """METRICS [resample, metric]; those of all rows are the same."""
        rng = np.random.default_rng(0)
        sizes = {name: len(self.arrays[f"{name} ood"]) for name in ("val", "test", "near", "far")}
        resamples = []
        for _ in range(REPEATS):
            drawn = {name: rng.integers(0, size, size) for name, size in sizes.items()}
            figures = self.figures(drawn)
            resamples.append([figures[name] for name in METRICS])
        return np.array(resamples)

    def all(self) -> dict[str, Any]:
        """Return every figure of a row."""
        figures: dict[str, Any] = self.figures()
        figures["val"] = nll(*choices(self.arrays["val chances"], self.arrays["val truth"]))
        for name in ("test", "near", "far"):
            figures[f"{name} flagged"] = float(self.arrays[f"{name} flagged"].mean())
            figures[f"{name} on"] = float(self.arrays[f"{name} on"].mean())
        return figures | {f"at {risk:g}": self.kept(risk) for risk in RISKS}

    def kept(self, risk: float) -> list[float]:
        """Return the fraction of TEST that is answered at a risk, with a threshold fitted to VAL,
        and the fraction of wrong answers among them.
        """
        rows = split_rows(len(self.arrays["val truth"]), 0)
        parts = [self.familiar("val", part) for part in (rows.fitting, rows.certifying)]
        ordering, certifying = (
            Graded(chances.max(-1), chances.argmax(-1) == truth) for chances, truth in parts
        )
        try:
            threshold = fit_abstention(ordering, [certifying], risk=risk).threshold
        except DataError:
            threshold = 2.0
        row_numbers = np.arange(len(self.arrays["test truth"]))
        chances, truth = self.familiar("test", row_numbers)
        is_answered = chances.max(-1) >= threshold
        wrong = chances.argmax(-1) != truth
        share = is_answered.mean() * (~self.arrays["test flagged"]).mean()
        return [float(share), float(wrong[is_answered].mean()) if is_answered.any() else 0.0]

    def familiar(self, name: str, rows: NDArray[np.int64]) -> Choices:
        """Return the choices for those of some rows that are not flagged."""
        rows = rows[~self.arrays[f"{name} flagged"][rows]]
        return choices(self.arrays[f"{name} chances"][rows], self.arrays[f"{name} truth"][rows])


def choices(chances: NDArray[np.float64], truth: NDArray[np.int64]) -> Choices:
    """Return choices between classes. For many labels, each label is a choice between no and yes."""
    if truth.ndim == 1:
        return chances, truth
    return np.stack([1 - chances, chances], axis=-1).reshape(-1, 2), truth.reshape(-1)


def nll(chances: NDArray[np.float64], truth: NDArray[np.int64]) -> float:
    true_chances = chances[np.arange(len(truth)), truth]
    return float(-np.log(true_chances.clip(1e-12)).mean())


def decided(place: Place, row: Row, engine: str) -> Path:
    """Return the row's file, with a decision state for the engine."""
    import hydrasurgeon as hs

    path = row.make(place)
    called: Any = ENGINES[engine]
    words: Any = row.words
    return place.once(
        f"{path.stem} {row.way} {engine}",
        lambda out: hs.calibrate(
            path,
            data=place.data("val"),
            fit_data=place.train,
            ood=[place.data("choose")],
            words=words,
            unlabelled=place.data("unlabelled") if row.pseudo_labels else None,
            engine=called,
            device="cpu",
            out=out,
        ),
    )


def answers_of(place: Place, row: Row, engine: str) -> Said:
    """Return a row's outputs for VAL, TEST and OOD data; from the cache, if an interrupted run left
    them.
    """
    path = row.make(place)
    kept = place.cache / f"{path.stem} {row.way} {engine}.npz"
    if not kept.exists():
        calibrated = decided(place, row, engine)
        model = engine_of(
            open_checkpoint(calibrated), engine=ENGINES[engine], device="cpu", keep=True
        )
        arrays: dict[str, NDArray[Any]] = {}
        for name in ("val", "test", "near", "far"):
            samples = open_data(place.data(name), limit=OOD if name in ("near", "far") else None)
            answers = answered(model, samples)
            arrays[f"{name} ood"] = np.nan_to_num(answers.ood_score, nan=-np.inf)
            arrays[f"{name} flagged"] = answers.unfamiliar
            arrays[f"{name} on"] = answers.members_run > 0
            if name in ("val", "test"):
                arrays[f"{name} chances"] = answers.probabilities.astype(np.float64)
                arrays[f"{name} truth"] = truth_of(samples, model)
        packed: Any = arrays
        np.savez_compressed(kept, **packed)
    with np.load(kept) as arrays:
        return Said(dict(arrays))


def answered(model: Engine, samples: Samples) -> Prediction:
    """Return the decisions for all samples."""
    cascade = model.in_stages(None)
    pieces = Answering([model], samples, Run(), features=model.reads, cascade=cascade)
    predictions = [(piece.index, model.prediction_of(piece.parts, cascade)) for piece in pieces]
    order = np.concatenate([index for index, _ in predictions]).argsort()
    return joined([part for _, part in predictions], order)


def truth_of(samples: Samples, model: Engine) -> NDArray[np.int64]:
    """Return the true classes by the model's numbers."""
    assert samples.labels is not None
    names, labels = [str(name) for name in model.facts.labels or ()], np.asarray(samples.labels)
    if samples.classes is None or not names:
        return labels.astype(int)
    order = np.array([names.index(str(name)) for name in samples.classes])
    if labels.ndim == 1:
        return order[labels]
    return labels[:, order.argsort()].astype(int)


@contextmanager
def remembered(readers: dict[Any, Any]) -> Iterator[None]:
    """Compute a model's outputs and the readers of its task once, however often it is calibrated."""
    outputs: dict[Any, Any] = {}

    def once(compute: Callable[..., Any]) -> Callable[..., Any]:
        def ask(self: Engine, inputs: Any, *, features: bool) -> Any:
            named = inputs if isinstance(inputs, Mapping) else {"": inputs}
            key = (features, *(np.asarray(values).tobytes() for values in named.values()))
            if key not in outputs:
                outputs[key] = compute(self, inputs, features=features)
            return outputs[key]

        return ask

    def fitted(fit: Callable[..., Any], seen: Any, *rest: Any) -> Any:
        if (fit, len(seen)) not in readers:
            readers[fit, len(seen)] = fit(seen, *rest)
        return readers[fit, len(seen)]

    with (
        mock.patch.object(graph.GraphEngine, "compute", once(graph.GraphEngine.compute)),
        mock.patch.object(text_model, "fit_words", partial(fitted, text_model.fit_words)),
    ):
        yield


def errors(row: Said, rival: Said) -> dict[str, float]:
    """Return the standard error of each metric's difference, both measured on the same resamples."""
    differences = row.resampled - rival.resampled
    return dict(zip(METRICS, differences.std(axis=0).tolist(), strict=True))


def measured(
    place: Place, row_names: Sequence[str], before: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield the rows of one seed whenever there is one more. `before` holds those that are measured
    already.
    """
    rows_by_name, table = rows(place), dict(before)
    chosen = {name: row for name, row in rows_by_name.items() if name in row_names or not row_names}
    by_model: dict[Path, list[str]] = {}
    readers: dict[Any, Any] = {}
    for name, row in chosen.items():
        by_model.setdefault(row.make(place), []).append(name)
    for names in by_model.values():
        for engine in ENGINES:
            with remembered(readers):
                for name in names:
                    says = answers_of(place, chosen[name], engine)
                    cost = place.cost(chosen[name].make(place))
                    table[name] = table.get(name, {}) | {"cost": cost, engine: says.all()}
                    line = "  ".join(f"{key} {table[name][engine][key]:.3f}" for key in METRICS)
                    print(f"{name:40} {engine:8} {line}", flush=True)
        yield {name: table[name] for name in rows_by_name if name in table}
    rivals = {
        name: answers_of(place, rows_by_name[name], "float32") for name in RIVALS if name in table
    }
    for name, engines in table.items():
        for engine in [engine for engine in ENGINES if engine in engines]:
            says = answers_of(place, rows_by_name[name], engine)
            against = {rival: errors(says, other) for rival, other in rivals.items()}
            engines[engine]["against"] = against
    yield {name: table[name] for name in rows_by_name if name in table}


def timed(place: Place, names: Sequence[str]) -> dict[str, Any]:
    """Time text or image to answer; return times relative to the single model's by row, engine and
    batch, and its milliseconds.
    """
    rows_by_name = rows(place)
    samples = open_data(place.data("test"), limit=TIMED)
    inputs = [samples.read(i) for i in range(len(samples))]
    times: dict[str, Any] = {"ms": {}, "rows": {name: {} for name in names}}
    for size in BATCHES:
        batches = [inputs[at : at + size] for at in range(0, len(inputs), size)]
        calls: dict[str, list[Engine]] = {}
        for name in names:
            for column, engine in ENGINES.items():
                opened = open_checkpoint(decided(place, rows_by_name[name], column))
                model = engine_of(opened, engine=engine, device="cpu", keep=True)
                calls[f"{name}: {column}"] = [model]
        opened = open_checkpoint(decided(place, rows_by_name["single"], "float32"))
        model = engine_of(opened, engine="torch", device="cpu")
        calls["torch"] = [model]
        seconds = seconds_of(calls, batches, runs=RUNS)
        single = min(seconds["single: float32"], seconds["torch"])
        times["ms"][str(size)] = 1000 * single / size
        for name in names:
            for column in ENGINES:
                value = seconds[f"{name}: {column}"] / single
                times["rows"][name].setdefault(column, {})[str(size)] = value
    return times


def rounded(value: Any) -> Any:
    """Round numbers to four digits."""
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


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
    torch.set_num_threads(1)
    row_names = [name.strip() for name in options.rows.split(";") if name.strip()]
    for seed in range(options.seeds) if options.seed is None else [options.seed]:
        place = Place(
            TASKS[options.task], options.shared, options.cache / options.task / str(seed), seed
        )
        place.cache.mkdir(parents=True, exist_ok=True)
        before = results().get(options.task, {}).get("seeds", {}).get(str(seed), {})
        if options.time:
            names = [name for name in rows(place) if name in (row_names or before)]
            write(options.task, times=machine() | timed(place, names))
            break
        for table in measured(place, row_names, before):
            seeds = results().get(options.task, {}).get("seeds", {}) | {str(seed): table}
            write(options.task, **machine(), seeds=dict(sorted(seeds.items())))


def results() -> dict[str, Any]:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def write(task: str, **fields: Any) -> None:
    """Write into the file as it is now: another task's run may have written since."""
    all_results = results()
    all_results[task] = all_results.get(task, {}) | rounded(fields)
    write_text(
        RESULTS,
        json.dumps({name: all_results[name] for name in TASKS if name in all_results}) + "\n",
    )


if __name__ == "__main__":
    main()
