"""The commands: each parses, calls one stage, renders. Heavy imports wait until a command runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from hydrasurgeon import options
from hydrasurgeon.errors import HydraError

__all__ = ["app", "main", "run"]

app = typer.Typer(
    name="hydrasurgeon",
    help="Prune attention heads, fuse the pruned members into one calibrated Hydra: score → prune → finetune → fuse → eval.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command()
def score(
    checkpoint: options.Checkpoint,
    method: options.Method = "taylor",
    data: options.Data = None,
    objective: options.Objective = None,
    ood: options.Foreign = None,
    keep: options.Keep = None,
    remove: Annotated[
        int | None,
        typer.Option(
            "--remove",
            metavar="N",
            help="Heads a circuit's removal order holds; all but one if not given.",
        ),
    ] = None,
    layers: options.Layers = None,
    search: options.Search = None,
    tower: options.Tower = None,
    classes: options.Classes = None,
    template: options.Template = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot", metavar="FILE", help="Draw cahp's curve and clusters as .png or .svg."
        ),
    ] = None,
    out: options.Out = None,
    arch: options.Arch = None,
    limit: options.Limit = None,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    batch_size: options.Batch = "auto",
    skip_bad: options.SkipBad = False,
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

    with render.progress(quiet) as tick:
        found = stage(
            checkpoint, method=method, data=data, objective=objective, ood=ood or [], search=search, keep=options.keep_count(keep),
            remove=remove, layers=layers, tower=tower, classes=classes, template=template or [], plot=plot, out=out, arch=arch,
            limit=limit, seed=seed, device=device, dtype=dtype, batch_size=options.batch(batch_size), skip_bad=skip_bad, force=force,
            progress=tick,
        )  # fmt: skip
    render.scored(found, json=json, quiet=quiet)


@app.command()
def prune(
    checkpoint: options.Checkpoint,
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            metavar="M",
            help="Criterion; its scores come from the manifest or from --data.",
        ),
    ] = None,
    objective: options.Objective = None,
    keep: options.Keep = None,
    remove: Annotated[
        int | None,
        typer.Option(
            "--remove", metavar="N", help="Heads to remove in all, the lowest scores first."
        ),
    ] = None,
    sample: Annotated[
        str | None,
        typer.Option(
            "--sample",
            metavar="N/P",
            help="Remove N of the first P heads in removal order, drawn by --seed.",
        ),
    ] = None,
    mask: Annotated[
        Path | None,
        typer.Option(
            "--mask", metavar="FILE", help="Keep the heads of this manifest or JSON mask."
        ),
    ] = None,
    layers: options.Layers = None,
    tower: options.Tower = None,
    classes: options.Classes = None,
    template: options.Template = None,
    data: options.Data = None,
    ood: options.Foreign = None,
    search: options.Search = None,
    compensate: Annotated[
        str,
        typer.Option(
            "--compensate",
            metavar="HOW",
            help="Repair without training, on --data: none, mean or lstsq.",
        ),
    ] = "none",
    out: options.Out = None,
    arch: options.Arch = None,
    limit: options.Limit = None,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    batch_size: options.Batch = "auto",
    skip_bad: options.SkipBad = False,
    force: options.Force = False,
    push_to_hub: options.PushToHub = None,
    private: options.Private = False,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Remove the least important heads from a checkpoint: writes a member.

    Without -o the member is named after what was done, beside the input: vit-taylor-k8.safetensors.
    """
    from hydrasurgeon import render
    from hydrasurgeon.stages.prune import prune as stage

    with render.progress(quiet) as tick:
        pruned = stage(
            checkpoint, method=method, objective=objective, ood=ood or [], search=search, keep=options.keep_count(keep), remove=remove,
            sample=sample, mask=mask, layers=layers, tower=tower, classes=classes, template=template or [], data=data,
            compensate=compensate, out=out, arch=arch, limit=limit, seed=seed, device=device, dtype=dtype,
            batch_size=options.batch(batch_size),
            skip_bad=skip_bad, force=force, push_to_hub=push_to_hub, private=private, progress=tick,
        )  # fmt: skip
    render.pruned(pruned, json=json, quiet=quiet)


