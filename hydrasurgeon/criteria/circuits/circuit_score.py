"""Circuit: the greedy order in which heads can go, by accuracy, OOD separability or their mean
(paper D.1.2).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hydrasurgeon.criteria import SEARCHES
from hydrasurgeon.criteria.base import Subject
from hydrasurgeon.criteria.circuits import state_path
from hydrasurgeon.criteria.circuits.engine import numbered
from hydrasurgeon.criteria.circuits.objective import Held, Objective, Problem
from hydrasurgeon.criteria.circuits.search import Circuit, SearchState, extract
from hydrasurgeon.errors import SurgeryError
from hydrasurgeon.families.prompts import record_of
from hydrasurgeon.files.manifest import Score
from hydrasurgeon.heads import Head
from hydrasurgeon.lookup import imported
from hydrasurgeon.runtime.processes import World, joined
from hydrasurgeon.statistics.probabilities import true_classes
from hydrasurgeon.tasks.base import need_feature

IDENTITY = "identity"
"""Setting that holds a hash of everything the order depends on, apart from its length."""
FEW = 100
"""Below so many ID samples a single one moves accuracy by a percent or more."""
TOGETHER = {"cpu": 64, "cuda": 4096}
"""Sequences that run at once: few stay in a CPU's cache, many fill a GPU."""


def score(subject: Subject) -> Score:
    need_feature(subject.task, "--method circuit", subject.checkpoint.name)
    objective, checkpoint = subject.key.objective, subject.checkpoint
    search = subject.scoring.search or "exact"
    sites = subject.sites
    candidates = tuple(
        Head(site.tower, site.layer, number)
        for site in sites
        if site.layer in subject.layers
        for number in site.heads
    )
    budget = _budget(subject, candidates)
    about: dict[str, Any] = {"objective": objective}
    with joined() as world:
        problem = _problem(subject, candidates, world)
        # What must be the same for a search to be continued: not how many heads go, as an order
        # has prefixes.
        identity = {
            **about,
            "search": search,
            "weights": checkpoint.record(checkpoint.digests()).sha256,
            "data": [f"{record.rows} rows {record.sha256[:12]}" for record in subject.records],
            "layers": subject.scoring.layers,
            "towers": list(subject.towers),
            "dtype": subject.run.dtype,
            "batch_size": subject.batch_size,
            "device": problem.id_inputs.device.type,
            **record_of(checkpoint.manifest.model),
        }
        method = imported(SEARCHES[search])(problem)
        circuit = extract(
            problem,
            method,
            budget=budget,
            state=SearchState(state_path(subject.output, str(subject.key)), identity),
            recorded=_recorded(subject, identity, candidates),
            progress=subject.run.progress,
        )
    settings: dict[str, Any] = {
        **about,
        "search": search,
        "guarantee": method.guarantee,
        "removed": budget,
        "candidates": len(candidates),
        "start": circuit.start,
        IDENTITY: _hash(identity),
    }
    if notes := _notes(problem):
        settings["notes"] = notes
    return Score(
        order=[Head(*row) for row in circuit.order], trace=circuit.trace, settings=settings
    )


def _problem(subject: Subject, candidates: tuple[Head, ...], world: World) -> Problem:
    """Load the model's data into memory as a search problem.

    Logits that are NaN or infinite are refused, because heads would be ranked all the same.
    """
    objective = subject.key.objective
    model = subject.checkpoint.manifest.model
    many = model.num_classes if "class" in subject.task.label_axes else 0
    module = subject.module
    anatomy = subject.checkpoint.family.anatomy(module)
    reached = {block.attention.tower for block in anatomy.blocks}
    beyond = sorted({head.tower for head in candidates} - reached)
    if beyond and anatomy.prompted is None:
        raise SurgeryError(
            f"--method circuit: no inputs run through tower {beyond[0]}",
            hint=f"Search the other one: --tower {' or '.join(sorted(reached))}.",
        )
    batches = list(subject.batches("reading"))
    ood_batches = list(subject.ood_inputs("reading OOD")) if objective != "acc" else []
    first = next(module.parameters())
    id_inputs = Held.of([inputs for inputs, _ in batches], first.device, first.dtype)
    ood_inputs = Held.of(ood_batches, first.device, first.dtype)
    if beyond:
        id_inputs, ood_inputs = numbered(id_inputs, ood_inputs)
    problem = Problem(
        module=module,
        anatomy=anatomy,
        id_inputs=id_inputs,
        labels=torch.from_numpy(
            true_classes(torch.cat([labels for _, labels in batches]).cpu().numpy())
        ),
        ood_inputs=ood_inputs,
        objective=Objective(objective, len(id_inputs), len(ood_inputs), many),  # type: ignore[arg-type]
        candidates=candidates,
        batch_size=subject.batch_size,
        together=max(subject.batch_size, TOGETHER.get(first.device.type, 64)),
        world=world,
    )
    with torch.inference_mode():
        for inputs in (id_inputs, ood_inputs):
            if not all(
                torch.isfinite(module(inputs.take(index))).all()
                for index in inputs.indices(problem.batch_size)
            ):
                raise SurgeryError(
                    (
                        "--method circuit: the model's logits hold NaN or infinity before any "
                        "head is "
                        "removed"
                    ),
                    hint=f"It overflows{'' if problem.precise else ' in half precision: use --dtype float32'}.",
                )
    return problem


def _budget(subject: Subject, candidates: tuple[Head, ...]) -> int:
    """Return how many heads go; without a number, all but one."""
    remove, keep, most = subject.scoring.remove, subject.keep, len(candidates) - 1
    budget, option = most, "all but one"
    if remove is not None:
        budget, option = remove, f"--remove {remove}"
    elif keep is not None:
        layers = len({(head.tower, head.layer) for head in candidates})
        budget, option = len(candidates) - keep * layers, f"--keep {keep}"
    if not 1 <= budget <= most:
        raise SurgeryError(
            f"{option}: removes {budget} of {len(candidates)} candidate heads",
            hint=f"Remove between 1 and {most}.",
        )
    return budget


def _hash(identity: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def _recorded(
    subject: Subject, identity: Mapping[str, Any], candidates: Sequence[Head]
) -> Circuit | None:
    """Return the recorded circuit of the same search; None if there is no complete one."""
    before = subject.checkpoint.manifest.scores.get(str(subject.key))
    if before is None or before.settings.get(IDENTITY) != _hash(identity):
        return None
    try:
        return Circuit.model_validate(
            {"order": before.order, "trace": before.trace, "start": before.settings.get("start")}
        ).only(candidates)
    except ValueError:  # the manifest is not ours alone
        return None


def _notes(problem: Problem) -> list[str]:
    objective, heads = problem.objective, len(problem.candidates)
    rows, few = objective.id_rows, objective.ood_rows
    notes = []
    if rows < max(FEW, heads):
        notes.append(
            f"{rows} ID samples cannot rank {heads} heads: accuracy moves in steps of "
            f"{1 / rows:.2g}, "
            "and equal heads go by their number"
        )
    if objective.needs_ood and few < FEW:
        notes.append(f"{few} OOD samples are few: the AUROC is uncertain")
    return notes
