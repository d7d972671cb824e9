"""What a file may say to a model family's library: typed, bounded records, parsed once.

Behind `parse` nothing is checked again. A key without a field reaches no library: where a library wrote the file
it is dropped (`known`), where we wrote it, it is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError, model_validator

from hydrasurgeon.errors import CheckpointError, Disagreement, HydraError
from hydrasurgeon.files.manifest import MAX_CLASSES, Model, Tower

# The deepest transformer that was ever trained has a thousand layers.
MAX_DEPTH = 1_000
# The widest encoders have 15,360 numbers in a token, and four times as many in an MLP.
MAX_WIDTH = 262_144
# A head of one number is the smallest there could be, and no model in use has more than 128 heads.
MAX_HEADS = 4_096
# XLM-V, the largest vocabulary in use, has 901,629 words.
MAX_WORDS = 4_000_000
# Encoders read up to 8,192 tokens.
MAX_POSITIONS = 131_072
# Twice the largest images that timm's ViTs read.
MAX_EDGE = 2_048
# Hyperspectral cameras tell some 250 bands apart.
MAX_CHANNELS = 512
# Patches of an image of 2,048 × 2,048 pixels, eight pixels each way.
MAX_PATCHES = 65_536
# A name of a class, not an article about it.
MAX_LABEL = 1_000

Depth = Annotated[int, Field(ge=1, le=MAX_DEPTH)]
Width = Annotated[int, Field(ge=1, le=MAX_WIDTH)]
Heads = Annotated[int, Field(ge=1, le=MAX_HEADS)]
Words = Annotated[int, Field(ge=1, le=MAX_WORDS)]
Positions = Annotated[int, Field(ge=1, le=MAX_POSITIONS)]
Edge = Annotated[int, Field(ge=1, le=MAX_EDGE)]
Channels = Annotated[int, Field(ge=1, le=MAX_CHANNELS)]
Classes = Annotated[int, Field(ge=0, le=MAX_CLASSES)]
# JSON has lists where Python has tuples.
Pair = Edge | Annotated[tuple[Edge, Edge], Strict(False)]
# Of an MLP's width to its layer's; a whole number stays one, some libraries insist.
Ratio = Annotated[int | float, Field(gt=0, le=64)]
# Of dropping something in training.
Chance = Annotated[int | float, Field(ge=0, lt=1)]
# What a normalisation adds to a variance.
Epsilon = Annotated[float, Field(gt=0, le=1)]
# Means and deviations of colours, in pixels of 0 to 1 or of 0 to 255.
Colours = Annotated[tuple[Annotated[float, Field(ge=-1_000, le=1_000)], ...], Strict(False)]
Label = Annotated[str, Field(max_length=MAX_LABEL)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Settings(BaseModel):
    """A record of a file: no type is converted, no number is infinite, no key is unknown."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())

    def written(self) -> dict[str, Any]:
        """What the file said, for the manifest: plain JSON, without defaults."""
        return self.model_dump(mode="json", exclude_unset=True, by_alias=True)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names of the fields, as files have them."""
        return tuple(field.alias or name for name, field in cls.model_fields.items())


S = TypeVar("S", bound=Settings)


class Images(Settings):
    """How images are prepared, in the words of timm's data configs."""

    input_size: Annotated[tuple[Channels, Edge, Edge], Strict(False)]
    mean: Colours
    std: Colours
    interpolation: Literal["nearest", "bilinear", "bicubic", "box", "hamming", "lanczos"] = "bicubic"
    # The share of a resized image that is cut out: resizing is bounded by it too.
    crop_pct: Annotated[float, Field(ge=0.2, le=5)] | None = None
    crop_mode: Literal["center", "squash", "border"] | None = None
    files_sha256: Sha256 | None = None

    @model_validator(mode="after")
    def _per_channel(self) -> Images:
        channels = self.input_size[0]
        if len(self.mean) != channels or len(self.std) != channels:
            raise ValueError(f"mean and std must be {channels} numbers, one for each channel")
        if not all(deviation > 0 for deviation in self.std):
            raise ValueError("std must be positive")
        return self


