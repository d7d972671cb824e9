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
from hydrasurgeon.options.columns import DataSpec
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
"""Objectives by which members are chosen: avg is the mean of accuracy and the AUROC of msp, ood the
latter; or an OOD score.
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


class ScoreOptions(Checkpoint, Scoring, ClassNames, Bare, Run, Force):
    """Measure how much each head matters, and write it into the manifest.

    With --keep, taylor works layer by layer: heads that a layer loses are off before the next layer
    is scored. circuit finds the order in which heads can be removed; a killed search continues when
    the command is repeated.
    """

    writes_manifest: ClassVar[bool] = True

    method: str = option(
        "taylor",
        metavar="M",
        reads=CRITERIA,
        recorded=True,
        help="Criterion: taylor, headmap, gradient, gates, magnitude, random, cahp or circuit.",
    )
    part: Literal["heads", "neurons"] = option(
        "heads",
        recorded=True,
        help="Parts to score: heads, or the neurons of the MLPs (by taylor or magnitude).",
    )
    remove: int | None = option(
        None,
        metavar="N",
        recorded=True,
        unset="all but one",
        help="Number of heads in a circuit's removal order.",
    )
    out: PathLike | None = output(
        None, help="Write the scores into a copy; else into the checkpoint itself."
    )

    def recorded(self) -> dict[str, Any]:
        """Return the recorded options; heads are the default part and are not named."""
        kept = super().recorded()
        if self.part == "heads":
            del kept["part"]
        return kept


class PruneOptions(Checkpoint, Scoring, ClassNames, Bare, Run, Force):
    """Remove the least important heads or neurons of a checkpoint; the result is a member.

    Without -o the member is written beside the input, with the method in its name:
    vit-taylor-k8.safetensors.
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
        help="Criterion that ranks heads; its scores come from the manifest or from --data.",
    )
    sample: str | None = option(
        None,
        metavar="N/P",
        recorded=True,
        help="Remove N random ones of the first P heads in removal order.",
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
        help="Keep the same number in every layer, at a size that the model's own library can build.",
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
        unset="lstsq with --data",
        help="Refit the remaining weights on --data by least squares, without training: lstsq or none.",
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
        help="Labelled data to evaluate each epoch; the best epoch is written.",
    )
    teacher: Paths = option(
        (),
        metavar="T",
        group=CHECKPOINTS,
        spread=True,
        recorded=True,
        help="Learn from the mean of these checkpoints too, or from predictions files; repeatable.",
    )
    alpha: float = option(
        0.9,
        ge=0,
        le=1,
        metavar="X",
        recorded=True,
        help="Weight of the teachers; labels have the rest.",
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
        help="Unlabelled data that the teachers label, with or without --data.",
    )
    recipe: PathLike | None = option(
        None,
        metavar="NAME|FILE",
        reads=RECIPES,
        unset="image or text, by the data",
        recorded=True,
        help="Training recipe: probe, text, image, teach, demo, or a .toml file.",
    )
    set: Pairs = option(
        None,
        metavar="KEY=VALUE",
        recorded=True,
        help="Override a field of the recipe; repeatable. lr=A,B,C tries all of these rates and keeps the best.",
    )
    freeze: Commas = option(
        None,
        repeatable=True,
        metavar="PART",
        recorded=True,
        help="Parts that are not trained: embeddings, norms, mlp, attention, readout, classifier. Frozen MLPs make fusing exact.",
    )
    select: Literal["nll", "accuracy"] | None = option(
        None,
        recorded=True,
        unset="nll",
        help="Criterion for the best epoch or rate on --val: calibrated NLL or accuracy.",
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
        unset="the recipe's",
        help="Samples in one training step.",
    )
    track: Tracker | None = option(
        None,
        metavar="NAME",
        group=WRITTEN,
        help="Write training curves to tensorboard, wandb, mlflow, trackio, …",
    )
    save_every: int | None = option(
        None,
        metavar="N",
        group=RUNS,
        unset="one state per epoch",
        help="Steps between resumable states.",
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
        unset="average, or separate behind a mean trunk",
        help="MLPs of the hydra: average (as in the paper) or separate (exact).",
    )
    norms: Literal["separate", "average"] | None = option(
        None,
        recorded=True,
        unset="separate",
        help="Norms of the hydra: separate (exact), or average (one set, as in the paper).",
    )
    mean: bool = option(
        False,
        recorded=True,
        help="Write one ordinary model with the mean of the weights; for several fine-tunings of one start.",
    )
    mean_trunk: int | None = option(
        None,
        ge=1,
        metavar="N",
        recorded=True,
        help="Give all members the mean of their embeddings and first N layers, stored and computed once; for fine-tunings of one start.",
    )
    check: str | None = option(
        None,
        metavar="D",
        group=LABELLED,
        help="Compare the result with the members on this data.",
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
        """Treatment of MLPs that differ between members."""
        return self.mlp or ("average" if self.mean_trunk is None else "separate")

    def recorded(self) -> dict[str, Any]:
        """Return the recorded options; without that of MLPs if the mean is written."""
        kept = super().recorded()
        if not self.mean:
            kept = {"mlp": self.mlps, **kept}
        without = ("limit", "dtype")
        return {name: value for name, value in kept.items() if name not in without}


class BuildOptions(ClassNames, Bare, Run, Force):
    """Make the best classifier within a budget: the checkpoint itself, a smaller one, the mean of
    several, or a hydra.

    Several checkpoints must be fine-tunings of one architecture. Results that take seconds are
    written first; a stopped build continues when the command is repeated.
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
        help="Labelled training data, to score heads, and to repair and tune members.",
    )
    val: str = option(metavar="VAL", group=LABELLED, help="Labelled data for choosing members.")
    ood: Texts = option(
        (),
        metavar="D",
        group=UNLABELLED,
        help="OOD data for choosing too; repeatable, needs no labels, at least 20 samples.",
    )
    budget: str = option(
        "macs=1",
        metavar="UNIT=N[,N]",
        help="Maximum cost relative to one model: macs=, params= or time= (measured); a list builds the front.",
    )
    objective: Objective | None = option(
        None,
        metavar="NAME",
        unset="avg with --ood, else nll",
        help="Objective of the choice: acc, nll, ood, avg or an OOD score; for numbers rmse.",
    )
    risk: float | None = option(
        None,
        gt=0,
        lt=1,
        metavar="R",
        help="Maximum fraction of wrong answers, with 95 % confidence; less certain rows abstain. Two thirds of VAL then only certify.",
    )
    coverage: float | None = option(
        None,
        gt=0,
        lt=1,
        metavar="P",
        unset="0.9",
        help="Probability that a prediction set holds the true label; if given, two thirds of VAL only certify.",
    )
    seeds: int | None = option(
        None,
        ge=1,
        le=16,
        metavar="N",
        unset="3",
        help="Number of models to tune from a body without a classifier, each with its own order of the data.",
    )
    cache: PathLike | None = option(
        None,
        metavar="DIR",
        group=WRITTEN,
        unset="NAME.build beside -o",
        help="Folder of intermediate files and measurements.",
    )
    max_minutes: float = option(
        10.0,
        gt=0,
        le=1e6,
        metavar="M",
        group=RUNS,
        help="Stop with the best result so far, once each budget has a file; the same command continues.",
    )
    dry_run: bool = option(
        False, group=RUNS, help="Print the stages and how long they take, and stop."
    )
    out: PathLike = output(help=f"{OUT} A folder for a front.")

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
    def choosing(self) -> str:
        """Rows of VAL that choose: all of them, or a third if the others certify."""
        return self.val if self.certifying is None else str(DataSpec.parse(self.val).part(0, THIRD))

    @property
    def certifying(self) -> str | None:
        """Rows of VAL that certify a promise and choose nothing; None without a promise."""
        if self.risk is None and self.coverage is None:
            return None
        return str(DataSpec.parse(self.val).part(THIRD, 100))

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
