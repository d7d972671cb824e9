"""The exact circuit search against Algorithm 1 as written.

Both run on the same inputs, in float32, from memory (decoding is not counted). The exact search must give
naive's order, or this fails. Naive takes long: it may be cut to the first removals (--naive), over which both are then
compared; for the whole budget its time follows from its time per evaluation. Times are CPU seconds, in units of what
two batches of naive's work take just before and after, so that other work on the machine counts little. With --dtype
bfloat16 the exact search runs in that
precision instead, and the order it finds is held against the one recorded in float32.

A run may be cut into pieces: with --minutes it stops after about so long, and goes on where it stopped when repeated.
Writes benchmarks/results/circuits.json, under the model's name; other entries stay.

    python benchmarks/circuits.py [--model NAME=CKPT,ID,OOD ...] [--objectives acc,avg] [--naive 2] [--threads 1]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from scratch_vits import PLACE, scratch_vit

from hydrasurgeon.checkpoints.checkpoint import open_single
from hydrasurgeon.criteria.circuits.circuit_score import TOGETHER
from hydrasurgeon.criteria.circuits.objective import (
    Held,
    Objective,
    Outcomes,
    Problem,
    measure,
    outcomes_of,
)
from hydrasurgeon.criteria.circuits.search import Exact, Search
from hydrasurgeon.data import Batches, fit_classes, open_data
from hydrasurgeon.families import family_of
from hydrasurgeon.heads import Head
from hydrasurgeon.runtime.classifier import live_module

RESULTS = Path(__file__).parent / "results" / "circuits.json"
VIT = PLACE / "backbone.safetensors"
"""Trained from random weights."""
ALL = ("naive", "exact")
NEAR = f"ViT from scratch, near={VIT},demo:test,demo:near"


def problem(
    spec: str, kind: str, samples: int, ood_samples: int, dtype: torch.dtype = torch.float32
) -> Problem:
    """Build the search problem of CKPT,ID,OOD, with its inputs in memory."""
    path, data, ood = spec.split(",")
    checkpoint = open_single(path)
    model = checkpoint.manifest.model
    family, module = family_of(model), live_module(checkpoint).to(dtype)
    transform = family.transform(model, files=checkpoint.files)
    inside = fit_classes(open_data(data, limit=samples), model)
    outside = open_data(ood, limit=ood_samples)

    def held(samples: Any) -> Held:
        batches = Batches(samples, transform, batch_size=256, workers=0)
        return Held.of([b.inputs for b in batches], torch.device("cpu"), dtype)

    assert inside.labels is not None
    anatomy = family.anatomy(module)
    candidates = tuple(
        Head(b.attention.tower, b.attention.layer, h)
        for b in anatomy.blocks
        for h in b.attention.heads
    )
    return Problem(
        module=module,
        anatomy=anatomy,
        id_inputs=held(inside),
        labels=torch.from_numpy(inside.labels.copy()),
        ood_inputs=held(outside),
        objective=Objective(kind, len(inside), len(outside)),  # type: ignore[arg-type]
        candidates=candidates,
        batch_size=64,
        together=TOGETHER["cpu"],
    )


class OutOfTime(Exception):
    """Raised when time is up. Finished steps are on disk."""


@dataclass
class Course:
    """Progress of the searches on one problem, with the seconds that each took up to each removal."""

    path: Path
    until: float
    probe: Callable[[], object]
    """Some of naive's own work: what it takes beside each step is the unit of time, as shared machines vary."""
    done: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path.exists():
            self.done = json.loads(self.path.read_text())

    def of(self, name: str) -> dict[str, Any]:
        progress: dict[str, Any] = self.done.setdefault(name, {"cpu": 0.0, "units": 0.0})
        return progress

    @contextmanager
    def step(self, search: dict[str, Any]) -> Iterator[None]:
        if time.monotonic() > self.until:
            raise OutOfTime
        before, start = self._unit(), time.process_time()
        yield
        seconds = time.process_time() - start
        search["cpu"] += seconds
        search["units"] += 2 * seconds / (before + self._unit())

    def _unit(self) -> float:
        start = time.process_time()
        self.probe()
        return time.process_time() - start

    def save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.done))


