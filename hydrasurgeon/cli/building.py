"""The command that chooses: build."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hydrasurgeon.cli import options, shared


def build(
    checkpoint: options.Checkpoint,
    *,
    data: Annotated[
        str,
        typer.Option(
            "--data",
            metavar="TRAIN",
            help="Labelled training data: heads are scored, members repaired and tuned on it.",
        ),
    ],
    val: Annotated[str, typer.Option("--val", metavar="VAL", help="Labelled data by which members are chosen.")],
    out: options.RequiredOut,
    ood: Annotated[
        list[str] | None,
        typer.Option(
            "--ood", metavar="D", help="Foreign data by which members are chosen too; repeatable, needs no labels."
        ),
    ] = None,
    budget: Annotated[
        str,
        typer.Option(
            "--budget",
            metavar="UNIT=N[,N]",
            help="macs= or params= times the backbone's, or ms= of a batch here; a list asks for the front.",
        ),
    ] = "macs=1.5",
    objective: Annotated[
        str | None,
        typer.Option(
            "--objective",
            metavar="NAME",
            help="acc, nll, ood, avg or an OOD score; avg if not given, nll without --ood.",
        ),
    ] = None,
    members: Annotated[str, typer.Option("--members", metavar="auto|N", help="How many; auto: one to five.")] = "auto",
    max_drop: Annotated[
        float,
        typer.Option(
            "--max-drop", metavar="P", help="Points of accuracy that may be lost for telling foreign data better."
        ),
    ] = 0.5,
    candidates: Annotated[int, typer.Option("--candidates", metavar="N", help="Members that are tried.")] = 48,
    criteria: Annotated[
        str | None,
        typer.Option(
            "--criteria", metavar="A,B", help="What candidates are pruned by: taylor, fisher, circuit-avg, cahp, …"
        ),
    ] = None,
    search: Annotated[
        str, typer.Option("--search", metavar="HOW", help="Of circuits: exact, fast, naive or attribution.")
    ] = "fast",
    score_limit: Annotated[
        int,
        typer.Option(
            "--score-limit", metavar="N", help="Samples of TRAIN that heads are scored, and members repaired, on."
        ),
    ] = 1000,
    tune: Annotated[
        str | None,
        typer.Option(
            "--tune", metavar="RECIPE", help="Tune the chosen members too, and keep them where that is worth more."
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            "--weights",
            metavar="fit",
            help="Fit how much each member counts, taken where that is worth more on samples it was not fitted to.",
        ),
    ] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate/--no-calibrate", help="Fit a decision state at the end.")
    ] = True,
    cache: Annotated[
        Path | None,
        typer.Option("--cache", metavar="DIR", help="Scores and answers; NAME.build beside -o if not given."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw quality against cost, .png or .svg.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Choose, and print the commands as a script instead.")
    ] = False,
    class_names: shared.ClassNameOptions,
    arch: options.Arch = None,
    run: shared.RunOptions,
    force: options.Force = False,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Choose members together, within a budget, and make the hydra that is worth most.

    One member, or the checkpoint itself, may be the answer. A killed build goes on when the command is repeated.
    """
    from hydrasurgeon import render
    from hydrasurgeon.stages.build import build as stage

    with shared.progress(run, quiet=quiet) as shown:
        built = stage(
            checkpoint,
            data=data,
            val=val,
            out=out,
            ood=ood or [],
            budget=budget,
            objective=objective,
            members=members,
            max_drop=max_drop,
            candidates=candidates,
            criteria=criteria,
            search=search,
            score_limit=score_limit,
            tune=tune,
            weights=weights,
            calibrate=calibrate,
            cache=cache,
            plot=plot,
            dry_run=dry_run,
            arch=arch,
            force=force,
            **class_names,
            **shown,
        )
    render.built(built, json=json, quiet=quiet)
