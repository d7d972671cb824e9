"""Entities in tweets (Broad Twitter Corpus, persons, places and organisations): what each model is worth to who looks for them.

The same models as in benchmarks/front.py, made of MiniLM: three trainings from the probe, their mean, a half of it, a hydra behind
the mean's trunk, and the Deep Ensemble, in float32 and in 8 bits. Each is calibrated on VAL; precision, recall and F1 of whole
entities (strict IOB2), the NLL of words, the calibration of entities' probabilities and the area under their risk-coverage curve
are those of `eval` on TEST; `near` are tweets with other entities (WNUT 17), `far` docstrings. Time is the median of runs in turn,
one thread, batches of 16, as a multiple of the single model's in float32, in the faster of torch and onnxruntime.

    python benchmarks/entities.py --shared ../shared --cache FOLDER
    python benchmarks/entities.py --shared ../shared --cache FOLDER --promises
    python benchmarks/entities.py --shared ../shared --cache FOLDER --time

`--promises` asks whether `calibrate --risk` keeps its word: VAL and TEST of seed 0 are split 200 times into texts that calibrate
and texts that the promise is for, with the answers of the mean. Beside it stands what one would do without it: the threshold of
exact binomial limits, as if entities were independent.

Models stay in --cache and figures in benchmarks/results/entities.json; what is there is not made again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from front_models import TASKS, Place, seconds_of_a_batch
from harness import machine

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.decision.split import split_rows
from hydrasurgeon.errors import DataError
from hydrasurgeon.files.atomic import write_text
from hydrasurgeon.files.decided import Cover
from hydrasurgeon.measuring.predictions import read_outputs
from hydrasurgeon.options.deciding import CalibrateOptions
from hydrasurgeon.statistics.abstain import Graded, fit_abstention, fit_limits
from hydrasurgeon.statistics.entities import are_right, entities_of, joint_chances
from hydrasurgeon.tasks.base import Certifying, Constants, Outputs, Part
from hydrasurgeon.tasks.entity_answers import not_outside
from hydrasurgeon.tasks.token_classification import TokenClassification

RESULTS = Path(__file__).parent / "results" / "entities.json"
ROWS: dict[str, Callable[[Place], Path]] = {
    "probe": Place.probe,
    "single": lambda p: p.unpruned(0),
    "mean": Place.mean,
    "Deep Ensemble": Place.ensemble,
    "hydra behind the mean trunk": Place.behind_mean,
    "half of the mean": lambda p: p.part(p.mean(), "half"),
    "half of the mean, distilled": lambda p: p.distilled(p.part(p.mean(), "half")),
    "single, tuned longer": lambda p: p.unpruned(0, times=2),
}
"""Name → the file."""
ENGINES: dict[str, Any] = {"float32": "torch", "int8": "int8"}
FIGURES = ("f1", "precision", "recall", "token_accuracy", "nll", "ece", "entity_ece", "aurc")
BATCH = 16
RUNS = 30
SPLITS = 200
PROMISES = {"wrong": (0.1, 0.15, 0.2, 0.25), "missed": (0.05, 0.1, 0.15, 0.2)}
"""Risks of each kind of promise."""
DELTA = 0.05


def measured(place: Place, path: Path, engine: str) -> dict[str, Any]:
    """Return the figures of `eval` for the calibrated model."""
    ready = place.ready(path, engine)
    ood_specs = [f"{part}:{part}={place.data(part)}" for part in ("near", "far")]
    done = hs.evaluate(
        ready, data=place.data("test"), ood=ood_specs, engine=ENGINES[engine], ci=0.95, device="cpu"
    )
    (result,) = done.report.results
    fields = result.model_dump(mode="json")
    figures = {name: fields["id"][name] for name in FIGURES}
    intervals = {name: fields["id"]["ci"][name] for name in ("f1", "nll")}
    return (
        figures
        | {ood_set["name"]: ood_set["auroc"] for ood_set in fields["ood"]}
        | {"ci": intervals}
    )


def shifted(place: Place, path: Path) -> dict[str, Any]:
    """Return the figures on tweets of another time, with the same three kinds of entities."""
    done = hs.evaluate(place.ready(path), data=place.data("shift"), device="cpu")
    (result,) = done.report.results
    fields = result.model_dump(mode="json")["id"]
    return {name: fields[name] for name in FIGURES}


def _ask(place: Place, part: str, out: Path) -> None:
    hs.evaluate(place.mean(), data=place.data(part), predictions=out, device="cpu")


def splits(place: Place) -> dict[str, Any]:
    """Return how often a promise is broken, and what it costs, by the kind of promise and the risk."""
    task, (val, test) = _answers(place, "val", "test")
    outputs = val.joined(test)
    stored: dict[str, Any] = {"splits": SPLITS, "delta": DELTA, "texts": len(outputs.logits)}
    rates_of: dict[str, dict[str, list[dict[str, float] | None]]] = {}
    for split in range(SPLITS):
        order = np.random.default_rng(split).permutation(len(outputs.logits))
        cut = len(order) // 2
        for name, kept in _kept(task, outputs.at(order[:cut]), outputs.at(order[cut:]), split):
            for way, rates in kept.items():
                rates_of.setdefault(name, {}).setdefault(way, []).append(rates)
        print(split, end=" ", flush=True)
    for name, ways in rates_of.items():
        stored[name] = {way: _summary(name, kept) for way, kept in ways.items()}
    return stored


def abroad(place: Place) -> dict[str, Any]:
    """Return the rates of promises that VAL made on data they are not for: WNUT's tweets."""
    task, (val, shift) = _answers(place, "val", "shift")
    return {name: kept["calibrate"] for name, kept in _kept(task, val, shift, 0)}


