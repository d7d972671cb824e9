"""Commands that a build will run, stage by stage, for `--dry-run`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hydrasurgeon.building.budgets import Budget, ModelSizes
from hydrasurgeon.building.members import (
    QUICK,
    SEEDS,
    Cuts,
    MemberModel,
    given_models,
    probe_of,
    tuned,
)
from hydrasurgeon.building.plan import PlannedStage
from hydrasurgeon.building.search_space import averaged
from hydrasurgeon.checkpoints.checkpoint import Single
from hydrasurgeon.data import Samples, first_batch
from hydrasurgeon.options.making import BuildOptions


def commands_ahead(
    steps: Iterable[PlannedStage],
    options: BuildOptions,
    budgets: Sequence[Budget],
    opened: Sequence[Single],
    val: Samples,
    *,
    is_body: bool,
) -> tuple[tuple[str, ...], ...]:
    """Return the command lines of each stage. Sizes that only timing or a trained model can tell are
    left out.
    """
    keys = [step.key for step in steps]
    members: dict[str, list[MemberModel]] = {key: [] for key in keys}
    if is_body:
        models = [tuned(number, options) for number in range(options.seeds or SEEDS)]
        rows = QUICK if "wide" in keys else None
        members["quick"] = [probe_of(options.paths[0], options, rows=rows)]
        members["wide"] = [probe_of(options.paths[0], options)]
        members["tuned"] = models
    else:
        models = given_models(options)
        if not opened[0].family.named_classes:
            task = opened[0].manifest.model.task
            members["quick"] = [probe_of(options.paths[0], options, task)]
    cuts = Cuts(models, opened, options)
    uncut = models
    if len(models) > 1 and (is_body or averaged(opened)):
        uncut = members["models"] = [cuts.mean()]
    if "sizes" in keys and not is_body and budgets[0].unit != "time":
        first = opened[0]
        transform = first.family.transform(first.manifest.model, files=first.files)
        one = first_batch(val, transform, 1, skip_bad=options.skip_bad)
        sizes = ModelSizes(first, one, options)
        ladder = sizes.ladder(budgets, len(uncut))
        members["sizes"] = [cuts.cut(member, size, sizes) for member in uncut for size in ladder]
    printed = set[str]()
    stages: list[tuple[str, ...]] = []
    for key in keys:
        lines = dict.fromkeys(
            command.line() for member in members[key] for command in member.making
        )
        stages.append(tuple(line for line in lines if line not in printed))
        printed |= {*lines}
    return tuple(stages)
