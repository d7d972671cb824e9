"""replay: run a checkpoint's whole history again, from the backbone and the data it names, and compare the hashes."""

from __future__ import annotations

import contextlib
import hashlib
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydrasurgeon.checkpoints.at_hand import AtHand, Found
from hydrasurgeon.checkpoints.checks import Check, short
from hydrasurgeon.checkpoints.reading import Checkpoint, open_checkpoint, rewritten
from hydrasurgeon.checkpoints.writing import save
from hydrasurgeon.errors import OutputError
from hydrasurgeon.files.atomic import check_folder
from hydrasurgeon.files.history import command_line, installed, lineage
from hydrasurgeon.files.manifest import HEADER_KEY, Step
from hydrasurgeon.files.recorded import (
    CalibrateOptions,
    ExportOptions,
    FinetuneOptions,
    FuseOptions,
    InitOptions,
    PruneOptions,
    ScoreOptions,
    StepOptions,
)
from hydrasurgeon.files.tensors import Planned, as_float, weights_sha256
from hydrasurgeon.options.shared import Progress
from hydrasurgeon.stages.replay_inputs import derived_mask, with_files
from hydrasurgeon.stages.replay_plan import Artifact, Plan, Rerun, plan_replay
from hydrasurgeon.stages.replay_script import mask_place, script

if TYPE_CHECKING:
    from hydrasurgeon.files.tensors import Parts

FORMAT = "hydrasurgeon.replay/1"
"""Of the JSON report."""
DATA_OPTIONS = ("data", "val", "ood", "fit_data")
"""Options that name data: what was read is in the step's records, by its content."""


