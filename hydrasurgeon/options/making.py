"""Options of the commands that make checkpoints: score, prune, finetune, fuse, build."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from hydrasurgeon.errors import UsageError
from hydrasurgeon.files.decided import LOGITS
from hydrasurgeon.options.base import (
    CHECKPOINTS,
    CRITERIA,
    LABELLED,
    READ,
    RECIPES,
    RUNS,
    UNLABELLED,
    WRITTEN,
    PathLike,
    argument,
    option,
)
from hydrasurgeon.options.column_roles import CROSS, DataSpec, Without
from hydrasurgeon.options.shared import (
    CHECKPOINT,
    OUT,
    BareOptions,
    CheckpointArgument,
    ClassNames,
    Commas,
    Force,
    Pairs,
    Paths,
    Run,
    Scoring,
    Specs,
    Texts,
    number_or_word,
    output,
)

if TYPE_CHECKING:
    Objective = str
else:
    Objective = Literal[("avg", "acc", "nll", "rmse", "ood", *LOGITS)]
"""Objectives by which members are chosen: avg is the mean of accuracy, e^-NLL and the OOD AUROC; or
an OOD score.
"""

Tracker = Literal[
    "tensorboard",
    "wandb",
    "mlflow",
    "trackio",
    "comet_ml",
    "aim",
    "clearml",
    "dvclive",
    "swanlab",
]
"""Trackers to which accelerate can write curves."""


THIRD = 33
"""Percent of VAL that choose, where the rest certifies."""
AMOUNTS = ("keep", "remove", "sample", "mask")
"""Options that determine how many heads, or which, are left."""


class ScoreOptions(CheckpointArgument, Scoring, ClassNames, BareOptions, Run, Force):
    """Measure how much each head matters, and write it into the manifest.

    With --keep, taylor works layer by layer: the heads that a layer loses are switched off before
    the next layer is scored. circuit finds an order in which heads can be removed; repeat the
    command to continue an interrupted search.
    """

    writes_manifest: ClassVar[bool] = True

    method: str = option(
        "taylor",
        metavar="M",
        reads=CRITERIA,
        recorded=True,
        help="Criterion. Weights and gradients: taylor, gradient, headmap. Weights alone: magnitude. Trained gates: gates. Attention maps: cahp. Removal one by one: circuit. Or random.",
    )
    part: Literal["heads", "neurons"] = option(
        "heads",
        recorded=True,
        help="Score heads, or (taylor, magnitude, random) the neurons of the MLPs.",
    )
    remove: int | None = option(
        None,
        metavar="N",
        recorded=True,
        help="circuit: length of the removal order. Default: all heads but one.",
    )
    out: PathLike | None = output(
        None, help="Write a copy with the scores. Default: write them into the checkpoint."
    )

    def recorded(self) -> dict[str, Any]:
        """Return the recorded options; heads are the default part and are not named."""
        kept = super().recorded()
        if self.part == "heads":
            del kept["part"]
        return kept


class PruneOptions(CheckpointArgument, Scoring, ClassNames, BareOptions, Run, Force):
    """Remove the least important heads or neurons of a checkpoint; the result is a member.

    The default name of the member says what was done: vit-taylor-k8.safetensors.
    """

    writes_manifest: ClassVar[bool] = True
    requires: ClassVar = {
        **dict.fromkeys(("keep", "remove", "sample"), ("method",)),
        "keep_tokens": ("vocabulary",),
    }
    conflicts: ClassVar = (
        *combinations(AMOUNTS, 2),
        *(("even", name) for name in ("remove", "sample", "mask")),
        ("mask", "layers"),
    )

    method: str | None = option(
        None,
        metavar="M",
        reads=CRITERIA,
        recorded=True,
        help="Criterion, as in score. Its scores come from the manifest, or are computed on --data.",
    )
    sample: str | None = option(
        None,
        metavar="N/P",
        recorded=True,
        help="Take the P least important heads and remove N of them, chosen at random by --seed.",
    )
    mask: PathLike | None = option(
        None,
        metavar="FILE",
        group=READ,
        recorded=True,
        help="Keep the heads that this manifest or JSON mask lists.",
    )
    neurons: float | None = option(
        None,
        gt=0,
        le=1,
        metavar="SHARE",
        recorded=True,
        help="Fraction of neurons to keep in each MLP: 0.5 keeps half.",
    )
    even: bool = option(
        False,
        recorded=True,
        help="Keep the same number of heads, or neurons, in every layer, so that the model's own library can load the result.",
    )
    vocabulary: Specs = option(
        (),
        metavar="D,D",
        group=UNLABELLED,
        recorded=True,
        help="Text models: remove tokens that these texts do not use from the embedding and the tokenizer.",
    )
    keep_tokens: Annotated[
        Annotated[int, Field(ge=1)] | Literal["all-seen"], BeforeValidator(number_or_word)
    ] = option(
        "all-seen",
        metavar="N|all-seen",
        recorded=True,
        help="--vocabulary: number of most frequent tokens to keep, or all tokens of the texts.",
    )
    compensate: Literal["none", "lstsq"] | None = option(
        None,
        metavar="none|lstsq",
        recorded=True,
        unset="lstsq where --data is given",
        help="Repair of the remaining heads. lstsq: refit the output projections on --data by least squares, without training.",
    )
    out: PathLike | None = output(None)

    @property
    def cuts(self) -> bool:
        """True if heads or neurons are removed."""
        return any(getattr(self, name) is not None for name in (*AMOUNTS, "neurons"))

    @property
    def repairs(self) -> bool:
        """True if the member is refitted on data."""
        if self.compensate == "lstsq" and self.data is None:
            raise UsageError("--compensate lstsq requires --data.")
        return self.data is not None and self.compensate != "none"

    def recorded(self) -> dict[str, Any]:
        """Return the recorded options: all that differ from the defaults, so that the command can
        be repeated.
        """
        dtype = None if self.dtype == "float32" else self.dtype
        mask = None if self.mask is None else Path(self.mask)
        kept = super().recorded() | {
            "dtype": dtype,
            "mask": mask,
        }
        if not self.vocabulary:
            del kept["keep_tokens"]
        return kept


class FinetuneOptions(CheckpointArgument, Without, ClassNames, BareOptions, Run, Force):
    """Fine-tune a member before it is fused, or any model; or fit only a classifier (`--recipe probe`).

    CKPT may be init:timm:NAME,key=value… to start from random weights.
    """

    writes_manifest: ClassVar[bool] = True
    requires: ClassVar = {"unlabelled": ("teacher",), "without": ("data",)}

    data: str | None = option(
        None,
        metavar="D",
        group=LABELLED,
        recorded=True,
        help="Training rows, with labels or with --teacher.",
    )
    val: str | None = option(
        None,
        metavar="D",
        group=LABELLED,
        recorded=True,
        help="Validation rows: each epoch is measured on them, and the best epoch is written. With --recipe probe also cross: five folds of --data.",
    )
    teacher: Paths = option(
        (),
        metavar="T",
        group=CHECKPOINTS,
        spread=True,
        recorded=True,
        help=("Also learn from the mean of these checkpoints or predictions files; repeatable."),
    )
    alpha: float = option(
        0.9,
        ge=0,
        le=1,
        metavar="X",
        recorded=True,
        help="Weight of the teachers; labels have weight 1 − alpha.",
    )
    temperature: float = option(
        1.0,
        flags=("--teacher-temperature",),
        gt=0,
        metavar="T",
        recorded=True,
        help="--teacher: distillation temperature.",
    )
    unlabelled: str | None = option(
        None,
        metavar="D",
        group=UNLABELLED,
        recorded=True,
        help="--teacher: unlabelled data, with or without --data, which the teachers label.",
    )
    recipe: PathLike | None = option(
        None,
        metavar="NAME|FILE",
        reads=RECIPES,
        unset="image or text, by the data",
        recorded=True,
        help="Training recipe: text or image (tune all weights), probe (fit a classifier only), teach (learn from --teacher), demo (a few seconds), or a .toml file.",
    )
    set: Pairs = option(
        None,
        metavar="KEY=VALUE",
        recorded=True,
        help="Override a field of the recipe; repeatable. lr=A,B,C tries each and keeps the best.",
    )
    freeze: Commas = option(
        None,
        repeatable=True,
        metavar="PART",
        recorded=True,
        help="Parts that are not trained: embeddings, norms, mlp, attention, readout (norm and pooling behind the layers), classifier. "
        "With frozen MLPs fusing is exact.",
    )
    select: Literal["nll", "accuracy"] | None = option(
        None,
        metavar="nll|accuracy",
        recorded=True,
        unset="nll",
        help="Metric on --val that chooses the epoch and the learning rate: calibrated NLL or accuracy.",
    )
    patience: int | None = option(
        None,
        ge=0,
        metavar="N",
        recorded=True,
        unset="the recipe's",
        help="Stop after N epochs without improvement on --val; 0 never stops.",
    )
    batch_size: int | None = option(
        None,
        ge=1,
        metavar="N",
        group=RUNS,
        recorded=True,
        help="Samples in one step. Default: the recipe's.",
    )
    track: Tracker | None = option(
        None,
        metavar="NAME",
        group=WRITTEN,
        help="Log training curves to tensorboard, wandb, mlflow, trackio, …",
    )
    save_every: int | None = option(
        None,
        metavar="N",
        group=RUNS,
        help="Save a resumable state every N steps. Default: after each epoch.",
    )
    resume: bool = option(
        False, group=RUNS, help="Continue an interrupted run of the same command."
    )
    out: PathLike = output()

    @property
    def training(self) -> str:
        """Spec of the training samples: --data, or --unlabelled alone."""
        if self.data is None and self.unlabelled is None:
            raise UsageError(
                "finetune requires --data.", hint="Or give --unlabelled D with --teacher T."
            )
        return str(self.data or self.unlabelled)

    def recorded(self) -> dict[str, Any]:
        """Return the recorded options; those of teachers only if there are teachers."""
        without = () if self.teacher else ("teacher", "alpha", "temperature")
        return {key: value for key, value in super().recorded().items() if key not in without}


class FuseOptions(ClassNames, BareOptions, Run, Force):
    """Fuse members into one hydra that runs all of them in a single pass, or into one ordinary
    model: their mean.
    """

    writes_manifest: ClassVar[bool] = True
    requires: ClassVar = {"limit": ("check",)}
    conflicts: ClassVar = [("mean", "mlp"), ("mean", "norms"), ("mean", "mean_trunk")]

    members: Paths = argument(
        reads=CHECKPOINTS, metavar="M1 M2 ...", help="Two or more members of one architecture."
    )
    mlp: Literal["average", "separate"] | None = option(
        None,
        metavar="average|separate",
        recorded=True,
        unset="average; separate with --mean-trunk",
        help="MLPs of the hydra. average: one set; smaller, but answers change. separate: one for each member; answers stay exact.",
    )
    norms: Literal["separate", "average"] | None = option(
        None,
        metavar="separate|average",
        recorded=True,
        unset="separate",
        help="Norms of the hydra. separate: exact. average: one set, as in the paper.",
    )
    mean: bool = option(
        False,
        recorded=True,
        help=(
            "Write one ordinary model with the mean weights of members that were tuned from one backbone."
        ),
    )
    mean_trunk: int | None = option(
        None,
        ge=1,
        metavar="N",
        recorded=True,
        help=(
            "Average the embeddings and first N layers of all members, so that they are stored and computed "
            "once. For members that were tuned from one backbone."
        ),
    )
    check: str | None = option(
        None,
        metavar="D",
        group=LABELLED,
        help="Data on which the answers are compared with the members'.",
    )
    tolerance: float = option(
        0.02,
        ge=0,
        metavar="X",
        help="--check: maximum mean difference of a class probability.",
    )
    out: PathLike = output()

    @property
    def mlps(self) -> Literal["average", "separate"]:
        """Treatment of MLPs that differ between members."""
        return self.mlp or ("average" if self.mean_trunk is None else "separate")

    def recorded(self) -> dict[str, Any]:
        """Return the recorded options; without that of MLPs if the mean is written."""
        kept = super().recorded()
        if not self.mean:
            kept = {"mlp": self.mlps, **kept}
        without = ("limit", "dtype")
        return {name: value for name, value in kept.items() if name not in without}


class BuildOptions(Without, ClassNames, BareOptions, Run, Force):
    """Make the best classifier within a budget: the checkpoint itself, a smaller one, the mean of
    several, or a hydra.

    Several checkpoints must be fine-tunings of one architecture. The quickest candidates are tried
    and written first. Repeat the command to continue an interrupted build.
    """

    writes_manifest: ClassVar[bool] = True

    checkpoints: Paths = argument(
        reads=CHECKPOINTS,
        metavar="CKPT...",
        help=f"{CHECKPOINT} One, or several of one architecture.",
    )
    data: str = option(
        metavar="TRAIN",
        group=LABELLED,
        help="Training rows, to score heads, and to repair and tune members.",
    )
    val: str | None = option(
        None,
        metavar="VAL|0.2|cross",
        group=LABELLED,
        unset="by the number of rows",
        help="Validation rows, which choose the model and calibrate it. 0.2: hold this fraction of --data out. cross: five folds of --data.",
    )
    ood: Texts = option(
        (),
        metavar="D",
        group=UNLABELLED,
        help="OOD data that the choice considers too: at least 20 samples, no labels; repeatable.",
    )
    budget: str = option(
        "macs=1",
        metavar="UNIT=N[,N]",
        help="Maximum cost relative to CKPT, in multiply-adds (macs), parameters (params) or measured time. A list writes a model for each.",
    )
    objective: Objective | None = option(
        None,
        metavar="NAME",
        help="Metric to optimise: acc, nll, ood (AUROC), avg (mean of acc, e^−NLL and ood) or an OOD score; rmse for regression. Default: avg with --ood, else nll.",
    )
    risk: float | None = option(
        None,
        gt=0,
        lt=1,
        metavar="R",
        help="Maximum fraction of wrong answers, with 95 % confidence; less certain rows abstain. Two thirds of the validation rows then only certify.",
    )
    coverage: float | None = option(
        None,
        gt=0,
        lt=1,
        metavar="P",
        unset="0.9",
        help="Fraction of prediction sets that contain the true label. If given, two thirds of the validation rows only certify.",
    )
    seeds: int | None = option(
        None,
        ge=1,
        le=16,
        metavar="N",
        unset="3",
        help="CKPT without a classifier: number of models to tune, each with its own order of the data.",
    )
    cache: PathLike | None = option(
        None,
        metavar="DIR",
        group=WRITTEN,
        help="Folder for intermediate models and results. Default: NAME.build beside -o.",
    )
    max_minutes: float = option(
        10.0,
        gt=0,
        le=1e6,
        metavar="M",
        group=RUNS,
        help="Search for M minutes; the step that runs then is finished. Each budget gets a model even so; the same command continues later.",
    )
    dry_run: bool = option(
        False,
        group=RUNS,
        help="Print the stages with their commands and estimated times, and stop.",
    )
    out: PathLike = output(help=f"{OUT} For several budgets: a folder of models.")

    @property
    def paths(self) -> list[Path]:
        """Checkpoints, with files as paths."""
        return [Path(checkpoint) for checkpoint in self.checkpoints]

    @property
    def goal(self) -> str:
        """Name of the objective."""
        return self.objective or ("avg" if self.ood else "nll")

    @property
    def sees_ood(self) -> bool:
        """True if OOD data take part in the choice."""
        return self.goal not in ("acc", "nll", "rmse")

    @property
    def crossed(self) -> bool:
        """True if models of folds of --data take the place of validation data."""
        return self.val == CROSS

    @property
    def choosing(self) -> str:
        """Rows of VAL that choose: all of them, or a third if the others certify."""
        assert self.val is not None
        return self.val if self.certifying is None else str(DataSpec.parse(self.val).part(0, THIRD))

    @property
    def certifying(self) -> str | None:
        """Rows of VAL that certify a promise and choose nothing; None without a promise."""
        if self.risk is None and self.coverage is None:
            return None
        return str(DataSpec.parse(self.val or self.data).part(THIRD, 100))

    @property
    def work(self) -> Path:
        """Folder of intermediate files and measurements."""
        if self.cache is not None:
            return Path(self.cache)
        out = Path(self.out)
        return out.with_name(f"{out.name.removesuffix('.safetensors')}.build")

    @property
    def names(self) -> dict[str, Any]:
        """Class names, in the form of other commands' options."""
        return {"classes": self.classes, "template": list(self.template)}

    @property
    def running(self) -> dict[str, Any]:
        """Options of running models that other commands must get."""
        dtype = None if self.dtype == "float32" else self.dtype
        return {"dtype": dtype, "batch_size": self.batch_size, "skip_bad": self.skip_bad}
