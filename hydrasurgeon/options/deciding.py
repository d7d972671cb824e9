"""The commands that make a checkpoint decide, and let it: calibrate, predict, serve, monitor."""

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
    "logits or probabilities [sample, member, class], perhaps features [sample, member, width], "
    "texts or tokens, ids and names, as .safetensors or .npz"
)
"""Help of predictions files."""
CASCADE = option(
    None,
    flags=("--cascade/--no-cascade",),
    help="By the checkpoint's cascade, or whole; else by its cascade where it has one.",
)
"""Whether a cascade answers."""
TOP = option(5, ge=1, metavar="K", help="Most probable labels to list.")
"""How many labels an answer lists."""


class ModelOrPredictions(ClassNames, Bare, Run):
    """A checkpoint and its data; or, in their place, what any model answered."""

    conflicts: ClassVar = tuple(
        ("predictions", name) for name in ("checkpoint", "data", "arch", "classes", "limit")
    )

    checkpoint: PathLike | None = argument(
        reads=CHECKPOINTS, metavar="CKPT", help=CHECKPOINT, default=None
    )
    data: str | None
    predictions: PathLike | None = None

    def needed(self) -> tuple[PathLike, str]:
        """The checkpoint and the data, where there are no predictions."""
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
    or, of any model's predictions, in a file of their own.
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
        help="Labelled data the model was not trained on: a third fits, the other two thirds certify.",
    )
    certify: str | None = option(
        None,
        metavar="D",
        group=LABELLED,
        recorded=True,
        help="Labelled data that only certifies, such as rows that chose nothing; all of --data then fits.",
    )
    cross: bool = option(
        False,
        recorded=True,
        help="--data fitted CKPT's probe, too: classifiers of five folds answer for it. What they give are estimates, no promises.",
    )
    fit_data: str | None = option(
        None,
        metavar="TRAIN",
        group=LABELLED,
        recorded=True,
        help="Labelled data for the class statistics of OOD scores; else a part of --data.",
    )
    ood: Texts = option(
        (),
        metavar="D",
        group=UNLABELLED,
        recorded=True,
        help=(
            "OOD data to choose the OOD score by, beside perturbed --data; "
            "repeatable, needs no labels."
        ),
    )
    unlabelled: str | None = option(
        None,
        metavar="D",
        group=UNLABELLED,
        recorded=True,
        help="Texts from which the reader of words learns what the model answers, where that helps.",
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
        help=(f"{', '.join(SCORES)}; or the best."),
    )
    coverage: float = option(
        0.9,
        gt=0,
        lt=1,
        metavar="P",
        recorded=True,
        help="How often a prediction set holds the true label.",
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
        help="Abstain so that, in 95 of 100 calibrations, at most this fraction of the answers is wrong.",
    )
    promise: Literal["wrong", "missed"] | None = option(
        None,
        metavar="wrong|missed",
        recorded=True,
        help="Entities: what --risk is a fraction of, answers that are wrong (if not given) or true "
        "entities that are missed.",
    )
    words: Literal["auto", "off", "beside", "first"] = option(
        "auto",
        metavar="auto|off|beside|first",
        recorded=True,
        help="Fit a linear reader of words to --fit-data: it answers beside the model, or first and the model what it is unsure of; auto: as the file has it, else beside, where texts gain by it.",
    )
    max_loss: float | None = option(
        None,
        gt=0,
        metavar="NATS",
        recorded=True,
        help="By how much the NLL may rise where a first reader answers alone; 0.01 if not given.",
    )
    budget: str | None = option(
        None,
        metavar="time=N|on=N",
        recorded=True,
        help="With --words first, instead of --max-loss: the time of one answer, times the model's own in float32; or the fraction that goes on.",
    )
    cascade: bool = option(
        False,
        recorded=True,
        help="Let a hydra's first member answer alone where it is sure.",
    )
    out: PathLike = output()

    def recorded(self) -> dict[str, Any]:
        """Without the engine where it is torch."""
        recorded = super().recorded()
        if self.engine in ("auto", "torch"):
            del recorded["engine"]
        return recorded


