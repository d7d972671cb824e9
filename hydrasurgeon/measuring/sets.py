"""Several labelled data sets in one evaluation: one row per model, one column per data set (paper, Table 24)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydrasurgeon.checkpoints.class_names import names_in, with_class_names
from hydrasurgeon.checkpoints.reading import Checkpoint
from hydrasurgeon.errors import UsageError
from hydrasurgeon.measuring.report import SetResult

__all__ = ["Further", "LabelledSet", "labelled_sets"]

NAMED = re.compile(r"([\w-]+)=(.+)")


@dataclass(frozen=True)
class LabelledSet:
    """One `--data`, and the class names that `--classes` gives it."""

    name: str
    spec: str
    classes: str | None

    def named(
        self, checkpoints: Sequence[Checkpoint], templates: Sequence[str]
    ) -> list[Checkpoint]:
        """The checkpoints as classifiers of its classes, where they learn them by name."""
        return [
            with_class_names(
                c, classes=self.classes, templates=templates, names=names_in(self.spec)
            )
            for c in checkpoints
        ]


@dataclass(frozen=True)
class Further:
    """A data set besides the first, opened."""

    name: str
    samples: Any
    checkpoints: tuple[Checkpoint, ...]

    def measure(
        self,
        job: Sequence[int],
        first: Sequence[Checkpoint],
        models: Sequence[Any],
        logits: Callable[[Sequence[Any], Any], tuple[Any, Any]],
        *,
        load: Callable[[Checkpoint], Any],
        temperature: float,
    ) -> SetResult:
        """What these checkpoints, run as one, are worth here; `models` are those of `first`, with its classes."""
        from hydrasurgeon.measuring import metrics

        ours = [self.checkpoints[i] for i in job]
        if [c.manifest.model for c in ours] != [c.manifest.model for c in first]:
            models = [load(checkpoint) for checkpoint in ours]
        found, labels = logits(models, self.samples)
        return SetResult(
            name=self.name, n=len(labels), **metrics.id_metrics(found, labels, temperature)
        )


def labelled_sets(
    data: str | Sequence[str] | None, classes: str | Sequence[str] | None
) -> list[LabelledSet]:
    """`D` or `NAME=D`, each with its own `NAME=CLASSES`, or the CLASSES that are given for all."""
    given = [data] if isinstance(data, str) else list(data or ())
    pairs = [_name_of(text) for text in given]
    names = [name for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"--data: {twice[0]} is there twice", hint="Tell them apart by NAME=D.")
    own: dict[str, str] = {}
    common: list[str] = []
    for text in [classes] if isinstance(classes, str) else classes or ():
        match = NAMED.fullmatch(text)
        if match is not None and match[1] in names and match[1] not in own:
            own[match[1]] = match[2]
        else:
            common.append(text)
    if len(common) > 1:
        raise UsageError(
            f"--classes {common[1]}: {common[0]} is given already",
            hint=f"Give one for all data sets, or NAME=CLASSES for one of {', '.join(names)}.",
        )
    shared = common[0] if common else None
    return [LabelledSet(name, spec, own.get(name, shared)) for name, spec in pairs]


def _name_of(text: str) -> tuple[str, str]:
    """`NAME=D`, or D under a name of its own: `torchvision:CIFAR100:test` is CIFAR100, `a/b.npz` is b."""
    match = NAMED.fullmatch(text)
    if match is not None and not Path(text).exists():
        return match[1], match[2]
    scheme, colon, rest = text.partition(":")
    if colon and not Path(text).exists():
        return rest.partition(":")[0].rpartition("/")[2] or scheme, text
    return Path(text.partition("@")[0]).stem, text
