"""The commands that make a checkpoint decide, and let it: calibrate, predict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal

from hydrasurgeon.options.base import READ, WRITTEN, PathLike, option
from hydrasurgeon.options.shared import OUT, Bare, Checkpoint, ClassNames, Force, Output, Run, Texts

DELTA = 0.05
"""How likely a promised risk may be broken, unless --delta says otherwise."""
DROP = 0.5
"""Points that no measure of a cascade may lose, unless something else is asked for."""


class CalibrateOptions(Checkpoint, ClassNames, Bare, Run, Output):
    """Fit temperature, OOD score, prediction sets and abstention, and store them with the weights."""

    requires: ClassVar = {"delta": ("risk",), "max_drop": ("cascade",), "budget": ("cascade",)}
    conflicts: ClassVar = (("max_drop", "budget"),)

    data: str = option(
        metavar="VAL",
        group=READ,
        recorded=True,
        help="Labelled data the model was not trained on: one half fits, the other certifies.",
    )
    fit_data: str | None = option(
        None,
        metavar="TRAIN",
        group=READ,
        recorded=True,
        help="Labelled data for the class statistics of OOD scores; else a part of VAL.",
    )
    ood: Texts = option(
        (),
        metavar="D",
        group=READ,
        recorded=True,
        help="OOD data to choose the OOD score and a cascade by, beside perturbed VAL; repeatable, needs no labels.",
    )
    ood_score: str = option(
        "auto",
        metavar="auto|NAME",
        recorded=True,
        help="msp, entropy, energy, max-logit, mi, gen, mds, rmds, maha++, vim, residual, knn, nci, mcm; or the best.",
    )
    coverage: float = option(
        0.9, gt=0, lt=1, metavar="P", recorded=True, help="How often a prediction set holds the true label."
    )
    conformal: Literal["lac", "aps", "raps"] = option(
        "lac", metavar="lac|aps|raps", recorded=True, help="How prediction sets are made; may be empty."
    )
    id_flagged: float = option(
        0.05, gt=0, lt=1, metavar="P", recorded=True, help="Target false-positive rate on in-distribution data."
    )
    risk: float | None = option(
        None,
        gt=0,
        lt=1,
        metavar="R",
        recorded=True,
        help="Abstain so that at most this fraction of the answers is wrong.",
    )
    delta: float | None = option(
        None,
        gt=0,
        lt=1,
        metavar="D",
        recorded=True,
        help=f"Probability that the --risk bound may fail; {DELTA:g} if not given.",
    )
    cascade: bool = option(
        False, recorded=True, help="Let a hydra's first member answer what the others would not change."
    )
    max_drop: float | None = option(
        None,
        ge=0,
        le=100,
        metavar="P",
        recorded=True,
        help="Points of accuracy, AUROC, FPR95 and coverage at 5 % risk that the cascade may lose; else 0.5.",
    )
    budget: float | None = option(
        None,
        ge=0,
        le=1e6,
        metavar="X",
        recorded=True,
        help="Instead: the best that costs at most X single models' multiply-adds.",
    )
    out: PathLike = option(flags=("-o", "--out"), metavar="OUT", group=WRITTEN, help=OUT)

    @property
    def doubt(self) -> float:
        """How likely the promised risk may be broken."""
        return self.delta or DELTA

    @property
    def loss(self) -> float | None:
        """Points that a cascade may lose; None where none is fitted, or its cost is what counts."""
        if not self.cascade or self.budget is not None:
            return None
        return DROP if self.max_drop is None else self.max_drop

    def recorded(self) -> dict[str, Any]:
        """With the bounds that hold where none were given."""
        filled = self.but(delta=None if self.risk is None else self.doubt, max_drop=self.loss)
        return super(CalibrateOptions, filled).recorded()


class PredictOptions(Checkpoint, ClassNames, Bare, Run, Force):
    """Answer for every sample: label, prediction set, uncertainty, OOD score, or that it abstains.

    Interrupted, it goes on where it was when the command is repeated.
    """

    data: str = option(metavar="D", group=READ, help="Data, labelled or not; - is stdin, a text in each line.")
    id_column: str | None = option(
        None, metavar="NAME", group=READ, help="Column that names the rows; `id` where there is one."
    )
    keep_columns: str | None = option(
        None, metavar="A,B", group=READ, help="Columns of the data to carry over into the answers."
    )
    shard: str | None = option(None, metavar="I/N", group=READ, help="Only the Ith of N contiguous parts.")
    top: int = option(5, ge=1, metavar="K", help="Most probable labels to list.")
    cascade: bool | None = option(
        None,
        flags=("--cascade/--no-cascade",),
        help="By the checkpoint's cascade, or by all members; else by its cascade where it has one.",
    )
    each: Callable[[str], None] | None = None
    """Called with each row, a line of JSON, where there is no `out`."""
    out: PathLike | None = option(
        None,
        flags=("-o", "--out"),
        metavar="F",
        group=WRITTEN,
        help="A .jsonl, .csv or .parquet file; else JSON lines on stdout.",
    )