def _answers(place: Place, *parts: str) -> tuple[TokenClassification, list[Outputs]]:
    """Return the outputs of the mean for these sets."""
    read = [
        read_outputs(place.once(f"mean on {part}", partial(_ask, place, part)), labelled=True)
        for part in parts
    ]
    task = TokenClassification()
    return task, [task.outputs(predictions.outputs) for predictions in read]


def _kept(
    task: TokenClassification, val: Outputs, test: Outputs, seed: int
) -> Iterator[tuple[str, dict[str, dict[str, float] | None]]]:
    """Yield the rates of each promise on `test`: where `calibrate` makes it on `val`, and by the
    limit for independent entities. None stands for a refusal.
    """
    rows = split_rows(len(val.logits), seed)
    fitting, certifying = val.at(rows.fitting), val.at(rows.certifying)
    constants = task.calibrated(fitting, certifying).constants
    parts = [
        Part(some, task.answers(some.logits, constants), np.ones(len(some.logits), dtype=bool))
        for some in (fitting, certifying)
    ]
    assert certifying.original_labels is not None
    for promise, risks in PROMISES.items():
        for risk in risks:
            options = CalibrateOptions(
                checkpoint="mean",
                data="val",
                out="unused",
                risk=risk,
                promise=promise,  # type: ignore[arg-type]
            )
            kept: dict[str, dict[str, float] | None] = {"calibrate": None, "independent": None}
            with contextlib.suppress(DataError):
                promised = task.promised(Certifying(parts[0], parts[1:], options, constants))
                kept["calibrate"] = _rates(task, test, {**constants, **promised})
            with contextlib.suppress(DataError):
                promised = _independent(task, fitting, certifying, constants, options)
                kept["independent"] = _rates(task, test, {**constants, **promised})
            yield f"{promise} {risk:g}", kept


def _independent(
    task: TokenClassification,
    fitting: Outputs,
    certifying: Outputs,
    constants: Constants,
    options: CalibrateOptions,
) -> dict[str, Any]:
    """Take the threshold that binomial limits give, an entity a sample."""
    risk = options.risk
    assert risk is not None

    def graded(outputs: Outputs) -> Graded:
        assert outputs.original_labels is not None
        if options.promise == "missed":
            true = entities_of(outputs.original_labels)
            outside = not_outside(task.answers(outputs.logits, constants))
            return Graded(joint_chances(true, outside, "least"), np.ones(len(true), dtype=bool))
        prediction: Any = task.plain(outputs.logits, constants)
        entities, chances = prediction.entities
        return Graded(chances, are_right(entities, outputs.original_labels))

    ordering, certified = graded(fitting), [graded(certifying)]
    if options.promise == "missed":
        limits = fit_limits(ordering, certified, risk=risk, delta=DELTA)
        return {"cover": Cover(threshold=limits.no, risk=risk, delta=DELTA, words=0.0)}
    return {"abstain": fit_abstention(ordering, certified, risk=risk, delta=DELTA)}


