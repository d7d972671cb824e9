"""The commands that measure and look at checkpoints, and take them elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hydrasurgeon.cli import options, shared


def evaluate(
    checkpoints: Annotated[list[str] | None, typer.Argument(metavar="CKPT...", help="Checkpoints to compare.")] = None,
    *,
    data: options.DataSets = None,
    ood: Annotated[
        list[str] | None,
        typer.Option("--ood", metavar="near:NAME=D", help="Foreign data, near:NAME=D or far:NAME=D; repeatable."),
    ] = None,
    shift: Annotated[
        list[str] | None,
        typer.Option(
            "--shift",
            metavar="NAME[:S]=D",
            help="Labelled shifted data by any name, of severity S, 1 to 5; repeatable.",
        ),
    ] = None,
    corrupt: Annotated[
        list[str] | None,
        typer.Option(
            "--corrupt",
            metavar="all|NAME[:S]",
            help=(
                "ImageNet-C's corruptions of the data, texts' typos and word_dropout, of severity S or all five;"
                " repeatable."
            ),
        ),
    ] = None,
    val: Annotated[
        str | None,
        typer.Option(
            "--val", metavar="D", help="Labelled data to fit the temperature on, or to calibrate a report's reference."
        ),
    ] = None,
    classes: options.ClassSets = None,
    template: options.Template = None,
    ensemble: Annotated[
        bool,
        typer.Option(
            "--ensemble", help="Treat the checkpoints, or else the files of --predictions-in, as one Deep Ensemble."
        ),
    ] = False,
    temperature: Annotated[
        str | None,
        typer.Option(
            "--temperature",
            metavar="fit|T",
            help="Temperature of the averaged prediction; else the decision state's, or 1.",
        ),
    ] = None,
    ood_score: Annotated[
        str | None,
        typer.Option(
            "--ood-score",
            metavar="NAME,…|all",
            help="msp, entropy, energy, max-logit, mi, gen, or what calibrate fitted, which is the default; else msp.",
        ),
    ] = None,
    no_decision: Annotated[bool, typer.Option("--no-decision", help="Leave decision states alone.")] = False,
    cascade: Annotated[
        bool, typer.Option("--cascade", help="Measure each checkpoint's cascade, and the full hydra beside it.")
    ] = False,
    mc_dropout: options.McDropout = None,
    ci: Annotated[
        float | None, typer.Option("--ci", metavar="P", help="Bootstrap intervals of the metrics, of level P.")
    ] = None,
    json: Annotated[
        str | None, typer.Option("--json", metavar="F", help="Write the report as JSON; - is stdout.")
    ] = None,
    predictions: Annotated[
        Path | None, typer.Option("--predictions", metavar="F", help="Write the logits as safetensors.")
    ] = None,
    predictions_in: Annotated[
        list[Path] | None,
        typer.Option("--predictions-in", metavar="F", help="Evaluate logits from such a file; repeatable."),
    ] = None,
    asserts: Annotated[
        list[str] | None,
        typer.Option(
            "--assert",
            metavar="[NAME:]PATH<=X",
            help='Exit 1 unless a number of the report keeps this limit, "id.ece<=0.02"; repeatable.',
        ),
    ] = None,
    showing: shared.ShowingOptions,
    cards: shared.CardOptions,
    arch: options.Arch = None,
    run: shared.RunOptions,
    force: options.Force = False,
    quiet: options.Quiet = False,
) -> None:
    """Accuracy, calibration, OOD detection, diversity and cost, in one table.

    Of several data sets the first is the one that OOD sets, shifts, temperature and cost belong to.
    """
    from hydrasurgeon import render
    from hydrasurgeon.measuring.asserts import require
    from hydrasurgeon.stages.evaluate import evaluate as stage

    shared.check_stdout(json=json, showing=showing)
    with shared.progress(run, quiet=quiet) as shown:
        evaluation = stage(
            checkpoints or [],
            data=data,
            ood=ood or [],
            shift=shift or [],
            corrupt=corrupt or [],
            val=val,
            classes=classes,
            template=template or [],
            ensemble=ensemble,
            temperature=temperature,
            ood_score=ood_score,
            no_decision=no_decision,
            cascade=cascade,
            mc_dropout=mc_dropout,
            ci=ci,
            json=None if json == "-" else json,
            predictions=predictions,
            predictions_in=predictions_in or [],
            asserts=asserts or [],
            arch=arch,
            force=force,
            **showing,
            **cards,
            **shown,
        )
    render.evaluated(evaluation, json=json == "-", quiet=quiet)
    require(evaluation.report.asserts or ())


def bench(
    checkpoints: options.Checkpoints,
    vs: Annotated[
        list[str] | None,
        typer.Option("--vs", metavar="M1 M2 ...", help="Members, run one after another for comparison."),
    ] = None,
    backbone: Annotated[
        str | None, typer.Option("--backbone", metavar="CKPT", help="The single model that ratios refer to.")
    ] = None,
    batch: Annotated[str, typer.Option("--batch", metavar="N,N,…", help="Batch sizes.")] = "1,4,16",
    dtype: Annotated[str, typer.Option("--dtype", metavar="T,T,…", help="float32, bfloat16, float16.")] = "float32",
    compile_: Annotated[bool, typer.Option("--compile", help="Measure under torch.compile.")] = False,
    runs: Annotated[int, typer.Option("--runs", help="Interleaved runs behind each median.")] = 7,
    plot: Annotated[str | None, typer.Option("--plot", metavar="F", help="A picture of it, as .png or .svg.")] = None,
    cascade: Annotated[
        bool, typer.Option("--cascade", help="Time each checkpoint's cascade on --data, and the full hydra beside it.")
    ] = False,
    data: Annotated[
        str | None, typer.Option("--data", metavar="D", help="Real samples instead of random inputs.")
    ] = None,
    arch: options.Arch = None,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    force: options.Force = False,
    quiet: options.Quiet = False,
    json: Annotated[
        str | None, typer.Option("--json", metavar="F", help="Write the report as JSON; - is stdout.")
    ] = None,
) -> None:
    """Latency, throughput, memory and multiply-adds on this machine, all contenders measured in turn."""
    from hydrasurgeon import render
    from hydrasurgeon.stages.bench import bench as stage

    with render.progress(quiet) as tick:
        benched = stage(
            checkpoints,
            vs=vs or [],
            backbone=backbone,
            batch=batch,
            dtype=dtype,
            compile=compile_,
            runs=runs,
            plot=plot,
            force=force,
            cascade=cascade,
            data=data,
            arch=arch,
            seed=seed,
            device=device,
            json=None if json == "-" else json,
            progress=tick,
        )
    render.benched(benched, json=json == "-", quiet=quiet)


def inspect(
    checkpoint: options.Checkpoint,
    arch: options.Arch = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Draw the recorded scores by layer and head; .png or .svg."),
    ] = None,
    force: options.Force = False,
    json: options.Json = False,
) -> None:
    """Say what a checkpoint is: kind, architecture, kept heads, parameters, history."""
    from hydrasurgeon import render
    from hydrasurgeon.stages.inspect import inspect as stage

    render.inspected(stage(checkpoint, arch=arch, plot=plot, force=force), json=json)


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A checkpoint, a hydra's member (FILE#0) or a manifest.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Another one of the same architecture.")],
    json: options.Json = False,
) -> None:
    """How alike two selections of heads are: overlap for each layer and in all, Jensen–Shannon divergence."""
    from hydrasurgeon import render
    from hydrasurgeon.stages.compare import compare as stage

    render.compared(stage(a, b), json=json)


def export(
    checkpoint: options.Checkpoint,
    *,
    format: Annotated[str, typer.Option("--format", help="onnx, pt2 or padded.")] = "onnx",
    out: Annotated[
        str | None, typer.Option("-o", "--out", metavar="OUT", help="The file, or DIR/ for padded; else beside CKPT.")
    ] = None,
    aot: Annotated[bool, typer.Option("--aot", help="pt2: compiled for this machine (AOTInductor).")] = False,
    cascade: Annotated[
        bool, typer.Option("--cascade", help="onnx: two graphs, OUT.first.onnx and OUT.rest.onnx.")
    ] = False,
    member: Annotated[
        int | None, typer.Option("--member", metavar="I", help="padded: which member of a hydra, from 0.")
    ] = None,
    quantisation: shared.QuantisationOptions,
    class_names: shared.ClassNameOptions,
    arch: options.Arch = None,
    force: options.Force = False,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Write a model or a hydra for other runtimes (onnx, pt2), or with zeros for its own library (padded); each is
    checked first."""
    from hydrasurgeon import render
    from hydrasurgeon.stages.export import export as stage

    exported = stage(
        checkpoint,
        format=format,
        out=out,
        aot=aot,
        cascade=cascade,
        member=member,
        arch=arch,
        force=force,
        **quantisation,
        **class_names,
    )
    render.exported(exported, json=json, quiet=quiet)


def schema() -> None:
    """Print the manifest's JSON Schema."""
    from hydrasurgeon import render
    from hydrasurgeon.files.manifest import json_schema

    render.raw(json_schema())