@app.command()
def finetune(
    checkpoint: options.Checkpoint,
    data: Annotated[
        str,
        typer.Option(
            "--data", metavar="D", help="Labelled training data; image–text pairs for lit."
        ),
    ],
    out: options.RequiredOut,
    val: Annotated[
        str | None,
        typer.Option("--val", metavar="D", help="Labelled data to report on after each epoch."),
    ] = None,
    recipe: Annotated[
        str,
        typer.Option(
            "--recipe",
            metavar="NAME|FILE",
            help="imagenet, cifar100, sst2, lit, demo, scratch, or a .toml file.",
        ),
    ] = "imagenet",
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Override a field of the recipe; repeatable."
        ),
    ] = None,
    freeze: Annotated[
        str | None,
        typer.Option(
            "--freeze",
            metavar="PART",
            help="mlp, attention, embedding, classifier; frozen MLPs make fusing exact.",
        ),
    ] = None,
    classes: options.Classes = None,
    template: options.Template = None,
    arch: options.Arch = None,
    limit: options.Limit = None,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", metavar="N", help="Instead of the recipe's.")
    ] = None,
    skip_bad: options.SkipBad = False,
    save_every: Annotated[
        int | None,
        typer.Option(
            "--save-every",
            metavar="N",
            help="Steps between resumable states; each epoch if not given.",
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an interrupted run of the same command.")
    ] = False,
    force: options.Force = False,
    push_to_hub: options.PushToHub = None,
    private: options.Private = False,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Train a member, or an unpruned backbone, by a recipe.

    CKPT may be init:timm:NAME,key=value… to start from random weights.
    """
    from hydrasurgeon import render
    from hydrasurgeon.stages.finetune import finetune as stage

    with render.progress(quiet) as tick:
        tuned = stage(
            checkpoint, data=data, out=out, val=val, recipe=recipe, set=options.pairs(set_ or []), freeze=freeze, classes=classes, template=template or [], arch=arch,
            limit=limit, seed=seed, device=device, dtype=dtype, batch_size=batch_size, skip_bad=skip_bad,
            save_every=save_every, resume=resume, force=force, push_to_hub=push_to_hub, private=private, progress=tick,
        )  # fmt: skip
    render.finetuned(tuned, json=json, quiet=quiet)


@app.command()
def fuse(
    members: Annotated[
        list[str], typer.Argument(metavar="M1 M2 ...", help="Members of one backbone, two or more.")
    ],
    out: options.RequiredOut,
    mlp: Annotated[
        str, typer.Option("--mlp", help="average (the paper's) or separate (exact).")
    ] = "average",
    check: Annotated[
        str | None,
        typer.Option("--check", metavar="D", help="Compare with the members on this data."),
    ] = None,
    classes: options.Classes = None,
    template: options.Template = None,
    tolerance: Annotated[
        float,
        typer.Option(
            "--tolerance",
            help="Largest mean difference of a class probability that --check accepts.",
        ),
    ] = 0.02,
    limit: options.Limit = None,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    batch_size: options.Batch = "auto",
    force: options.Force = False,
    push_to_hub: options.PushToHub = None,
    private: options.Private = False,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Fuse members into one hydra that runs all of them in a single pass."""
    from hydrasurgeon import render
    from hydrasurgeon.stages.fuse import fuse as stage

    with render.progress(quiet) as tick:
        fused = stage(
            members, out=out, mlp=mlp, check=check, classes=classes, template=template or [], tolerance=tolerance, limit=limit, seed=seed, device=device,
            dtype=dtype, batch_size=options.batch(batch_size), force=force, push_to_hub=push_to_hub, private=private, progress=tick,
        )  # fmt: skip
    render.fused(fused, json=json, quiet=quiet)


@app.command("eval")
def evaluate(
    checkpoints: Annotated[
        list[str] | None, typer.Argument(metavar="CKPT...", help="Checkpoints to compare.")
    ] = None,
    data: options.DataSets = None,
    ood: Annotated[
        list[str] | None,
        typer.Option(
            "--ood",
            metavar="near:NAME=D",
            help="Foreign data, near:NAME=D or far:NAME=D; repeatable.",
        ),
    ] = None,
    shift: Annotated[
        list[str] | None,
        typer.Option(
            "--shift",
            metavar="NAME[:S]=D",
            help="Labelled shifted data, of severity S; repeatable.",
        ),
    ] = None,
    val: Annotated[
        str | None,
        typer.Option("--val", metavar="D", help="Labelled data to fit the temperature on."),
    ] = None,
    classes: options.ClassSets = None,
    template: options.Template = None,
    ensemble: Annotated[
        bool, typer.Option("--ensemble", help="Treat the checkpoints as one Deep Ensemble.")
    ] = False,
    temperature: Annotated[
        str,
        typer.Option(
            "--temperature", metavar="fit|T", help="Temperature of the averaged prediction."
        ),
    ] = "1",
    ood_score: Annotated[
        str, typer.Option("--ood-score", help="msp, entropy, energy, max-logit or mi.")
    ] = "msp",
    json: Annotated[
        str | None,
        typer.Option("--json", metavar="F", help="Write the report as JSON; - is stdout."),
    ] = None,
    predictions: Annotated[
        Path | None,
        typer.Option("--predictions", metavar="F", help="Write the logits as safetensors."),
    ] = None,
    predictions_in: Annotated[
        list[Path] | None,
        typer.Option(
            "--predictions-in", metavar="F", help="Evaluate logits from such a file; repeatable."
        ),
    ] = None,
    card: Annotated[
        bool,
        typer.Option(
            "--card", help="Write each directory's own result into its model card, README.md."
        ),
    ] = False,
    arch: options.Arch = None,
    limit: options.Limit = None,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    batch_size: options.Batch = "auto",
    skip_bad: options.SkipBad = False,
    quiet: options.Quiet = False,
) -> None:
    """Accuracy, calibration, OOD detection, diversity and cost, in one table.

    Of several data sets the first is the one that OOD sets, shifts, temperature and cost belong to.
    """
    from hydrasurgeon import render
    from hydrasurgeon.stages.evaluate import evaluate as stage

    with render.progress(quiet) as tick:
        evaluation = stage(
            checkpoints or [], data=data, ood=ood or [], shift=shift or [], val=val, classes=classes, template=template or [], ensemble=ensemble,
            temperature=temperature, ood_score=ood_score, json=None if json == "-" else json, predictions=predictions,
            predictions_in=predictions_in or [], card=card, arch=arch, limit=limit, seed=seed, device=device, dtype=dtype,
            batch_size=options.batch(batch_size), skip_bad=skip_bad, progress=tick,
        )  # fmt: skip
    render.evaluated(evaluation, json=json == "-", quiet=quiet)


@app.command()
def bench(
    checkpoints: options.Checkpoints,
    vs: Annotated[
        list[str] | None,
        typer.Option(
            "--vs", metavar="M1 M2 ...", help="Members, run one after another for comparison."
        ),
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option("--backbone", metavar="CKPT", help="The single model that ratios refer to."),
    ] = None,
    batch: Annotated[str, typer.Option("--batch", metavar="N,N,…", help="Batch sizes.")] = "1,4,16",
    dtype: Annotated[
        str, typer.Option("--dtype", metavar="T,T,…", help="float32, bfloat16, float16.")
    ] = "float32",
    compile_: Annotated[
        bool, typer.Option("--compile", help="Measure under torch.compile.")
    ] = False,
    runs: Annotated[int, typer.Option("--runs", help="Interleaved runs behind each median.")] = 7,
    plot: Annotated[
        str | None,
        typer.Option("--plot", metavar="F", help="A picture of it, as .png or .svg."),
    ] = None,
    arch: options.Arch = None,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    force: options.Force = False,
    quiet: options.Quiet = False,
    json: Annotated[
        str | None,
        typer.Option("--json", metavar="F", help="Write the report as JSON; - is stdout."),
    ] = None,
) -> None:
    """Latency, throughput, memory and multiply-adds on this machine, all contenders measured in turn."""
    from hydrasurgeon import render
    from hydrasurgeon.stages.bench import bench as stage

    with render.progress(quiet) as tick:
        found = stage(
            checkpoints, vs=vs or [], backbone=backbone, batch=batch, dtype=dtype, compile=compile_, runs=runs,
            plot=plot, force=force, arch=arch, seed=seed, device=device, json=None if json == "-" else json, progress=tick,
        )  # fmt: skip
    render.benched(found, json=json == "-", quiet=quiet)


@app.command()
def inspect(
    checkpoint: options.Checkpoint,
    arch: options.Arch = None,
    json: options.Json = False,
) -> None:
    """Say what a checkpoint is: kind, architecture, kept heads, parameters, history."""
    from hydrasurgeon import render
    from hydrasurgeon.stages.inspect import inspect as stage

    render.inspected(stage(checkpoint, arch=arch), json=json)


@app.command()
def compare(
    a: Annotated[
        str,
        typer.Argument(metavar="A", help="A checkpoint, a hydra's member (FILE#0) or a manifest."),
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="Another one of the same architecture.")],
    json: options.Json = False,
) -> None:
    """How alike two selections of heads are: overlap for each layer and in all, Jensen–Shannon divergence."""
    from hydrasurgeon import render
    from hydrasurgeon.stages.compare import compare as stage

    render.compared(stage(a, b), json=json)


