"""The paper's comparison on three real tasks: hydras compared with the single model, a Deep Ensemble and
its rivals: the rows that its claims speak of.

Tasks, data and models stand in benchmarks/quality_tasks.py, the compared models in benchmarks/quality_rows.py, the
ablations in
benchmarks/quality_ablations.py; both are made in benchmarks/quality_workshop.py. Everything that is made (weights,
logits) lies in --cache, and is not made again; each piece, one row of one seed,
is added to benchmarks/results/quality.json as it comes, so that a run may be stopped and go on. With --shared the data
and weights of the two
tasks of pretrained models; fashion-mnist runs without them, on the demo's own data, with fewer OOD sets and the
demo's Deep Ensemble. Its
rivals of benchmarks/quality_rivals_trained.py want torch-uncertainty, one of the development packages (`pip install
torch-uncertainty`), or are left out.

    python benchmarks/quality.py fashion-mnist [--piece "Deep Ensemble"] [--seeds 1,2,3] [--shared ../shared] [--cache
    FOLDER] [--ablations]
"""

from __future__ import annotations

import argparse
import fcntl
import json
import statistics
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from harness import machine
from quality_ablations import ABLATIONS
from quality_rivals_trained import Absent
from quality_rows import ROWS
from quality_tasks import TASKS, Place, Task
from quality_workshop import Row, Workshop
from torch import Tensor

from hydrasurgeon.statistics import metrics

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "quality.json"


def id_measures(probs: Tensor, labels: Tensor) -> dict[str, float]:
    brier = (
        (probs - torch.nn.functional.one_hot(labels, probs.shape[-1])).square().sum(dim=-1).mean()
    )
    measures = {"accuracy": metrics.accuracy, "nll": metrics.nll, "ece": metrics.ece}
    return {name: measure(probs, labels) for name, measure in measures.items()} | {
        "brier": float(brier)
    }


def foreign(task: Task, inside: Tensor, outside: dict[str, Tensor]) -> dict[str, float]:
    """Means over the near sets, the far ones, and all."""
    each = {
        name: metrics.ood_metrics(inside, outside[name]) for name in task.sets if name in outside
    }
    groups = {"near": task.near, "far": task.far, "mean": task.sets}
    return {
        f"{measure}_{group}": statistics.mean(
            float(each[name][measure] or 0) for name in names if name in each
        )
        for measure in ("auroc", "fpr95")
        for group, names in groups.items()
    }


def surprise(probs: Tensor) -> Tensor:
    """1 − the largest probability: msp."""
    return (1 - probs.max(dim=-1).values).round(decimals=metrics.DIGITS)


def measured(task: Task, row: Row) -> dict[str, Any]:
    """As it is, and calibrated by a temperature; OOD data by msp."""
    sets = row.answers.sets
    val, test = sets["val"], sets["test"]
    assert val.labels is not None
    assert test.labels is not None
    temperature = metrics.fit_temperature(metrics.mean_probs(val.logits), val.labels)
    result: dict[str, Any] = {
        "macs": row.macs,
        "members": test.logits.shape[1],
        "temperature": temperature,
    }
    for name, heat in (("plain", 1.0), ("calibrated", temperature)):

        def probs(logits: Tensor, heat: float = heat) -> Tensor:
            return metrics.tempered(metrics.mean_probs(logits), heat)

        outside = {each: surprise(probs(sets[each].logits)) for each in task.sets if each in sets}
        inside = probs(test.logits)
        result[name] = id_measures(inside, test.labels) | foreign(task, surprise(inside), outside)
    result["mi"] = float(metrics.mutual_information(test.logits).mean())
    result["disagreement"] = metrics.disagreement(test.logits)
    outside_logits = torch.cat([sets[each].logits for each in task.sets if each in sets])
    result["ood_mi"] = float(metrics.mutual_information(outside_logits).mean())
    result["ood_disagreement"] = metrics.disagreement(outside_logits)
    return result


def read() -> dict[str, Any]:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {"tasks": {}}  # type: ignore[no-any-return]


@contextmanager
def changing(task: str) -> Iterator[dict[str, Any]]:
    """What is recorded of a task, to be changed: read anew, and by one process at a time, for several may measure
    pieces."""
    with RESULTS.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        results = read()
        yield results["tasks"].setdefault(task, {})
        new = RESULTS.with_suffix(".new")
        new.write_text(json.dumps(results, indent=1) + "\n")
        new.replace(RESULTS)


def record(task: str, kind: str, name: str, seed: int, result: dict[str, Any]) -> None:
    with changing(task) as about:
        about["machine"] = machine()
        about.setdefault(kind, {}).setdefault(name, {})[str(seed)] = result
    shown = result["calibrated"]
    print(
        f"{task} {seed} {name}: {result['macs']:.2f}x accuracy {shown['accuracy']:.3f} nll {shown['nll']:.3f} near"
        f" {shown['auroc_near']:.3f} far {shown['auroc_far']:.3f}",
        flush=True,
    )


def recorded(task: str, kind: str, name: str, seed: int) -> bool:
    return str(seed) in read()["tasks"].get(task, {}).get(kind, {}).get(name, {})


def about(place: Place) -> None:
    """How large everything is, beside the figures."""
    task, shop = place.task, Workshop(place, 1)
    sets = {name: len(each.logits) for name, each in shop.answers(shop.base).sets.items()}
    sizes = {
        "near": task.near,
        "far": [name for name in task.far if name in sets],
        "chooses": task.chooses,
        "samples": sets,
        "removed": task.removed,
        "pool": task.pool,
        "search": task.search,
        "bases": task.bases,
        "tuned_on": task.tuned_on,
        "score_limit": task.limit,
        "bfloat16": task.mixed,
        "recipe": task.recipe,
        "fields": task.tuning,
    }
    with changing(place.name) as recorded_of_task:
        recorded_of_task["about"] = sizes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=TASKS)
    parser.add_argument(
        "--piece", action="append", help="one of the rows (all those not yet recorded if not given)"
    )
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument(
        "--ablations", action="store_true", help="the paper's ablations instead of its comparison"
    )
    parser.add_argument(
        "--shared", type=Path, default=ROOT.parent / "shared", help="data and models"
    )
    parser.add_argument(
        "--cache", type=Path, help="what was made and answered, kept from run to run"
    )
    parser.add_argument("--again", action="store_true", help="measure recorded pieces anew")
    options = parser.parse_args()
    rows, kind = (ABLATIONS, "ablations") if options.ablations else (ROWS, "rows")
    for piece in options.piece or ():
        if piece not in rows:
            parser.error(f"--piece {piece}: there are {', '.join(rows)}")
    with tempfile.TemporaryDirectory() as folder:
        place = Place(options.task, (options.cache or Path(folder)) / options.task, options.shared)
        about(place)
        for seed in map(int, options.seeds.split(",")):
            shop = Workshop(place, seed)
            for name in options.piece or rows:
                if recorded(options.task, kind, name, seed) and not options.again:
                    continue
                try:
                    result = measured(place.task, rows[name](shop))
                except Absent as word:
                    print(f"left out: {word}", flush=True)
                    continue
                except Exception:  # the other pieces do not need this one
                    traceback.print_exc()
                    continue
                record(options.task, kind, name, seed, result)


if __name__ == "__main__":
    main()
