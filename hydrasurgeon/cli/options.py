"""What the commands share: the options they have in common, and how their texts are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import typer

from hydrasurgeon.errors import UsageError
from hydrasurgeon.lookup import LARGEST, whole_number

Checkpoint = Annotated[
    str,
    typer.Argument(
        metavar="CKPT",
        help="A .safetensors file, its name without suffix, a directory, or timm:, hf:, open_clip: NAME.",
    ),
]
Checkpoints = Annotated[
    list[str], typer.Argument(metavar="CKPT...", help="Checkpoints, as files, names, directories or hub ids.")
]
Data = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="D",
        help="Labelled data: folder, .npz, .parquet, .jsonl, .csv, list, hf:…, torchvision:…, demo:….",
    ),
]
DataSets = Annotated[
    list[str] | None,
    typer.Option(
        "--data",
        metavar="[NAME=]D",
        help="Labelled data: folder, .npz, .parquet, .jsonl, .csv, list, hf:…, torchvision:…, demo:…; repeatable.",
    ),
]
Out = Annotated[
    str | None,
    typer.Option("-o", "--out", metavar="OUT", help="NAME.safetensors, or DIR/ for the family's own layout."),
]
RequiredOut = Annotated[
    str, typer.Option("-o", "--out", metavar="OUT", help="NAME.safetensors, or DIR/ for the family's own layout.")
]
ShardSize = Annotated[
    str | None,
    typer.Option(
        "--max-shard-size",
        metavar="SIZE",
        help="Cut a directory's weights into files of at most 5GB, 500MB, …; transformers loads them so.",
    ),
]
Method = Annotated[
    str, typer.Option("--method", metavar="M", help="taylor, fisher, headmap, magnitude, random, cahp or circuit.")
]
Objective = Annotated[
    str | None,
    typer.Option(
        "--objective",
        metavar="acc|ood|avg",
        help="What a circuit keeps: accuracy, OOD separability or their mean (avg).",
    ),
]
OodScore = Annotated[
    str | None,
    typer.Option(
        "--ood-score",
        metavar="NAME",
        help="By what a circuit tells foreign data: msp (default), entropy, gen, energy or max-logit.",
    ),
]
Foreign = Annotated[
    list[str] | None,
    typer.Option(
        "--ood", metavar="D", help="Foreign data for the objectives ood and avg; repeatable, needs no labels."
    ),
]
Search = Annotated[
    str | None,
    typer.Option(
        "--search", metavar="S", help="How a circuit is searched: exact (default), fast, naive or attribution."
    ),
]
Keep = Annotated[
    str | None, typer.Option("--keep", metavar="K|auto", help="Heads to keep in each layer; auto is cahp's own number.")
]
Layers = Annotated[
    str | None, typer.Option("--layers", metavar="A-B", help="Remove heads from these layers only (6-11, or 0,2,5-7).")
]
Tower = Annotated[
    str | None,
    typer.Option("--tower", metavar="TOWER", help="vision, text or both: where heads are scored and removed."),
]
Classes = Annotated[
    str | None,
    typer.Option(
        "--classes", metavar="A,B,…|FILE|data", help="CLIP: the class names; else the recorded ones, else the data's."
    ),
]
ClassSets = Annotated[
    list[str] | None,
    typer.Option(
        "--classes",
        metavar="[NAME=]A,B,…|FILE|data",
        help="CLIP: the class names, of all data sets or of one; else the recorded ones, else the data's; repeatable.",
    ),
]
Template = Annotated[
    list[str] | None,
    typer.Option(
        "--template",
        metavar="TEXT",
        help='CLIP: a prompt with {label} in it, "A photo of a {label}."; repeatable, or a file.',
    ),
]
Arch = Annotated[
    str | None,
    typer.Option(
        "--arch", metavar="timm:NAME", help="Architecture of a file without manifest; may end in ,key=value…."
    ),
]
Device = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]
Dtype = Annotated[str, typer.Option("--dtype", help="float32, bfloat16 or float16.")]
BatchSize = Annotated[str, typer.Option("--batch-size", metavar="N|auto", help="Samples in one pass.")]


def count_for(option: str) -> Callable[[str | int], int]:
    """What reads an option's number: help says nothing of the largest there is."""

    def read(text: str | int) -> int:
        number = whole_number(str(text))
        if number is None:
            raise UsageError(f"{option} {text}: not a whole number", hint=f"0 to {LARGEST:,}.")
        return number

    return read


