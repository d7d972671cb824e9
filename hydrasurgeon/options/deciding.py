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
    Bare,
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
    "logits or probabilities [sample, member, class], optionally features [sample, member, width], "
    "texts or tokens, ids and names, as .safetensors or .npz"
)
"""Description of predictions files, for help texts."""
CASCADE = option(
    None,
    flags=("--cascade/--no-cascade",),
    unset="with it, if there is one",
    help="Answer with the checkpoint's cascade, or without it.",
)
"""Option to use or ignore a cascade."""
TOP = option(5, ge=1, metavar="K", help="Number of most probable labels to list.")
"""Option for the number of labels of an answer."""


class ModelOrPredictions(ClassNames, Bare, Run):
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
    or, for any model's predictions, in a separate file.
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
        help="Labelled data that the model was not trained on: one third fits, two thirds certify.",
    )
    certify: str | None = option(
        None,
        metavar="D",
        group=LABELLED,
        recorded=True,
        help="Labelled data that only certifies, such as rows that chose nothing; all of VAL then fits.",
    )
    fit_data: str | None = option(
        None,
        metavar="TRAIN",
        group=LABELLED,
        recorded=True,
        unset="a part of VAL",
        help="Labelled data for the class statistics of OOD scores.",
    )
    ood: Texts = option(
        (),
        metavar="D",
        group=UNLABELLED,
        recorded=True,
        help="OOD data for choosing the OOD score, beside perturbed VAL; repeatable, needs no labels.",
    )
    unlabelled: str | None = option(
        None,
        metavar="D",
        group=UNLABELLED,
        recorded=True,
        help="Unlabelled texts: the reader of words also learns the model's answers to them, if that helps.",
    )
    predictions: PathLike | None = option(
        None,
        metavar="F",
        group=READ,
        help=f"Instead of CKPT and VAL: any model's {PREDICTIONS}, with labels.",
    )
    fit_predictions: PathLike | None = option(
        None,
        metavar="F",
        group=READ,
        help="Instead of TRAIN: predictions with labels, and features, texts or tokens.",
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
        help=f"OOD score: {', '.join(SCORES)}; auto is the best.",
    )
    coverage: float = option(
        0.9,
        gt=0,
        lt=1,
        metavar="P",
        recorded=True,
        help="Probability that a prediction set holds the true label.",
    )
    id_flagged: float = option(
        0.05,
        gt=0,
        lt=1,
        metavar="P",
        recorded=True,
        help="Target false-positive rate on in-distribution data.",
    )
    risk: float | None = option(
        None,
        gt=0,
        lt=1,
        metavar="R",
        recorded=True,
        help="Maximum fraction of wrong answers, kept in 95 of 100 calibrations; less certain rows abstain.",
    )
    promise: Literal["wrong", "missed"] | None = option(
        None,
        metavar="wrong|missed",
        recorded=True,
        unset="wrong",
        help="Entities: meaning of --risk, the fraction of answers that are wrong or of true entities that are missed.",
    )
    words: Literal["auto", "off", "beside", "first"] = option(
        "auto",
        metavar="auto|off|beside|first",
        recorded=True,
        help="Fit a linear reader of words to --fit-data. beside: it answers together with the model; first: alone where it is sure, and the model the rest; auto: as the file has it, else beside if texts gain by it.",
    )
    max_loss: float | None = option(
        None,
        gt=0,
        metavar="NATS",
        recorded=True,
        unset="0.01",
        help="Maximum increase of the NLL where a first reader answers alone.",
    )
    budget: str | None = option(
        None,
        metavar="time=N|on=N",
        recorded=True,
        help="With --words first, instead of --max-loss: maximum time of an answer relative to the model in float32, or maximum fraction that goes on to the model.",
    )
    cascade: bool = option(
        False,
        recorded=True,
        help="Let a hydra's first member answer alone where it is sure.",
    )
    out: PathLike = output()

    def recorded(self) -> dict[str, Any]:
        """Return the recorded options, without the engine if it is torch."""
        recorded = super().recorded()
        if self.engine in ("auto", "torch"):
            del recorded["engine"]
        return recorded


