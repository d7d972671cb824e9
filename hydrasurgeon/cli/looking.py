"""The command that looks inside a model: probe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hydrasurgeon.cli import options, shared


def probe(
    checkpoint: options.Checkpoint,
    *,
    data: options.Data = None,
    ood: Annotated[
        list[str] | None,
        typer.Option(
            "--ood", metavar="NAME=D", help="Foreign data to be told apart head by head; repeatable, needs no labels."
        ),
    ] = None,
    corrupt: Annotated[
        list[str] | None,
        typer.Option(
            "--corrupt",
            metavar="all|NAME[:S]",
            help="The noisy data: these corruptions of the data, each sample by one of them in turn; all if not given.",
        ),
    ] = None,
    shift: Annotated[
        str | None, typer.Option("--shift", metavar="D", help="Labelled noisy data, instead of corruptions.")
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            "--method",
            metavar="M",
            help="The criterion by which heads go, and are called important: recorded scores, or computed now.",
        ),
    ] = "taylor",
    objective: options.Objective = None,
    ood_score: options.OodScore = None,
    keep: options.Keep = None,
    remove: Annotated[int | None, typer.Option("--remove", metavar="N", help="How many heads go, in all.")] = None,
    layers: options.Layers = None,
    tower: options.Tower = None,
    draws: Annotated[
        int, typer.Option("--draws", metavar="N", help="Random vectors behind the diagonals of Hessians.")
    ] = 8,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Draw it, as .png or .svg.")] = None,
    class_names: shared.ClassNameOptions,
    arch: options.Arch = None,
    run: shared.RunOptions,
    force: options.Force = False,
    quiet: options.Quiet = False,
    json: Annotated[
        str | None, typer.Option("--json", metavar="F", help="Write the report as JSON; - is stdout.")
    ] = None,
) -> None:
    """Whether noise makes pruning worse, and which heads tell foreign data: the paper's Proposition 1 and Appendix B.

    Without --keep or --remove, one head of three goes. Nothing is written but --json and --plot.
    """
    from hydrasurgeon import render
    from hydrasurgeon.stages.probe import probe as stage

    with shared.progress(run, quiet=quiet) as shown:
        report = stage(
            checkpoint,
            data=data,
            ood=ood or [],
            corrupt=corrupt or [],
            shift=shift,
            method=method,
            objective=objective,
            ood_score=ood_score,
            keep=options.keep_count(keep),
            remove=remove,
            layers=layers,
            tower=tower,
            draws=draws,
            plot=plot,
            arch=arch,
            force=force,
            json=None if json == "-" else json,
            **class_names,
            **shown,
        )
    render.probed(report, json=json == "-", quiet=quiet)
