"""Options of the commands that measure checkpoints, convert them, and show and verify them: eval,
bench, export, inspect, verify.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from hydrasurgeon.errors import UsageError
from hydrasurgeon.files.decided import LOGITS
from hydrasurgeon.options.base import (
    CHECKPOINTS,
    ENGINES,
    FORMATS,
    LABELLED,
    READ,
    RUNS,
    SPECIAL,
    UNLABELLED,
    WRITTEN,
    PathLike,
    argument,
    option,
)
from hydrasurgeon.options.column_roles import ColumnOptions
from hydrasurgeon.options.shared import (
    CHECKPOINT,
    DATA,
    TEMPLATE,
    BareOptions,
    CheckpointArgument,
    ClassNames,
    Device,
    Engines,
    Force,
    Paths,
    Run,
    Texts,
    output,
)

REPORT = option(
    None,
    flags=("--json",),
    alias="json",
    metavar="F",
    group=WRITTEN,
    help="Write the report as JSON; - is stdout.",
)
"""Option --json that takes a file."""


class EvaluateOptions(Engines, BareOptions, Run, Force):
    """Compare accuracy, calibration, OOD detection, diversity and cost in one table.

    aECE is the calibration error in bins of equally many rows; MI and DI say how much members
    differ.

    OOD sets, shifts, temperature and cost are measured for the first --data only.
    """

    requires: ClassVar = {
        "reference": ("html", "markdown", "ci"),
        "predictions": ("checkpoints",),
        "val": ("temperature",),
    }
    conflicts: ClassVar = (
        *(
            ("cascade", name)
            for name in (
                "ensemble",
                "no_decision",
                "no_words",
                "temperature",
                "engine",
            )
        ),
        *(("cascade", name) for name in ("predictions", "predictions_in")),
    )

    checkpoints: Paths = argument(
        reads=CHECKPOINTS,
        metavar="CKPT...",
        help="Checkpoints to compare, optionally as NAME=CKPT; A+B+C is their Deep Ensemble.",
        default=(),
    )
    data: Texts = option((), metavar="[NAME=]D", group=LABELLED, help=f"{DATA}; repeatable.")
    ood: Texts = option(
        (),
        metavar="near:NAME=D",
        group=UNLABELLED,
        help="OOD data, near:NAME=D or far:NAME=D (NAME=D counts as far); repeatable.",
    )
    shift: Texts = option(
        (),
        metavar="NAME[:S]=D",
        group=LABELLED,
        help="Labelled shifted data under any name, with severity S from 1 to 5; repeatable.",
    )
    val: str | None = option(
        None,
        metavar="D",
        group=LABELLED,
        help="Validation rows for --temperature fit.",
    )
    classes: Texts = option(
        (),
        metavar="[NAME=]A,B,…|FILE|data",
        group=SPECIAL,
        help=(
            "CLIP: class names, of all data sets or of one; repeatable. Default: those in the "
            "checkpoint, then those in the data."
        ),
    )
    template: Texts = TEMPLATE
    predictions_in: Paths = option(
        (),
        metavar="F",
        group=READ,
        help="Evaluate the logits in a file that eval --predictions wrote; repeatable.",
    )
    ensemble: bool = option(
        False,
        help="Evaluate all checkpoints, or all files of --predictions-in, as one Deep Ensemble.",
    )
    temperature: Annotated[float, Field(ge=1e-3, le=1e3)] | Literal["fit"] | None = option(
        None,
        metavar="fit|T",
        help="Temperature of the averaged prediction. Default: that of the decision state, or 1.",
    )
    ood_score: str | None = option(
        None,
        metavar="NAME,…|all",
        help=(
            f"OOD scores: {', '.join(LOGITS)}, or the one that calibrate fitted. Default: that one, else msp."
        ),
    )
    no_decision: bool = option(False, help="Ignore decision states (what calibrate stored).")
    no_words: bool = option(False, help="Texts: measure models without their bag-of-words models.")
    cascade: bool = option(False, help="Measure cascades too, next to the full models.")
    ci: float | None = option(
        None,
        gt=0,
        lt=1,
        metavar="P",
        help="Add bootstrap confidence intervals of level P to metrics and paired differences.",
    )
    reference: str | None = option(
        None,
        metavar="NAME",
        help="--html, --markdown, --ci: result that the others are compared with. Default: the first.",
    )
    asserts: Texts = option(
        (),
        flags=("--assert",),
        metavar="[NAME:]PATH<=X",
        help='Exit with code 1 unless this holds: "id.ece<=0.02", or relative to another result, '
        '"next:id.accuracy>=base-0.01"; repeatable.',
    )
    time: bool = option(
        False, group=RUNS, help="Measure the time of all models, on a batch of 16 samples."
    )
    json_: PathLike | None = REPORT
    html: PathLike | None = option(
        None,
        metavar="F|-",
        group=WRITTEN,
        help="Write the report as one HTML page; - is stdout.",
    )
    markdown: PathLike | None = option(
        None,
        metavar="F|-",
        group=WRITTEN,
        endings=(".md", ".markdown", ".txt"),
        help="Write differences and tables as Markdown; - is stdout.",
    )
    predictions: PathLike | None = option(
        None,
        metavar="F",
        group=WRITTEN,
        help="Write the logits of one model, or of A+B, as safetensors.",
    )


class BenchOptions(Engines, BareOptions, Device, ColumnOptions, Force):
    """Measure latency, throughput, memory and multiply-adds of models on this machine."""

    engine: str = option(
        "auto",
        metavar="NAME",
        group=RUNS,
        reads=ENGINES,
        help="Engine that computes answers, as for predict. {choices}; all: compare those of this "
        "machine and name the fastest.",
    )
    checkpoints: Paths = argument(
        reads=CHECKPOINTS,
        metavar="CKPT...",
        help="Checkpoints: files, names, directories or hub ids.",
    )
    vs: Paths = option(
        (),
        metavar="M1 M2 ...",
        group=CHECKPOINTS,
        spread=True,
        help="Members to run one after another, for comparison.",
    )
    backbone: PathLike | None = option(
        None, metavar="CKPT", group=CHECKPOINTS, help="Single model that ratios refer to."
    )
    data: str | None = option(
        None, metavar="D", group=UNLABELLED, help="Samples to run on. Default: random inputs."
    )
    batch: str = option("1,4,16", metavar="N,N,…", group=RUNS, help="Batch sizes.")
    dtype: str = option(
        "float32", metavar="T,T,…", group=RUNS, help="Data types: float32, bfloat16, float16."
    )
    runs: int = option(
        7,
        ge=1,
        metavar="N",
        group=RUNS,
        help="Number of runs of each model; their median is printed.",
    )
    json_: PathLike | None = REPORT


class ExportOptions(CheckpointArgument, ClassNames, BareOptions, ColumnOptions, Force):
    """Write a model or a hydra for other runtimes or for its own library.

    The result is checked before it is written. A graph in DIR/ is for optimum,
    sentence-transformers and transformers.js. Folders contain the calibration, so that clients that
    only read logits get calibrated ones.
    """

    writes_manifest: ClassVar[bool] = True
    requires: ClassVar = {"int8": ("check",), "ood": ("check",), "limit": ("check",)}

    format: str = option(
        "onnx",
        metavar="{names}",
        reads=FORMATS,
        recorded=True,
        help="Format of the output. {choices}.",
    )
    int8: bool = option(
        False,
        also=("quantize", "quantise"),
        help="Graphs: store weights in 8 bits, if the answers on --check stay as good (--tolerance).",
    )
    check: str | None = option(
        None,
        metavar="D",
        group=LABELLED,
        help="Graphs: labelled data on which the graph is compared with the model.",
    )
    ood: Texts = option(
        (),
        metavar="[near|far:]NAME=D",
        group=UNLABELLED,
        help="--check: OOD data on which AUROC is compared; repeatable.",
    )
    tolerance: float = option(
        0.01,
        ge=0,
        le=1,
        metavar="X",
        help="--check: maximum loss of accuracy, ECE or AUROC.",
    )
    limit: int | None = option(
        None, ge=1, metavar="N", group=READ, help="Use N randomly chosen samples."
    )
    out: PathLike | None = output(
        None,
        help="A file for a graph, or DIR/ for stock and for ONNX clients that read folders. Default: a file beside CKPT.",
    )

    @property
    def engine(self) -> str | None:
        """The engine that a graph is also made for."""
        return "int8" if self.int8 else None


class InspectOptions(BareOptions):
    """Show a checkpoint's kind, architecture, kept heads, parameters and history."""

    conflicts: ClassVar = (("schema_", "checkpoint"), ("schema_", "commands"))

    checkpoint: PathLike | None = argument(
        reads=CHECKPOINTS, metavar="CKPT", help=CHECKPOINT, default=None
    )
    commands: bool = option(
        False, help="Print the history as a shell script that makes the file again."
    )
    schema_: bool = option(
        False,
        flags=("--schema",),
        alias="schema",
        help="Print the JSON Schema of manifests, instead of reading a CKPT.",
    )

    def needed(self) -> PathLike:
        """Return the checkpoint, which is required without --schema."""
        if self.checkpoint is None:
            raise UsageError("CKPT is required.", hint="Or give --schema.")
        return self.checkpoint


class VerifyOptions(CheckpointArgument, BareOptions):
    """Check that a checkpoint is what its manifest says; exit with code 1 if it is not.

    It checks hashes, finite weights, members, code in a directory and the steps of the history.
    """
