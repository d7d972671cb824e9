"""Fine-tuning recipes as data. The paper's (appendix D.2) are files in examples/paper/."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from hydrasurgeon.errors import UsageError
from hydrasurgeon.files.manifest import TaskName
from hydrasurgeon.files.untrusted import read_text
from hydrasurgeon.lookup import did_you_mean

# Of a recipe's file.
MAX_BYTES = 1 << 20
Share = Annotated[float, Field(ge=0, lt=1)]
Area = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1, le=1 << 31)]
Operations = Annotated[int, Field(ge=1, le=14)]
Magnitude = Annotated[int, Field(ge=0, le=30)]
FrozenPart = Literal["mlp", "attention", "norms", "embeddings", "readout", "classifier"]


class Augment(BaseModel):
    """Training transforms for images."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    random_resized_crop: tuple[Area, Area] | None = None
    """Range of the crop's fraction of the area."""
    hflip: float = Field(0.0, ge=0, le=1)
    rand_augment: tuple[Operations, Magnitude] | None = None
    """Operations and magnitude, 0 to 30, of torchvision's RandAugment: [2, 12] in the paper."""
    pad_crop: int | None = Field(None, ge=1, le=1024)
    """Pad by this many pixels, then crop back at random: for small images."""

    @model_validator(mode="after")
    def _smaller_first(self) -> Augment:
        crop = self.random_resized_crop
        if crop is not None and crop[0] > crop[1]:
            raise ValueError("random_resized_crop: the smaller fraction comes first")
        return self