@app.command()
def export(
    checkpoint: options.Checkpoint,
    format: Annotated[str, typer.Option("--format", help="onnx.")] = "onnx",
    out: Annotated[
        str | None,
        typer.Option(
            "-o", "--out", metavar="OUT", help="The .onnx file; else CKPT.onnx beside it."
        ),
    ] = None,
    classes: options.Classes = None,
    template: options.Template = None,
    arch: options.Arch = None,
    force: options.Force = False,
    json: options.Json = False,
) -> None:
    """Write a model or a hydra as ONNX, checked in onnxruntime before the file is kept."""
    from hydrasurgeon import render
    from hydrasurgeon.stages.export import export as stage

    made = stage(
        checkpoint, format=format, out=out, classes=classes, template=template or [], arch=arch, force=force,
    )  # fmt: skip
    render.exported(made, json=json)


@app.command()
def schema() -> None:
    """Print the manifest's JSON Schema."""
    from hydrasurgeon import render
    from hydrasurgeon.manifest import json_schema

    render.raw(json_schema())


@app.command()
def demo(
    folder: Annotated[
        Path, typer.Option("-o", "--out", metavar="DIR", help="Where the demo leaves its files.")
    ] = Path("hydra-demo"),
    force: options.Force = False,
) -> None:
    """Build a Hydra from a small trained ViT on real images, and compare it with a Deep Ensemble."""
    from hydrasurgeon.stages.demo import demo as stage

    stage(folder, run=run, force=force)


# typer brings its own copy of click from some version on: this is the right one's UsageError.
_WRONG_USAGE: Any = typer.BadParameter.__mro__[1]


def run(arguments: list[str]) -> int:
    """Run one command in this process and return its exit code; a bug keeps its traceback."""
    from hydrasurgeon import render

    if arguments[:1] == ["bench"]:
        arguments = options.spread(arguments, "--vs")
    try:
        code = app(args=arguments, standalone_mode=False, prog_name="hydrasurgeon")
    except HydraError as error:
        render.failed(error)
        return error.exit_code
    except typer.Abort:
        return 130
    except _WRONG_USAGE as error:
        error.show()
        return int(error.exit_code)
    return code if isinstance(code, int) else 0


def main() -> Any:
    """The console script."""
    try:
        code = run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our pipe has gone; nothing is wrong on this side.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)
