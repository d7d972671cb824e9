"""Options of the probe."""

from __future__ import annotations

from typing import ClassVar, Literal

from hydrasurgeon.options.base import (
    LABELLED,
    READ,
    RUNS,
    UNLABELLED,
    WRITTEN,
    PathLike,
    option,
)
from hydrasurgeon.options.measuring import REPORT
from hydrasurgeon.options.shared import (
    DATA,
    BareOptions,
    CheckpointArgument,
    ClassNames,
    Force,
    Run,
    Scoring,
    Texts,
)


class ProbeOptions(CheckpointArgument, Scoring, ClassNames, BareOptions, Run, Force):
    """Measure whether noise makes pruning worse, and which heads detect OOD data (Proposition 1,
    Appendix B).

    Without --keep or --remove, one head of three goes. Nothing is written but --json and --plot.
    """

    requires: ClassVar = {"plot": ("ood",)}
    conflicts: ClassVar = (("keep", "remove"), ("corrupt", "shift"))

    data: str = option(metavar="D", group=LABELLED, help=f"{DATA}.")
    ood: Texts = option(
        (),
        metavar="NAME=D",
        group=UNLABELLED,
        help="OOD data to be detected head by head; repeatable, needs no labels.",
    )
    corrupt: Texts = option(
        (),
        metavar="all|NAME[:S]",
        group=READ,
        help=(
            "The noisy data: these corruptions of the data, each sample by one of them in turn; "
            "all if not given."
        ),
    )
    shift: str | None = option(
        None, metavar="D", group=LABELLED, help="Labelled noisy data, instead of corruptions."
    )
    method: str = option(
        "taylor",
        metavar="M",
        help=(
            "The criterion by which heads go, and are called important: recorded scores, or "
            "computed now."
        ),
    )
    draws: int = option(
        8,
        ge=1,
        le=10_000,
        metavar="N",
        group=RUNS,
        help="Random vectors behind the diagonals of Hessians.",
    )
    json_: PathLike | None = option(
        None, flags=("--json",), alias="json", metavar="F", group=WRITTEN, help=REPORT
    )
    dtype: Literal["float32", "float64"] = option(
        "float32",
        group=RUNS,
        help="float32 or float64: second derivatives in half precision are noise.",
    )
    plot: PathLike | None = option(
        None,
        metavar="FILE",
        group=WRITTEN,
        help="Draw ID and OOD samples in the planes of heads, .png or .svg.",
    )
