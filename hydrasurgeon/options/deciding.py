"""Options of the commands that give decisions to a checkpoint and use them: calibrate, predict,
serve, monitor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal, Self

from hydrasurgeon.errors import UsageError
from hydrasurgeon.files.decided import SCORES
from hydrasurgeon.options.base import (
    CHECKPOINTS,
    LABELLED,
    READ,
    RUNS,
    UNLABELLED,
    WRITTEN,
    Options,
    PathLike,
    argument,
    option,
)
from hydrasurgeon.options.shared import (
    CHECKPOINT,
    DEVICE,
    DTYPE,
    BareOptions,
    Batch,
    ClassNames,
    Dtype,
    Engines,
    Force,
    Paths,
    Run,
    Texts,
    output,
)

PREDICTIONS = (
    "logits or probabilities [sample, member, class], in a .safetensors or .npz file that may also "
    "hold features [sample, member, width], texts or tokens, ids and names"
)
"""Description of predictions files, for help texts."""
CASCADE = option(
    None,
    flags=("--cascade/--no-cascade",),
    help="Use the checkpoint's cascade, or run the full model for every row. Default: the cascade, if there is one.",
)
"""Option to use or ignore a cascade."""
TOP = option(5, ge=1, metavar="K", help="Number of most probable labels to list.")
"""Option for the number of labels of an answer."""


class ModelOrPredictions(ClassNames, BareOptions, Run):
    """A checkpoint and its data; or any model's predictions in their place."""

    conflicts: ClassVar = tuple(
        ("predictions", name) for name in ("checkpoint", "data", "arch", "classes", "limit")
    )

    checkpoint: PathLike | None = argument(
        reads=CHECKPOINTS, metavar="CKPT", help=CHECKPOINT, default=None
    )
    data: str | None
    predictions: PathLike | None = None

    def needed(self) -> tuple[PathLike, str]:
        """Return the checkpoint and the data, which are required without predictions."""
        hint = "Or give what any model answered, by --predictions F."
        if self.checkpoint is None:
            raise UsageError("CKPT is required", hint=hint)
        if self.data is not None:
            return self.checkpoint, self.data
        if getattr(self, "text", ()):
            return self.checkpoint, "--text"
        raise UsageError("--data is required", hint=hint)