Seed = Annotated[
    int, typer.Option("--seed", metavar="N", parser=count_for("--seed"), help="Every random choice follows from it.")
]
Limit = Annotated[
    int | None, typer.Option("--limit", metavar="N", parser=count_for("--limit"), help="Use a random N of the samples.")
]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave out images that cannot be read, and name them.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing output.")]
PushToHub = Annotated[
    str | None,
    typer.Option(
        "--push-to-hub",
        metavar="OWNER/NAME",
        help=(
            "Upload the result as a directory (eval: what --card writes) to this hub repository; takes the usual token."
        ),
    ),
]
Private = Annotated[bool, typer.Option("--private", help="With --push-to-hub: a new repository is private.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notes.")]
Json = Annotated[bool, typer.Option("--json", help="The result as JSON on stdout.")]


def batch(text: str) -> int | None:
    """A number, or None for auto."""
    if text == "auto":
        return None
    size = whole_number(text)
    if not size:
        raise UsageError(f"--batch-size {text}: neither a positive number nor auto")
    return size


def keep_count(text: str | None) -> int | str | None:
    """A number, auto, or nothing."""
    if text is None or text == "auto":
        return text
    count = whole_number(text)
    if count is None:
        raise UsageError(f"--keep {text}: neither a number nor auto")
    return count


def pairs(entries: list[str]) -> dict[str, str]:
    """KEY=VALUE entries as a mapping."""
    values = {}
    for entry in entries:
        key, equals, value = entry.partition("=")
        if not equals:
            raise UsageError(f"--set {entry}: not KEY=VALUE")
        values[key.strip()] = value.strip()
    return values


def spread(arguments: list[str], option: str) -> list[str]:
    """`--vs a b c` → `--vs a --vs b --vs c`: everything up to the next option belongs to it."""
    words: list[str] = []
    inside = False
    for argument in arguments:
        if argument.startswith("-"):
            inside = argument == option
            words += [] if inside else [argument]
        else:
            words += [option, argument] if inside else [argument]
    return words


PAGES = {".html", ".htm", ".md", ".tex", ".json", ".csv", ".log", ".out"}
"""No checkpoint ends so: who writes one behind an option means a file."""


def printed(arguments: list[str], suffixes: Mapping[str, tuple[str, ...]]) -> list[str]:
    """`--markdown` alone → `--markdown -`: it takes the next word only where that ends as such a file does, or is
    `-`."""
    words: list[str] = []
    for word, following in zip(arguments, [*arguments[1:], ""], strict=True):
        alone = word in suffixes and following != "-" and not following.endswith(suffixes[word])
        if alone and Path(following).suffix in PAGES:
            raise UsageError(
                f"{word} {following}: must end in {' or '.join(suffixes[word])}",
                hint=f"Write {word}={following} to call it so.",
            )
        words += [word, "-"] if alone else [word]
    return words


MemberWeights = Annotated[
    str | None,
    typer.Option(
        "--weights",
        metavar="W1,W2,…",
        help="How much each member counts in the mean of their probabilities, such as 2,1,1; all alike if not given.",
    ),
]
McDropout = Annotated[
    int | None,
    typer.Option(
        "--mc-dropout",
        metavar="N",
        min=1,
        max=1000,
        help="Run each model N times with its dropout on; the passes are its members.",
    ),
]
