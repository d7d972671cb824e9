"""What several commands can be told: how a model runs, how heads are chosen, how a checkpoint is
written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from hydrasurgeon.errors import UsageError
from hydrasurgeon.files.processes import is_main_process
from hydrasurgeon.lookup import LARGEST
from hydrasurgeon.options.base import (
    CHECKPOINTS,
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
from hydrasurgeon.options.columns import Columns

Progress = Callable[[str, int, int], None]
"""What is being done, steps done, steps in all; of none in all it is a line to be said once."""
CHECKPOINT = (
    "A .safetensors file, its name without suffix, a directory, or timm:, hf:, open_clip: NAME."
)
"""Help of CKPT."""
DATA = "Labelled data: folder of images, .csv, .jsonl, .parquet, .npz, hf:…, demo:…"
"""Help of labelled data."""
OUT = "NAME.safetensors, or DIR/ for the family's own layout."
"""Help of --out."""
DTYPE = option(
    "float32",
    metavar="TYPE",
    group=RUNS,
    recorded=True,
    help="float32, bfloat16 or float16: what models compute in.",
)
"""What models compute in."""
DEVICE = option("auto", metavar="auto|cpu|cuda", group=RUNS, help="Where models run.")
"""Where they run."""
TEMPLATE = option(
    (),
    metavar="TEXT",
    group=SPECIAL,
    recorded=True,
    help='CLIP: a prompt with {label} in it, "A photo of a {label}."; repeatable, or a file.',
)
"""What zero-shot models put class names in."""


def output(default: Any = ..., *, help: str = OUT) -> Any:
    """-o, a checkpoint."""
    return option(default, flags=("-o", "--out"), metavar="OUT", group=WRITTEN, help=help)


def _split(value: Any) -> Any:
    """Data sets, of which one text may name several; names of columns have commas too."""
    texts = map(str, _texts(value))
    return tuple(part for each in texts for part in ([each] if "#" in each else each.split(",")))


def number_or_word(value: Any) -> Any:
    return (
        int(value)
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19
        else value
    )


def _batch(value: Any) -> Any:
    return None if value == "auto" else value


def _pairs(value: Any) -> Any:
    """KEY=VALUE texts as a mapping."""
    if isinstance(value, Mapping):
        return {key: str(each) for key, each in value.items()}
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
    """One text or path where several may be given."""
    return () if value is None else (value,) if isinstance(value, str | Path) else tuple(value)


Auto = Annotated[int | Literal["auto"] | None, BeforeValidator(number_or_word)]
"""A number, or `auto`."""
Batch = Annotated[int | None, BeforeValidator(_batch)]
"""How many samples run in one pass; None is `auto`."""
Pairs = Annotated[Mapping[str, str] | None, BeforeValidator(_pairs)]
"""KEY=VALUE pairs; on the command line one by one."""
Dtype = Literal["float32", "bfloat16", "float16", "float64"]
"""What a model computes in."""
Engine = Literal["auto", "torch", "onnx", "int8"]
"""What computes."""
ENDING = ".onnx"
"""How the names of graphs end that are checkpoints too."""
Search = Literal["exact", "attribution"]
"""How a circuit is searched."""
Commas = Annotated[str | None, BeforeValidator(_joined)]
"""Names with commas between them; on the command line perhaps one by one."""
Texts = Annotated[tuple[str, ...], BeforeValidator(_texts)]
"""Texts; on the command line an option that may be repeated."""
Specs = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_split)]
"""Data sets, with commas between them or one by one."""
Paths = Annotated[tuple[PathLike, ...], BeforeValidator(_texts)]
"""Paths; on the command line an option that may be repeated."""


class Checkpoint(Options):
    """The checkpoint that a command is about."""

    checkpoint: PathLike = argument(reads=CHECKPOINTS, metavar="CKPT", help=CHECKPOINT)


class Bare(Options):
    """What is said of a checkpoint without a manifest."""

    arch: str | None = option(
        None,
        metavar="timm:NAME",
        unset="known by its tensors",
        group=SPECIAL,
        recorded=True,
        help="Architecture of a timm file without manifest; may end in ,key=value….",
    )


class ClassNames(Options):
    """What a zero-shot model is told of the classes."""

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
                Path(each).name if os.path.isfile(each) else each for each in self.template
            ]
        return kept


class Force(Options):
    """Whether outputs may be replaced."""

    force: bool = option(False, group=WRITTEN, help="Replace an existing output.")


class Device(Options):
    """Where a model runs, how its progress is shown, and what random choices follow from."""

    seed: int = option(
        0, ge=0, le=LARGEST, metavar="N", group=RUNS, help="Seed of every random choice."
    )
    device: str = DEVICE
    progress: Progress | None = None

    def note(self, text: str) -> None:
        """A line that stays, where progress is shown."""
        line = getattr(self.progress, "line", None)
        if line is not None and is_main_process():
            line(text)


class Run(Device, Columns):
    """How a model runs over samples."""

    limit: int | None = option(
        None,
        ge=0,
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
        help="Leave out images that cannot be read, rows without text and, where labels are needed, "
        "rows without a label, and name them.",
    )

    def tick(self, what: str, done: int, total: int) -> None:
        """Report how far the work is."""
        if self.progress is not None:
            self.progress(what, done, total)

    def tick_rows(self, what: str, done: int, total: int | None) -> None:
        """Report how many rows of a table are done, of how many where that is known."""
        if self.progress is not None:
            getattr(self.progress, "rows", self.progress)(what, done, total or 0)


class Engines(Options):
    """What computes the answers."""

    engine: Engine = option(
        "auto",
        metavar="auto|torch|onnx|int8",
        group=RUNS,
        recorded=True,
        help="What computes: PyTorch; on the CPU onnxruntime, in float32 or in 8 bits; "
        "auto is what the decision state was fitted for.",
    )


class Scoring(Options):
    """Which heads are scored, on what, and how many go."""

    objective: str | None = option(
        None,
        metavar="acc|ood|avg",
        help="circuit: metric that the circuit keeps: accuracy, OOD AUROC or their mean (avg).",
    )
    data: str | None = option(None, metavar="D", group=LABELLED, recorded=True, help=f"{DATA}.")
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
        help="circuit: how heads are searched.",
    )
    keep: Auto = option(
        None,
        metavar="K|auto",
        recorded=True,
        help="Heads to keep in each layer, on average; auto is cahp's own number.",
    )
    remove: int | None = option(
        None, metavar="N", recorded=True, help="Heads to remove in total, lowest scores first."
    )
    degree: int | None = option(
        None,
        metavar="N",
        unset="6",
        ge=2,
        le=20,
        recorded=True,
        help="cahp: degree of the polynomial that finds the knee of --keep auto.",
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
        help="vision, text or both: where heads are scored and removed.",
    )