class Texts(Settings):
    """How texts are prepared: the tokenizer's files do the rest."""

    max_length: Positions
    files_sha256: Sha256 | None = None


def known(record: type[Settings], raw: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a library's config that `record` has fields for."""
    return {key: raw[key] for key in record.names() if key in raw}


def parse(record: type[S], raw: object, where: str, *, error: type[HydraError] = CheckpointError) -> S:
    """`raw` as a record; `where` names the file, and the key in it, in the error."""
    try:
        return record.model_validate(raw)
    except ValidationError as failure:
        first = failure.errors(include_url=False)[-1]
        path, value = _place(raw, first["loc"])
        at = ": ".join(part for part in (where, path) if part)
        if first["type"] == "missing":
            raise error(f"{at}: is missing") from failure
        if first["type"] == "extra_forbidden":
            raise error(
                f"{at}: is not a setting that is known here",
                hint=f"Known: {', '.join(record.names())}." if "." not in path else None,
            ) from failure
        why = first["msg"].removeprefix("Value error, ")
        shown = f" (it is {value[:60]})" if path and value else ""
        raise error(f"{at}: {why}{shown}") from failure


def _place(raw: Any, loc: Iterable[int | str]) -> tuple[str, str]:
    """The dotted name of a place in `raw`, and what is there; pydantic's own steps (of a union) are left out."""
    names: list[str] = []
    for step in loc:
        inside = (isinstance(raw, Mapping) and step in raw) or (
            isinstance(raw, list | tuple) and isinstance(step, int) and step < len(raw)
        )
        if inside:
            names.append(str(step)[:60])
            raw = raw[step]
        elif isinstance(raw, Mapping):
            names.append(str(step)[:60])
            return ".".join(names), ""
    return ".".join(names), repr(raw) if not isinstance(raw, Mapping | list | tuple) else ""


def pair(size: int | tuple[int, int]) -> tuple[int, int]:
    """One number for both edges, or height and width."""
    return (size, size) if isinstance(size, int) else size


def patches(image: int | tuple[int, int], patch: int | tuple[int, int]) -> int:
    """How many patches an image has; ValueError where that is none or too many."""
    (height, width), (ph, pw) = pair(image), pair(patch)
    count = (height // ph) * (width // pw)
    if not 1 <= count <= MAX_PATCHES:
        raise ValueError(f"an image of {height}×{width} has {count} patches of {ph}×{pw}")
    return count


def contradictions(ours: Mapping[str, Any], theirs: Mapping[str, Any], within: str = "") -> dict[str, tuple[Any, Any]]:
    """What two configs say otherwise, (ours, theirs) by its dotted name; what only one says, or says to be null, is no
    contradiction."""
    differing: dict[str, tuple[Any, Any]] = {}
    for key, mine in ours.items():
        other = theirs.get(key)
        if mine is None or other is None:
            continue
        if isinstance(mine, Mapping) and isinstance(other, Mapping):
            differing |= contradictions(mine, other, f"{within}{key}.")
        elif not _same(mine, other):
            differing[f"{within}{key}"] = (mine, other)
    return differing


def _same(first: Any, second: Any) -> bool:
    """Equal as JSON; a number for both edges is those two numbers."""
    for one, edges in ((first, second), (second, first)):
        if isinstance(edges, list | tuple) and isinstance(one, int) and len(edges) == 2:
            return list(edges) == [one, one]
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return list(first) == list(second)
    return bool(first == second)


def agree(model: Model, towers: Mapping[str, Tower], described: Mapping[str, Tower], where: str) -> None:
    """Disagreement where the manifest's towers are not the ones that its model describes."""
    if set(towers) != set(described):
        raise Disagreement(
            f"{where}: towers {', '.join(towers)[:80]}; {model.family}:{model.arch} has {', '.join(described)}"
        )
    for name, tower in described.items():
        for size in type(tower).model_fields:
            says, is_ = getattr(towers[name], size), getattr(tower, size)
            if says != is_:
                raise Disagreement(
                    f"{where}: towers.{name}.{size} is {says}, model.config says {is_}",
                    hint="The manifest was changed by hand: restore the matching one.",
                )
