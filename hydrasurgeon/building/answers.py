"""The answers of every candidate, stored as predictions files, and the data that fit OOD scores."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from hydrasurgeon.building.members import MemberModel
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint, undecided
from hydrasurgeon.checkpoints.class_names import classifying
from hydrasurgeon.data import Samples
from hydrasurgeon.decision.ood_score import Classifier, evidence_of
from hydrasurgeon.engines import INEXACT, engine_of
from hydrasurgeon.errors import CheckpointError, HydraError, OutputError
from hydrasurgeon.files.atomic import SUFFIX, make_folder, write_bytes
from hydrasurgeon.measuring.predictions import (
    Predictions,
    read_predictions,
    write_predictions,
)
from hydrasurgeon.options.making import BuildOptions
from hydrasurgeon.options.progress import Progress
from hydrasurgeon.runtime.answering import collected
from hydrasurgeon.runtime.classifier import as_classifier
from hydrasurgeon.runtime.features import classifiers
from hydrasurgeon.statistics.scores.evidence import Evidence
from hydrasurgeon.tasks.base import Outputs, Task
from hydrasurgeon.tuning.probe import cross_fitted


@dataclass(frozen=True)
class MemberOutputs:
    """Outputs of the members of one model, or of several models side by side."""

    sets: tuple[Outputs, ...]
    """Outputs on VAL, then on each OOD set."""
    evidence: tuple[Evidence, ...] = ()
    """Data that fit the OOD scores, one entry a member; empty without OOD data."""
    linear: tuple[Classifier, ...] = ()
    """Weight and bias of each member's classifier."""

    def beside(self, other: MemberOutputs) -> MemberOutputs:
        """Return the outputs of the members of this model and of the other one, on the same
        samples.
        """

        def joined(one: Outputs, other: Outputs) -> Outputs:
            features = None
            if one.features is not None and other.features is not None:
                features = np.concatenate([one.features, other.features], axis=1)
            logits = np.concatenate([one.logits, other.logits], axis=1)
            return replace(one, logits=logits, features=features)

        sets = tuple(map(joined, self.sets, other.sets))
        return MemberOutputs(sets, (*self.evidence, *other.evidence), (*self.linear, *other.linear))


@contextlib.contextmanager
def _believed(place: Path) -> Iterator[None]:
    """Raise CheckpointError if a stored file cannot be read back."""
    try:
        yield
    except (HydraError, SafetensorError, ValueError, KeyError, OSError) as error:
        raise CheckpointError(
            f"{place}: its answers were changed, or are damaged",
            hint=f"Delete {place}: the next build makes it anew.",
        ) from error


@dataclass(frozen=True)
class AnswerStore:
    """Asks models about VAL and the OOD sets, each once."""

    val: Samples
    ood: Sequence[Samples]
    train: Samples
    """Training samples that fit the OOD scores."""
    task: Task
    options: BuildOptions
    progress: Progress
    crossed: Samples | None = None
    """The training rows, where classifiers of folds answer for VAL, which are those with a fold."""
    cache: dict[Path, MemberOutputs] = field(default_factory=dict)

    def words(self, read: Callable[[Samples], ndarray]) -> tuple[ndarray, ...]:
        """Return a word reader's outputs on VAL and each OOD set, from the stored file if there is
        one.
        """
        place, count = self._folder() / f"words{SUFFIX}", 1 + len(self.ood)
        if not place.exists():
            sets = {str(n): read(samples) for n, samples in enumerate((self.val, *self.ood))}
            write_bytes(place, save({name: np.ascontiguousarray(s) for name, s in sets.items()}))
        with _believed(place):
            held = load_file(place)
            return tuple(held[str(n)] for n in range(count))

    def _folder(self) -> Path:
        folder = self.options.work / "answers"
        if folder.is_symlink():
            raise OutputError(f"{folder}: is a link", hint="Give another --cache.")
        make_folder(folder)
        return folder

    def read(self, member: MemberModel, engine: str) -> MemberOutputs:
        """Return a model's answers, from the stored file if there is one."""
        name = f"{member.name}-{engine}" if engine in INEXACT else member.name
        place = self._folder() / f"{name}{SUFFIX}"
        if place not in self.cache:
            if not place.exists():
                self._ask(member, engine, place)
            with _believed(place):
                self.cache[place] = self._kept(place)
        return self.cache[place]

    def _ask(self, member: MemberModel, engine: str, place: Path) -> None:
        options, several = self.options.but(progress=self.progress), bool(self.ood)
        opened = undecided(open_checkpoint(member.file, arch=options.arch, arch_of_bare=True))
        opened = classifying(opened, options, self.val)
        live = as_classifier(opened, device=options.device, dtype=options.dtype)
        runs: Any = engine_of(opened, engine=engine) if engine in INEXACT else live
        sets = [self.val, *self.ood, *([self.train] if several else [])]
        outputs = []
        for item in sets:
            is_val = item is self.val
            if is_val and self.crossed is not None:
                answers = collected([runs], self.crossed, options, features=True, grouped=True)
                answers = cross_fitted(live, answers, self.crossed)
                outputs.append(answers if several else replace(answers, features=None))
                continue
            outputs.append(collected([runs], item, options, features=several, grouped=is_val))
        more: dict[str, Any] = {f"features.{n}": item.features for n, item in enumerate(outputs)}
        if several:
            fit = outputs.pop()
            more |= {"fit.logits": fit.logits, "fit.labels": fit.labels}
            for number, (weight, bias) in enumerate(classifiers(live)):
                more |= {f"weight.{number}": weight, f"bias.{number}": bias}
        val, *ood = outputs
        kept = {str(n): item for n, item in enumerate(ood)}
        predictions = Predictions(member.name, "backbone", val, kept, [*kept], task=self.task)
        more = {name: item for name, item in more.items() if item is not None}
        write_predictions(predictions, place, more=more)

    def _kept(self, place: Path) -> MemberOutputs:
        stored = read_predictions(place)
        sets = [stored.outputs, *stored.ood.values()]
        if len(sets[0].logits) != len(self.val) or len(stored.ood) != len(self.ood):
            raise ValueError("of other samples")
        if not self.ood:
            return MemberOutputs((*sets,))
        held = load_file(place)
        sets = [replace(output, features=held[f"features.{n}"]) for n, output in enumerate(sets)]
        linear = tuple(
            self.task.classifier(held[f"weight.{n}"], held[f"bias.{n}"])
            for n in range(sets[0].logits.shape[1])
        )
        fit = Outputs(held["fit.logits"], held[f"features.{len(sets)}"], held["fit.labels"])
        if self.crossed is not None:  # scores are fitted to a part of VAL: the rest has not seen it
            return MemberOutputs((*sets,), (), linear)
        evidence = evidence_of(self.task.outputs(fit), linear, self.options.seed)
        return MemberOutputs((*sets,), (*evidence,), linear)