class Recipe(BaseModel):
    """A training recipe. Every field can be overridden with --set field=value."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    optimizer: Literal["sgd", "adamw"]
    lr: float = Field(gt=0)
    lr_grid: tuple[float, ...] = ()
    """The learning rates that the source of the recipe chose from; for information."""
    momentum: Share = 0.9
    betas: tuple[Share, Share] = (0.9, 0.999)
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    """Acts on matrices, not on biases and norms."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    warmup: Annotated[float, Field(ge=0)] = 0
    """Steps of linear warm-up; below 1 it is a fraction of all steps."""
    floor: float = Field(0.0, ge=0, le=1)
    """Learning rate at the end of the cosine, relative to lr."""
    steps: Count | None = None
    epochs: float | None = Field(None, ge=0, le=1e9)
    """0: no step, only a new classifier that is fitted (a probe)."""
    batch_size: Count = 64
    accumulate: Count = 1
    keep: Literal["best", "last"] = "best"
    """Epoch whose weights are written; `best` needs a validation set."""
    select: Literal["nll", "accuracy"] = "nll"
    """Measure that makes an epoch the best on the validation set: the least calibrated NLL, or
    accuracy.
    """
    min_delta: float = Field(0.0, ge=0)
    """An epoch is better only if it improves on the best so far by more than this."""
    patience: int = Field(0, ge=0, le=1 << 31)
    """Training ends after this many epochs without a better one; 0: never."""
    order_seed: int | None = Field(None, ge=0, le=1 << 31)
    """Seed of the order of samples; null: the seed of everything else (dropout, augmentation)."""
    clip: float | None = Field(None, gt=0)
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    dropout: float | None = Field(None, ge=0, lt=1)
    """Inside the transformer layers (attention weights excepted); null leaves the model's own."""
    augment: Augment = Augment()
    mixup: float = Field(0.0, ge=0, le=100)
    """Images are mixed two by two, in parts drawn from Beta(mixup, mixup); 0: not at all."""
    mask_tokens: Share = 0.0
    """The fraction of a text's tokens that are masked."""
    last_blocks: Count | None = None
    """Train only this many last layers, the final norm and the classifier."""
    freeze: tuple[FrozenPart, ...] = ()
    classifier_lr: float = Field(1.0, gt=0, le=1e6)
    """Learning rate of the classifier relative to lr, for features of length 10. Shorter features
    raise the rate of its matrix in proportion.
    """
    classifier: Literal["keep", "zero", "fresh", "probe"] = "keep"
    """Anything but keep adapts the model to the classes of the data; probe fits the new one to the
    data's features, as that of a model without a classifier always is.
    """
    probe_rows: Count = 20_000
    """Rows that a new classifier is fitted to at most, chosen by a hash of their content."""
    task: TaskName | None = None
    """Task of a new classifier; null: by the labels, which are numbers or names, fractions, or
    lists.
    """
    pos_weight: float | tuple[float, ...] | None = None
    """Weight of a yes against a no, in the loss of one logit or of many labels: one for all labels,
    or one for each.
    """
    max_length: Count | None = None
    """Tokens of a text."""

    @model_validator(mode="after")
    def _one_length(self) -> Recipe:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("give either steps or epochs")
        if self.epochs == 0 and self.classifier == "keep":
            raise ValueError("without an epoch there is nothing to train but a new classifier")
        return self

    def steps_of(self, batches: int) -> tuple[int, int]:
        """Return the optimizer steps in an epoch of so many batches, and in total."""
        per_epoch = max(1, batches // self.accumulate)
        if self.epochs == 0:
            return per_epoch, 0
        return per_epoch, self.steps or max(1, round((self.epochs or 0) * per_epoch))


def recipe_names() -> list[str]:
    return sorted(
        f.name.removesuffix(".toml") for f in files(__name__).iterdir() if f.name.endswith(".toml")
    )


def load_recipe(
    name: str | Path,
    overrides: Mapping[str, str],
    *,
    batch_size: int | None = None,
    freeze: str | None = None,
    select: str | None = None,
    patience: int | None = None,
) -> Recipe:
    """Read a recipe of the package or a TOML file, with some fields replaced."""
    if str(name) in recipe_names():
        text = (files(__name__) / f"{name}.toml").read_text(encoding="utf-8")
    elif Path(name).suffix == ".toml" and os.path.isfile(name):
        text = read_text(Path(name), most=MAX_BYTES, error=UsageError)
    else:
        raise UsageError(
            f"--recipe {name}: no such recipe{did_you_mean(str(name), recipe_names())}",
            hint=f"There are {', '.join(recipe_names())}; or give a .toml file.",
        )
    names = [
        *(n for n in Recipe.model_fields if n != "augment"),
        *(f"augment.{n}" for n in Augment.model_fields),
    ]
    try:
        fields = tomllib.loads(text)
        for key, value in overrides.items():
            _override(fields, key, value)
        options = {"batch_size": batch_size, "select": select, "patience": patience}
        fields |= {key: value for key, value in options.items() if value is not None}
        if freeze is not None:
            fields["freeze"] = [
                *fields.get("freeze", []),
                *(part.strip() for part in freeze.split(",")),
            ]
        recipe = Recipe.model_validate(fields)
        if recipe.epochs == 0:  # whichever new classifier it is to be, it is fitted
            recipe = recipe.model_copy(update={"classifier": "probe"})
        return recipe
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])[:100]
        wrong, hint = first["msg"].removeprefix("Value error, "), None
        if first["type"] == "extra_forbidden":
            wrong, hint = (
                f"no such field{did_you_mean(where, names)}",
                f"Fields: {', '.join(names)}.",
            )
        raise UsageError(
            f"recipe {name}: {where + ': ' if where else ''}{wrong}", hint=hint
        ) from error
    # Numbers too long for Python, tables too deep, a text where a table or a list belongs.
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(f"--recipe {name}: not TOML, or no recipe ({error})") from error


def _override(fields: dict[str, Any], key: str, value: str) -> None:
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        parsed = value
    if key in ("steps", "epochs"):  # one replaces the other
        fields.pop("epochs" if key == "steps" else "steps", None)
    *group, last = key.split(".")
    target = fields.setdefault(group[0], {}) if group else fields
    target[last] = parsed
