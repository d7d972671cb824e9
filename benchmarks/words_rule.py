"""When to keep the bag-of-words model, and how much it counts: rules compared by the NLL on TEST, on the text tasks of front.py.

Per task one probe on MiniLM (`--tuned`: one tuned model too), and bag-of-words models of every strength, with and without pairs, fitted to
TRAIN once. Per number of rows 20 draws: VAL is drawn at random from VAL and TEST together, TEST is the rest. A part of VAL
chooses the strength and fits weights and temperature, as `calibrate` does; rules differ in what follows.

    never, always           by the weights that are shrunk
    old                     least loss, not shrunk; kept if the loss on the other part falls by more than a standard error
    unshrunk                the same, always kept
    new                     shrunk; kept if the loss is lower on all of VAL, each part judged by weights of the other

`noise` is topics with the words of other texts: there is nothing to gain. Writes benchmarks/results/words_rule.json.

    python benchmarks/words_rule.py --shared ../shared --cache FOLDER
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from front_models import TASKS, Place
from harness import machine
from numpy.typing import NDArray
from scipy.optimize import minimize

from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.data import open_data
from hydrasurgeon.decision.bag_of_words_fit import STRENGTHS, Kind, path
from hydrasurgeon.decision.blend import fit_blend, losses, scaled
from hydrasurgeon.decision.split import split_rows
from hydrasurgeon.decision.text_model import seer, targets_of
from hydrasurgeon.files.atomic import write_text
from hydrasurgeon.options.shared import Run
from hydrasurgeon.runtime.answering import collected
from hydrasurgeon.runtime.classifier import as_classifier
from hydrasurgeon.tasks import TASKS as MODEL_TASKS
from hydrasurgeon.tasks import task_of
from hydrasurgeon.tasks.base import Outputs
from hydrasurgeon.tasks.single_label import SingleLabel

RESULTS = Path(__file__).parent / "results" / "words_rule.json"
TEXTS = ("clinc", "movies", "topics", "tags", "claims")
"""Tasks of texts."""
ROWS = (100, 200, 400, 1000)
"""Numbers of rows of VAL."""
DRAWS = 20
NOISE = "topics"
"""The task whose words are also mixed up."""
Floats = NDArray[np.float64]
Rows = NDArray[np.int64]
Weights = tuple[float, float]


@dataclass(frozen=True)
class Pool:
    """Outputs of a model and of bag-of-words models for VAL and TEST together."""

    task: SingleLabel
    logits: Floats
    """[row, member, class]."""
    read: Floats
    """[strength, row, class]; behind those without pairs those with them."""
    labels: NDArray[Any]

    @property
    def kind(self) -> Kind:
        assert self.task.link is not None
        return self.task.link

    def targets(self) -> Floats:
        return targets_of(self.labels, self.kind, self.logits.shape[-1])[1]

    def mixed_up(self) -> Pool:
        """Return the pool with the words of other rows."""
        order = np.random.default_rng(0).permutation(len(self.labels))
        return replace(self, read=self.read[:, order])


def pool_of(task: str, shared: Path, cache: Path, *, tuned: bool) -> Pool:
    """Compute the outputs, or read them from the cache."""
    kept = cache / f"{task}{'-tuned' * tuned}.npz"
    (cache / task).mkdir(parents=True, exist_ok=True)
    place = Place(TASKS[task], shared, cache / task, 0)
    if not kept.exists():
        opened = open_checkpoint(place.unpruned(0) if tuned else place.probe())
        facts, model = opened.manifest.model, as_classifier(opened, device="cpu")
        sets = [open_data(place.data(name), model=facts) for name in ("val", "test")]
        outputs = [collected([model], samples, Run(device="cpu")) for samples in sets]
        train, see = open_data(place.train, model=facts), seer(model.transform)
        kind = task_of(facts).link or "softmax"
        labelled, targets = targets_of(train.labels, kind, outputs[0].logits.shape[-1])
        texts, held_out_ids = see(train), [ids for samples in sets for ids in see(samples)]
        seen = [texts[row] for row in labelled]
        ids, read = np.unique(np.concatenate(seen)), []
        for pairs in (False, True):
            ways = [STRENGTHS] if not pairs else [(strength,) for strength in STRENGTHS]
            for way in ways:
                readers = path(seen, targets[labelled], kind, ids, way, pairs=pairs)
                read += [readers[strength].outputs(held_out_ids) for strength in way]
        packed: Any = {
            "logits": np.concatenate([piece.logits for piece in outputs]),
            "labels": np.concatenate([piece.truth for piece in outputs]),
            "read": np.stack(read).astype(np.float32),
            "task": task_of(facts).name,
        }
        np.savez_compressed(kept, **packed)
    with np.load(kept) as held:
        model_task = MODEL_TASKS[str(held["task"])]
        assert isinstance(model_task, SingleLabel)
        logits, read = (held[name].astype(np.float64) for name in ("logits", "read"))
        return Pool(model_task, logits, read, held["labels"])


def chosen(pool: Pool, targets: Floats, fitting: Rows) -> Floats:
    """Return the bag-of-words model that `calibrate` takes: the best strength, then with pairs or
    without.
    """

    def loss(number: int) -> float:
        outputs = pool.read[number][fitting][:, None]
        scale = scaled(pool.kind, outputs, targets[fitting])
        return float(losses(pool.kind, scale * outputs, targets[fitting]).mean())

    alone = min(range(len(STRENGTHS)), key=loss)
    best: Floats = pool.read[min(alone, alone + len(STRENGTHS), key=loss)]
    return best


def old_rule(
    pool: Pool, read: Floats, targets: Floats, fitting: Rows, certifying: Rows
) -> tuple[Weights, bool]:
    """Return the weights of least loss on one part of VAL, and True if the loss on the other part
    falls by more than its standard error.
    """

    def losses_of(at: Floats, rows: Rows) -> Floats:
        mixed = at[0] * pool.logits[rows] + at[1] * read[rows][:, None]
        return losses(pool.kind, mixed, targets[rows])

    def least(start: list[float], second: float | None) -> Floats:
        bounds = [(0.0, 1e3), (0.0, 1e3) if second is None else (second, second)]
        solution: Floats = minimize(
            lambda at: losses_of(at, fitting).mean(), start, method="L-BFGS-B", bounds=bounds
        ).x
        return solution

    alone = least([1.0, 0.0], 0.0)
    weights = least([alone[0], 0.3 * alone[0]], None)
    gains = losses_of(alone, certifying) - losses_of(weights, certifying)
    pays = gains.mean() > gains.std(ddof=1) / np.sqrt(len(gains))
    return (float(weights[0]), float(weights[1])), bool(pays)


def draw(pool: Pool, rows: int, seed: int) -> dict[str, tuple[float, bool]]:
    """Return the NLL on TEST by each rule, and True if it keeps the bag-of-words model."""
    order = np.random.default_rng([rows, seed]).permutation(len(pool.labels))
    val, test = order[:rows], order[rows:]
    parts = split_rows(rows, seed)
    fitting, certifying = val[parts.fitting], val[parts.certifying]
    targets = pool.targets()
    read = chosen(pool, targets, fitting)
    new = fit_blend(pool.kind, pool.logits, read, targets, fitting, certifying)
    old, old_pays = old_rule(pool, read, targets, fitting, certifying)

    def outputs(weights: Weights, some: Rows) -> Outputs:
        mixed = weights[0] * pool.logits[some] + weights[1] * read[some][:, None]
        return pool.task.outputs(Outputs(mixed, None, pool.labels[some]))

    def nll(weights: Weights) -> float:
        """Return the NLL by the temperature that `calibrate` then fits to its part of VAL."""
        constants = pool.task.fitted(outputs(weights, fitting))
        if "labels" in constants:
            constants["temperatures"] = constants["labels"].temperatures
        return pool.task.losses_of(outputs(weights, test), constants)["temperature"]

    never, unshrunk, shrunk = nll((1.0, 0.0)), nll(old), nll(new.weights)
    return {
        "never": (never, False),
        "unshrunk": (unshrunk, True),
        "old": (unshrunk if old_pays else never, old_pays),
        "always": (shrunk, True),
        "new": (shrunk if new.pays else never, new.pays),
    }


def compared(pool: Pool, rows: int) -> dict[str, dict[str, float]]:
    """Return means over all draws, and the standard error of the difference from `never`."""
    drawn = [draw(pool, rows, seed) for seed in range(DRAWS)]
    summary = {}
    for rule in drawn[0]:
        nll = np.array([outcomes[rule][0] for outcomes in drawn])
        apart = nll - np.array([outcomes["never"][0] for outcomes in drawn])
        summary[rule] = {
            "nll": float(nll.mean()),
            "error": float(apart.std(ddof=1) / np.sqrt(DRAWS)),
            "worst": float(apart.max()),
            "kept": float(np.mean([outcomes[rule][1] for outcomes in drawn])),
        }
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="*", default=TEXTS)
    parser.add_argument("--shared", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--tuned", action="store_true", help="tuned models in place of probes")
    arguments = parser.parse_args()
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    started = time.process_time()
    for task in arguments.tasks:
        pool = pool_of(task, arguments.shared, arguments.cache, tuned=arguments.tuned)
        pools = {f"{task}, tuned" if arguments.tuned else task: pool}
        if task == NOISE and not arguments.tuned:
            pools["noise"] = pool.mixed_up()
        for name, task_pool in pools.items():
            comparison = {str(rows): compared(task_pool, rows) for rows in ROWS}
            results.setdefault("tasks", {})[name] = comparison
            for rows, rules in comparison.items():
                line = "  ".join(f"{rule} {of['nll']:.4f}" for rule, of in rules.items())
                print(f"{name:14} {rows:>5}  {line}", flush=True)
    results |= {"machine": machine(), "draws": DRAWS}
    write_text(RESULTS, json.dumps(results, indent=1) + "\n")
    print(f"{time.process_time() - started:.0f} s of the processor")


if __name__ == "__main__":
    main()