def naive(search_problem: Problem, rounds: int, evaluated: Course) -> dict[str, Any]:
    """Run Algorithm 1, candidate by candidate. Objectives share an evaluation of the same heads,
    each with the time it needs.
    """
    course_entry: dict[str, Any] = {"order": [], "cpu": 0.0, "units": 0.0}
    sides = ("id", "ood") if search_problem.objective.needs_ood else ("id",)
    while len(course_entry["order"]) < rounds:
        removed = [Head(*head) for head in course_entry["order"]]
        points = {}
        for head in search_problem.left(removed):
            seen = {}
            for side in sides:
                half = one_side(search_problem, side)
                one = evaluated.of(json.dumps([side, *sorted(removed), head]))
                if "predicted" not in one:
                    with evaluated.step(one):
                        predicted = outcomes_of(half, (*removed, head))
                    one["predicted"] = [predicted.margin.tolist(), predicted.familiar.tolist()]
                    evaluated.save()
                seen[side] = [torch.tensor(p, dtype=torch.float64) for p in one["predicted"]]
                course_entry["cpu"] += one["cpu"]
                course_entry["units"] += one["units"]
            ood_certainty = seen["ood"][1] if "ood" in seen else torch.zeros(1, 0)
            margin, familiar = seen["id"]
            outcomes = Outcomes(margin, familiar, ood_certainty)
            points[head] = search_problem.objective.points(outcomes)[0].low
        best = max(points.values())
        course_entry["order"].append(next(head for head in points if points[head] == best))
    return course_entry


def one_side(search_problem: Problem, side: str) -> Problem:
    """Return the problem with ID samples alone, or with OOD samples in their place."""
    inputs = search_problem.id_inputs if side == "id" else search_problem.ood_inputs
    labels = search_problem.labels if side == "id" else torch.zeros(len(inputs), dtype=torch.long)
    return replace(
        search_problem, id_inputs=inputs, labels=labels, objective=Objective("acc", len(inputs), 0)
    )


def searched(
    make: Callable[[Problem], Search], search_problem: Problem, budget: int, course: Course
) -> dict[str, Any]:
    course_entry = course.of("search")
    if len(course_entry.get("order", ())) == budget:
        return course_entry
    search = make(search_problem)
    if "start" not in course_entry:
        start = search_problem.objective.value(measure(search_problem, ()))
        course_entry.update(order=[], trace=[], units_after=[], start=start)
    while len(course_entry["order"]) < budget:
        with course.step(course_entry):
            head, score = search.next([Head(*head) for head in course_entry["order"]])
        course_entry["order"].append(head)
        course_entry["trace"].append(score)
        course_entry["units_after"].append(course_entry["units"])
        course.save()
    return course_entry


