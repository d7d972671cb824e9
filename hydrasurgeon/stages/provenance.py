"""How long, and on what, checkpoints were trained and calibrated, as their histories record it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hydrasurgeon.checkpoints.reading import Checkpoint
from hydrasurgeon.errors import UsageError
from hydrasurgeon.files.history import lineage
from hydrasurgeon.files.manifest import Step
from hydrasurgeon.measuring.conditions import Provenance
from hydrasurgeon.tuning.recipes import load_recipe, recipe_names


def provenance_of(job: Sequence[Checkpoint]) -> Provenance:
    """Training of one checkpoint, or of an ensemble: the most steps that any of its members took."""
    histories = [each.manifest.history for each in job]
    trained = [steps_trained(history) for history in histories]
    entries = [entry for history in histories for entry in history]
    data = [entry.data[0] for entry in entries if entry.command == "finetune" and entry.data]
    calibrated = [entry.data[0] for entry in entries if entry.command == "calibrate" and entry.data]
    return Provenance(
        None if None in trained else max((steps for steps in trained if steps is not None), default=0),
        tuple({each.sha256: each for each in data}.values()),
        calibrated[-1] if calibrated else None,
    )


def steps_trained(history: Sequence[Step]) -> int | None:
    """Optimizer steps along the longest chain of a history, in which members share their first steps."""
    at_input: dict[str, int] = {}
    ends = [0]
    for entry in lineage(history):
        start = ends[-1] if entry.inputs else 0
        if len(entry.inputs) > 1:
            start = max(ends)
        for each in entry.inputs:
            # An input that an earlier step had too is where another member branches off.
            start = at_input.setdefault(each.sha256, start) if len(entry.inputs) == 1 else start
        taken = recorded_steps(entry) if entry.command == "finetune" else 0
        if taken is None:
            return None
        ends.append(start + taken)
    return max(ends)


def recorded_steps(entry: Step) -> int | None:
    """Optimizer steps of one `finetune`; None where its recipe was a file that is not part of the package."""
    name, changes, batch_size = (entry.args.get(key) for key in ("recipe", "set", "batch_size"))
    overrides = {str(key): str(value) for key, value in changes.items()} if isinstance(changes, Mapping) else {}
    if name not in recipe_names():
        steps = overrides.get("steps", "")
        return int(steps) if steps.isdecimal() and len(steps) < 12 else None
    try:
        recipe = load_recipe(str(name), overrides, batch_size=batch_size)
    except UsageError:
        return None
    rows = entry.data[0].rows if entry.data else 0
    batches = rows // recipe.batch_size or 1
    per_epoch = max(1, batches // recipe.accumulate)
    return recipe.steps or max(1, round((recipe.epochs or 0) * per_epoch))