class CalibrateOptions(Engines, ModelOrPredictions, Force):
    """Fit temperature, OOD score, prediction sets and abstention, and store them with the weights;
    or fit them to any model's predictions and store them in a file of their own.
    """

    writes_manifest: ClassVar[bool] = True
    requires: ClassVar = {
        "promise": ("risk",),
        "unlabelled": ("fit_data",),
        "fit_predictions": ("predictions",),
        "ood_predictions": ("predictions",),
    }
    conflicts: ClassVar = (
        ("engine", "cascade"),
        ("budget", "max_loss"),
        *(("cross", name) for name in ("risk", "certify", "fit_data", "unlabelled", "predictions")),
        *(
            ("predictions", name)
            for name in ("certify", "fit_data", "ood", "unlabelled", "cascade", "engine", "budget")
        ),
    )

    data: str | None = option(
        None,
        metavar="VAL",
        group=LABELLED,
        recorded=True,
        help="Validation rows: labelled data that the model was not trained on. A third of them fits, two thirds certify.",
    )
    certify: str | None = option(
        None,
        metavar="D",
        group=LABELLED,
        recorded=True,
        help="Labelled rows that were not used before and that only certify; then all rows of --data fit.",
    )
    cross: bool = option(
        False,
        recorded=True,
        help="For a probe that was trained on --data too: classifiers of five folds answer for its rows. The results are estimates, not promises.",
    )
    fit_data: str | None = option(
        None,
        metavar="TRAIN",
        group=LABELLED,
        recorded=True,
        help="Training rows, to which OOD scores and the bag-of-words model are fitted. Default: a part of --data.",
    )
    ood: Texts = option(
        (),
        metavar="D",
        group=UNLABELLED,
        recorded=True,
        help=(
            "OOD data, by which the OOD score is chosen, beside perturbed validation rows. "
            "Needs no labels; repeatable."
        ),
    )
    unlabelled: str | None = option(
        None,
        metavar="D",
        group=UNLABELLED,
        recorded=True,
        help="Unlabelled texts: the bag-of-words model learns the model's answers to them, if that helps.",
    )
    predictions: PathLike | None = option(
        None,
        metavar="F",
        group=READ,
        help=f"Instead of CKPT and --data: labels and any model's {PREDICTIONS}.",
    )
    fit_predictions: PathLike | None = option(
        None,
        metavar="F",
        group=READ,
        help="Instead of --fit-data: predictions with labels, and features, texts or tokens.",
    )
    ood_predictions: Paths = option(
        (),
        metavar="F",
        group=READ,
        help="Instead of --ood: predictions on OOD data, without labels; repeatable.",
    )
    ood_score: str = option(
        "auto",
        metavar="auto|NAME",
        recorded=True,
        help=(f"OOD score: {', '.join(SCORES)}; auto chooses the best."),
    )
    coverage: float = option(
        0.9,
        gt=0,
        lt=1,
        metavar="P",
        recorded=True,
        help="Fraction of prediction sets that contain the true label.",
    )
    id_flagged: float = option(
        0.05,
        gt=0,
        lt=1,
        metavar="P",
        recorded=True,
        help="Fraction of normal inputs that may be called unfamiliar.",
    )
    risk: float | None = option(
        None,
        gt=0,
        lt=1,
        metavar="R",
        recorded=True,
        help="Maximum fraction of wrong answers, with 95 % confidence. Less certain rows abstain.",
    )
    promise: Literal["wrong", "missed"] | None = option(
        None,
        metavar="wrong|missed",
        recorded=True,
        help="Entities: whether --risk limits wrong entities or missed ones. Default: wrong.",
    )
    words: Literal["auto", "off", "blend", "cascade"] = option(
        "auto",
        metavar="HOW",
        recorded=True,
        help="Texts: fit a bag-of-words model to --fit-data. blend: average it with the model; cascade: it answers confident rows, the model the rest; off: none; auto: keep what the file has, else blend if NLL falls.",
    )
    max_loss: float | None = option(
        None,
        gt=0,
        metavar="NATS",
        recorded=True,
        help="Maximum rise of NLL that --cascade or --words cascade may cost. Default: 0.01.",
    )
    budget: str | None = option(
        None,
        metavar="time=N|on=N",
        recorded=True,
        help="--words cascade: instead of --max-loss, maximum time per answer relative to the model in float32, or fraction of rows (on) that go on to the model.",
    )
    cascade: bool = option(
        False,
        recorded=True,
        help="Hydras: let the first member answer alone where it is confident.",
    )
    out: PathLike = output()

    def recorded(self) -> dict[str, Any]:
        """Return the recorded options, without the engine if it is torch."""
        recorded = super().recorded()
        if self.engine in ("auto", "torch"):
            del recorded["engine"]
        return recorded


class PredictOptions(Engines, ModelOrPredictions, Force):
    """Answer every sample with a label, prediction set, uncertainty and OOD score, or abstain."""

    requires: ClassVar = {
        "decision": ("predictions",),
        "predictions": ("decision",),
        "text_pair": ("text",),
    }
    conflicts: ClassVar = (
        ("text", "data"),
        *(
            ("predictions", name)
            for name in ("text", "id_column", "keep_columns", "shard", "cascade", "embeddings")
        ),
    )

    data: str | None = option(
        None,
        metavar="D",
        group=UNLABELLED,
        help="Data, with or without labels. - reads stdin: one text a line, or two separated by a tab.",
    )
    text: Texts = option(
        (), metavar="TEXT", group=READ, help="Answer this text, instead of --data; repeatable."
    )
    text_pair: Texts = option(
        (),
        metavar="TEXT",
        group=READ,
        help="Models of text pairs: the second text, one for each --text.",
    )
    decision: PathLike | None = option(
        None,
        metavar="F",
        group=READ,
        help="Instead of CKPT: the file that calibrate --predictions wrote.",
    )
    predictions: PathLike | None = option(
        None, metavar="G", group=READ, help=f"Instead of --data: any model's {PREDICTIONS}."
    )
    id_column: str | None = option(
        None,
        metavar="NAME",
        group=READ,
        help="Column with the ids of the rows. Default: `id`, if there is one.",
    )
    keep_columns: str | None = option(
        None, metavar="A,B", group=READ, help="Columns of the data to copy into the answers."
    )
    shard: str | None = option(
        None,
        metavar="I/N",
        group=READ,
        help="Answer only part I of N contiguous parts of the data.",
    )
    top: int = TOP
    cascade: bool | None = CASCADE
    embeddings: PathLike | None = option(
        None,
        metavar="F.npz",
        group=WRITTEN,
        help="Also write the embedding of each row: embeddings [row, width], and ids.",
    )
    each: Callable[[str], None] | None = None
    """Function that is called with each row, a line of JSON, if there is no `out`; without either,
    the rows are returned.
    """
    out: PathLike | None = option(
        None,
        flags=("-o", "--out"),
        metavar="F|DIR/",
        group=WRITTEN,
        help="A .jsonl, .csv or .parquet file, or a folder of .parquet files. Default: JSON lines on stdout.",
    )

    def printing(self, line: Callable[[str], None], *, json: bool) -> Self:
        if self.out is not None:
            return self
        if json:
            message = "--json requires -o: rows on stdout are JSON already."
            raise UsageError(message, hint="Give -o F too.")
        return self.but(each=line)


