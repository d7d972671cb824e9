"""What a reader of words is worth: alone, beside a model, and before it; and one of pixels.

MiniLM tuned from its probe, three trainings a task: singles, their mean, the Deep Ensemble of the three,
made by front_models.py (seed 0 of a task) in --cache; in float32 and in 8 bits. All is done by
the stages themselves: finetune, fuse, calibrate --words off|beside|first; a model's outputs are remembered
from one to the next. TEST and OOD data chose nothing; the OOD score is chosen on data of another kind.

--times measures, alone on a machine, what a text takes in the run path, tokens included, as a multiple of the single model's in
float32, in the faster of torch and onnxruntime. Writes
benchmarks/results/words.json, one line, which docs/reference/benchmarks.md shows.

    python benchmarks/words.py --shared ../shared --cache DIR [--tasks clinc,movies,topics,cifar,fashion]
    python benchmarks/words.py --shared ../shared --cache DIR --times
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from front_models import TASKS, Place
from harness import in_turn, machine

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.data import Samples, open_data
from hydrasurgeon.decision import reading
from hydrasurgeon.decision.beside import losses, scaled
from hydrasurgeon.decision.fitting import halves
from hydrasurgeon.engines import engine_of, graph
from hydrasurgeon.errors import DataError
from hydrasurgeon.files.atomic import write_text
from hydrasurgeon.options.shared import Run
from hydrasurgeon.problems.base import Prediction, joined
from hydrasurgeon.runtime.answering import Answering, Engine
from hydrasurgeon.runtime.classifier import Classifier
from hydrasurgeon.statistics.abstain import fit_abstention

DEMO = Path(__file__).parents[1] / "hydrasurgeon" / "demo" / "backbone.safetensors"
RESULTS = Path(__file__).parent / "results" / "words.json"
TEXTS = {
    "clinc": TASKS["clinc"],
    "movies": replace(TASKS["movies"], epochs=1),
    "topics": TASKS["topics"],
}
ENGINES = ("torch", "int8")
WAYS = ("off", "beside", "first")
RISKS = (0.02, 0.05)
"""What of the answers may be wrong."""
BINS = 15
OOD = 500
"""OOD samples of each kind, at most."""
TIMED = 128
"""Texts whose time is taken, in batches of ..."""
BATCH = 16
RUNS = 7


IMAGES = {
    "cifar": TASKS["cifar"],
    "fashion": replace(
        TASKS["cifar"],
        sets={
            "train": "demo:train",
            "val": "demo:val",
            "test": "demo:test",
            "near": "demo:near",
            "far": "demo:digits",
            "choose": "demo:textures",
        },
    ),
}
"""Tasks of the reader of pixels: DINOv2-small's probe, and of clothes the demo's tuned ViT."""


def units(place: Place) -> dict[str, list[Path]]:
    """Probe, singles, their mean and their Deep Ensemble; of images what takes a minute."""
    if place.task in IMAGES.values():
        tuned = {} if place.task.sets["train"] != "demo:train" else {"single": [DEMO]}
        return {"probe": [place.probe()], **tuned}
    return {
        "single": place.wholes,
        "probe": [place.probe()],
        "mean": [place.mean()],
        "ensemble": [place.ensemble()],
    }


def rows(place: Place) -> Iterator[dict[str, Any]]:
    """Every model with every use of words, the first of its kind in both engines."""
    images = place.task in IMAGES.values()
    for model, paths in units(place).items():
        for seed, path in enumerate(paths):
            for engine in ENGINES[:1] if images or seed else ENGINES:
                yield from of_unit(place, model, seed, path, engine)


def of_unit(place: Place, model: str, seed: int, path: Path, engine: str) -> list[dict[str, Any]]:
    """One model's rows in one engine: from the cache, where an interrupted run left them."""
    kept = place.cache / f"rows-{model}-{seed}-{engine}.json"
    if not kept.exists():
        made = []
        with remembered(f"{place.cache.parent.name}-{path.stem}"):
            images = place.task in IMAGES.values()
            for words in WAYS[:2] if images or model == "ensemble" else WAYS:
                about = {"model": model, "seed": seed, "words": words, "engine": engine}
                made.append(about | measured(place, path, engine, words))
        write_text(kept, json.dumps(made))
    rows: list[dict[str, Any]] = json.loads(kept.read_text())
    return rows


def decided(place: Place, path: Path, engine: Any, words: Any) -> Path:
    """The model with a decision state."""
    return place.once(
        f"{path.stem}-{words}-{engine}",
        lambda out: hs.calibrate(
            path,
            data=place.data("val"),
            fit_data=fewer(place, "train", place.task.limit),
            ood=[place.data("choose")],
            words=words,
            engine=engine,
            device="cpu",
            out=out,
        ),
    )