class PredictOptions(Engines, ModelOrPredictions, Force):
    """Answer every sample: label, prediction set, uncertainty and OOD score, or an abstention."""

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
        help="Data, labelled or not; - reads stdin, one text per line, or two separated by a tab.",
    )
    text: Texts = option(
        (), metavar="TEXT", group=READ, help="Text to answer for, instead of D; repeatable."
    )
    text_pair: Texts = option(
        (),
        metavar="TEXT",
        group=READ,
        help="Second text for a model that reads pairs; one for each --text.",
    )
    decision: PathLike | None = option(
        None,
        metavar="F",
        group=READ,
        help="Decision file of calibrate --predictions, instead of CKPT.",
    )
    predictions: PathLike | None = option(
        None, metavar="G", group=READ, help=f"Instead of D: any model's {PREDICTIONS}."
    )
    id_column: str | None = option(
        None,
        metavar="NAME",
        group=READ,
        unset="id, if there is one",
        help="Column that names the rows.",
    )
    keep_columns: str | None = option(
        None, metavar="A,B", group=READ, help="Columns of the data to copy into the answers."
    )
    shard: str | None = option(
        None, metavar="I/N", group=READ, help="Answer only the Ith of N contiguous parts."
    )
    top: int = TOP
    cascade: bool | None = CASCADE
    embeddings: PathLike | None = option(
        None,
        metavar="F.npz",
        group=WRITTEN,
        help="Also write the classifier's input for each row: embeddings [row, width], and ids.",
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
        unset="lines on stdout",
        help="A .jsonl, .csv or .parquet file, or a folder of .parquet.",
    )

    def printing(self, line: Callable[[str], None], *, json: bool) -> Self:
        if self.out is not None:
            return self
        if json:
            message = "--json requires -o: rows on stdout are JSON already."
            raise UsageError(message, hint="Give -o F too.")
        return self.but(each=line)


class ServeOptions(Engines, ClassNames, Bare):
    """Answer over HTTP like `predict`: POST /v1/predict, GET /health, /ready, /metrics and
    /openapi.json; also by the Open Inference Protocol v2 (/v2) and, for texts, by System One
    (/v1/systemone). System One uses all checkpoints, everything else the first.

    There is no TLS, and no authentication but --token-env: put the server behind a proxy that has
    them. SIGTERM stops it once all accepted requests are answered.
    """

    checkpoints: Paths = argument(
        reads=CHECKPOINTS,
        metavar="[NAME=]CKPT...",
        help=f"{CHECKPOINT} Several must read texts; questions name them.",
    )
    host: str = option(
        "127.0.0.1",
        metavar="H",
        group=RUNS,
        help="Address to listen at; 0.0.0.0 means all addresses.",
    )
    port: int = option(
        8000,
        ge=0,
        le=65535,
        metavar="N",
        group=RUNS,
        help="Port to listen at; 0 takes any free one.",
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
        help="Number of processes that answer, each with its own copy of the model and its own limits.",
    )
    wait: float = option(
        0.0,
        ge=0,
        le=10_000,
        metavar="MS",
        group=RUNS,
        help="Time that a pass waits for more inputs; they also gather while another pass runs.",
    )
    max_body: int | None = option(
        None,
        ge=1,
        le=4096,
        metavar="MB",
        group=RUNS,
        unset="1 for texts, 32 for pictures",
        help="Maximum size of a request in megabytes.",
    )
    token_env: str | None = option(
        None,
        metavar="NAME",
        group=RUNS,
        help="Environment variable with the token that requests must carry; health needs none.",
    )
    device: str = DEVICE
    dtype: Dtype = DTYPE
    answers: PathLike | None = option(
        None,
        metavar="F.jsonl",
        group=WRITTEN,
        help="Append every answer to this file, without its input, for `monitor`.",
    )
    say: Callable[[str], None] = lambda _: None
    """Function that is called with a line about each action."""


class MonitorOptions(Options):
    """Compare answers with the data and the promises of calibration; exit 1 if they drifted.

    The tests compare the fraction of unfamiliar inputs, the predicted classes and, with labels, the
    promised risk. Their error probability holds for all looks together, however many there are.
    """

    answers: PathLike = argument(
        reads=UNLABELLED,
        metavar="ANSWERS",
        help="Answers as `predict -o` (.jsonl, .csv, .parquet) or `serve --answers` wrote them.",
    )
    against: PathLike = option(
        metavar="CKPT", group=CHECKPOINTS, help="Calibrated checkpoint that gave the answers."
    )
    alpha: float | None = option(
        None,
        ge=0.001,
        le=0.5,
        metavar="P",
        unset="the state's, 0.01 in a new one",
        help="Maximum probability of ever raising a false alarm.",
    )
    state: PathLike | None = option(
        None,
        metavar="F",
        group=WRITTEN,
        unset="ANSWERS.state.json",
        help="File that keeps the counts of earlier looks.",
    )
    labels: PathLike | None = option(
        None,
        metavar="F",
        group=READ,
        help="True labels of some answers, by `id` and `label`, to test the promised risk.",
    )
