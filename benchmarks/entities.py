"""Entities in tweets (Broad Twitter Corpus, persons, places and organisations): what each model is worth to who looks for them.

The same models as in benchmarks/front.py, made of MiniLM: three trainings from the probe, their mean, a half of it, a hydra behind
the mean's trunk, and the Deep Ensemble, in float32 and in 8 bits. Each is calibrated on VAL; precision, recall and F1 of whole
entities (strict IOB2), the NLL of words, the calibration of entities' probabilities and the area under their risk-coverage curve
are those of `eval` on TEST; `near` are tweets with other entities (WNUT 17), `far` docstrings. Time is the median of runs in turn,
one thread, batches of 16, as a multiple of the single model's in float32, in the faster of torch and onnxruntime.

    python benchmarks/entities.py --shared ../shared --cache FOLDER --seeds 3
    python benchmarks/entities.py --shared ../shared --cache FOLDER --time

Writes benchmarks/results/entities.json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from front_models import TASKS, Place
from harness import in_turn, machine

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.data import Batches, open_data
from hydrasurgeon.engines import engine_of
from hydrasurgeon.files.atomic import write_text
from hydrasurgeon.runtime.classifier import as_classifier

RESULTS = Path(__file__).parent / "results" / "entities.json"
ROWS: dict[str, Callable[[Place], Path]] = {
    "probe": Place.probe,
    "single": lambda p: p.whole(0),
    "mean": Place.mean,
    "Deep Ensemble": Place.ensemble,
    "hydra behind the mean trunk": Place.behind_mean,
    "half of the mean": lambda p: p.part(p.mean(), "half"),
    "half of the mean, distilled": lambda p: p.distilled(p.part(p.mean(), "half")),
    "single, tuned longer": lambda p: p.whole(0, times=2),
}
"""Name → the file."""
ENGINES: dict[str, Any] = {"float32": "torch", "int8": "int8"}
FIGURES = ("f1", "precision", "recall", "token_accuracy", "nll", "ece", "entity_ece", "aurc")
BATCH = 16
RUNS = 30


def measured(place: Place, path: Path, engine: Any) -> dict[str, Any]:
    """What `eval` says of the calibrated model."""
    ready = place.ready(path, engine)
    foreign = [f"{part}:{part}={place.data(part)}" for part in ("near", "far")]
    done = hs.evaluate(
        ready, data=place.data("test"), ood=foreign, engine=ENGINES[engine], device="cpu"
    )
    (result,) = done.report.results
    said = result.model_dump(mode="json")
    figures = {name: said["id"][name] for name in FIGURES}
    return figures | {each["name"]: each["auroc"] for each in said["ood"]}


def timed(place: Place) -> dict[str, dict[str, float]]:
    """Seconds of a batch, as multiples of the single model's in float32."""
    ready = {name: open_checkpoint(place.ready(make(place))) for name, make in ROWS.items()}
    single = as_classifier(ready["single"], device="cpu")
    samples = open_data(place.data("test"), limit=BATCH)
    (batch, *_) = Batches(samples, single.transform, batch_size=BATCH)
    calls: dict[str, Callable[[], object]] = {}
    for name, checkpoint in ready.items():
        for engine in ("torch", "onnx", "int8"):
            model = engine_of(checkpoint, engine=engine, device="cpu", keep=False)
            calls[f"{name}: {engine}"] = partial(model.ask, batch.inputs)
    with torch.inference_mode():
        seconds = in_turn(calls, RUNS)
    taken = {
        name: {
            "float32": min(seconds[f"{name}: torch"], seconds[f"{name}: onnx"]),
            "int8": seconds[f"{name}: int8"],
        }
        for name in ROWS
    }
    unit = taken["single"]["float32"]
    return {name: {e: s / unit for e, s in each.items()} for name, each in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shared", type=Path, default=Path(), help="the folder with data")
    parser.add_argument("--cache", type=Path, required=True, help="where models are kept")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", default="", help="only these, with semicolons")
    parser.add_argument("--time", action="store_true", help="time the rows of seed 0, and no more")
    options = parser.parse_args()
    wanted = [name.strip() for name in options.rows.split(";") if name.strip()] or [*ROWS]
    told = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"seeds": {}}
    for seed in range(options.seeds):
        place = Place(TASKS["tweets"], options.shared, options.cache / "tweets" / str(seed), seed)
        place.cache.mkdir(parents=True, exist_ok=True)
        if options.time:
            torch.set_num_threads(1)
            told |= {"time": timed(place), "timed_on": machine()}
            write_text(RESULTS, json.dumps(told, indent=1) + "\n")
            return
        rows = told["seeds"].setdefault(str(seed), {})
        for name in wanted:
            path = ROWS[name](place)
            rows[name] = {
                "cost": place.cost(path),
                **{engine: measured(place, path, engine) for engine in ENGINES},
            }
            print(seed, name, json.dumps(rows[name]), flush=True)
            told |= machine()
            write_text(RESULTS, json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
