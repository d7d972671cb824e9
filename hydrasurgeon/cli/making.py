"""The commands that make checkpoints: score, prune, finetune, fuse."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hydrasurgeon.cli import options, shared


def score(
    checkpoint: options.Checkpoint,
    *,
    method: options.Method = "taylor",
    data: options.Data = None,
    objective: options.Objective = None,
    ood_score: options.OodScore = None,
    ood: options.Foreign = None,
    keep: options.Keep = None,
    remove: Annotated[
        int | None,
        typer.Option("--remove", metavar="N", help="Heads a circuit's removal order holds; all but one if not given."),
    ] = None,
    layers: options.Layers = None,
    search: options.Search = None,
    refine: Annotated[
        str | None,
        typer.Option(
            "--refine",
            metavar="swap",
            help="Then swap heads of the circuit for --keep or --remove while it gets better.",
        ),
    ] = None,
    bootstrap: Annotated[
        int | None,
        typer.Option(
            "--bootstrap", metavar="N", help="Search a circuit again on N resamples of the data: how stable it is."
        ),
    ] = None,
    tower: options.Tower = None,
    class_names: shared.ClassNameOptions,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            help="Draw the scores by layer and head, of cahp its curve and clusters; .png or .svg.",
        ),
    ] = None,
    out: options.Out = None,
    arch: options.Arch = None,
    run: shared.RunOptions,
    force: options.Force = False,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Measure how much each head matters, and write it into the manifest.

    With --keep, taylor decides layer after layer: what a layer loses is off before the next is scored.
    circuit finds the order in which heads can go; a killed search continues when the command is repeated.
    """
    from hydrasurgeon import render
    from hydrasurgeon.stages.score import score as stage

    with shared.progress(run, quiet=quiet) as shown:
        scored = stage(
            checkpoint,
            method=method,
            data=data,
            objective=objective,
            ood_score=ood_score,
            ood=ood or [],
            search=search,
            keep=options.keep_count(keep),
            remove=remove,
            layers=layers,
            tower=tower,
            refine=refine,
            bootstrap=bootstrap,
            plot=plot,
            out=out,
            arch=arch,
            force=force,
            **class_names,
            **shown,
        )
    render.scored(scored, json=json, quiet=quiet)


def prune(
    checkpoint: options.Checkpoint,
    *,
    method: Annotated[
        str | None,
        typer.Option("--method", metavar="M", help="Criterion; its scores come from the manifest or from --data."),
    ] = None,
    objective: options.Objective = None,
    ood_score: options.OodScore = None,
    keep: options.Keep = None,
    remove: Annotated[
        int | None, typer.Option("--remove", metavar="N", help="Heads to remove in all, the lowest scores first.")
    ] = None,
    sample: Annotated[
        str | None,
        typer.Option(
            "--sample", metavar="N/P", help="Remove N of the first P heads in removal order, drawn by --seed."
        ),
    ] = None,
    mask: Annotated[
        Path | None, typer.Option("--mask", metavar="FILE", help="Keep the heads of this manifest or JSON mask.")
    ] = None,
    layers: options.Layers = None,
    tower: options.Tower = None,
    class_names: shared.ClassNameOptions,
    data: options.Data = None,
    ood: options.Foreign = None,
    search: options.Search = None,
    rearrange: Annotated[
        bool,
        typer.Option(
            "--rearrange", help="Let other heads of the same layers go, by how fisher says that heads matter together."
        ),
    ] = False,
    compensate: Annotated[
        str,
        typer.Option("--compensate", metavar="HOW", help="Repair without training, on --data: none, mean or lstsq."),
    ] = "none",
    out: options.Out = None,
    arch: options.Arch = None,
    run: shared.RunOptions,
    output: shared.OutputOptions,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Remove the least important heads from a checkpoint: writes a member.

    Without -o the member is named after what was done, beside the input: vit-taylor-k8.safetensors.
    """
    from hydrasurgeon import render
    from hydrasurgeon.stages.prune import prune as stage

    with shared.progress(run, quiet=quiet) as shown:
        pruned = stage(
            checkpoint,
            method=method,
            objective=objective,
            ood_score=ood_score,
            ood=ood or [],
            search=search,
            keep=options.keep_count(keep),
            remove=remove,
            sample=sample,
            mask=mask,
            layers=layers,
            tower=tower,
            data=data,
            rearrange=rearrange,
            compensate=compensate,
            out=out,
            arch=arch,
            **class_names,
            **output,
            **shown,
        )
    render.pruned(pruned, json=json, quiet=quiet)


def finetune(
    checkpoint: options.Checkpoint,
    *,
    data: Annotated[str, typer.Option("--data", metavar="D", help="Labelled training data; image–text pairs for lit.")],
    out: options.RequiredOut,
    val: Annotated[
        str | None, typer.Option("--val", metavar="D", help="Labelled data to report on after each epoch.")
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            "--recipe",
            metavar="NAME|FILE",
            help="imagenet (images), text (texts), scratch (init:), cifar100, sst2, lora, lit, demo, or a .toml file.",
        ),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a field of the recipe; repeatable.")
    ] = None,
    freeze: Annotated[
        list[str] | None,
        typer.Option(
            "--freeze",
            metavar="PART",
            help=(
                "mlp, attention, norm, embedding, readout (pooler, last norm), classifier, repeatable or with commas;"
                " frozen MLPs make fusing exact."
            ),
        ),
    ] = None,
    class_names: shared.ClassNameOptions,
    arch: options.Arch = None,
    run: shared.TuningOptions,
    save_every: Annotated[
        int | None,
        typer.Option("--save-every", metavar="N", help="Steps between resumable states; each epoch if not given."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run of the same command.")] = False,
    output: shared.OutputOptions,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Train a member, or an unpruned backbone, by a recipe.

    CKPT may be init:timm:NAME,key=value… to start from random weights.
    """
    from hydrasurgeon import render
    from hydrasurgeon.stages.finetune import finetune as stage

    with shared.progress(run, quiet=quiet) as shown:
        tuned = stage(
            checkpoint,
            data=data,
            out=out,
            val=val,
            recipe=recipe,
            set=options.pairs(set_ or []),
            freeze=",".join(freeze or ()) or None,
            arch=arch,
            save_every=save_every,
            resume=resume,
            **class_names,
            **output,
            **shown,
        )
    render.finetuned(tuned, json=json, quiet=quiet)


def fuse(
    members: Annotated[list[str], typer.Argument(metavar="M1 M2 ...", help="Members of one backbone, two or more.")],
    *,
    out: options.RequiredOut,
    mlp: Annotated[str, typer.Option("--mlp", help="average (the paper's) or separate (exact).")] = "average",
    weights: options.MemberWeights = None,
    check: Annotated[
        str | None, typer.Option("--check", metavar="D", help="Compare with the members on this data.")
    ] = None,
    class_names: shared.ClassNameOptions,
    tolerance: Annotated[
        float, typer.Option("--tolerance", help="Largest mean difference of a class probability that --check accepts.")
    ] = 0.02,
    run: shared.CheckOptions,
    output: shared.OutputOptions,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Fuse members into one hydra that runs all of them in a single pass."""
    from hydrasurgeon import render
    from hydrasurgeon.stages.fuse import fuse as stage

    with shared.progress(run, quiet=quiet) as shown:
        fused = stage(
            members,
            out=out,
            mlp=mlp,
            weights=weights,
            check=check,
            tolerance=tolerance,
            **class_names,
            **output,
            **shown,
        )
    render.fused(fused, json=json, quiet=quiet)