class PredictOptions(Engines, ModelOrPredictions, Force):
    """Answer for every sample: label, prediction set, uncertainty, OOD score, or that the model
    abstains.
    """

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
        help="Data, labelled or not; - is stdin, a text in each line, or two with a tab between.",
    )
    text: Texts = option(
        (), metavar="TEXT", group=READ, help="Instead of D: a text to answer for; repeatable."
    )
    text_pair: Texts = option(
        (),
        metavar="TEXT",
        group=READ,
        help="The second text, of a model that reads pairs; one for each --text.",
    )
    decision: PathLike | None = option(
        None, metavar="F", group=READ, help="Instead of CKPT: what calibrate --predictions wrote."
    )
    predictions: PathLike | None = option(
        None, metavar="G", group=READ, help=f"Instead of D: any model's {PREDICTIONS}."
    )
    id_column: str | None = option(
        None,
        metavar="NAME",
        group=READ,
        help="Column that names the rows; `id` where there is one.",
    )
    keep_columns: str | None = option(
        None, metavar="A,B", group=READ, help="Columns of the data to carry over into the answers."
    )
    shard: str | None = option(
        None, metavar="I/N", group=READ, help="Only the Ith of N contiguous parts."
    )
    top: int = TOP
    cascade: bool | None = CASCADE
    embeddings: PathLike | None = option(
        None,
        metavar="F.npz",
        group=WRITTEN,
        help="Write what the classifier reads of each row too: embeddings [row, width], and ids.",
    )
    each: Callable[[str], None] | None = None
    """Called with each row, a line of JSON, where there is no `out`; without both, the rows are
    returned.
    """
    out: PathLike | None = option(
        None,
        flags=("-o", "--out"),
        metavar="F|DIR/",
        group=WRITTEN,
        help="A .jsonl, .csv or .parquet file, or a folder of .parquet; else lines on stdout.",
    )

    def printing(self, line: Callable[[str], None], *, json: bool) -> Self:
        if self.out is not None:
            return self
        if json:
            what = "--json requires -o: rows on stdout are JSON already."
            raise UsageError(what, hint="Give -o F too.")
        return self.but(each=line)


class ServeOptions(Engines, ClassNames, Bare):
    """Answer over HTTP, as `predict` does: POST /v1/predict, GET /health, /ready, /metrics and
    /openapi.json; also in Open Inference Protocol v2 (/v2) and, of texts, as System One
    (/v1/systemone) does. Several checkpoints answer System One, the first all else.

    It has no TLS, and no authentication but --token-env: put it behind what your site uses for
    that. SIGTERM stops it when what was taken is answered.
    """

    checkpoints: Paths = argument(
        reads=CHECKPOINTS,
        metavar="[NAME=]CKPT...",
        help=f"{CHECKPOINT} Several must read texts; questions name them.",
    )
    host: str = option(
        "127.0.0.1", metavar="H", group=RUNS, help="Address to listen at; 0.0.0.0 is every one."
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
        None, ge=1, metavar="N|auto", group=RUNS, help="Inputs in one pass, at most."
    )
    workers: int = option(
        1,
        ge=1,
        le=256,
        metavar="N",
        group=RUNS,
        help="Processes that answer, each with the model; bounds hold for each.",
    )
    wait: float = option(
        0.0,
        ge=0,
        le=10_000,
        metavar="MS",
        group=RUNS,
        help="How long a pass waits for more inputs; they gather while another runs.",
    )
    max_body: int | None = option(
        None,
        ge=1,
        le=4096,
        metavar="MB",
        group=RUNS,
        help="Megabytes of a request, at most; 1 for texts and 32 for pictures if not given.",
    )
    token_env: str | None = option(
        None,
        metavar="NAME",
        group=RUNS,
        help="Environment variable with a token that requests must bear; health needs none.",
    )
    device: str = DEVICE
    dtype: Dtype = DTYPE
    answers: PathLike | None = option(
        None,
        metavar="F.jsonl",
        group=WRITTEN,
        help="Append every answer, without its input, for `monitor`.",
    )
    say: Callable[[str], None] = lambda _: None
    """Called with a line about what it does."""


class MonitorOptions(Options):
    """Compare answers with what calibration promised and saw; exit 1 when they drifted.

    One test is of how many inputs look unfamiliar, one of the classes that are predicted, and with
    labels one of the promised risk. They hold for all looks together, however many there are.
    """

    answers: PathLike = argument(
        reads=UNLABELLED,
        metavar="ANSWERS",
        help="Answers as `predict -o` (.jsonl, .csv, .parquet) or `serve --answers` wrote them.",
    )
    against: PathLike = option(
        metavar="CKPT", group=CHECKPOINTS, help="The calibrated checkpoint that gave the answers."
    )
    alpha: float | None = option(
        None,
        ge=0.001,
        le=0.5,
        metavar="P",
        help=(
            "Probability of ever raising a false alarm, at most: the state's, and 0.01 in a new one."
        ),
    )
    state: PathLike | None = option(
        None,
        metavar="F",
        group=WRITTEN,
        help="What earlier looks counted is kept here; ANSWERS.state.json if not given.",
    )
    labels: PathLike | None = option(
        None,
        metavar="F",
        group=READ,
        help="What was true of some answers, by `id` and `label`: is the promised risk kept?",
    )
