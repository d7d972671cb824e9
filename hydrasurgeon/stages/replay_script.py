"""A replay as a POSIX shell script, to be run in an empty folder."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from hydrasurgeon.files.history import command_line
from hydrasurgeon.files.recorded import InitOptions, PruneOptions, StepOptions
from hydrasurgeon.stages.replay_plan import Artifact, Plan, Rerun
from hydrasurgeon.visible import visible

# Random weights have no command of their own.
FRESH = (
    "python -c 'import sys; from hydrasurgeon.tuning.start import fresh; fresh(sys.argv[1], sys.argv[2],"
    " seed=int(sys.argv[3]))'"
)


def script(plan: Plan, options: Sequence[StepOptions], masks: Sequence[str | None], folder: Path) -> str:
    """The commands with their options as they were given; data keeps the names it has in `folder`."""
    lines = [
        "#!/bin/sh",
        f"# How {visible(plan.target.name)} was made. Run this in an empty folder: its files are written there.",
        "set -eu",
        f"from={shlex.quote(str(folder.resolve()))}  # backbone and data",
        "here=$(pwd)",
    ]
    for artifact in plan.sources:
        assert artifact.source is not None
        if _is_file(artifact):
            path = artifact.source.checkpoint.path
            lines.append(f'cp -R "$from"/{shlex.quote(path.name)} {_here(artifact.place)}')
    lines.append('cd "$from"')
    for run, each, mask in zip(plan.runs, options, masks, strict=True):
        lines += _commands(run, each, mask)
    return "\n".join(lines) + "\n"


def _here(place: str) -> str:
    return f'"$here"/{shlex.quote(place)}'


def mask_place(run: Rerun) -> str:
    """Where a mask goes that is not at hand, so that it has the name that history gives it."""
    name = run.options.mask if isinstance(run.options, PruneOptions) else None
    return f"mask-of-{Path(run.output.place).name}/{Path(name or 'mask.json').name}"


def _commands(run: Rerun, options: StepOptions, mask: str | None) -> list[str]:
    folders = [run.output.place] if mask is None else [run.output.place, mask_place(run)]
    lines = [f"mkdir -p {_here(str(Path(p).parent))}" for p in folders if "/" in p]
    if mask is not None:
        lines.append(f"printf '%s' {shlex.quote(mask)} > {_here(mask_place(run))}")
    if isinstance(options, InitOptions):
        seed = str(run.entry.seed or 0)
        begin = f"{FRESH} {shlex.quote(options.spec)} {_here(run.output.place)} {seed}"
        return [*lines, begin]
    args = {key: getattr(options, key) for key in run.entry.args}
    name, *words = command_line(run.entry.model_copy(update={"args": args}), inputs=[])
    # The mask that was just written lies where only the script knows.
    option = args.get("mask") if mask is not None else None
    quoted = [_here(mask_place(run)) if word == option else shlex.quote(word) for word in words]
    inputs = [_here(a.place) if _is_file(a) else shlex.quote(a.place) for a in run.inputs]
    out = [] if run.in_place else ["-o", _here(run.output.place)]
    return [*lines, " ".join(["hydrasurgeon", name, *inputs, *quoted, *out])]


def _is_file(artifact: Artifact) -> bool:
    return artifact.source is None or artifact.source.checkpoint.hub_id is None
