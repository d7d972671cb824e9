"""Options that several commands share: how a model runs, how heads are chosen, how a checkpoint is
written.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from hydrasurgeon.errors import UsageError
from hydrasurgeon.files.torchrun import is_main_process
from hydrasurgeon.lookup import LARGEST
from hydrasurgeon.options.base import (
    CHECKPOINTS,
    ENGINES,
    LABELLED,
    READ,
    RUNS,
    SPECIAL,
    UNLABELLED,
    WRITTEN,
    Options,
    PathLike,
    argument,
    option,
)
from hydrasurgeon.options.column_roles import ColumnOptions
from hydrasurgeon.options.progress import Display, Progress

CHECKPOINT = (
    "A model: a .safetensors file (the suffix may be left out), a directory, or a hub id "
    "(timm:NAME, hf:NAME, open_clip:NAME)."
)
"""Help of CKPT."""
DATA = "Labelled data: folder of images, .csv, .jsonl, .parquet, .npz, hf:…, demo:…"
"""Help of labelled data."""
SCORING_DATA = f"{DATA}. Heads are scored on it; prune also repairs the rest on it (--compensate)."
"""Help for data that heads are scored on."""
OUT = "NAME.safetensors, or DIR/ for the family's own layout."
"""Help of --out."""
DTYPE = option(
    "float32",
    metavar="TYPE",
    group=RUNS,
    recorded=True,
    help="Dtype of the computation: float32, bfloat16 or float16.",
)
"""Option for the dtype of the computation."""
DEVICE = option("auto", metavar="auto|cpu|cuda", group=RUNS, help="Device that models run on.")
"""Option for the device of the models."""
TEMPLATE = option(
    (),
    metavar="TEXT",
    group=SPECIAL,
    recorded=True,
    help='CLIP: prompt with {label} in it, such as "A photo of a {label}."; repeatable, or a file of prompts.',
)
"""Option for the prompts of zero-shot models."""


def output(default: Any = ..., *, help: str = OUT) -> Any:
    """Return the option -o for a checkpoint."""
    return option(default, flags=("-o", "--out"), metavar="OUT", group=WRITTEN, help=help)


def _split(value: Any) -> Any:
    """Split a text that names several data sets; one with columns is kept, because these have
    commas too.
    """
    texts = map(str, _texts(value))
    return tuple(part for text in texts for part in ([text] if "#" in text else text.split(",")))


def number_or_word(value: Any) -> Any:
    return (
        int(value)
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19
        else value
    )


def _batch(value: Any) -> Any:
    return None if value == "auto" else value


def _pairs(value: Any) -> Any:
    """Parse KEY=VALUE texts as a mapping."""
    if isinstance(value, Mapping):
        return {key: str(text) for key, text in value.items()}
    if value is None:
        return None
    pairs = {}
    for entry in value:
        key, equals, after = str(entry).partition("=")
        if not equals:
            raise UsageError(f"--set {entry}: not KEY=VALUE")
        pairs[key.strip()] = after.strip()
    return pairs


def _joined(value: Any) -> Any:
    return ",".join(value) or None if isinstance(value, list | tuple) else value


def _texts(value: Any) -> Any:
    """Return a tuple from one text or path, where several may be given."""
    return () if value is None else (value,) if isinstance(value, str | Path) else tuple(value)


Auto = Annotated[int | Literal["auto"] | None, BeforeValidator(number_or_word)]
"""A number, or `auto`."""
Batch = Annotated[int | None, BeforeValidator(_batch)]
"""Number of samples in one pass; None is `auto`."""
Pairs = Annotated[Mapping[str, str] | None, BeforeValidator(_pairs)]
"""KEY=VALUE pairs; on the command line one by one."""
Dtype = Literal["float32", "bfloat16", "float16", "float64"]
"""Dtypes of the computation."""
Search = Literal["exact", "attribution"]
"""Methods of the search for a circuit."""
Commas = Annotated[str | None, BeforeValidator(_joined)]
"""Names with commas between them; on the command line optionally one by one."""
Texts = Annotated[tuple[str, ...], BeforeValidator(_texts)]
"""Texts; on the command line an option that may be repeated."""
Specs = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_split)]
"""Data sets, with commas between them or one by one."""
Paths = Annotated[tuple[PathLike, ...], BeforeValidator(_texts)]
"""Paths; on the command line an option that may be repeated."""


class CheckpointArgument(Options):
    """Checkpoint that a command works on."""

    checkpoint: PathLike = argument(reads=CHECKPOINTS, metavar="CKPT", help=CHECKPOINT)


class BareOptions(Options):
    """Options for reading a checkpoint that has no manifest."""

    arch: str | None = option(
        None,
        metavar="timm:NAME",
        unset="recognised by its tensors",
        group=SPECIAL,
        recorded=True,
        help="Architecture of a timm file without a manifest; may end in ,key=value….",
    )


class ClassNames(Options):
    """Class names of a zero-shot model."""

    classes: str | None = option(
        None,
        metavar="A,B,…|FILE|data",
        group=SPECIAL,
        recorded=True,
        help="CLIP: class names. Default: those in the checkpoint, then those in the data.",
    )
    template: Texts = TEMPLATE

    def recorded(self) -> dict[str, Any]:
        """Record files of names and of prompts without their folders."""
        kept = super().recorded()
        if self.classes is not None and os.path.isfile(self.classes):
            kept["classes"] = Path(self.classes)
        if self.template:
            kept["template"] = [
                Path(entry).name if os.path.isfile(entry) else entry for entry in self.template
            ]
        return kept


class Force(Options):
    """Permission to replace outputs."""

    force: bool = option(False, group=WRITTEN, help="Replace an existing output.")


class Device(Options):
    """Device, progress and seed of a command."""

    seed: int = option(
        0, ge=0, le=LARGEST, metavar="N", group=RUNS, help="Seed of every random choice."
    )
    device: str = DEVICE
    progress: Progress | None = None

    def note(self, text: str) -> None:
        """Print a line that stays, if progress is shown."""
        if is_main_process():
            Display.of(self.progress).line(text)


class Run(Device, ColumnOptions):
    """Options for running a model on samples."""

    limit: int | None = option(
        None,
        ge=1,
        le=LARGEST,
        metavar="N",
        unset="all",
        group=READ,
        recorded=True,
        help="Use N randomly chosen samples.",
    )
    dtype: Dtype = DTYPE
    batch_size: Batch = option(
        None,
        ge=1,
        metavar="N|auto",
        unset="auto: 64, or 256 on a GPU",
        group=RUNS,
        recorded=True,
        help="Samples in one pass.",
    )
    skip_bad: bool = option(
        False,
        group=READ,
        recorded=True,
        help="Skip rows that have no text, or no label where labels are needed, and unreadable images. The first of them are listed.",
    )

    def tick(self, task: str, done: int, total: int) -> None:
        """Report how far the work is."""
        if self.progress is not None:
            self.progress(task, done, total)

    def tick_rows(self, task: str, done: int, total: int | None) -> None:
        """Report how many rows of a table are done, and of how many if that is known."""
        Display.of(self.progress).rows(task, done, total or 0)


class Engines(Options):
    """Choice of the engine that computes answers."""

    engine: str = option(
        "auto",
        metavar="NAME",
        group=RUNS,
        reads=ENGINES,
        recorded=True,
        help="Engine that computes answers. {choices}; auto: the one that the decision state was fitted for.",
    )


class Scoring(Options):
    """Options for scoring and removing heads."""

    objective: str | None = option(
        None,
        metavar="acc|ood|avg",
        help="circuit: metric that the remaining heads keep high: accuracy, OOD AUROC or their mean (avg).",
    )
    data: str | None = option(None, metavar="D", group=LABELLED, recorded=True, help=SCORING_DATA)
    ood: Texts = option(
        (),
        metavar="D",
        group=UNLABELLED,
        recorded=True,
        help="OOD data for --objective ood and avg. Needs no labels; repeatable.",
    )
    search: Search | None = option(
        None,
        metavar="exact|attribution",
        unset="exact",
        recorded=True,
        help="circuit: how the next head is found. exact: try every head; attribution: estimate by gradients, which is faster.",
    )
    keep: Auto = option(
        None,
        metavar="K|auto",
        recorded=True,
        help="Number of heads to keep in each layer; circuit and cahp keep K times the layers in all, unevenly; auto is the number that cahp finds.",
    )
    remove: int | None = option(
        None,
        metavar="N",
        recorded=True,
        help="Number of heads to remove in total, lowest scores first.",
    )
    degree: int | None = option(
        None,
        metavar="N",
        unset="6",
        ge=2,
        le=20,
        recorded=True,
        help="cahp: degree of the polynomial that --keep auto fits to a curve, to find its bend.",
    )
    layers: str | None = option(
        None,
        metavar="A-B",
        unset="all",
        recorded=True,
        help="Remove heads from these layers only (6-11, or 0,2,5-7).",
    )
    tower: str | None = option(
        None,
        metavar="TOWER",
        recorded=True,
        help="Towers in which heads are scored and removed: vision, text or both.",
    )
