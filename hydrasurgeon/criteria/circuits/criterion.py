"""Circuit: the greedy order in which heads can go, by accuracy, OOD separability or their mean (paper D.1.2)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from hydrasurgeon.criteria import OOD_SCORES, SEARCHES
from hydrasurgeon.criteria.base import CircuitOptions, Removal, Subject
from hydrasurgeon.criteria.circuits.engine import numbered
from hydrasurgeon.criteria.circuits.greedy import Circuit, Search, extract
from hydrasurgeon.criteria.circuits.objective import Objective
from hydrasurgeon.criteria.circuits.problem import Held, Problem
from hydrasurgeon.criteria.circuits.state import SearchState
from hydrasurgeon.errors import SurgeryError
from hydrasurgeon.heads import Head
from hydrasurgeon.lookup import imported
from hydrasurgeon.runtime.processes import World, joined

IDENTITY = "identity"
"""Where the settings hold a hash of all that the order depends on, but for its length."""
FEW = 100
"""Below so many ID samples a single one moves accuracy by a percent or more."""
TOGETHER = {"cpu": 64, "cuda": 4096}
"""Sequences that run at once: few stay in a CPU's cache, many fill a GPU."""


def score(subject: Subject) -> Removal:
    options = subject.circuit
    assert options is not None
    module, sites = subject.load()
    candidates = tuple(
        Head(site.tower, site.layer, number) for site in sites if site.layer in subject.layers for number in site.heads
    )
    budget = _budget(options, subject, candidates)
    make = _search(options.search)
    with joined() as world:
        problem = _problem(subject, options, module, candidates, world)
        _check_finite(problem)
        identity = {**options.identity, "device": problem.id_inputs.device.type}
        state = None if options.state is None else SearchState(options.state, identity)
        circuit = extract(
            problem,
            make,
            budget=budget,
            state=state,
            recorded=_recorded(options, identity, candidates),
            progress=subject.run.progress,
        )
    by = {"ood_score": options.ood_score} if options.ood_score != OOD_SCORES[0] else {}
    settings: dict[str, Any] = {
        "objective": options.objective,
        **by,
        "search": options.search,
        "guarantee": circuit.guarantee,
        "removed": budget,
        "candidates": len(candidates),
        "start": circuit.start,
        "counts": circuit.counts,
        IDENTITY: _hash(identity),
    }
    if notes := _notes(problem):
        settings["notes"] = notes
    return Removal(circuit.order, circuit.trace, settings)


def _problem(
    subject: Subject, options: CircuitOptions, module: nn.Module, candidates: tuple[Head, ...], world: World
) -> Problem:
    """The model with its data in memory."""
    anatomy = subject.checkpoint.family.anatomy(module)
    reached = {block.attention.tower for block in anatomy.blocks}
    beyond = sorted({head.tower for head in candidates} - reached)
    if beyond and anatomy.prompted is None:
        raise SurgeryError(
            f"--method circuit: no inputs run through tower {beyond[0]}",
            hint=f"Search the other one: --tower {' or '.join(sorted(reached))}.",
        )
    batches = list(subject.batches("reading"))
    foreign = list(subject.foreign("reading OOD")) if options.objective != "acc" else []
    first = next(module.parameters())
    id_inputs = Held.of([inputs for inputs, _ in batches], first.device, first.dtype)
    ood_inputs = Held.of(foreign, first.device, first.dtype)
    if beyond:
        id_inputs, ood_inputs = numbered(id_inputs, ood_inputs)
    rows = len(id_inputs), len(ood_inputs)
    return Problem(
        module=module,
        anatomy=anatomy,
        id_inputs=id_inputs,
        labels=torch.cat([labels for _, labels in batches]).cpu(),
        ood_inputs=ood_inputs,
        objective=Objective(options.objective, *rows, options.ood_score),
        candidates=candidates,
        batch_size=subject.batch_size,
        together=max(subject.batch_size, TOGETHER.get(first.device.type, 64)),
        world=world,
    )


def _search(name: str) -> Callable[[Problem], Search]:
    search: Callable[[Problem], Search] = imported(SEARCHES[name])
    return search


def _budget(options: CircuitOptions, subject: Subject, candidates: tuple[Head, ...]) -> int:
    """How many heads go; without a number, all but one."""
    layers = len({(head.tower, head.layer) for head in candidates})
    if options.remove is not None:
        budget, option = options.remove, f"--remove {options.remove}"
    elif subject.keep is not None:
        budget, option = len(candidates) - subject.keep * layers, f"--keep {subject.keep}"
    else:
        budget, option = len(candidates) - 1, "all but one"
    if budget >= len(candidates):
        raise SurgeryError(
            f"{option}: only {len(candidates)} heads are candidates, and one must stay",
            hint=f"Remove at most {len(candidates) - 1}.",
        )
    if budget < 1:
        raise SurgeryError(
            f"{option}: nothing to remove from {len(candidates)} candidate heads",
            hint="Keep fewer heads, or give --remove N.",
        )
    return budget


def _hash(identity: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def _recorded(options: CircuitOptions, identity: Mapping[str, Any], candidates: Sequence[Head]) -> Circuit | None:
    """What the same search found before; None where it was another one, or the record is not whole."""
    score = options.recorded
    if score is None or score.settings.get(IDENTITY) != _hash(identity):
        return None
    settings, order = score.settings, tuple(Head(*row) for row in score.order or ())
    start, guarantee, counts = (settings.get(name) for name in ("start", "guarantee", "counts"))
    if not isinstance(start, float) or not isinstance(guarantee, str):
        return None
    if not isinstance(counts, dict) or score.trace is None or not set(order) <= set(candidates):
        return None
    return Circuit(order, score.trace, start, counts, guarantee)


@torch.inference_mode()
def _check_finite(problem: Problem) -> None:
    """Refuse a model whose logits are no numbers: comparisons with NaN are all false, and would rank heads all the
    same."""
    for inputs in (problem.id_inputs, problem.ood_inputs):
        for _, batch in inputs.batches(problem.batch_size):
            if not torch.isfinite(problem.module(batch)).all():
                raise SurgeryError(
                    "--method circuit: the model's logits hold NaN or infinity before any head is removed",
                    hint=f"It overflows{'' if problem.precise else ' in half precision: use --dtype float32'}.",
                )


def _notes(problem: Problem) -> list[str]:
    rows, heads = problem.objective.id_rows, len(problem.candidates)
    notes = []
    if rows < max(FEW, heads):
        notes.append(
            f"{rows} ID samples cannot rank {heads} heads: accuracy moves in steps of {1 / rows:.2g}, "
            "and equal heads go by their number"
        )
    few = problem.objective.ood_rows
    if problem.objective.needs_ood and few < FEW:
        notes.append(f"{few} OOD samples are few: the AUROC depends on which they are")
    return notes
