"""A history as a plan that can be run: which files it begins with, which steps follow, what each of them should give.

History says what each step read, not what it wrote: that is told by the step that read it. A hydra's history
holds its members' histories one after another, what they share only once; so a step that reads what nobody wrote
before read what the step before it wrote, and `fuse` read what is left, in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hydrasurgeon.checkpoints.at_hand import AtHand, Found
from hydrasurgeon.checkpoints.checks import short
from hydrasurgeon.checkpoints.hub import is_hub_id
from hydrasurgeon.checkpoints.reading import Checkpoint, open_checkpoint
from hydrasurgeon.errors import CheckpointError, ManifestError
from hydrasurgeon.files.history import changes_weights, lineage
from hydrasurgeon.files.manifest import Input, Step
from hydrasurgeon.files.recorded import FinetuneOptions, FuseOptions, InitOptions, RunOptions, StepOptions, options_of
from hydrasurgeon.heads import Kept

# Bytes: file systems allow 255, and a file that is being written has a longer name.
MAX_NAME = 200


@dataclass(eq=False)
class Artifact:
    """A checkpoint on the way: one that is at hand, or what a step writes."""

    made_by: int | None = None
    """Which step of the history; None for what is at hand."""
    sha256: str | None = None
    """What its weights should hash to, as far as somebody said."""
    name: str | None = None
    """What the step that read it called it."""
    source: Found | None = None
    place: str = ""
    """Its path below the folder of the replay; a hub id stands for itself."""


@dataclass(frozen=True)
class Rerun:
    """One step to run again."""

    entry: Step
    options: StepOptions
    inputs: tuple[Artifact, ...]
    output: Artifact

    @property
    def in_place(self) -> bool:
        """Whether it writes into the file it reads, as `score` without -o does."""
        return bool(self.inputs) and self.output.place == self.inputs[0].place


@dataclass(frozen=True)
class Plan:
    """What to begin with and what to run, in order; `target` is the checkpoint all this is about."""

    target: Checkpoint
    sources: tuple[Artifact, ...]
    runs: tuple[Rerun, ...]

    @property
    def result(self) -> Artifact:
        return self.runs[-1].output

    def kept_of(self, artifact: Artifact) -> Kept | None:
        """The heads that a file on the way must keep, where a later one tells."""
        manifest = self.target.manifest
        for run in self.runs:
            if artifact not in run.inputs:
                continue
            if run.entry.command == "fuse" and manifest.kind == "hydra":
                return manifest.members[run.inputs.index(artifact)].kept
            if run.entry.command in ("score", "finetune", "calibrate"):
                artifact = run.output
        return manifest.kept if artifact is self.result else None


@dataclass
class _Tracing:
    """The state of walking through a history."""

    at_hand: AtHand
    steps: Sequence[Step]
    where: str
    fetch: bool
    artifacts: list[Artifact] = field(default_factory=list)

    def read(self, source: Input, options: StepOptions, *, fuses: bool) -> Artifact:
        """The artifact that a step read, which may make known what an earlier step should have written."""
        alike = [a for a in reversed(self.artifacts) if a.sha256 == source.sha256]
        artifact = next((a for a in alike if a.name in (None, source.name)), None)
        if artifact is None and self._fused():
            artifact = self.artifacts[-1]
        backbone = None if artifact else self._backbone(source, options)
        # The step before, whose output nobody else has named; for fuse the first such step of all.
        open_ = [a for a in self.artifacts if a.sha256 is None]
        before = (open_ if fuses else [a for a in open_ if a is self.artifacts[-1]])[:1]
        if artifact is None and backbone is not None:
            artifact = self._begin(backbone)
        elif artifact is None and before:
            artifact = before[0]
        elif artifact is None and alike:
            artifact = alike[0]
        elif artifact is None:
            artifact = Artifact(source=self._any(source, options))
            self.artifacts.append(artifact)
        artifact.sha256, artifact.name = source.sha256, artifact.name or source.name
        return artifact

    def _fused(self) -> bool:
        """Whether the step before was `fuse`: the hydra of untuned members may have the very weights of their
        backbone."""
        step = _step(self.artifacts[-1]) if self.artifacts else []
        return any(self.steps[number].command == "fuse" for number in step)

    def _backbone(self, source: Input, options: StepOptions) -> Found | None:
        arch = options.arch if isinstance(options, RunOptions) else None
        return self.at_hand.find(source.sha256, name=source.name, arch=arch, kind="backbone")

    def _begin(self, backbone: Found) -> Artifact:
        """A backbone that is at hand is where a replay begins, even if its own making is in the history."""
        last_step = lineage(backbone.checkpoint.manifest.history)[-1:]
        for artifact in self.artifacts:
            if artifact.sha256 is None and [self.steps[i] for i in _step(artifact)] == last_step:
                artifact.source = backbone
                return artifact
        beginning = Artifact(source=backbone)
        self.artifacts.append(beginning)
        return beginning

    def _any(self, source: Input, options: StepOptions) -> Found:
        """What no step of the history wrote: a file at hand, or on the hub."""
        arch = options.arch if isinstance(options, RunOptions) else None
        checkpoint = self.at_hand.find(source.sha256, name=source.name, arch=arch)
        on_hub = is_hub_id(source.name)
        if checkpoint is None and on_hub and self.fetch:
            opened = open_checkpoint(source.name, arch=arch)
            digests = opened.digests()
            if opened.record(digests).sha256 == source.sha256:
                checkpoint = Found(opened, digests)
        if checkpoint is None:
            raise CheckpointError(
                f"{self.where}: {source.name} ({short(source.sha256)}), with which its history begins, "
                f"is not in {self.at_hand.folder}",
                hint="Files are found by the hash of their weights: put that one there"
                + (", or give --fetch." if on_hub and not self.fetch else "."),
            )
        return checkpoint


def _step(artifact: Artifact) -> list[int]:
    return [] if artifact.made_by is None else [artifact.made_by]


def plan_replay(target: Checkpoint, at_hand: AtHand, *, fetch: bool) -> Plan:
    """The steps from the last backbone that is at hand to the target; ManifestError where there is no such way."""
    where, steps = target.name, target.manifest.history
    if not steps:
        raise ManifestError(f"{where}: has no history to replay", hint="Only files that hydrasurgeon made have one.")
    tracing = _Tracing(at_hand, steps, where, fetch)
    runs = []
    for number, entry in enumerate(steps):
        options = options_of(entry, where)
        inputs = tuple(tracing.read(source, options, fuses=entry.command == "fuse") for source in entry.inputs)
        if not _may_read(options, len(inputs)):
            raise ManifestError(f"{where}: its history's {entry.command} read {len(inputs)} files")
        same = None if changes_weights(entry) else inputs[0].sha256
        output = Artifact(made_by=number, sha256=same)
        tracing.artifacts.append(output)
        runs.append(Rerun(entry, options, inputs, output))
    last = runs[-1].output
    if last.sha256 is None:
        last.sha256 = target.manifest.weights_sha256
    last.name = target.path.name
    needed = {last}
    for run in reversed(runs):
        if run.output in needed and run.output.source is None:
            needed |= set(run.inputs)
    wanted = [run for run in runs if run.output in needed and run.output.source is None]
    for run in wanted:
        if isinstance(run.options, FinetuneOptions) and not run.inputs and run.options.checkpoint is None:
            raise ManifestError(
                f"{where}: its history does not say with which random weights it began",
                hint="Put the backbone that was made of them into the folder.",
            )
    sources = [artifact for artifact in tracing.artifacts if artifact in needed and artifact.source]
    _place(sources, wanted, where)
    return Plan(target, tuple(sources), tuple(wanted))


def _may_read(options: StepOptions, files: int) -> bool:
    """Whether a step with these options can have read so many checkpoints."""
    if isinstance(options, InitOptions):
        return files == 0
    if isinstance(options, FuseOptions):
        return files >= 2
    return files == 1 or (isinstance(options, FinetuneOptions) and files == 0)


def _place(sources: Sequence[Artifact], runs: Sequence[Rerun], where: str) -> None:
    """Give each file the name that history knows it by; a folder of its own where two would share one."""
    taken: set[str] = set()

    def put(artifact: Artifact, number: int) -> None:
        name = artifact.name or f"step-{number}.safetensors"
        long = len(name.encode()) > MAX_NAME
        if not name.isprintable() or long or Path(name).name != name or name in (".", ".."):
            raise ManifestError(f"{where}: its history names a file {name[:80]!r}")
        artifact.place = name if name not in taken else f"{number}/{name}"
        taken.add(name)

    for artifact in sources:
        assert artifact.source is not None
        if artifact.source.checkpoint.hub_id is not None:
            artifact.place = artifact.source.checkpoint.name
        else:
            put(artifact, 0)
    for number, run in enumerate(runs, 1):
        keeps_place = not changes_weights(run.entry) and run.output.name in (None, run.inputs[0].name)
        if keeps_place and run.inputs[0].place == run.inputs[0].name:
            run.output.place = run.inputs[0].place
        else:
            put(run.output, number)
