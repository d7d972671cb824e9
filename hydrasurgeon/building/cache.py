"""build's work folder: what it belongs to, commands that write into it once, and what every member
answered on the validation and OOD sets.

Members pruned in memory that share leading layers run side by side; nothing is written but their
answers. Each file of answers says which member it is of, and the hash of what it holds.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors.torch import save
from torch import Tensor, nn

from hydrasurgeon.building.members import MeanTrunk, Member
from hydrasurgeon.checkpoints.reading import Single, open_checkpoint, open_single, undecided
from hydrasurgeon.data import Samples, open_data
from hydrasurgeon.decision.fitting import dealt_out, evidence_of, without_ood
from hydrasurgeon.engines import engine_of
from hydrasurgeon.errors import CheckpointError, DataError, OutputError
from hydrasurgeon.files.atomic import SUFFIX, make_folder, write_bytes, write_text
from hydrasurgeon.files.decided import FITTED, ZERO_SHOT
from hydrasurgeon.files.foreign import read_json
from hydrasurgeon.files.manifest import OF_NEURONS
from hydrasurgeon.files.resumable import Resumable, Work, there
from hydrasurgeon.files.tensors import TensorFile
from hydrasurgeon.options.commands import Command
from hydrasurgeon.options.making import BuildOptions
from hydrasurgeon.options.shared import Progress
from hydrasurgeon.problems import SINGLE, problem_of
from hydrasurgeon.problems.base import Outputs, Problem
from hydrasurgeon.runtime.answering import Engine, collected
from hydrasurgeon.runtime.classifier import Classifier, as_classifier
from hydrasurgeon.runtime.features import classifiers
from hydrasurgeon.runtime.hydra import Hydra
from hydrasurgeon.runtime.processes import joined
from hydrasurgeon.runtime.pruned import LoadedBackbone
from hydrasurgeon.runtime.tensors import to_tensor
from hydrasurgeon.statistics.scores.fitted import EnsembleScore, fit
from hydrasurgeon.surgery.repair import repaired_tensors

SIDE_BY_SIDE = 8
"""Members that run together."""
ABOUT = "hydrasurgeon.answers"
"""Header key of what a file of answers says of itself."""
Scored = tuple[dict[str, tuple[Tensor, ...]], dict[str, list[float]]]
"""One member's fitted OOD scores on each set, and the hints of all kinds."""
HINT = "hints."
"""What the names of such tensors begin with."""
BODY = "body.json"
"""What a work folder says of the body that its models were tuned from: a state too."""
MOST_STATE = 4 << 20
"""Bytes of a work folder's state."""


@dataclass(frozen=True)
class State(Resumable):
    """What a work folder belongs to."""

    work: Work = ("build", "hydrasurgeon.build-state/7")

    def check(self) -> None:
        """Refuse a folder that belongs to other work."""
        folder = self.path.parent
        if there(self.path):
            with self.judged():
                texts = read_json(self.path, most=MOST_STATE, error=ValueError)  # type: ignore[arg-type]
                self.position(texts, most=MOST_STATE)
            return
        # What lies in a folder without a state may come from anywhere.
        files = [file for file in folder.iterdir() if not file.name.startswith(".")]
        if files and not there(folder / BODY):
            what = f"{folder}: holds {files[0].name}, and no state of a build"
            raise OutputError(what, hint="Give another --cache, or delete the folder.")

    @property
    def remedy(self) -> str:
        """Without its state a folder is of no use."""
        return f"Delete {self.path.parent}, or give another --cache."


@dataclass(frozen=True)
class Workshop:
    """Runs commands that write into the work folder, each once."""

    options: BuildOptions
    state: State
    progress: Progress | None

    def open(self) -> None:
        """Check the folder's state, or begin one."""
        with joined() as world:
            self.state.check()
            world.gather(None)  # before anyone writes
            if world.is_main and not there(self.state.path):
                write_text(self.state.path, json.dumps(self.state.texts({})) + "\n")

    def perform(self, command: Command) -> None:
        """Run a command unless what it writes is there; an interrupted training goes on."""
        assert command.out is not None
        if command.out.exists():
            return
        more: dict[str, Any] = {"progress": None}  # soon done: the time left is the stage's
        if command.stage == "finetune":
            begun = command.out.with_name(f"{command.out.stem}.training{SUFFIX}")
            more = {"progress": self.progress, "resume": begun.exists()}
            more["track"] = self.options.track
        command.run(device=self.options.device, **more)

    def score(self, target: Path, commands: Sequence[Command], *, weights: str) -> None:
        """Run what scores a copy, of which the first command makes it, where scores are missing;
        other weights are refused.
        """
        with joined() as world:
            present = set[str]()
            if target.exists():
                copy = undecided(open_single(target))
                if copy.record(copy.digests()).sha256 != weights:
                    what = f"{target}: holds other weights than what is to be built from"
                    raise CheckpointError(what, hint="Delete the folder, or give another --cache.")
                present = set(copy.manifest.scores)
            present = world.gather(present)[0]  # before anyone writes
            for command in commands:
                key = command.options["method"]
                if command.options.get("part") == "neurons":
                    key = f"{OF_NEURONS}{key}"
                if key not in present:
                    command.run(device=self.options.device, progress=self.progress)
                    world.gather(None)  # the first process writes


