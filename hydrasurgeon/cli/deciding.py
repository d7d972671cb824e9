"""The commands that make a checkpoint decide, and let it: calibrate, predict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hydrasurgeon.cli import options, shared

if TYPE_CHECKING:
    from hydrasurgeon.stages.calibrate_cascade import CascadeKeywords
else:  # `--help` needs its name, not the module it comes from
    CascadeKeywords = dict


def cascade_options(
    cascade: Annotated[
        bool, typer.Option("--cascade", help="Let a hydra's first member answer what the others would not change.")
    ] = False,
    max_drop: Annotated[
        float | None,
        typer.Option(
            "--max-drop",
            metavar="P",
            help="Points of accuracy, AUROC, FPR95 and coverage at 5 % risk that the cascade may lose; else 0.5.",
        ),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(
            "--budget", metavar="X", help="Instead: the best that costs at most X single models' multiply-adds."
        ),
    ] = None,
) -> CascadeKeywords:
    """Whether, and how far, few members are to answer for all."""
    return {"cascade": cascade, "max_drop": max_drop, "budget": budget}


CascadeOptions = Annotated[CascadeKeywords, cascade_options]


def calibrate(
    checkpoint: options.Checkpoint,
    *,
    data: Annotated[
        str,
        typer.Option(
            "--data",
            metavar="VAL",
            help="Labelled data the model was not trained on: one half fits, the other certifies.",
        ),
    ],
    out: options.RequiredOut,
    fit_data: Annotated[
        str | None,
        typer.Option(
            "--fit-data",
            metavar="TRAIN",
            help="Labelled data for the class statistics of OOD scores; else a part of VAL.",
        ),
    ] = None,
    ood: Annotated[
        list[str] | None,
        typer.Option(
            "--ood",
            metavar="D",
            help=(
                "Foreign data to choose the OOD score and a cascade by, beside perturbed VAL; repeatable, needs no"
                " labels."
            ),
        ),
    ] = None,
    ood_score: Annotated[
        str,
        typer.Option(
            "--ood-score",
            metavar="auto|NAME",
            help=(
                "msp, entropy, energy, max-logit, mi, gen, mds, rmds, maha++, vim, residual, knn, nci, mcm; or the"
                " best."
            ),
        ),
    ] = "auto",
    coverage: Annotated[
        float, typer.Option("--coverage", metavar="P", help="How often a prediction set holds the true label.")
    ] = 0.9,
    conformal: Annotated[
        str, typer.Option("--conformal", metavar="lac|aps|raps", help="How prediction sets are made; may be empty.")
    ] = "lac",
    id_flagged: Annotated[
        float, typer.Option("--id-flagged", metavar="P", help="Share of familiar samples flagged as unfamiliar.")
    ] = 0.05,
    risk: Annotated[
        float | None,
        typer.Option("--risk", metavar="R", help="Abstain so that at most this share of answers is wrong."),
    ] = None,
    delta: Annotated[
        float, typer.Option("--delta", metavar="D", help="With at most this probability R is broken.")
    ] = 0.05,
    cascade: CascadeOptions,
    class_names: shared.ClassNameOptions,
    arch: options.Arch = None,
    run: shared.RunOptions,
    output: shared.OutputOptions,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Fit temperature, OOD score, prediction sets and abstention, and store them with the weights."""
    from hydrasurgeon import render
    from hydrasurgeon.stages.calibrate import calibrate as stage

    with shared.progress(run, quiet=quiet) as shown:
        result = stage(
            checkpoint,
            data=data,
            out=out,
            fit_data=fit_data,
            ood=ood or [],
            ood_score=ood_score,
            coverage=coverage,
            conformal=conformal,
            id_flagged=id_flagged,
            risk=risk,
            delta=delta,
            arch=arch,
            **cascade,
            **class_names,
            **output,
            **shown,
        )
    render.calibrated(result, json=json, quiet=quiet)


def predict(
    checkpoint: options.Checkpoint,
    *,
    data: Annotated[
        str, typer.Option("--data", metavar="D", help="Data, labelled or not; - is stdin, a text in each line.")
    ],
    out: Annotated[
        str | None,
        typer.Option("-o", "--out", metavar="F", help="A .jsonl, .csv or .parquet file; else JSON lines on stdout."),
    ] = None,
    shard: Annotated[
        str | None, typer.Option("--shard", metavar="I/N", help="Only the Ith of N contiguous parts.")
    ] = None,
    top: Annotated[int, typer.Option("--top", metavar="K", min=1, help="Most probable labels to list.")] = 5,
    cascade: Annotated[
        bool | None,
        typer.Option(
            "--cascade/--no-cascade",
            help="By the checkpoint's cascade, or by all members; else by its cascade where it has one.",
        ),
    ] = None,
    class_names: shared.ClassNameOptions,
    arch: options.Arch = None,
    run: shared.RunOptions,
    force: options.Force = False,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Answer for every sample: label, prediction set, uncertainty, OOD score, or that it abstains.

    Interrupted, it goes on where it was when the command is repeated.
    """
    from hydrasurgeon import render
    from hydrasurgeon.errors import UsageError
    from hydrasurgeon.stages.predict import predict as stage

    if json and out is None:
        raise UsageError("--json: rows on stdout are JSON already", hint="Give -o F too.")
    with shared.progress(run, quiet=quiet) as shown:
        result = stage(
            checkpoint,
            data=data,
            out=out,
            shard=shard,
            top=top,
            cascade=cascade,
            arch=arch,
            force=force,
            each=render.raw,
            **class_names,
            **shown,
        )
    render.predicted(result, json=json, quiet=quiet)
