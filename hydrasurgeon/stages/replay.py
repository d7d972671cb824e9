"""replay: run a checkpoint's whole history again, from the backbone and the data it names, and
compare the hashes.
"""

from __future__ import annotations

import contextlib
import filecmp
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from hydrasurgeon.checkpoints.checks import Check, Checked, short
from hydrasurgeon.checkpoints.reading import Checkpoint, open_checkpoint, rewritten
from hydrasurgeon.checkpoints.writing import save
from hydrasurgeon.errors import OutputError
from hydrasurgeon.files.atomic import check_folder
from hydrasurgeon.files.history import command_line, installed, lineage
from hydrasurgeon.files.manifest import HEADER_KEY, Step
from hydrasurgeon.files.tensors import as_float, weights_sha256
from hydrasurgeon.options.base import PathLike, stage
from hydrasurgeon.options.commands import script
from hydrasurgeon.options.trusting import ReplayOptions, VerifyOptions
from hydrasurgeon.stages.ancestry import AtHand, Hashed
from hydrasurgeon.stages.replay_plan import DATA, Artifact, Rerun, plan_replay

FORMAT = "hydrasurgeon.replay/1"
"""Format identifier of the JSON report."""


@dataclass(frozen=True)
class Replay(Checked):
    """What was run again, or would be, and how it compares."""

    commands: tuple[str, ...]
    """The steps as they are typed."""
    script: str
    versions: Mapping[str, tuple[str, str]]
    """Packages that were another version then: recorded, installed."""
    differences: Mapping[str, float] = field(default_factory=dict)
    """Largest difference in each tensor that is not the same bits."""
    shell: bool = False
    """Whether the script was asked for."""

    @property
    def ran(self) -> bool:
        return bool(self.checks)

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


@stage(ReplayOptions)
def replay(arguments: ReplayOptions) -> Replay:
    """Make a checkpoint again; `folder` holds the backbone and the data, `out` keeps the files on
    the way.
    """
    target, at_hand = open_checkpoint(arguments.checkpoint), AtHand(arguments.folder)
    return run_again(Hashed(target, target.digests()), at_hand, arguments)


def run_again(
    recorded: Hashed, at_hand: AtHand, arguments: ReplayOptions | VerifyOptions
) -> Replay:
    """Run the history of a checkpoint from files at hand, and compare."""
    target, folder = recorded.checkpoint, at_hand.folder
    runs = plan_replay(target, at_hand, fetch=arguments.fetch)
    versions = _versions([run.entry for run in runs])
    planned = Replay(
        target.path,
        (),
        tuple(shlex.join(command_line(run.entry)) for run in runs),
        _script(target, runs, folder, fetch=arguments.fetch),
        versions,
        shell=arguments.shell,
    )
    if arguments.dry_run:
        return planned
    with _workplace(arguments.out) as root:
        for artifact, source in _beginnings(runs):
            _bring(source, root / artifact.place)
        steps = [_run_again(run, root, folder, arguments) for run in runs]
        made = open_checkpoint(root / runs[-1].output.place)
        differences = _differences(recorded, Hashed(made, made.digests()))
        weights = _weights(recorded, differences, arguments.tolerance)
        manifest = _manifests(target, made, versions)
    if arguments.tolerance:
        # What differs on the way is judged by what comes of it.
        steps = [check if check.holds else replace(check, holds=None) for check in steps]
    checks = (*_taken(runs), *steps, weights, manifest)
    return replace(planned, checks=checks, differences=differences)


@contextlib.contextmanager
def _workplace(out: PathLike | None) -> Iterator[Path]:
    """The folder of the replay: a new one that stays, or a temporary one."""
    if out is None:
        with tempfile.TemporaryDirectory(prefix="hydrasurgeon-replay-") as scratch:
            yield Path(scratch).resolve()
        return
    place = Path(out)
    check_folder(place)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise OutputError(f"{place}: is not an empty folder", hint="Give another -o.")
    place.mkdir(exist_ok=True)
    yield place.resolve()


def _beginnings(runs: Sequence[Rerun]) -> list[tuple[Artifact, Checkpoint]]:
    """The files at hand with which the replay begins; what is on the hub is read there."""
    read = dict.fromkeys(artifact for run in runs for artifact in run.inputs)
    return [
        (each, each.source.checkpoint) for each in read if each.source is not None and each.is_file
    ]


def _taken(runs: Sequence[Rerun]) -> Iterator[Check]:
    """Backbones that were trained or exported, and are not made again."""
    for _, source in _beginnings(runs):
        made_by = [step.command for step in lineage(source.manifest.history)]
        if made_by and made_by[-1] != "init":
            yield Check(source.name, None, f"taken as it is: its {made_by[-1]} is not run again")


def _script(target: Checkpoint, runs: Sequence[Rerun], folder: Path, *, fetch: bool) -> str:
    """The commands with their options as they were given; data keeps the names it has in `folder`."""
    root = Path("/here")
    lines = [f"from={shlex.quote(str(folder.resolve()))}  # backbone and data", "here=$(pwd)"]
    for artifact, source in _beginnings(runs):
        lines.append(
            f'cp -R "$from"/{shlex.quote(source.path.name)} "$here"/{shlex.quote(artifact.place)}'
        )
    lines.append('cd "$from"')
    for run in runs:
        if "/" in run.output.place:
            lines.append(f'mkdir -p "$here"/{Path(run.output.place).parent}')
        lines.append(run.command(root, folder, fetch=fetch).line(root, "here"))
    title = f"How {target.name} was made. Run this in an empty folder: its files are written there."
    return script(title, lines)