def fewer(place: Place, name: str, limit: int | None) -> str:
    """A table's rows that are read: calibrate's --limit would count for VAL too."""
    spec = place.data(name)
    samples = open_data(spec, limit=limit)
    assert samples.labels is not None
    assert samples.classes is not None
    if limit is None or not spec.endswith(".jsonl"):
        return spec
    out = place.cache / f"{name}-{limit}.jsonl"
    lines = [
        {"text": samples.read(i), "label": samples.classes[int(samples.labels[i])]}
        for i in range(len(samples))
    ]
    write_text(out, "".join(json.dumps(line) + "\n" for line in lines))
    return str(out)


def measured(place: Place, path: Path, engine: str, words: str) -> dict[str, Any]:
    """A decided checkpoint on TEST, how much OOD data it flags where it flags 5 % of VAL, and how
    many answers keep a promise.
    """
    made = decided(place, path, engine, words)
    model = engine_of(open_checkpoint(made), engine=engine, device="cpu", keep=True)
    val, test = (open_data(place.data(name)) for name in ("val", "test"))
    answers, known = answered(model, test), answered(model, val)
    truth = truth_of(test, model)
    found: dict[str, Any] = of_classes(answers.probabilities.astype(np.float64), truth)
    found |= kept(known, truth_of(val, model), answers, truth)
    found |= {"flagged": float(answers.unfamiliar.mean()), "on": on(answers)}
    for name in ("near", "far"):
        foreign = answered(model, open_data(place.data(name), limit=OOD))
        below = answers.ood_score[:, None] < foreign.ood_score[None]
        found[f"{name} flagged"], found[f"{name} on"] = (
            float(foreign.unfamiliar.mean()),
            on(foreign),
        )
        if words != "first":
            found[f"{name} auroc"] = float(below.mean())
    state = model.state
    if state is not None and state.record.words is not None:
        found |= state.record.words.model_dump(include={"weights", "worth", "mode"})
    if not timed_too(path, words):
        for each in (made, made.with_suffix(".heads.json")):
            each.unlink()
    return found


def on(answers: Prediction) -> float:
    """The fraction that the model itself read."""
    return float((answers.members_run > 0).mean())


def answered(model: Engine, samples: Samples) -> Prediction:
    """What is decided of all samples."""
    cascade = model.in_stages(None)
    pieces = Answering([model], samples, Run(), features=model.reads, cascade=cascade)
    each = [(piece.index, model.prediction_of(piece.parts, cascade)) for piece in pieces]
    order = np.concatenate([index for index, _ in each]).argsort()
    return joined([part for _, part in each], order)


def truth_of(samples: Samples, model: Engine) -> np.ndarray:
    """The model's numbers of the true classes."""
    assert samples.labels is not None
    names, labels = [str(name) for name in model.facts.labels or ()], np.asarray(samples.labels)
    if samples.classes is None or not names:
        return labels.astype(int)
    return np.array([names.index(str(samples.classes[int(label)])) for label in labels])


