"""What eval says and does so that its headline compares like with like; what models were trained and calibrated on."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from hydrasurgeon.checkpoints.reading import Checkpoint, open_checkpoint
from hydrasurgeon.errors import UsageError
from hydrasurgeon.files.decided import Decision
from hydrasurgeon.files.foreign import visible
from hydrasurgeon.files.history import lineage
from hydrasurgeon.files.manifest import Step
from hydrasurgeon.measuring.conditions import Provenance, unlike
from hydrasurgeon.measuring.rows import Row
from hydrasurgeon.measuring.running import name_of
from hydrasurgeon.options.shared import Run
from hydrasurgeon.tuning.recipes import load_recipe, recipe_names

if TYPE_CHECKING:
    from hydrasurgeon.options.measuring import EvaluateOptions

CALIBRATED = " (calibrated)"
"""What stands behind the name of a reference that was calibrated for the comparison."""


@dataclass(frozen=True)
class Uncalibrated:
    """A reference without a decision state, compared with a model that has one."""

    reference: Checkpoint
    model: str
    decision: Decision

    @property
    def ood_score(self) -> str:
        """The other model's score, where the reference can have it."""
        kind = self.decision.ood.score
        alone = kind == "mi" and not self.reference.manifest.members
        return "msp" if alone or (kind == "mcm" and not self.reference.family.named_classes) else kind

    @property
    def name(self) -> str:
        return name_of([self.reference]) + CALIBRATED

    def advice(self) -> str:
        """What to run so that both are calibrated."""
        words = ["hydrasurgeon", "calibrate", self.reference.hub_id or self.reference.path.name, "--data", "VAL"]
        words += ["--ood-score", self.ood_score, "-o", "calibrated.safetensors"]
        return (
            f"{visible(self.model)} has a decision state, {visible(name_of([self.reference]))}, the reference, has"
            " none: to compare calibrated models, give --val VAL, or run"
            f" `{visible(shlex.join(words))}` and compare with that"
        )

    @contextmanager
    def beside(self, opened: Sequence[Checkpoint], arguments: EvaluateOptions) -> Iterator[list[Checkpoint]]:
        """The checkpoints, and behind the reference a copy of it with a decision state fitted to `--val`, which is
        there for as long as the block lasts."""
        from hydrasurgeon.stages.calibrate import calibrate

        assert arguments.val is not None
        run = {name: getattr(arguments, name) for name in Run.model_fields}
        classes: dict[str, Any] = {}
        if len(arguments.classes) == 1:
            classes = {"classes": arguments.classes[0], "template": arguments.template}
        with TemporaryDirectory(prefix="hydrasurgeon-eval-") as folder:
            made = calibrate(
                self.reference.path,
                data=arguments.val,
                out=Path(folder) / "calibrated.safetensors",
                ood_score=self.ood_score,
                arch=arguments.arch,
                **self.decision.promised,
                **classes,
                **run,
            )
            copy = replace(open_checkpoint(made.path), alias=self.name)
            yield [one for each in opened for one in ([each, copy] if each is self.reference else [each])]


def uncalibrated(opened: Sequence[Checkpoint], arguments: EvaluateOptions) -> Uncalibrated | None:
    """The reference of a report, where a decision state is in use beside it and it has none."""
    aside = arguments.ensemble or arguments.mc_dropout is not None or arguments.no_decision
    if aside or arguments.temperature is not None or not (arguments.html or arguments.markdown) or not opened:
        return None
    reference = {name_of([each]): each for each in opened}.get(arguments.reference or name_of([opened[0]]))
    decided = next((each for each in opened if each.manifest.decision is not None), None)
    if reference is None or reference.manifest.decision is not None or decided is None:
        return None
    assert decided.manifest.decision is not None
    return Uncalibrated(reference, name_of([decided]), decided.manifest.decision)


def unlike_notes(rows: Sequence[Row]) -> Iterator[str]:
    """In what the rows differ from the first besides their answers; models that differ alike share a note."""
    if not rows:
        return
    first, *others = rows
    of_models: dict[str, list[str]] = {}
    for row in others:
        phrases = unlike(row.answers.conditions, first.answers.conditions)
        if phrases:
            of_models.setdefault("; ".join(phrases.values()), []).append(visible(row.name))
    for text, names in of_models.items():
        yield f"{', '.join(names)} against {visible(first.name)}, the reference: {text}"


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
    return recipe.steps_of(rows // recipe.batch_size or 1)[1]
