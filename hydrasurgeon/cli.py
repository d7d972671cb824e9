"""The commands: each parses, calls one stage, renders. Heavy imports wait until a command runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from hydrasurgeon.errors import HydraError, UsageError

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

CheckpointArg = Annotated[
    str,
    typer.Argument(
        metavar="CKPT",
        help="A .safetensors file, its name without suffix, a directory, or timm:NAME.",
    ),
]
CheckpointsArg = Annotated[
    list[str],
    typer.Argument(metavar="CKPT...", help="Checkpoints, as files, names, directories or hub ids."),
]
DataOption = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="D",
        help="Labelled data: folder, .npz, .parquet, .jsonl, .csv, list, hf:…, torchvision:…, demo:….",
    ),
]
OutOption = Annotated[
    str | None,
    typer.Option(
        "-o", "--out", metavar="OUT", help="NAME.safetensors, or DIR/ for the family's own layout."
    ),
]
RequiredOut = Annotated[
    str,
    typer.Option(
        "-o", "--out", metavar="OUT", help="NAME.safetensors, or DIR/ for the family's own layout."
    ),
]
MethodOption = Annotated[
    str,
    typer.Option(
        "--method", metavar="M", help="taylor, fisher, magnitude, random, cahp or circuit."
    ),
]
ObjectiveOption = Annotated[
    str | None,
    typer.Option(
        "--objective",
        metavar="acc|ood|avg",
        help="What a circuit keeps: accuracy, OOD separability or their mean (avg).",
    ),
]
FOREIGN_HELP = "Foreign data for the objectives ood and avg; repeatable, needs no labels."
ForeignOption = Annotated[list[str] | None, typer.Option("--ood", metavar="D", help=FOREIGN_HELP)]
SearchOption = Annotated[
    str | None,
    typer.Option(
        "--search",
        metavar="S",
        help="How a circuit is searched: exact (default), fast, or naive.",
    ),
]
KeepOption = Annotated[
    str | None,
    typer.Option(
        "--keep", metavar="K|auto", help="Heads to keep in each layer; auto is cahp's own number."
    ),
]
LayersOption = Annotated[
    str | None,
    typer.Option(
        "--layers", metavar="A-B", help="Remove heads from these layers only (6-11, or 0,2,5-7)."
    ),
]
TowerOption = Annotated[
    str | None,
    typer.Option(
        "--tower", metavar="TOWER", help="vision, text or both: where heads are scored and removed."
    ),
]
ClassesOption = Annotated[
    str | None,
    typer.Option(
        "--classes",
        metavar="A,B,…|FILE|data",
        help="CLIP: the class names; else the recorded ones, else the data's.",
    ),
]
TemplateOption = Annotated[
    list[str] | None,
    typer.Option(
        "--template",
        metavar="TEXT",
        help='CLIP: a prompt with {label} in it, "A photo of a {label}."; repeatable, or a file.',
    ),
]
ArchOption = Annotated[
    str | None,
    typer.Option(
        "--arch",
        metavar="timm:NAME",
        help="Architecture of a file without manifest; may end in ,key=value….",
    ),
]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]
DtypeOption = Annotated[str, typer.Option("--dtype", help="float32, bfloat16 or float16.")]
BatchOption = Annotated[
    str, typer.Option("--batch-size", metavar="N|auto", help="Samples in one pass.")
]
SeedOption = Annotated[int, typer.Option("--seed", help="Every random choice follows from it.")]
LimitOption = Annotated[
    int | None, typer.Option("--limit", metavar="N", help="Use a random N of the samples.")
]
SkipBadOption = Annotated[
    bool, typer.Option("--skip-bad", help="Leave out images that cannot be read, and name them.")
]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace an existing output.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notes.")]
JsonOption = Annotated[bool, typer.Option("--json", help="The result as JSON on stdout.")]


@app.command()
def score(
    checkpoint: CheckpointArg,
    method: MethodOption = "taylor",
    data: DataOption = None,
    objective: ObjectiveOption = None,
    ood: ForeignOption = None,
    keep: KeepOption = None,
    remove: Annotated[
        int | None,
        typer.Option(
            "--remove",
            metavar="N",
            help="Heads a circuit's removal order holds; all but one if not given.",
        ),
    ] = None,
    layers: LayersOption = None,
    search: SearchOption = None,
    tower: TowerOption = None,
    classes: ClassesOption = None,
    template: TemplateOption = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot", metavar="FILE", help="Draw cahp's curve and clusters as .png or .svg."
        ),
    ] = None,
    out: OutOption = None,
    arch: ArchOption = None,
    limit: LimitOption = None,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "float32",
    batch_size: BatchOption = "auto",
    skip_bad: SkipBadOption = False,
    force: ForceOption = False,
    quiet: QuietOption = False,
    json: JsonOption = False,
) -> None:
    """Measure how much each head matters, and write it into the manifest.

    With --keep, taylor decides layer after layer: what a layer loses is off before the next is scored.
    circuit finds the order in which heads can go; a killed search continues when the command is repeated.
    """
    from hydrasurgeon import render
    from hydrasurgeon.stages.score import score as stage

    with render.progress(quiet) as tick:
        found = stage(
            checkpoint, method=method, data=data, objective=objective, ood=ood or [], search=search, keep=_keep(keep),
            remove=remove, layers=layers, tower=tower, classes=classes, template=template or [], plot=plot, out=out, arch=arch,
            limit=limit, seed=seed, device=device, dtype=dtype, batch_size=_batch(batch_size), skip_bad=skip_bad, force=force,
            progress=tick,
        )  # fmt: skip
    render.scored(found, json=json, quiet=quiet)


@app.command()
def prune(
    checkpoint: CheckpointArg,
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            metavar="M",
            help="Criterion; its scores come from the manifest or from --data.",
        ),
    ] = None,
    objective: ObjectiveOption = None,
    keep: KeepOption = None,
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
    layers: LayersOption = None,
    tower: TowerOption = None,
    classes: ClassesOption = None,
    template: TemplateOption = None,
    data: DataOption = None,
    ood: ForeignOption = None,
    search: SearchOption = None,
    compensate: Annotated[
        str,
        typer.Option(
            "--compensate",
            metavar="HOW",
            help="Repair without training, on --data: none, mean or lstsq.",
        ),
    ] = "none",
    out: OutOption = None,
    arch: ArchOption = None,
    limit: LimitOption = None,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "float32",
    batch_size: BatchOption = "auto",
    skip_bad: SkipBadOption = False,
    force: ForceOption = False,
    quiet: QuietOption = False,
    json: JsonOption = False,
) -> None:
    """Remove the least important heads from a checkpoint: writes a member.

    Without -o the member is named after what was done, beside the input: vit-taylor-k8.safetensors.
    """
    from hydrasurgeon import render
    from hydrasurgeon.stages.prune import prune as stage

    with render.progress(quiet) as tick:
        pruned = stage(
            checkpoint, method=method, objective=objective, ood=ood or [], search=search, keep=_keep(keep), remove=remove,
            sample=sample, mask=mask, layers=layers, tower=tower, classes=classes, template=template or [], data=data,
            compensate=compensate, out=out, arch=arch, limit=limit, seed=seed, device=device, dtype=dtype,
            batch_size=_batch(batch_size),
            skip_bad=skip_bad, force=force, progress=tick,
        )  # fmt: skip
    render.pruned(pruned, json=json, quiet=quiet)


@app.command()
def finetune(
    checkpoint: CheckpointArg,
    data: Annotated[str, typer.Option("--data", metavar="D", help="Labelled training data.")],
    out: RequiredOut,
    val: Annotated[
        str | None,
        typer.Option("--val", metavar="D", help="Labelled data to report on after each epoch."),
    ] = None,
    recipe: Annotated[
        str,
        typer.Option(
            "--recipe",
            metavar="NAME|FILE",
            help="imagenet, cifar100, sst2, demo, scratch, or a .toml file.",
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
    classes: ClassesOption = None,
    template: TemplateOption = None,
    arch: ArchOption = None,
    limit: LimitOption = None,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "float32",
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", metavar="N", help="Instead of the recipe's.")
    ] = None,
    skip_bad: SkipBadOption = False,
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
    force: ForceOption = False,
    quiet: QuietOption = False,
    json: JsonOption = False,
) -> None:
    """Train a member, or an unpruned backbone, by a recipe.

    CKPT may be init:timm:NAME,key=value… to start from random weights.
    """
    from hydrasurgeon import render
    from hydrasurgeon.stages.finetune import finetune as stage

    with render.progress(quiet) as tick:
        tuned = stage(
            checkpoint, data=data, out=out, val=val, recipe=recipe, set=_pairs(set_ or []), freeze=freeze, classes=classes, template=template or [], arch=arch,
            limit=limit, seed=seed, device=device, dtype=dtype, batch_size=batch_size, skip_bad=skip_bad,
            save_every=save_every, resume=resume, force=force, progress=tick,
        )  # fmt: skip
    render.finetuned(tuned, json=json, quiet=quiet)


@app.command()
def fuse(
    members: Annotated[
        list[str], typer.Argument(metavar="M1 M2 ...", help="Members of one backbone, two or more.")
    ],
    out: RequiredOut,
    mlp: Annotated[
        str, typer.Option("--mlp", help="average (the paper's) or separate (exact).")
    ] = "average",
    check: Annotated[
        str | None,
        typer.Option("--check", metavar="D", help="Compare with the members on this data."),
    ] = None,
    classes: ClassesOption = None,
    template: TemplateOption = None,
    tolerance: Annotated[
        float,
        typer.Option(
            "--tolerance",
            help="Largest mean difference of a class probability that --check accepts.",
        ),
    ] = 0.02,
    limit: LimitOption = None,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "float32",
    batch_size: BatchOption = "auto",
    force: ForceOption = False,
    quiet: QuietOption = False,
    json: JsonOption = False,
) -> None:
    """Fuse members into one hydra that runs all of them in a single pass."""
    from hydrasurgeon import render
    from hydrasurgeon.stages.fuse import fuse as stage

    with render.progress(quiet) as tick:
        fused = stage(
            members, out=out, mlp=mlp, check=check, classes=classes, template=template or [], tolerance=tolerance, limit=limit, seed=seed, device=device,
            dtype=dtype, batch_size=_batch(batch_size), force=force, progress=tick,
        )  # fmt: skip
    render.fused(fused, json=json, quiet=quiet)


@app.command("eval")
def evaluate(
    checkpoints: Annotated[
        list[str] | None, typer.Argument(metavar="CKPT...", help="Checkpoints to compare.")
    ] = None,
    data: DataOption = None,
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
    classes: ClassesOption = None,
    template: TemplateOption = None,
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
    arch: ArchOption = None,
    limit: LimitOption = None,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "float32",
    batch_size: BatchOption = "auto",
    skip_bad: SkipBadOption = False,
    quiet: QuietOption = False,
) -> None:
    """Accuracy, calibration, OOD detection, diversity and cost, in one table."""
    from hydrasurgeon import render
    from hydrasurgeon.stages.evaluate import evaluate as stage

    with render.progress(quiet) as tick:
        evaluation = stage(
            checkpoints or [], data=data, ood=ood or [], shift=shift or [], val=val, classes=classes, template=template or [], ensemble=ensemble,
            temperature=temperature, ood_score=ood_score, json=None if json == "-" else json, predictions=predictions,
            predictions_in=predictions_in or [], arch=arch, limit=limit, seed=seed, device=device, dtype=dtype,
            batch_size=_batch(batch_size), skip_bad=skip_bad, progress=tick,
        )  # fmt: skip
    render.evaluated(evaluation, json=json == "-", quiet=quiet)


@app.command()
def bench(
    checkpoints: CheckpointsArg,
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
    arch: ArchOption = None,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
    force: ForceOption = False,
    quiet: QuietOption = False,
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
def inspect(checkpoint: CheckpointArg, arch: ArchOption = None, json: JsonOption = False) -> None:
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
    json: JsonOption = False,
) -> None:
    """How alike two selections of heads are: overlap for each layer and in all, Jensen–Shannon divergence."""
    from hydrasurgeon import render
    from hydrasurgeon.stages.compare import compare as stage

    render.compared(stage(a, b), json=json)


@app.command()
def export(
    checkpoint: CheckpointArg,
    format: Annotated[str, typer.Option("--format", help="onnx.")] = "onnx",
    out: Annotated[
        str | None,
        typer.Option(
            "-o", "--out", metavar="OUT", help="The .onnx file; else CKPT.onnx beside it."
        ),
    ] = None,
    classes: ClassesOption = None,
    template: TemplateOption = None,
    arch: ArchOption = None,
    force: ForceOption = False,
    json: JsonOption = False,
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
    force: ForceOption = False,
) -> None:
    """Build a Hydra from a small trained ViT on real images, and compare it with a Deep Ensemble."""
    from hydrasurgeon.stages.demo import demo as stage

    stage(folder, run=run, force=force)


# typer brings its own copy of click from some version on: this is the right one's UsageError.
_WRONG_USAGE: Any = typer.BadParameter.__mro__[1]


def _batch(text: str) -> int | None:
    """A number, or None for auto."""
    if text == "auto":
        return None
    if not text.isdigit() or int(text) < 1:
        raise UsageError(f"--batch-size {text}: neither a positive number nor auto")
    return int(text)


def _keep(text: str | None) -> int | str | None:
    """A number, auto, or nothing."""
    if text is None or text == "auto":
        return text
    if not text.isdigit():
        raise UsageError(f"--keep {text}: neither a number nor auto")
    return int(text)


def _pairs(entries: list[str]) -> dict[str, str]:
    pairs = {}
    for entry in entries:
        key, equals, value = entry.partition("=")
        if not equals:
            raise UsageError(f"--set {entry}: not KEY=VALUE")
        pairs[key.strip()] = value.strip()
    return pairs


def _spread(arguments: list[str], option: str) -> list[str]:
    """`--vs a b c` → `--vs a --vs b --vs c`: everything up to the next option belongs to it."""
    spread: list[str] = []
    inside = False
    for argument in arguments:
        if argument.startswith("-"):
            inside = argument == option
            spread += [] if inside else [argument]
        else:
            spread += [option, argument] if inside else [argument]
    return spread


def run(arguments: list[str]) -> int:
    """Run one command in this process and return its exit code; a bug keeps its traceback."""
    from hydrasurgeon import render

    if arguments[:1] == ["bench"]:
        arguments = _spread(arguments, "--vs")
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