def of_classes(chances: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    """Accuracy, NLL and ECE (15 bins)."""
    own = chances[np.arange(len(truth)), truth]
    best, right = chances.max(axis=1), chances.argmax(axis=1) == truth
    bins = np.minimum((best * BINS).astype(int), BINS - 1)
    gaps = [abs(float((right[bins == b] - best[bins == b]).sum())) for b in range(BINS)]
    return {
        "accuracy": float(right.mean()),
        "nll": float(-np.log(own.clip(1e-12)).mean()),
        "ece": sum(gaps) / len(truth),
    }


def kept(
    val: Prediction, val_truth: np.ndarray, test: Prediction, truth: np.ndarray
) -> dict[str, list[float]]:
    """What of TEST is answered where at most a risk may be wrong, by half of VAL; and how much of
    that is wrong.
    """
    found = {}
    _, rows = halves(len(val_truth), 0)
    rows = rows[~val.unfamiliar[rows]]
    sure = val.probabilities.max(axis=1)
    right = val.probabilities.argmax(axis=1) == val_truth
    best, wrong = test.probabilities.max(axis=1), test.probabilities.argmax(axis=1) != truth
    for risk in RISKS:
        try:
            threshold = fit_abstention(sure[rows], right[rows], risk=risk).threshold
        except DataError:
            threshold = 2.0
        given = (best >= threshold) & ~test.unfamiliar
        found[f"at {risk:g}"] = [
            float(given.mean()),
            float(wrong[given].mean() if given.any() else 0),
        ]
    return found


@contextmanager
def remembered(unit: str) -> Iterator[None]:
    """A model's outputs, its graph and the readers of its task are made once."""
    outputs: dict[Any, Any] = {}
    readers: dict[Any, Any] = {}

    def once(compute: Callable[..., Any]) -> Callable[..., Any]:
        def ask(self: Engine, inputs: Any, *, features: bool) -> Any:
            named = inputs if isinstance(inputs, Mapping) else {"": inputs}
            key = (features, *(np.asarray(values).tobytes() for values in named.values()))
            if key not in outputs:
                outputs[key] = compute(self, inputs, features=features)
            return outputs[key]

        return ask

    def fitted(fit: Callable[..., Any], seen: Any, *rest: Any) -> Any:
        if fit not in readers:
            readers[fit] = fit(seen, *rest)
        return readers[fit]

    def place_of(checkpoint: Any, engine: str) -> Path:
        return GRAPHS / f"{unit}-{engine}.whole.onnx"

    with (
        mock.patch.object(Classifier, "compute", once(Classifier.compute)),
        mock.patch.object(graph.GraphEngine, "compute", once(graph.GraphEngine.compute)),
        mock.patch.object(graph, "place_of", place_of),
        mock.patch.object(reading, "fit_words", partial(fitted, reading.fit_words)),
        mock.patch.object(reading, "fit_pixels", partial(fitted, reading.fit_pixels)),
    ):
        yield


GRAPHS = Path("graphs")
"""Where graphs are kept, by the model's name: in the cache."""


def alone(place: Place) -> dict[str, Any]:
    """The reader without a model, its strength and temperature by VAL."""
    model = hs.load(place.probe(), device="cpu")
    see, images = reading.seer(model.transform), place.task in IMAGES.values()
    seen, targets = {}, {}
    for name in ("train", "val", "test"):
        samples = open_data(place.data(name), limit=place.task.limit if name == "train" else None)
        seen[name] = see(samples)
        targets[name] = np.eye(len(model.classes))[truth_of(samples, model)]

    def loss(outputs: np.ndarray) -> float:
        scale = scaled("softmax", outputs[:, None], targets["val"])
        return float(losses("softmax", scale * outputs[:, None], targets["val"]).mean())

    fit: Callable[..., Any] = reading.fit_pixels if images else reading.fit_words
    reader = fit(seen["train"], targets["train"], "softmax", loss, seen["val"]).reader
    scale = scaled("softmax", reader.outputs(seen["val"])[:, None], targets["val"])
    logits = scale * reader.outputs(seen["test"])
    chances = np.exp(logits - logits.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    figures = of_classes(chances, targets["test"].argmax(axis=1))
    name = "pixels" if images else "words"
    return {"model": name, "seed": 0, "words": "alone", "engine": "torch", **figures}


def timed_too(path: Path, words: str) -> bool:
    """Whether a file's time is taken: the others take as long."""
    ways = {"whole-0": WAYS, "mean": ("first",), "probe": ("first",), "ensemble": ("off",)}
    return words in ways.get(path.stem, ())


def times(place: Place) -> dict[str, float]:
    """What a text takes, as a multiple of the single model's in float32; of what rows were made of."""
    samples = open_data(place.data("test"), limit=TIMED)
    texts = [samples.read(i) for i in range(len(samples))]
    batches = [texts[at : at + BATCH] for at in range(0, len(texts), BATCH)]
    calls: dict[str, Callable[[], object]] = {}
    for model in ("whole-0", "probe", "mean", "ensemble"):
        path = place.file(model)
        for words, engine in product(WAYS, ("torch", "onnx", "int8")):
            source = place.file(f"{model}-{words}-{'int8' if engine == 'int8' else 'torch'}")
            if not source.exists():
                continue
            with remembered(f"{place.cache.parent.name}-{path.stem}"):
                made = engine_of(open_checkpoint(source), engine=engine, device="cpu", keep=True)
            name = model.replace("whole-0", "single")
            calls[f"{name} {words} {engine}"] = partial(answer, made, batches)
    taken = in_turn(calls, RUNS)
    single = min(taken["single off torch"], taken["single off onnx"])
    return {"ms": 1000 * single / len(texts), **{k: value / single for k, value in taken.items()}}


def rounded(value: Any) -> Any:
    """Numbers to five digits."""
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


@torch.inference_mode()
def answer(model: Engine, batches: Sequence[Sequence[Any]]) -> None:
    """Texts to answers."""
    for texts in batches:
        model.answered(model.collated([model.transform(text) for text in texts]))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shared", type=Path, required=True, help="the folder with data")
    parser.add_argument("--cache", type=Path, required=True, help="where the models lie")
    parser.add_argument("--tasks", default=",".join(TEXTS))
    parser.add_argument("--times", action="store_true", help="take times, and do no more")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    global GRAPHS
    GRAPHS = given.cache / "graphs"
    results = json.loads(given.out.read_text()) if given.out.exists() else {"tasks": {}}
    for task in given.tasks.split(","):
        place = Place((TEXTS | IMAGES)[task], given.shared, given.cache / task / "0", 0)
        place.cache.mkdir(parents=True, exist_ok=True)
        if given.times and not place.file("whole 0-off-torch").exists():
            print(f"{task}: nothing is there to be timed", flush=True)
        elif given.times:
            results.setdefault("times", {})[task] = rounded(times(place))
            print(json.dumps(results["times"][task]), flush=True)
        else:
            results["tasks"][task] = []
            for row in (*rows(place), alone(place)):
                results["tasks"][task].append(rounded(row))
                print(json.dumps(row), flush=True)
            results.setdefault("machines", {})[task] = machine()
        write_text(given.out, json.dumps(results, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