@dataclass(frozen=True)
class Replay:
    """What was run again, or would be, and how it compares."""

    path: Path
    commands: tuple[str, ...]
    """The steps as they are typed."""
    script: str
    checks: tuple[Check, ...] = ()
    versions: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Packages that were another version then: recorded, installed."""
    differences: Mapping[str, float] = field(default_factory=dict)
    """Largest difference in each tensor that is not the same bits."""
    ran: bool = True

    @property
    def holds(self) -> bool:
        return all(check.holds is not False for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "path": str(self.path),
            "ran": self.ran,
            "holds": self.holds if self.ran else None,
            "commands": list(self.commands),
            "versions": {n: {"recorded": a, "installed": b} for n, (a, b) in self.versions.items()},
            "checks": [asdict(check) for check in self.checks],
            "differences": dict(self.differences),
        }


def replay(
    checkpoint: str | Path,
    *,
    folder: str | Path,
    out: str | Path | None = None,
    dry_run: bool = False,
    fetch: bool = False,
    tolerance: float = 0.0,
    device: str = "auto",
    progress: Progress | None = None,
) -> Replay:
    """Make a checkpoint again; `folder` holds the backbone and the data, `out` keeps the files on the way.

    What the history names on the hub is read only with `fetch`.
    """
    _check_out(out)
    target, at_hand = open_checkpoint(checkpoint), AtHand(folder)
    digests = target.digests()
    plan = plan_replay(target, at_hand, fetch=fetch)
    # Everything that is read is looked for before anything runs.
    options = [with_files(run, at_hand.folder, fetch=fetch) for run in plan.runs]
    masks = [derived_mask(plan, run, at_hand.folder) for run in plan.runs]
    commands = tuple(shlex.join(command_line(run.entry)) for run in plan.runs)
    versions = _versions(plan)
    text = script(plan, options, masks, at_hand.folder)
    if dry_run:
        return Replay(target.path, commands, text, versions=versions, ran=False)
    with _workplace(out) as place:
        stage = _Replaying(plan, place, at_hand, device, progress)
        checks = [stage.run(run, each, mask) for run, each, mask in zip(plan.runs, options, masks, strict=True)]
        made = open_checkpoint(stage.path(plan.result))
        again = Found(made, made.digests())
        differences = _differences(Found(target, digests), again)
        checks += _compare(Found(target, digests), again, differences, tolerance, versions)
    if tolerance:
        # What differs on the way is judged by what comes of it.
        checks = [*(_lenient(check) for check in checks[: len(plan.runs)]), *checks[len(plan.runs) :]]
    return Replay(target.path, commands, text, tuple(checks), versions, differences)


def _lenient(check: Check) -> Check:
    return check if check.holds else Check(check.name, None, check.detail)


def _check_out(out: str | Path | None) -> None:
    if out is None:
        return
    place = Path(out)
    check_folder(place)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise OutputError(f"{place}: is not an empty folder", hint="Give another -o.")


@contextlib.contextmanager
def _workplace(out: str | Path | None) -> Iterator[Path]:
    """The folder of the replay: a new one that stays, or a temporary one."""
    if out is None:
        with tempfile.TemporaryDirectory(prefix="hydrasurgeon-replay-") as scratch:
            yield Path(scratch)
    else:
        Path(out).mkdir(exist_ok=True)
        yield Path(out).resolve()


@dataclass
class _Replaying:
    plan: Plan
    place: Path
    at_hand: AtHand
    device: str
    progress: Progress | None
    begun: set[str] = field(default_factory=set)

    def path(self, artifact: Artifact) -> Path:
        return self.place / artifact.place

    def run(self, run: Rerun, options: StepOptions, mask: str | None) -> Check:
        """Run one step, and say whether it gave what a later step read."""
        inputs = [self._input(artifact) for artifact in run.inputs]
        target = self.path(run.output)
        target.parent.mkdir(exist_ok=True)
        if mask is not None and isinstance(options, PruneOptions):
            file = self.place / mask_place(run)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(mask, encoding="utf-8")
            options = options.model_copy(update={"mask": str(file)})
        with contextlib.chdir(self.at_hand.folder):  # where data has the names that history knows
            self._stage(run, options, inputs, target)
        return _step_check(run, open_checkpoint(target))

    def _input(self, artifact: Artifact) -> str:
        """A file to read: a backbone comes into the folder as it was before anything in this history was done to it."""
        if artifact.source is None:
            return str(self.path(artifact))
        if artifact.source.checkpoint.hub_id is not None:
            return artifact.place
        if artifact.place not in self.begun:
            _bring(artifact.source, self.path(artifact))
            self.begun.add(artifact.place)
        return str(self.path(artifact))

    def _stage(self, run: Rerun, options: StepOptions, inputs: list[str], target: Path) -> None:
        """The stage behind a step; each is imported when it is needed."""
        seed, out = run.entry.seed or 0, _as_out(target)
        recorded: dict[str, Any] = options.model_dump()
        shared: dict[str, Any] = {"seed": seed, "device": self.device, "progress": self.progress}
        if isinstance(options, ScoreOptions):
            from hydrasurgeon.stages.score import score

            score(inputs[0], out=None if run.in_place else out, **recorded, **shared)
        elif isinstance(options, PruneOptions):
            from hydrasurgeon.stages.prune import prune

            prune(inputs[0], out=out, **recorded, **shared)
        elif isinstance(options, FinetuneOptions):
            from hydrasurgeon.stages.finetune import finetune

            start = recorded.pop("checkpoint")
            finetune(inputs[0] if inputs else start, out=out, **recorded, **shared)
        elif isinstance(options, FuseOptions):
            from hydrasurgeon.stages.fuse import fuse

            fuse(inputs, out=out, **recorded, **shared)
        elif isinstance(options, CalibrateOptions):
            from hydrasurgeon.stages.calibrate import calibrate

            calibrate(inputs[0], out=out, **recorded, **shared)
        elif isinstance(options, ExportOptions):
            from hydrasurgeon.stages.export import export

            export(inputs[0], out=out, **recorded)
        else:
            assert isinstance(options, InitOptions)
            from hydrasurgeon.tuning.start import fresh

            fresh(options.spec, out, seed=seed)


def _as_out(path: Path) -> str:
    """A name without suffix was a directory."""
    return str(path) if path.suffix == ".safetensors" else f"{path}/"


def _bring(source: Found, place: Path) -> None:
    """A copy of a backbone without what was scored since: scores are made again, in their order."""
    opened = source.checkpoint
    manifest = opened.manifest
    place.parent.mkdir(exist_ok=True)
    plain = rewritten(manifest, scores={}, history=tuple(lineage(manifest.history)))
    if HEADER_KEY in opened.tensors.files[0].metadata and plain != manifest:
        save(
            place,
            [_copied(source, name) for name in opened.tensors],
            lambda sha256: rewritten(plain, weights_sha256=sha256),
            files=opened.files,
        )
    elif opened.path.is_dir():
        weights = {file.path.name for file in opened.tensors.files}
        place.mkdir()
        for path in sorted(opened.path.iterdir()):
            # A link may lead to anything of the reader's; weights are linked to what caches hold.
            if path.name in weights or (path.is_file() and not path.is_symlink()):
                shutil.copyfile(path, place / path.name)
        (place / "heads.json").unlink(missing_ok=True)
    else:
        shutil.copyfile(opened.path, place)


def _copied(source: Found, name: str) -> Planned:
    info = source.checkpoint.tensors[name]

    def produce() -> Parts:
        yield from source.checkpoint.tensors.blocks(name)
        return source.digests[name]

    return Planned(name, info.dtype, info.shape, produce)


def _step_check(run: Rerun, made: Checkpoint) -> Check:
    """Whether a step wrote the weights that were read after it the first time, from the same inputs."""
    name = f"{run.entry.command} → {run.output.name or run.output.place}"
    again, actual = made.manifest.history[-1], made.manifest.weights_sha256
    other = _other_inputs(run.entry, again)
    if run.output.sha256 is None:
        return Check(name, None, "nothing says what it should be")
    if actual == run.output.sha256:
        return Check(name, other is None, other or f"identical ({short(actual)})")
    why = f"; {other}" if other else ""
    return Check(name, False, f"gives {short(actual)}, was {short(run.output.sha256)}{why}")


def _other_inputs(then: Step, now: Step) -> str | None:
    """Which data a step saw that it did not see the first time."""
    for before, after in zip(then.data, now.data, strict=False):
        if (before.rows, before.sha256) != (after.rows, after.sha256):
            return f"{after.spec} is other data than then ({after.rows} rows, {before.rows} then)"
    return None


def _versions(plan: Plan) -> dict[str, tuple[str, str]]:
    """Packages that the steps to run were run with then, and are another version now."""
    recorded = {name: version for run in plan.runs for name, version in run.entry.versions.items()}
    now = {name: installed(name) or "not installed" for name in recorded}
    return {name: (then, now[name]) for name, then in recorded.items() if then != now[name]}


def _differences(target: Found, made: Found) -> dict[str, float]:
    """Largest difference in each tensor that is not the same bits; infinite where shapes differ."""
    a, b = target.checkpoint.tensors, made.checkpoint.tensors
    differences = {}
    for name in sorted(set(a) | set(b)):
        if name not in a or name not in b or (a[name].dtype, a[name].shape) != (b[name].dtype, b[name].shape):
            differences[name] = float("inf")
        elif target.digests[name] != made.digests[name]:
            dtype = a[name].dtype
            apart = abs(as_float(a.read(name), dtype) - as_float(b.read(name), dtype))
            differences[name] = float(apart.max())
    return differences


def _compare(
    target: Found,
    made: Found,
    differences: Mapping[str, float],
    tolerance: float,
    versions: Mapping[str, tuple[str, str]],
) -> list[Check]:
    return [_weights(target, differences, tolerance), _manifests(target, made, versions)]


def _weights(target: Found, differences: Mapping[str, float], tolerance: float) -> Check:
    name, count = f"{target.checkpoint.name}, weights", len(target.checkpoint.tensors)
    if not differences:
        sha256 = weights_sha256(target.checkpoint.tensors, target.digests)
        return Check(name, True, f"{count} tensors, identical ({short(sha256)})", 0.0)
    # `max` would not see NaN.
    worst = max(differences, key=lambda n: (differences[n] != differences[n], differences[n]))
    largest = differences[worst]
    return Check(
        name,
        largest <= tolerance,
        f"{len(differences)} of {count} tensors differ, at most by {largest:.3g} ({worst})",
        largest,
    )


def _manifests(target: Found, made: Found, versions: Mapping[str, tuple[str, str]]) -> Check:
    name = f"{target.checkpoint.name}, manifest"
    if _sha256(target.checkpoint) == _sha256(made.checkpoint):
        return Check(name, True, "identical, and so are the files")
    then = _comparable(target.checkpoint)
    now = _comparable(made.checkpoint)
    differing = [key for key in then if then[key] != now[key] and key != "weights_sha256"]
    if not differing:
        return Check(name, True, "the same but for versions and names of files")
    # Other versions may score otherwise in the last digits.
    return Check(name, None if versions else False, f"differs in {', '.join(differing)}")


def _comparable(checkpoint: Checkpoint) -> dict[str, Any]:
    """A manifest without what may differ: versions, what searches took, and what files are called whose content is
    hashed."""
    plain = checkpoint.manifest.model_dump()
    for entry in plain["history"]:
        del entry["versions"]
        entry["args"] = {key: _bare(value) for key, value in entry["args"].items() if key not in DATA_OPTIONS}
    for score in plain["scores"].values():  # an order that was shortened took a longer search
        score["settings"].pop("counts", None)
    for seen in (*plain["history"], *plain["scores"].values()):
        seen["data"] = [(record["rows"], record["sha256"]) for record in seen["data"]]
    return plain


def _bare(value: Any) -> Any:
    return Path(value).name if isinstance(value, str) and "/" in value else value


def _sha256(checkpoint: Checkpoint) -> list[str]:
    hashes = []
    for file in checkpoint.tensors.files:
        with file.path.open("rb") as stream:
            hashes.append(hashlib.file_digest(stream, "sha256").hexdigest())
    return hashes
