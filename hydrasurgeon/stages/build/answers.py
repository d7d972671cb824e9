"""What every candidate answers on the validation and OOD sets: each runs once, and its logits are
kept in files.

Candidates that share leading layers run them once, side by side; nothing is written but their
answers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hydrasurgeon.checkpoints.reading import Single, open_single
from hydrasurgeon.data import Samples
from hydrasurgeon.decision.problems import problem_of
from hydrasurgeon.errors import CheckpointError, DataError
from hydrasurgeon.files.atomic import make_folder
from hydrasurgeon.measuring.predictions import (
    OodSet,
    Predictions,
    read_predictions,
    write_predictions,
)
from hydrasurgeon.options.making import BuildOptions
from hydrasurgeon.runtime.classifier import Classifier, as_classifier
from hydrasurgeon.runtime.hydra import Hydra
from hydrasurgeon.runtime.outputs import logits_of
from hydrasurgeon.runtime.processes import joined
from hydrasurgeon.runtime.pruned import LoadedBackbone
from hydrasurgeon.stages.build.candidates import Candidate, first_changed
from hydrasurgeon.stages.build.choice import Answers
from hydrasurgeon.surgery.repair import repaired_tensors

SIDE_BY_SIDE = 8
"""Candidates that run together."""


@dataclass(frozen=True)
class Cache:
    """A folder of answers, one file a candidate; what candidates are tried on, and how they run."""

    identity: Mapping[str, Any]
    """What answers depend on besides the candidate."""
    backbone: Single
    val: Samples
    foreign: tuple[Samples, ...]
    options: BuildOptions

    @property
    def folder(self) -> Path:
        return self.options.work / "answers"

    def loaded(self) -> LoadedBackbone:
        return LoadedBackbone(self.backbone, device=self.options.device, dtype=self.options.dtype)

    def place(self, candidate: Candidate) -> Path:
        about: dict[str, Any] = {"kept": candidate.kept, "repair": candidate.repair}
        if candidate.repair:  # which samples it is fitted to follows from the seed
            about["seed"] = candidate.seed
        text = f"{json.dumps(self.identity, sort_keys=True)}\n{json.dumps(about, sort_keys=True)}"
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.safetensors"

    def fill(self, candidates: Sequence[Candidate]) -> None:
        """Run those whose answers are not there; under torchrun each process takes its share of
        them.

        Who runs beside whom shows in the last bits. So whole chunks run, of which only what is
        missing is kept: a search that was interrupted ends with the answers of one that was not.
        """
        missing = {place for c in candidates if not (place := self.place(c)).exists()}
        chunks = [chunk for chunk in _chunks(candidates) if missing & {*map(self.place, chunk)}]
        done = len(candidates) - len(missing)
        with joined() as world:
            backbone = None
            for first in range(0, len(chunks), world.size):
                mine: list[tuple[Path, Predictions]] = []
                if first + world.rank < len(chunks):
                    chunk = chunks[first + world.rank]
                    backbone = backbone or self.loaded()
                    answers = self._run(backbone, chunk)
                    said = zip(map(self.place, chunk), answers, strict=True)
                    mine = [(place, each) for place, each in said if place in missing]
                everyone = [each for part in world.gather(mine) for each in part]
                if world.is_main:
                    make_folder(self.folder)
                    for place, predictions in everyone:
                        write_predictions(predictions, place)
                done += len(everyone)
                self.options.tick("candidates", done, len(candidates))
            world.gather(None)  # nobody reads before everything is written

    def read(self, candidate: Candidate) -> Answers:
        """What one that was run answered; samples in an order of their own, in which halves are
        alike.
        """
        return _read(self.place(candidate))

    def of_file(self, file: Path) -> Answers:
        """What the model in a file answers; it runs where that is not kept."""
        opened = open_single(file)
        text = f"{json.dumps(self.identity, sort_keys=True)}\n{opened.manifest.weights_sha256}"
        place = self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.safetensors"
        if not place.exists():
            model = as_classifier(opened, device=self.options.device, dtype=self.options.dtype)
            make_folder(self.folder)
            write_predictions(self._answered(model)[0], place)
        return _read(place)

    def _run(self, backbone: LoadedBackbone, chunk: Sequence[Candidate]) -> list[Predictions]:
        """A few candidates on all sets, in one pass over each."""
        trunk = min(first_changed(candidate, backbone.manifest.kept) for candidate in chunk)
        modules = []
        for candidate in chunk:
            repaired = None
            if candidate.repair is not None:
                run = self.options.but(
                    limit=self.options.score_limit, seed=candidate.seed, progress=None
                )
                how, data = candidate.repair, self.options.data
                repaired, _ = repaired_tensors(
                    self.backbone, candidate.kept, how=how, data=data, run=run
                )
            modules.append(backbone.module(candidate.kept, repaired))
        return self._answered(_Several(backbone, modules, trunk=trunk))

    def _answered(self, model: Classifier) -> list[Predictions]:
        """What each member of a model says of all sets."""
        run = self.options.but(progress=None)
        val, labels = logits_of([model], self.val, run)
        assert labels is not None  # its classes are fitted
        outside = [logits_of([model], samples, run)[0] for samples in self.foreign]
        return [
            Predictions(
                name="candidate",
                kind="member",
                logits=val[:, [i]].clone(),
                labels=labels,
                problem=problem_of(self.backbone.manifest.model),
                ood=tuple(
                    OodSet(str(at), "near", rows[:, [i]].clone()) for at, rows in enumerate(outside)
                ),
            )
            for i in range(model.members)
        ]

    def answers_of(self, model: Classifier) -> list[Answers]:
        """What a model's members answer, in the same order of samples."""
        return [shuffled(each) for each in self._answered(model)]


