"""The commands that make a checkpoint decide: calibrate."""

from __future__ import annotations

from typing import Annotated

import typer

from hydrasurgeon.cli import options

__all__ = ["calibrate"]


def calibrate(
    checkpoint: options.Checkpoint,
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
            help="Foreign data to choose the OOD score by, else perturbed VAL; repeatable, needs no labels.",
        ),
    ] = None,
    ood_score: Annotated[
        str,
        typer.Option(
            "--ood-score",
            metavar="auto|NAME",
            help="msp, entropy, energy, max-logit, mi, gen, mds, rmds, maha++, vim, residual, knn, nci, mcm; or the best.",
        ),
    ] = "auto",
    coverage: Annotated[
        float,
        typer.Option(
            "--coverage", metavar="P", help="How often a prediction set holds the true label."
        ),
    ] = 0.9,
    conformal: Annotated[
        str,
        typer.Option(
            "--conformal",
            metavar="lac|aps|raps",
            help="How prediction sets are made; may be empty.",
        ),
    ] = "lac",
    id_flagged: Annotated[
        float,
        typer.Option(
            "--id-flagged", metavar="P", help="Share of familiar samples flagged as unfamiliar."
        ),
    ] = 0.05,
    risk: Annotated[
        float | None,
        typer.Option(
            "--risk", metavar="R", help="Abstain so that at most this share of answers is wrong."
        ),
    ] = None,
    delta: Annotated[
        float,
        typer.Option("--delta", metavar="D", help="With at most this probability R is broken."),
    ] = 0.05,
    classes: options.Classes = None,
    template: options.Template = None,
    arch: options.Arch = None,
    limit: options.Limit = None,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    batch_size: options.Batch = "auto",
    skip_bad: options.SkipBad = False,
    force: options.Force = False,
    max_shard_size: options.ShardSize = None,
    push_to_hub: options.PushToHub = None,
    private: options.Private = False,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Fit temperature, OOD score, prediction sets and abstention, and store them with the weights."""
    from hydrasurgeon import render
    from hydrasurgeon.stages.calibrate import calibrate as stage

    with render.progress(quiet) as tick:
        result = stage(
            checkpoint, data=data, out=out, fit_data=fit_data, ood=ood or [], ood_score=ood_score, coverage=coverage,
            conformal=conformal, id_flagged=id_flagged, risk=risk, delta=delta, classes=classes, template=template or [],
            arch=arch, limit=limit, seed=seed, device=device, dtype=dtype, batch_size=options.batch(batch_size),
            skip_bad=skip_bad, force=force, max_shard_size=max_shard_size, push_to_hub=push_to_hub, private=private,
            progress=tick,
        )  # fmt: skip
    render.calibrated(result, json=json, quiet=quiet)