@dataclass(frozen=True)
class Answers:
    """What one member says of the validation set and of the OOD sets, samples in an order that is
    drawn for the length of each set.
    """

    val: Float[Tensor, "sample *any klass"]
    labels: Tensor
    ood: tuple[Float[Tensor, "sample *any klass"], ...] = ()
    scores: Mapping[str, tuple[Float[Tensor, " sample"], ...]] = field(default_factory=dict)
    """OOD scores that are fitted on features: of the validation set and of each OOD set."""
    hints: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """What `without_ood` says of each OOD score that a decision state could use."""
    problem: Problem = SINGLE
    """How this is read."""

    @property
    def sets(self) -> tuple[Float[Tensor, "sample *any klass"], ...]:
        return (self.val, *self.ood)

    def halves(self) -> tuple[Answers, Answers]:
        """The first half of every set's samples, and the rest."""
        first, rest = (self._half(number) for number in (0, 1))
        return first, rest

    def _half(self, number: int) -> Answers:
        def half(rows: Tensor) -> Tensor:
            return rows.tensor_split([len(rows) // 2])[number]

        return Answers(
            half(self.val),
            half(self.labels),
            tuple(map(half, self.ood)),
            {kind: tuple(map(half, values)) for kind, values in self.scores.items()},
            self.hints,
            self.problem,
        )

    def tensors(self) -> dict[str, Tensor]:
        """As a file holds them."""
        tensors = {"val": self.val, "labels": self.labels}
        tensors |= {f"ood.{number}": rows for number, rows in enumerate(self.ood)}
        for kind, values in self.scores.items():
            tensors |= {f"scores.{kind}.{number}": each for number, each in enumerate(values)}
        for kind, aurocs in self.hints.items():
            tensors[f"{HINT}{kind}"] = torch.tensor(aurocs, dtype=torch.float64)
        return tensors


@dataclass(frozen=True)
class Cache:
    """The files of answers, one a member; what members are tried on, and how they run."""

    identity: Mapping[str, Any]
    """What answers depend on besides the member."""
    backbone: Single
    val: Samples
    ood: tuple[Samples, ...]
    train: Samples
    """What OOD scores are fitted on."""
    options: BuildOptions
    places: dict[Path, Path] = field(default_factory=dict)
    """Where the answers of the members of these files lie, once that was asked."""

    @property
    def folder(self) -> Path:
        return self.options.work / "answers"

    @property
    def problem(self) -> Problem:
        return problem_of(self.backbone.manifest.model)

    def fill(self, members: Sequence[Member], progress: Progress | None) -> None:
        """Run those pruned in memory whose answers are not there; under torchrun each process takes
        its share of them.

        Who runs next to whom shows in the last bits. So whole chunks run, of which only what is
        missing is kept: a search that was interrupted ends with the answers of one that was not.
        """
        self._check_folder()
        missing = {place for place in map(self._place, members) if not place.exists()}
        chunks = [chunk for chunk in _chunks(members) if missing & {*map(self._place, chunk)}]
        done = len(members) - len(missing)
        with joined() as world:
            backbone = None
            for first in range(0, len(chunks), world.size):
                ready: list[tuple[Path, Answers]] = []
                if first + world.rank < len(chunks):
                    chunk = chunks[first + world.rank]
                    backbone = backbone or self._loaded()
                    answers = self._run(backbone, chunk)
                    pairs = zip(map(self._place, chunk), answers, strict=True)
                    ready = [(place, each) for place, each in pairs if place in missing]
                everyone = [pair for part in world.gather(ready) for pair in part]
                if world.is_main:
                    for place, each in everyone:
                        self._write(place, each)
                done += len(everyone)
                if progress is not None:
                    progress("candidates", done, len(members))
            world.gather(None)  # nobody reads before everything is written

    def read(self, member: Member, engine: str = "torch") -> Answers:
        """What a member answered; one that is a file runs where that is not kept."""
        if member.hydra is not None:
            place = self._place_in(member.hydra, member.model)
        else:
            place = self._place(member)
        if engine != "torch":
            place = place.with_stem(f"{place.stem}-{engine}")
        if not place.exists() and (member.trunk is None or engine != "torch"):
            self._check_folder()
            if member.hydra is not None:
                self._answer(member.hydra, engine)
                return self._read(place)
            live = self._classifier(member.file)
            computing: Engine = live
            if engine != "torch":
                opened = undecided(open_single(member.file))
                computing = engine_of(opened, engine=engine)
            (answers,) = self.answers_of(live, computing)
            self._write(place, answers)
        return self._read(place)

    def _answer(self, hydra: MeanTrunk, engine: str) -> None:
        """Write what all members of a hydra answer."""
        opened = undecided(open_checkpoint(hydra.file))
        live = as_classifier(opened, device=self.options.device, dtype=self.options.dtype)
        computing: Engine = live
        if engine != "torch":
            computing = engine_of(opened, engine=engine)
        for number, answers in enumerate(self.answers_of(live, computing)):
            place = self._place_in(hydra, number)
            if engine != "torch":
                place = place.with_stem(f"{place.stem}-{engine}")
            self._write(place, answers)

    def _place_in(self, hydra: MeanTrunk, number: int) -> Path:
        """Where the answers of a hydra's member lie."""
        weights = open_checkpoint(hydra.file).manifest.weights_sha256
        return self._named({"weights": weights, "member": number})

    def answers_of(self, model: Classifier, engine: Engine | None = None) -> list[Answers]:
        """What each member of a model says of all sets, computed by itself or by another engine."""
        run = self.options.but(progress=None)
        engine = engine or model
        sees_ood = bool(self.ood)
        sets = [self.val, *self.ood]
        outputs = [collected([engine], samples, run, features=sees_ood) for samples in sets]
        scores: list[Scored] = [({}, {}) for _ in range(model.members)]
        if sees_ood:
            scores = self._scores(model, engine, outputs)
        orders = [_order(len(each.logits)) for each in outputs]
        assert outputs[0].labels is not None  # its classes are fitted
        truth = outputs[0].labels[orders[0]]
        answers = []
        for number in range(model.members):
            val, *ood = (
                each.logits[order, number].float()
                for each, order in zip(outputs, orders, strict=True)
            )
            shuffled = {
                kind: tuple(each[order] for each, order in zip(values, orders, strict=True))
                for kind, values in scores[number][0].items()
            }
            hints = scores[number][1]
            answers.append(Answers(val, truth, tuple(ood), shuffled, hints, self.problem))
        return answers

    def _scores(
        self, model: Classifier, engine: Engine, outputs: Sequence[Outputs]
    ) -> list[Scored]:
        """Each member's OOD scores that are fitted on features of TRAIN, and what is said of all
        scores without OOD data; those that cannot be fitted are left out.
        """
        problem = self.problem
        run = self.options.but(progress=None)
        linear = [problem.classifier(each.weight, each.bias) for each in classifiers(model)]
        train = problem.outputs(collected([engine], self.train, run, features=True))
        evidence = evidence_of(train, linear, self.options.seed)
        sets = [problem.outputs(each) for each in outputs]
        unfit: Sequence[str] = ZERO_SHOT
        if self.backbone.family.named_classes:
            unfit = ()
        scores: list[Scored] = []
        for number in range(model.members):
            val, *others = (each.among([number]) for each in sets)
            kinds: dict[str, EnsembleScore | None]
            kinds = {kind: None for kind in problem.scores if kind != "mi"}
            for kind in FITTED:
                if kind in unfit or kind not in problem.features:
                    continue
                with contextlib.suppress(DataError):
                    held = (val.features, val.logits)
                    kinds[kind] = fit(kind, [evidence[number]], held)  # type: ignore[arg-type]
            values = {
                kind: tuple(each.scores(kind, score).double() for each in (val, *others))
                for kind, score in kinds.items()
                if score is not None
            }
            dealt = dealt_out(val, [linear[number]], self.options.seed)
            hints = without_ood(kinds, [evidence[number]], val, dealt)
            scores.append((values, hints))
        return scores

    def _classifier(self, file: Path) -> Classifier:
        options = self.options
        return as_classifier(open_single(file), device=options.device, dtype=options.dtype)

    def _loaded(self) -> LoadedBackbone:
        return LoadedBackbone(self.backbone, device=self.options.device, dtype=self.options.dtype)

    def _run(self, backbone: LoadedBackbone, chunk: Sequence[Member]) -> list[Answers]:
        """A few members pruned in memory on all sets, in one pass over each."""
        modules = []
        for member in chunk:
            repaired = None
            if member.pruning is not None and member.pruning.compensate is not None:
                run = self.options.but(
                    limit=self.options.score_limit, seed=member.pruning.seed, progress=None
                )
                repaired, _ = repaired_tensors(
                    self.backbone,
                    member.part.kept,
                    how=member.pruning.compensate,
                    samples=open_data(self.options.data, limit=run.limit, seed=run.seed),
                    run=run,
                )
            modules.append(backbone.module(member.part.kept, repaired))
        trunk = min(member.trunk or 0 for member in chunk)
        return self.answers_of(_SideBySide(backbone, modules, trunk=trunk))

    def _place(self, member: Member) -> Path:
        """Where the answers of a member lie."""
        if member.file in self.places:
            return self.places[member.file]
        about: dict[str, Any] = {}
        if member.trunk is None:
            about["weights"] = open_single(member.file).manifest.weights_sha256
        else:
            about["kept"] = member.part.kept
            if member.pruning is not None and member.pruning.compensate is not None:
                # Which samples it is fitted to follows from the seed.
                about |= {"repair": member.pruning.compensate, "seed": member.pruning.seed}
        self.places[member.file] = self._named(about)
        return self.places[member.file]

    def _named(self, about: Mapping[str, Any]) -> Path:
        """The file of answers of what is so."""
        text = f"{json.dumps(self.identity, sort_keys=True)}\n{json.dumps(about, sort_keys=True)}"
        name = hashlib.sha256(text.encode()).hexdigest()[:32]
        return self.folder / f"{name}.safetensors"

    def _check_folder(self) -> None:
        """Links are not followed: answers are written into this folder, or nowhere."""
        for folder in (self.options.work, self.folder):
            if folder.is_symlink():
                raise OutputError(f"{folder}: is a link", hint="Give another --cache.")
        make_folder(self.folder)

    def _write(self, place: Path, answers: Answers) -> None:
        tensors = {name: tensor.contiguous() for name, tensor in answers.tensors().items()}
        about = {"of": place.stem, "sha256": _sha256(tensors)}
        # One entry alone: safetensors writes several in an order that differs from file to file.
        write_bytes(place, save(tensors, metadata={ABOUT: json.dumps(about)}))

    def _read(self, place: Path) -> Answers:
        """What is not as it was written, or of another member, is refused."""
        try:
            file = TensorFile(place)
            about = json.loads(file.metadata.get(ABOUT, "{}"))
            tensors = {
                name: to_tensor(file.read(name), info.dtype) for name, info in file.infos.items()
            }
            if about.get("of") != place.stem or about.get("sha256") != _sha256(tensors):
                raise ValueError("is not what was written")
            scores: dict[str, tuple[Tensor, ...]] = {}
            for kind in FITTED:
                values = _numbered(tensors, f"scores.{kind}")
                if values:
                    scores[kind] = values
            ood = _numbered(tensors, "ood")
            hints = {
                name.removeprefix(HINT): tensor.tolist()
                for name, tensor in tensors.items()
                if name.startswith(HINT)
            }
            return Answers(tensors["val"], tensors["labels"], ood, scores, hints, self.problem)
        except (CheckpointError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise CheckpointError(
                f"{place}: its answers were changed, or are damaged",
                hint=f"Delete {place}: the next build makes it anew.",
            ) from error


def _order(count: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(0))


def _numbered(tensors: Mapping[str, Tensor], prefix: str) -> tuple[Tensor, ...]:
    """`PREFIX.0`, `PREFIX.1`, …"""
    found: list[Tensor] = []
    while (name := f"{prefix}.{len(found)}") in tensors:
        found.append(tensors[name])
    return tuple(found)


def _sha256(tensors: Mapping[str, Tensor]) -> str:
    total = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name} {tensor.dtype} {[*tensor.shape]}\n".encode())
        total.update(tensor.contiguous().numpy().tobytes())
    return total.hexdigest()


def _chunks(members: Sequence[Member]) -> Iterator[Sequence[Member]]:
    """Those that begin to differ in the same layer together."""
    by_start: dict[str, list[Member]] = {}
    for member in members:
        start = ""
        if member.pruning is not None:
            start = member.pruning.layers or ""
        by_start.setdefault(start, []).append(member)
    for _, group in sorted(by_start.items(), reverse=True):
        for first in range(0, len(group), SIDE_BY_SIDE):
            yield group[first : first + SIDE_BY_SIDE]


class _SideBySide(Classifier):
    """Pruned models next to each other, as one classifier of so many members."""

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