class _Several(Classifier):
    """Pruned models side by side, as one classifier of so many members."""

    def __init__(
        self, backbone: LoadedBackbone, modules: Sequence[nn.Module], *, trunk: int
    ) -> None:
        checkpoint = backbone.checkpoint
        super().__init__(
            Hydra(modules, checkpoint.family.anatomy, trunk=trunk, mode="apart"),
            backbone.manifest,
            checkpoint.family.transform(checkpoint.manifest.model, files=checkpoint.files),
            name=checkpoint.name,
        )
        self._count = len(modules)
        self.eval()

    @property
    def members(self) -> int:
        return self._count


def _read(place: Path) -> Answers:
    try:
        return shuffled(read_predictions(place))
    except DataError as error:
        raise CheckpointError(
            error.message, hint=f"Delete {place}: the next build makes it anew."
        ) from error


def shuffled(said: Predictions) -> Answers:
    """The first member's answers, each set in an order that is drawn for its length. One logit and
    many labels are choices between no and yes; of many labels there is then no score of a whole OOD
    sample.
    """
    problem, ood = said.problem, () if said.problem.name == "multi_label" else said.ood
    sets = [said.logits, *(each.logits for each in ood if each.logits is not None)]
    orders = [
        torch.randperm(len(rows), generator=torch.Generator().manual_seed(0)) for rows in sets
    ]
    val, *foreign = (
        problem.rows(rows[order, :1])[:, 0].float()
        for rows, order in zip(sets, orders, strict=True)
    )
    each = len(val) // len(said.logits)
    return Answers(val, problem.truth(said.labels[orders[0]]).flatten(), tuple(foreign), each)


def _chunks(candidates: Sequence[Candidate]) -> Iterator[list[Candidate]]:
    """Those that begin to differ in the same layer together."""
    by_start: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        by_start.setdefault(candidate.layers or "", []).append(candidate)
    for _, group in sorted(by_start.items(), reverse=True):
        for at in range(0, len(group), SIDE_BY_SIDE):
            yield group[at : at + SIDE_BY_SIDE]