class ServeOptions(Engines, ClassNames, BareOptions):
    """Answer over HTTP, with the rows that `predict` writes.

    POST /v1/predict, GET /health, /ready, /metrics and /openapi.json, which lists the routes of
    other protocols too. Of several checkpoints the first answers requests that name none.

    There is no TLS, and no authentication but --token-env: use a proxy for these. SIGTERM stops
    the server after it has answered the requests that it accepted.
    """

    checkpoints: Paths = argument(
        reads=CHECKPOINTS,
        metavar="[NAME=]CKPT...",
        help=f"{CHECKPOINT} Several must read texts; requests name them.",
    )
    host: str = option(
        "127.0.0.1",
        metavar="H",
        group=RUNS,
        help="Address to listen on; 0.0.0.0 accepts connections from everywhere.",
    )
    port: int = option(
        8000,
        ge=0,
        le=65535,
        metavar="N",
        group=RUNS,
        help="Port to listen on; 0 takes any free one.",
    )
    cascade: bool | None = CASCADE
    top: int = TOP
    batch_size: Batch = option(
        None, ge=1, metavar="N|auto", group=RUNS, help="Maximum number of inputs in one pass."
    )
    workers: int = option(
        1,
        ge=1,
        le=256,
        metavar="N",
        group=RUNS,
        help="Number of processes, each with its own copy of the model. Limits hold for each process.",
    )
    wait: float = option(
        0.0,
        ge=0,
        le=10_000,
        metavar="MS",
        group=RUNS,
        help="Milliseconds to wait for more inputs that one pass can answer.",
    )
    max_body: int | None = option(
        None,
        ge=1,
        le=4096,
        metavar="MB",
        group=RUNS,
        help="Maximum size of a request in megabytes. Default: 1 for texts, 32 for images.",
    )
    token_env: str | None = option(
        None,
        metavar="NAME",
        group=RUNS,
        help="Environment variable that holds a bearer token which requests must carry, except /health.",
    )
    device: str = DEVICE
    dtype: Dtype = DTYPE
    answers: PathLike | None = option(
        None,
        metavar="F.jsonl",
        group=WRITTEN,
        help="Append every answer, without its input, to this file for `monitor`.",
    )
    say: Callable[[str], None] = lambda _: None
    """Function that is called with a line about each action."""


class MonitorOptions(Options):
    """Compare answers with those on the validation rows; exit with code 1 if they drifted.

    The tests compare the fraction of unfamiliar inputs, the predicted classes and, with --labels, the
    promised risk. A false alarm stays unlikely (--alpha) however often you run the command.
    """

    answers: Paths = argument(
        reads=UNLABELLED,
        metavar="ANSWERS...",
        help="Answers as `predict -o` (.jsonl, .csv, .parquet) or `serve --answers` wrote them, one file after another.",
    )
    against: PathLike = option(
        metavar="CKPT", group=CHECKPOINTS, help="Calibrated checkpoint that gave the answers."
    )
    alpha: float | None = option(
        None,
        ge=0.001,
        le=0.5,
        metavar="P",
        help=(
            "Maximum probability of a false alarm over all runs. Default: the state file's; 0.01 in a new one."
        ),
    )
    state: PathLike | None = option(
        None,
        metavar="F",
        group=WRITTEN,
        help="File that keeps the counts of earlier runs. Default: that of the first ANSWERS, with .state.json behind it.",
    )
    labels: PathLike | None = option(
        None,
        metavar="F",
        group=READ,
        help="True labels of some answers, to check the promised risk: columns `id` (or an answer's `key`) and `label`. A label that is no class makes any answer wrong.",
    )