def _rates(task: TokenClassification, test: Outputs, constants: dict[str, Any]) -> dict[str, float]:
    """Return the promised rates, and their costs."""
    prediction: Any = task.plain(test.logits, constants)
    labels = test.original_labels
    assert labels is not None
    answered, true = entities_of(prediction.answered), entities_of(labels)
    right = are_right(answered, labels)
    covered = joint_chances(true, (prediction.answered > 0).astype(float), "least") > 0
    entities, _ = prediction.entities
    return {
        "wrong": 1 - float(right.mean()),
        "missed": 1 - float(covered.mean()),
        "answered": len(answered) / len(entities),
        "covered": float((prediction.answered > 0).sum() / (labels >= 0).sum()),
    }


def _summary(name: str, kept: Sequence[dict[str, float] | None]) -> dict[str, float | None]:
    """Return means over the splits in which the promise was made."""
    promise, risk = name.split()
    promised = [rates for rates in kept if rates is not None]
    if not promised:
        return {"refused": 1.0}
    means = {key: statistics.fmean(rates[key] for rates in promised) for key in promised[0]}
    broken = sum(rates[promise] > float(risk) for rates in promised) / len(promised)
    return {"refused": 1 - len(promised) / len(kept), "broken": broken, **means}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shared", type=Path, default=Path(), help="the folder with data")
    parser.add_argument("--cache", type=Path, required=True, help="where models are kept")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--engines", nargs="*", choices=ENGINES, default=[*ENGINES])
    parser.add_argument("--rows", default="", help="only these, with semicolons")
    parser.add_argument("--time", action="store_true", help="time the rows of seed 0, and no more")
    parser.add_argument("--promises", action="store_true", help="split 200 times, and no more")
    options = parser.parse_args()
    places = {
        seed: Place(TASKS["tweets"], options.shared, options.cache / "tweets" / str(seed), seed)
        for seed in options.seeds
    }
    if options.time:
        torch.set_num_threads(1)
        place = places[0]
        opened = {name: open_checkpoint(place.ready(make(place))) for name, make in ROWS.items()}
        seconds = seconds_of_a_batch(place, opened, BATCH, RUNS)
        unit = seconds["single"]["float32"]
        times = {
            name: {engine: by_engine[engine] / unit for engine in ENGINES}
            for name, by_engine in seconds.items()
        }
        write({"time": times, "timed_on": machine()})
        return
    if options.promises:
        write({"abroad": abroad(places[0]), "promises": splits(places[0])})
        return
    row_names = [name.strip() for name in options.rows.split(";") if name.strip()] or [*ROWS]
    for seed, place in places.items():
        place.cache.mkdir(parents=True, exist_ok=True)
        for engine in options.engines:
            for name in row_names:
                row = stored()["seeds"].get(str(seed), {}).get(name, {})
                if engine in row:
                    continue
                path = ROWS[name](place)
                figures = {"cost": place.cost(path), engine: measured(place, path, engine)}
                if engine == "float32":
                    figures["shift"] = shifted(place, path)
                print(seed, name, json.dumps(figures), flush=True)
                write({"seeds": {str(seed): {name: figures}}, **machine()})


def stored() -> dict[str, Any]:
    return dict(json.loads(RESULTS.read_text())) if RESULTS.exists() else {"seeds": {}}


def write(more: dict[str, Any]) -> None:
    """Write into the file as it is now: another seed's run may have written since."""
    write_text(RESULTS, json.dumps(merged(stored(), more)) + "\n")


def merged(before: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Merge two results, key by key."""
    return before | {
        key: merged(before[key], value)
        if isinstance(value, dict) and isinstance(before.get(key), dict)
        else value
        for key, value in more.items()
    }


if __name__ == "__main__":
    main()