def _run_again(
    run: Rerun, root: Path, folder: Path, arguments: ReplayOptions | VerifyOptions
) -> Check:
    """Run one step, and say whether it wrote what it wrote the first time."""
    place = root / run.output.place
    place.parent.mkdir(exist_ok=True)
    command = run.command(root, folder, fetch=arguments.fetch)
    with contextlib.chdir(folder):  # where data has the names that history knows
        command.run(device=arguments.device, progress=arguments.progress)
    made = open_checkpoint(place).manifest
    name = f"{run.entry.command} → {run.output.name or run.output.place}"
    other = next(
        (
            f"{after.spec} is other data than then ({after.rows} rows, {before.rows} then)"
            for before, after in zip(run.entry.data, made.history[-1].data, strict=False)
            if (before.rows, before.sha256) != (after.rows, after.sha256)
        ),
        None,
    )
    if made.weights_sha256 == run.output.sha256:
        return Check(name, other is None, other or f"identical ({short(made.weights_sha256)})")
    was = "unknown" if run.output.sha256 is None else short(run.output.sha256)
    return Check(
        name,
        False,
        f"gives {short(made.weights_sha256)}, was {was}" + (f"; {other}" if other else ""),
    )


def _bring(opened: Checkpoint, place: Path) -> None:
    """A copy of a backbone without what was scored since: scores are made again, in their order."""
    place.parent.mkdir(exist_ok=True)
    if HEADER_KEY in opened.tensors.files[0].metadata:
        plain = rewritten(
            opened.manifest, scores={}, history=tuple(lineage(opened.manifest.history))
        )
        save(
            place,
            opened.tensors.planned(),
            lambda sha256: rewritten(plain, weights_sha256=sha256),
            files=opened.files,
        )
    elif opened.path.is_dir():
        weights = {file.path.name for file in opened.tensors.files}
        place.mkdir()
        for path in sorted(opened.path.iterdir()):
            # A link may lead to anything of the reader's; weights are linked to what caches hold.
            if path.name != "heads.json" and (
                path.name in weights or (path.is_file() and not path.is_symlink())
            ):
                shutil.copyfile(path, place / path.name)
    else:
        shutil.copyfile(opened.path, place)


def _versions(steps: Sequence[Step]) -> dict[str, tuple[str, str]]:
    """Packages that the steps to run were run with then, and are another version now."""
    recorded = {name: version for entry in steps for name, version in entry.versions.items()}
    now = {name: installed(name) or "not installed" for name in recorded}
    return {name: (then, now[name]) for name, then in recorded.items() if then != now[name]}


def _differences(target: Hashed, made: Hashed) -> dict[str, float]:
    """Largest difference in each tensor that is not the same bits; infinite where shapes differ."""
    a, b = target.checkpoint.tensors, made.checkpoint.tensors
    differences = {}
    for name in sorted({*a, *b}):
        if (
            name not in a
            or name not in b
            or (a[name].dtype, a[name].shape) != (b[name].dtype, b[name].shape)
        ):
            differences[name] = float("inf")
        elif target.digests[name] != made.digests[name]:
            dtype = a[name].dtype
            differences[name] = float(
                abs(as_float(a.read(name), dtype) - as_float(b.read(name), dtype)).max()
            )
    return differences


def _weights(target: Hashed, differences: Mapping[str, float], tolerance: float) -> Check:
    tensors = target.checkpoint.tensors
    name, count = f"{target.checkpoint.name}, weights", len(tensors)
    if not differences:
        sha256 = weights_sha256(tensors, target.digests)
        return Check(name, True, f"{count} tensors, identical ({short(sha256)})", 0.0)
    # `max` would not see NaN.
    worst = max(differences, key=lambda n: (differences[n] != differences[n], differences[n]))
    largest = differences[worst]
    detail = f"{len(differences)} of {count} tensors differ, at most by {largest:.3g} ({worst})"
    return Check(name, largest <= tolerance, detail, largest)


def _manifests(
    target: Checkpoint, made: Checkpoint, versions: Mapping[str, tuple[str, str]]
) -> Check:
    name = f"{target.name}, manifest"
    a, b = ([file.path for file in each.tensors.files] for each in (target, made))
    if len(a) == len(b) and all(
        filecmp.cmp(*pair, shallow=False) for pair in zip(a, b, strict=True)
    ):
        return Check(name, True, "identical, and so are the files")
    then, now = _comparable(target), _comparable(made)
    differing = [key for key in then if then[key] != now[key]]
    if not differing:
        return Check(name, True, "the same but for versions and names of files")
    # Other versions may score otherwise in the last digits.
    return Check(name, None if versions else False, f"differs in {', '.join(differing)}")


def _comparable(checkpoint: Checkpoint) -> dict[str, Any]:
    """A manifest without what may differ: hashes, versions, what searches took, and what data is
    called.
    """
    plain = checkpoint.manifest.model_dump(exclude={"weights_sha256", "record_sha256"})
    for entry in plain["history"]:
        del entry["versions"], entry["output"]
        entry["args"] = {
            key: value
            for key, value in entry["args"].items()
            if key not in (*DATA, "mask", "recipe")
        }
    for score in plain["scores"].values():  # an order that was shortened took a longer search
        score["settings"].pop("counts", None)
    for seen in (*plain["history"], *plain["scores"].values()):
        seen["data"] = [(record["rows"], record["sha256"]) for record in seen["data"]]
    return plain
