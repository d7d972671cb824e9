"""Typed records of what files may pass to a model family's library: no other key reaches it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError, model_validator

from hydrasurgeon.errors import CheckpointError, HydraError
from hydrasurgeon.files.untrusted import must

# The bound on every size: the largest vocabulary in use, XLM-V's, has 901,629 words.
Size = Annotated[int, Field(ge=1, le=1 << 20)]
# Images are resized to such edges, so these are bounded for themselves: twice the largest that
# timm's ViTs read.
Edge = Annotated[int, Field(ge=1, le=2_048)]
# JSON has lists where Python has tuples.
Pair = Edge | Annotated[tuple[Edge, Edge], Strict(False)]
# A count that may be none.
Count = Annotated[int, Field(ge=0, le=1 << 20)]
# A whole number stays one, some libraries insist.
Positive = Annotated[int | float, Field(gt=0, le=1e12)]
# The chance of dropping something in training.
Chance = Annotated[int | float, Field(ge=0, lt=1)]
# Means and deviations of colours, in pixels of 0 to 1 or of 0 to 255.
Colours = Annotated[tuple[float, ...], Strict(False)]
# A hash of files.
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Settings(BaseModel):
    """A record of a file: no type is converted, no number is infinite, no key is unknown."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        protected_namespaces=(),
        defer_build=True,
    )

    def written(self) -> dict[str, Any]:
        """Return the file's settings for the manifest: plain JSON, without defaults."""
        return self.model_dump(mode="json", exclude_unset=True, by_alias=True)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of the fields in files."""
        return tuple(field.alias or name for name, field in cls.model_fields.items())


S = TypeVar("S", bound=Settings)


class Images(Settings):
    """Preparation of images, in the words of timm's data configs."""

    input_size: Annotated[tuple[Size, Edge, Edge], Strict(False)]
    mean: Colours
    std: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Strict(False)]
    interpolation: Literal["nearest", "bilinear", "bicubic", "box", "hamming", "lanczos"] = (
        "bicubic"
    )
    # The fraction of a resized image that is cut out: resizing is bounded by it too.
    crop_pct: Annotated[float, Field(ge=0.2, le=5)] | None = None
    crop_mode: Literal["center", "squash", "border"] | None = None
    files_sha256: Sha256 | None = None

    @model_validator(mode="after")
    def _per_channel(self) -> Images:
        channels = self.input_size[0]
        fit = len(self.mean) == len(self.std) == channels
        must((fit, f"mean and std must be {channels} numbers, one for each channel"))
        return self

    def check(
        self, channels: int, size: int | Iterable[int], where: str, error: type[HydraError]
    ) -> None:
        """Refuse images of another size or with other channels than the model reads."""
        reads = (channels, *((size, size) if isinstance(size, int) else size))
        if self.input_size != reads:
            given_size, read = ("×".join(map(str, edges)) for edges in (self.input_size, reads))
            raise error(
                f"{where}: makes images of {given_size}, the model reads {read} (by its image size and channels)"
            )


class TextPreprocess(Settings):
    """Preparation of texts, beside the tokenizer's files."""

    max_length: Size
    files_sha256: Sha256 | None = None


def pick_fields(record: type[Settings], raw: object) -> Any:
    """Return the entries of a library's config for which `record` has fields.

    Values other than mappings are returned unchanged, for `parse` to refuse.
    """
    return (
        {key: raw[key] for key in record.names() if key in raw} if isinstance(raw, Mapping) else raw
    )


def parse(
    record: type[S], raw: object, where: str, *, error: type[HydraError] = CheckpointError
) -> S:
    """Parse `raw` as a record; `where` names the file, and the key in it, in the error."""
    try:
        return record.model_validate(raw)
    except ValidationError as failure:
        first = failure.errors(include_url=False)[-1]
        names, value = list[str](), raw
        for step in first["loc"]:  # pydantic's own steps, of a union, are left out
            if isinstance(value, Mapping):
                names.append(str(step)[:60])
                value = value.get(step)
            elif isinstance(value, list | tuple) and isinstance(step, int) and step < len(value):
                names.append(str(step))
                value = value[step]
        shown = (
            f" (it is {repr(value)[:60]})"
            if names and not isinstance(value, Mapping | list | tuple)
            else ""
        )
        why, hint = first["msg"].removeprefix("Value error, ") + shown, None
        if first["type"] == "missing":
            why = "is missing"
        elif first["type"] == "extra_forbidden":
            why = "is not a setting that is known here"
            hint = f"Known: {', '.join(record.names())}." if len(names) < 2 else None
        raise error(
            f"{': '.join(filter(None, (where, '.'.join(names))))}: {why}", hint=hint
        ) from failure


def pair(size: Any) -> tuple[int, int]:
    """Return height and width, from these or from one number for both."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def patches(image: Any, patch: Any) -> int:
    """Count the patches of an image; raise ValueError if there are none."""
    (height, width), (ph, pw) = pair(image), pair(patch)
    count = (height // ph) * (width // pw)
    must((count > 0, f"an image of {height}×{width} has {count} patches of {ph}×{pw}"))
    return count
