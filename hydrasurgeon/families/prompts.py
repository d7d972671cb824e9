"""Class names and prompt templates: what makes a classifier of a model with an image and a text
tower.

A class is the mean of its prompts' normalised text features; logits are exp(logit_scale) ·
cos(image, class).
"""

from __future__ import annotations

import hashlib
import json
import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from hydrasurgeon.errors import ManifestError, UsageError
from hydrasurgeon.families.base import Family
from hydrasurgeon.families.settings import Settings, Sha256
from hydrasurgeon.files.manifest import Model
from hydrasurgeon.files.untrusted import parse_json, read_text

if TYPE_CHECKING:
    from torch import Tensor, nn

    from hydrasurgeon.heads import Kept

# All prompts of all classes run through the text tower: ImageNet-21k with eighty templates has 1.7
# million.
MAX_PROMPTS = 2_000_000
# Of a file of class names or templates.
MAX_NAMES = 16 << 20
TEMPLATE = "A photo of a {label}."
"""The prompt that is used unless templates are given, as CLIP's authors wrote it."""
KEY = "zero_shot"
"""Key of a model's config for its templates and their hash; the class names are its labels."""


class Prompts(Settings):
    """Templates that turn class names into texts."""

    templates: Annotated[list[str], Field(min_length=1)]
    sha256: Sha256


class NamedClasses(Family):
    """Families whose classifier is made of class names, by a text tower."""

    named_classes = True

    @abstractmethod
    def tokenizing(
        self, model: Model, files: Mapping[str, str]
    ) -> Callable[[Sequence[str]], Tensor]:
        """Return the function that makes token ids of texts."""

    def with_classes(
        self, model: Model, count: int, labels: tuple[str, ...] | None, *, words: bool = False
    ) -> Model:
        names = labels if labels is not None else model.labels
        if names is None or len(names) != count:
            message = f"zero-shot classification needs the names of the {count} classes"
            raise UsageError(message, hint="Give --classes, or data with class names.")
        return zero_shot(model, names)

    def names(self, model: Model, stored: Iterable[str]) -> Mapping[str, str]:
        weight_names = {weight.name for weight in self.weights(model)}
        return {name: name for name in stored if name in weight_names}

    def module(
        self,
        model: Model,
        kept: Kept,
        *,
        fresh: bool = False,
        files: Mapping[str, str] | None = None,
    ) -> nn.Module:
        built: Any = super().module(model, kept, fresh=fresh)
        if model.num_classes:
            built.texts = self.tokenizing(model, files or {})(prompts(model))
        return built


def zero_shot(model: Model, labels: Sequence[str], templates: Sequence[str] = ()) -> Model:
    """Return the model as a classifier of these labels.

    Without templates the recorded ones stay.
    """
    recorded = model.config.get(KEY, {}).get("templates", [TEMPLATE])
    used = list(templates or recorded)
    settings = {"templates": used, "sha256": _sha256(used)}
    config = {**model.config, KEY: settings}
    changed = {"num_classes": len(labels), "labels": tuple(labels), "config": config}
    return model.model_copy(update=changed)


def check_prompts(model: Model, recorded: Prompts | None, where: str) -> None:
    """Raise ManifestError for classes that no prompts can be made of."""
    if not model.num_classes:
        return
    why = None
    if recorded is None or model.labels is None:
        why = f"{model.num_classes} classes without names of classes and templates for them"
    elif not all("{label}" in template for template in recorded.templates):
        why = "model.config.zero_shot: a template has no {label}"
    elif recorded.sha256 != _sha256(recorded.templates):
        why = "model.config.zero_shot: sha256 is not that of the templates"
    elif len(model.labels) * len(recorded.templates) > MAX_PROMPTS:
        why = f"more than {MAX_PROMPTS:,} texts of templates and classes"
    if why is not None:
        raise ManifestError(f"{where}: {why}", hint="Give --classes.")


def prompts(model: Model) -> list[str]:
    """Return the texts behind the classes: class after class, all templates of each."""
    templates = model.config[KEY]["templates"]
    return [
        template.replace("{label}", label) for label in model.labels or () for template in templates
    ]


def record_of(model: Model) -> dict[str, str]:
    """Return hashes of the class names and templates, for scores and reports.

    Empty for other models.
    """
    if KEY not in model.config:
        return {}
    return {
        "classes_sha256": _sha256(list(model.labels or ())),
        "templates_sha256": model.config[KEY]["sha256"],
    }


def _sha256(texts: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(list(texts)).encode()).hexdigest()


def _lines(path: Path, option: str) -> list[str]:
    text = read_text(path, most=MAX_NAMES, error=UsageError)
    lines: Any = text.splitlines()
    if path.suffix == ".json":
        lines = parse_json(text, f"{option} {path}", most=MAX_NAMES, error=UsageError)
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise UsageError(f"{option} {path}: not a list of names")
    return [line.strip() for line in lines if line.strip()]


def read_labels(text: str) -> tuple[str, ...]:
    """Read the class names `a,b,c`, or those of a file with one name a line (or a JSON list)."""
    # A list may be longer than any name of a file, at which Path's own methods raise.
    if os.path.isfile(text):
        # The usual list for ImageNet has two names twice: what stands in a file is meant.
        lines, twice = _lines(Path(text), "--classes"), []
    else:
        lines = [part.strip() for part in text.split(",")]
        twice = [name for name in lines if lines.count(name) > 1]
        if text.endswith((".txt", ".json")):
            raise UsageError(f"--classes {text}: no such file")
    why = None
    if len(lines) < 2 or not all(lines):
        why = "there must be at least two names"
    elif twice:
        why = f"{min(twice)!r} occurs twice"
    if why is not None:
        raise UsageError(f"--classes {text}: {why}", hint="Write cat,dog,… or name a file.")
    return tuple(lines)


def read_templates(entries: Sequence[str]) -> tuple[str, ...]:
    """Read templates, or files with one template a line."""
    read: list[str] = []
    for entry in entries:
        read += _lines(Path(entry), "--template") if os.path.isfile(entry) else [entry]
    for template in read:
        if "{label}" not in template:
            raise UsageError(
                f"--template {template[:80]!r}: has no {{label}}", hint=f"For example {TEMPLATE!r}."
            )
    return tuple(read)