def heads(order: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    return [tuple(head) for head in order]


def compare(
    search_problem: Problem,
    budget: int,
    rounds: int,
    course: Callable[[str, float], Course],
    only: Sequence[str],
    until: float,
) -> dict[str, Any]:
    """Run both searches on the same problem and compare them."""

    def run(who: str, until: float) -> dict[str, Any]:
        if who == "naive":
            return naive(search_problem, rounds, course("evaluated", until))
        return searched(Exact, search_problem, budget, course(who, until))

    objective = search_problem.objective
    sizes = {
        "id_samples": objective.id_rows,
        "ood_samples": objective.ood_rows if objective.needs_ood else 0,
        "heads": len(search_problem.candidates),
        "budget": budget,
    }
    for who in only:
        run(who, until)
    # What other processes do must be complete.
    slow, exact = (run(who, 0.0) for who in ALL)
    if heads(exact["order"][:rounds]) != heads(slow["order"]):
        raise SystemExit(f"exact removes {exact['order'][:rounds]}, naive {slow['order']}")
    evaluations = [len(search_problem.candidates) - i for i in range(budget)]
    projected = slow["units"] * sum(evaluations) / sum(evaluations[:rounds])
    return {
        **sizes,
        "naive_removals": rounds,
        "same_order": True,
        "cpu_seconds": {"naive": slow["cpu"], "exact": exact["cpu"]},
        "units": {"naive": projected, "exact": exact["units"]},
        "exact_ratio_same_removals": slow["units"] / exact["units_after"][rounds - 1],
        "exact_ratio": projected / exact["units"],
        "score": {"start": exact["start"], "exact": exact["trace"][-1]},
        "order": {"exact": exact["order"]},
    }


def drift(
    search_problem: Problem, single: Problem, recorded: dict[str, Any], course: Course
) -> dict[str, Any]:
    """Compare the exact search in another precision with that in float32, both scored in float32."""
    budget = recorded["budget"]
    searched_entry = searched(Exact, search_problem, budget, course)
    found_heads, recorded_heads = heads(searched_entry["order"]), heads(recorded["order"]["exact"])
    same = next(
        (i for i, (a, b) in enumerate(zip(found_heads, recorded_heads, strict=True)) if a != b),
        budget,
    )
    points = measure(single, [Head(*head) for head in found_heads])
    return {
        "budget": budget,
        "same_removals": same,
        "in_common": len(set(found_heads) & set(recorded_heads)) / budget,
        "score": {
            "bfloat16": single.objective.value(points),
            "float32": recorded["score"]["exact"],
        },
        "order": searched_entry["order"],
    }


def stored() -> dict[str, Any]:
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return results


def recorded_of(name: str, kind: str) -> dict[str, Any] | None:
    entry: dict[str, Any] | None = stored().get("searches", {}).get(name, {}).get(kind)
    return entry


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model",
        action="append",
        help="NAME=CKPT,ID,OOD; a ViT trained from random weights if not given",
    )
    parser.add_argument("--objectives", default="acc,ood,avg")
    parser.add_argument("--samples", type=int, default=1500)
    parser.add_argument("--ood-samples", type=int, default=750)
    parser.add_argument("--naive", type=int, help="removals that naive makes; all if not given")
    parser.add_argument("--budget", type=int, help="removals; a third of the heads if not given")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--only",
        default="naive,exact",
        help="do these first: several processes may share the work",
    )
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument(
        "--work",
        type=Path,
        default=Path(tempfile.gettempdir()) / "circuits-benchmark",
        help="where unfinished runs are kept",
    )
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    until = time.monotonic() + 60 * arguments.minutes
    if not arguments.model:
        scratch_vit(VIT.stem)
    for entry in arguments.model or [NEAR]:
        name, _, spec = entry.partition("=")
        for kind in arguments.objectives.split(","):
            record(name, spec, kind, arguments, until)


def record(name: str, spec: str, kind: str, arguments: argparse.Namespace, until: float) -> None:
    sizes = arguments.samples, arguments.ood_samples
    half = arguments.dtype == "bfloat16"
    search_problem = problem(spec, kind, *sizes)
    kept = arguments.work / re.sub(r"\W+", "-", f"{name} {' '.join(map(str, sizes))}").lower()
    batches = [
        search_problem.id_inputs.take(i)
        for i in search_problem.id_inputs.indices(search_problem.batch_size)[:2]
    ]

    @torch.inference_mode()
    def probe() -> None:
        for inputs in batches:
            search_problem.module(inputs)

    def course(stem: str, until: float) -> Course:
        prefix = "" if stem == "evaluated" else f"{kind}-{arguments.dtype}-"
        return Course(kept / f"{prefix}{stem}.json", until, probe)

    budget = arguments.budget or len(search_problem.candidates) // 3
    rounds = min(budget, budget if arguments.naive is None else arguments.naive)
    try:
        if half:
            recorded = recorded_of(name, kind)
            if recorded is None:
                raise SystemExit(f"{name} {kind}: nothing is recorded in float32")
            halved = problem(spec, kind, *sizes, torch.bfloat16)
            entry = drift(halved, search_problem, recorded, course("exact", until))
        else:
            only = arguments.only.split(",")
            entry = compare(search_problem, budget, rounds, course, only, until)
    except OutOfTime:
        print(f"{name} {kind}: out of time; repeat to go on")
        return
    results = stored()
    results["machine"] = {
        "cores": os.cpu_count(),
        "threads": arguments.threads,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    results.setdefault("bfloat16" if half else "searches", {}).setdefault(name, {})[kind] = entry
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results) + "\n")
    if arguments.only == ",".join(ALL):
        course("exact", until).path.unlink(missing_ok=True)
    shown = {k: v for k, v in entry.items() if "ratio" in k or "common" in k or k == "score"}
    print(name, kind, json.dumps(shown))


if __name__ == "__main__":
    main()
