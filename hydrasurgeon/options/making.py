"""The commands that make checkpoints: score, prune, finetune, fuse, build."""

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
from hydrasurgeon.options.columns import CROSS, DataSpec
from hydrasurgeon.options.shared import (
    CHECKPOINT,
    OUT,
    Bare,
    Checkpoint,
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
"""What members can be chosen for: avg is the mean of accuracy and the AUROC of msp, ood the latter;
or an OOD score.
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
"""Where accelerate can write curves to."""


THIRD = 33
"""Percent of VAL that choose where the rest certifies."""
AMOUNTS = ("keep", "remove", "sample", "mask")
"""What says how many heads are left, or which."""


class ScoreOptions(Checkpoint, Scoring, ClassNames, Bare, Run, Force):
    """Measure how much each head matters, and write it into the manifest.

    With --keep, taylor decides layer after layer: what a layer loses is off before the next is
    scored. circuit finds the order in which heads can go; a killed search continues when the
    command is repeated.
    """

    writes_manifest: ClassVar[bool] = True

    method: str = option(
        "taylor",
        metavar="M",
        reads=CRITERIA,
        recorded=True,
        help="taylor, headmap, gradient, gates, magnitude, random, cahp or circuit.",
    )
    part: Literal["heads", "neurons"] = option(
        "heads",
        recorded=True,
        help="What is scored: heads, or the neurons of the MLPs by taylor or magnitude.",
    )
    remove: int | None = option(
        None,
        metavar="N",
        recorded=True,
        help="Heads a circuit's removal order holds; all but one if not given.",
    )
    out: PathLike | None = output(
        None, help="A copy that carries the scores; else the checkpoint itself gets them."
    )

    def recorded(self) -> dict[str, Any]:
        """What history keeps: neurons are named, heads are the rule."""
        kept = super().recorded()
        if self.part == "heads":
            del kept["part"]
        return kept


class PruneOptions(Checkpoint, Scoring, ClassNames, Bare, Run, Force):
    """Remove the least important heads, or neurons, of a checkpoint, which makes a member.

    Without -o the member is named after what was done, beside the input: vit-taylor-k8.safetensors.
    """

    writes_manifest: ClassVar[bool] = True
    requires: ClassVar = {
        **dict.fromkeys(("keep", "remove", "sample"), ("method",)),
        "keep_tokens": ("vocabulary",),
    }
    conflicts: ClassVar = (
        *combinations(AMOUNTS, 2),
        *(("even", name) for name in ("remove", "sample", "mask")),
    )

    method: str | None = option(
        None,
        metavar="M",
        reads=CRITERIA,
        recorded=True,
        help="Criterion; its scores come from the manifest or from --data.",
    )
    sample: str | None = option(
        None,
        metavar="N/P",
        recorded=True,
        help="Remove N of the first P heads in removal order, drawn by --seed.",
    )
    mask: PathLike | None = option(
        None,
        metavar="FILE",
        group=READ,
        recorded=True,
        help="Keep the heads of this manifest or JSON mask.",
    )
    neurons: float | None = option(
        None,
        gt=0,
        le=1,
        metavar="SHARE",
        recorded=True,
        help="Neurons to keep of each MLP: 0.5 keeps half.",
    )
    even: bool = option(
        False,
        recorded=True,
        help="The same number in every layer, of a size that the model's own library builds.",
    )
    vocabulary: Specs = option(
        (),
        metavar="D,D",
        group=UNLABELLED,
        recorded=True,
        help="Remove the tokens that these texts do not use, from the embedding and the tokenizer.",
    )
    keep_tokens: Annotated[
        Annotated[int, Field(ge=1)] | Literal["all-seen"], BeforeValidator(number_or_word)
    ] = option(
        "all-seen",
        metavar="N|all-seen",
        recorded=True,
        help="Tokens of --vocabulary to keep: all, or the N most frequent.",
    )
    compensate: Literal["none", "lstsq"] | None = option(
        None,
        metavar="HOW",
        recorded=True,
        unset="lstsq where --data is given",
        help="Refit what stays on --data by least squares, without training: lstsq or none.",
    )
    out: PathLike | None = output(None)

    @property
    def cuts(self) -> bool:
        """Whether heads or neurons go."""
        return any(getattr(self, name) is not None for name in (*AMOUNTS, "neurons"))

    @property
    def repairs(self) -> bool:
        """Whether the member is refitted on data."""
        if self.compensate == "lstsq" and self.data is None:
            raise UsageError("--compensate lstsq requires --data.")
        return self.data is not None and self.compensate != "none"

    def recorded(self) -> dict[str, Any]:
        """What history keeps: whoever repeats the command must know what is not the default."""
        dtype = None if self.dtype == "float32" else self.dtype
        mask = None if self.mask is None else Path(self.mask)
        kept = super().recorded() | {
            "dtype": dtype,
            "mask": mask,
        }
        if not self.vocabulary:
            del kept["keep_tokens"]
        return kept


class FinetuneOptions(Checkpoint, ClassNames, Bare, Run, Force):
    """Fine-tune a member before it is fused, or any model; or fit only a classifier (`--recipe probe`).

    CKPT may be init:timm:NAME,key=value… to start from random weights.
    """

    writes_manifest: ClassVar[bool] = True
    requires: ClassVar = {"unlabelled": ("teacher",)}

    data: str | None = option(
        None,
        metavar="D",
        group=LABELLED,
        recorded=True,
        help="Training data, labelled or with --teacher.",
    )
    val: str | None = option(
        None,
        metavar="D",
        group=LABELLED,
        recorded=True,
        help="Labelled data that each epoch is measured on; the best epoch is written. A probe: cross takes five folds of --data.",
    )
    teacher: Paths = option(
        (),
        metavar="T",
        group=CHECKPOINTS,
        spread=True,
        recorded=True,
        help=(
            "Learn from these checkpoints too, from their mean, or from predictions files; "
            "repeatable."
        ),
    )
    alpha: float = option(
        0.9,
        ge=0,
        le=1,
        metavar="X",
        recorded=True,
        help="How much teachers count; labels count the rest.",
    )
    temperature: float = option(
        1.0,
        flags=("--teacher-temperature",),
        gt=0,
        metavar="T",
        recorded=True,
        help="Distillation temperature.",
    )
    unlabelled: str | None = option(
        None,
        metavar="D",
        group=UNLABELLED,
        recorded=True,
        help="Unlabelled data, beside --data or alone; the teachers label it.",
    )
    recipe: PathLike | None = option(
        None,
        metavar="NAME|FILE",
        reads=RECIPES,
        unset="image or text, by the data",
        recorded=True,
        help="probe, text, image, teach, demo, or a .toml file.",
    )
    set: Pairs = option(
        None,
        metavar="KEY=VALUE",
        recorded=True,
        help="Override a field of the recipe; repeatable. lr=A,B,C tries each, and keeps the best.",
    )
    freeze: Commas = option(
        None,
        repeatable=True,
        metavar="PART",
        recorded=True,
        help="Parts that stay as they are: embeddings, norms, mlp, attention, readout, classifier. "
        "Frozen MLPs make fusing exact.",
    )
    select: Literal["nll", "accuracy"] | None = option(
        None,
        recorded=True,
        unset="nll",
        help="What makes an epoch, or a rate, the best on --val: calibrated NLL or accuracy.",
    )
    patience: int | None = option(
        None,
        ge=0,
        metavar="N",
        recorded=True,
        help="Stop after N epochs that are no better on --val; 0: never. Default: the recipe's.",
    )
    batch_size: int | None = option(
        None, ge=1, metavar="N", group=RUNS, recorded=True, help="Instead of the recipe's."
    )
    track: Tracker | None = option(
        None,
        metavar="NAME",
        group=WRITTEN,
        help="Write the curves of training to tensorboard, wandb, mlflow, trackio, …",
    )
    save_every: int | None = option(
        None,
        metavar="N",
        group=RUNS,
        help="Steps between resumable states; each epoch if not given.",
    )
    resume: bool = option(
        False, group=RUNS, help="Continue an interrupted run of the same command."
    )
    out: PathLike = output()

    @property
    def training(self) -> str:
        """Where the training samples are read: --data, or only --unlabelled."""
        if self.data is None and self.unlabelled is None:
            raise UsageError(
                "finetune requires --data.", hint="Or give --unlabelled D with --teacher T."
            )
        return str(self.data or self.unlabelled)

    def recorded(self) -> dict[str, Any]:
        """What history keeps: of teachers only where there are some."""
        without = () if self.teacher else ("teacher", "alpha", "temperature")
        return {key: value for key, value in super().recorded().items() if key not in without}


class FuseOptions(ClassNames, Bare, Run, Force):
    """Fuse members into one hydra that runs all of them in a single pass, or into one ordinary
    model: their mean.
    """

    writes_manifest: ClassVar[bool] = True
    requires: ClassVar = {"limit": ("check",)}
    conflicts: ClassVar = [("mean", "mlp"), ("mean", "norms"), ("mean", "mean_trunk")]

    members: Paths = argument(
        reads=CHECKPOINTS, metavar="M1 M2 ...", help="Members of one backbone, two or more."
    )
    mlp: Literal["average", "separate"] | None = option(
        None,
        recorded=True,
        unset="average, behind a mean trunk separate",
        help="average (the paper's) or separate (exact).",
    )
    norms: Literal["separate", "average"] | None = option(
        None,
        recorded=True,
        unset="separate",
        help="separate (exact), or average (one set of norms, as in the paper).",
    )
    mean: bool = option(
        False,
        recorded=True,
        help=(
            "Write one ordinary model of their mean weights: for several fine-tunings of one start."
        ),
    )
    mean_trunk: int | None = option(
        None,
        ge=1,
        metavar="N",
        recorded=True,
        help=(
            "Give all members the mean of their embeddings and first N layers, stored and computed "
            "once: for fine-tunings of one start."
        ),
    )
    check: str | None = option(
        None,
        metavar="D",
        group=LABELLED,
        help="Compare with the members on this data.",
    )
    tolerance: float = option(
        0.02,
        ge=0,
        metavar="X",
        help="Largest mean difference of a class probability that --check accepts.",
    )
    out: PathLike = output()

    @property
    def mlps(self) -> Literal["average", "separate"]:
        """What becomes of MLPs that differ."""
        return self.mlp or ("average" if self.mean_trunk is None else "separate")

    def recorded(self) -> dict[str, Any]:
        """What history keeps: of MLPs nothing where the mean is written."""
        kept = super().recorded()
        if not self.mean:
            kept = {"mlp": self.mlps, **kept}
        without = ("limit", "dtype")
        return {name: value for name, value in kept.items() if name not in without}


class BuildOptions(ClassNames, Bare, Run, Force):
    """Make the best classifier within a budget: the checkpoint itself, a smaller one, the mean of
    several, or a hydra.

    Several checkpoints are fine-tunings of one architecture. What takes seconds is tried and written
    first; a build that was ended continues when the command is repeated.
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
        help="Labelled training data: heads are scored, members repaired and tuned on it.",
    )
    val: str | None = option(
        None,
        metavar="VAL|0.2|cross",
        group=LABELLED,
        help="Labelled data that choose and calibrate; a fraction of --data to hold out; or cross: five folds. By the number of rows if not given.",
    )
    ood: Texts = option(
        (),
        metavar="D",
        group=UNLABELLED,
        help="OOD data to choose by too; repeatable, needs no labels, at least 20 samples.",
    )
    budget: str = option(
        "macs=1",
        metavar="UNIT=N[,N]",
        help="macs=, params= or time= (measured), times one model's; a list: the front.",
    )
    objective: Objective | None = option(
        None,
        metavar="NAME",
        help="acc, nll, ood, avg or an OOD score; avg if not given, nll without --ood. Numbers: rmse.",
    )
    risk: float | None = option(
        None,
        gt=0,
        lt=1,
        metavar="R",
        help="Abstain so that at most this fraction of the answers is wrong, with 95 % confidence. Two thirds of the validation rows then only certify.",
    )
    coverage: float | None = option(
        None,
        gt=0,
        lt=1,
        metavar="P",
        unset="0.9",
        help="How often a prediction set holds the true label; if given, two thirds of the validation rows only certify.",
    )
    seeds: int | None = option(
        None,
        ge=1,
        le=16,
        metavar="N",
        unset="3",
        help="Of a body without a classifier: models to tune, each with an order of its own.",
    )
    cache: PathLike | None = option(
        None,
        metavar="DIR",
        group=WRITTEN,
        help="What is made and measured; NAME.build beside -o if not given.",
    )
    max_minutes: float = option(
        10.0,
        gt=0,
        le=1e6,
        metavar="M",
        group=RUNS,
        help="End with the best so far, once each budget has a file; the same command goes on.",
    )
    dry_run: bool = option(
        False, group=RUNS, help="Print the stages and how long they take, and end."
    )
    out: PathLike = output(help=f"{OUT} A front: a folder.")

    @property
    def paths(self) -> list[Path]:
        """The checkpoints; files as paths."""
        return [Path(each) for each in self.checkpoints]

    @property
    def goal(self) -> str:
        """The objective's name."""
        return self.objective or ("avg" if self.ood else "nll")

    @property
    def sees_ood(self) -> bool:
        """Whether OOD data choose too."""
        return self.goal not in ("acc", "nll", "rmse")

    @property
    def crossed(self) -> bool:
        """True if models of folds of --data take the place of validation data."""
        return self.val == CROSS

    @property
    def choosing(self) -> str:
        """The rows of VAL that choose: all of them, or a third where the others certify."""
        assert self.val is not None
        return self.val if self.certifying is None else str(DataSpec.parse(self.val).part(0, THIRD))

    @property
    def certifying(self) -> str | None:
        """The rows of VAL that choose nothing and certify what is promised; None without a promise."""
        if self.risk is None and self.coverage is None:
            return None
        return str(DataSpec.parse(self.val or self.data).part(THIRD, 100))

    @property
    def work(self) -> Path:
        """The folder of what is made and measured."""
        if self.cache is not None:
            return Path(self.cache)
        out = Path(self.out)
        return out.with_name(f"{out.name.removesuffix('.safetensors')}.build")

    @property
    def names(self) -> dict[str, Any]:
        """The class names, as other commands take them."""
        return {"classes": self.classes, "template": list(self.template)}

    @property
    def running(self) -> dict[str, Any]:
        """How models run, where other commands must know."""
        dtype = None if self.dtype == "float32" else self.dtype
        return {"dtype": dtype, "batch_size": self.batch_size, "skip_bad": self.skip_bad}
