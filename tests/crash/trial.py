"""One scene, struck at each of its calls in turn, each time in a fresh folder by a forked process.

After every blow each output is the old one or the new one, whole; nothing else has changed; and the same command,
given again, ends with the bytes of a run that was never struck.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from crash.blows import Blow
from crash.scenes import Scene, lay_out
from hydrasurgeon.errors import CheckpointError
from hydrasurgeon.files.manifest import HEADER_KEY
from hydrasurgeon.files.tensors import TensorFile

Tree = Mapping[str, bytes]
LEFT = re.compile(r"\..+\.([0-9a-f]{8}\.(part|old)|exclusive\.lock)")
STATE = re.compile(r".+\.(search\.json|training\.safetensors)")
TRACEBACK = 99


@dataclass(frozen=True)
class Ended:
    code: int
    """What the process exited with; negative if a signal killed it."""
    said: str
    """Its stderr, and the call that was struck."""
    call: str


@dataclass
class Struck:
    """What came of one scene and one kind of blow."""

    blows: int = 0
    calls: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)


def forked(folder: Path, work: Callable[[int], int]) -> Ended:
    """Run `work` in `folder` in a forked process; it gets a descriptor to write the struck call to."""
    said, call = folder.with_name(f"{folder.name}.said"), folder.with_name(f"{folder.name}.call")
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = TRACEBACK
        try:
            log = os.open(call, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for number, path in ((1, os.devnull), (2, said)):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
            os.chdir(folder)
            code = work(log)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return Ended(os.waitstatus_to_exitcode(status), said.read_text(), call.read_text().strip())


def command(line: str) -> Callable[[int], int]:
    def work(log: int) -> int:
        from hydrasurgeon.cli.app import run

        return run(line.split())

    return work


def build(scene: Scene, inputs: Path, folder: Path) -> None:
    """What lies in the folder before the command is struck."""
    shutil.copytree(inputs, folder)
    for line in scene.before:
        _must(forked(folder, command(line)), line)


def make_inputs(folder: Path) -> None:
    folder.mkdir()
    for line in lay_out(folder):
        _must(forked(folder, command(line)), line)


def _must(ended: Ended, line: str) -> None:
    if ended.code:
        raise RuntimeError(f"{line}: ended with {ended.code}\n{ended.said}")


def tree(folder: Path) -> dict[str, bytes]:
    """All files of a folder; a folder within it stands for itself, with a / at its end."""
    found = {}
    for home, folders, files in os.walk(folder):
        for name in files:
            path = Path(home, name)
            found[str(path.relative_to(folder))] = _timeless(path.name, path.read_bytes())
        for name in folders:
            found[f"{Path(home, name).relative_to(folder)}/"] = b""
    return found


def _timeless(name: str, content: bytes) -> bytes:
    """A report as it is, but of `bench`, whose times are never the same."""
    with contextlib.suppress(ValueError):
        report = json.loads(content) if name == "r.json" else {}
        if report.get("format") == "hydrasurgeon.bench/1":
            return b"a whole bench report"
    return content


def unharmed(scene: Scene, place: Path) -> Tree:
    """Run the scene's command where nothing strikes it; the files after it, all outputs among them."""
    before = tree(place)
    _must(forked(place, command(scene.line)), scene.line)
    after = tree(place)
    for group in scene.outputs:
        written = _part(after, group)
        if not written or written == _part(before, group):
            raise RuntimeError(f"{scene.line}: has not written {group[0]}")
    return after


def strike(scene: Scene, how: str, inputs: Path, work: Path, *, every: int = 1) -> Struck:
    """Strike the scene's command at its calls 0, `every`, 2 `every` …, until there are no more; or as the scene
    says."""
    every = max(every, scene.every)
    struck = Struck()
    start, place = work / "start", work / "place"
    build(scene, inputs, start)
    shutil.copytree(start, place)
    old, new = tree(start), unharmed(scene, place)
    for at in range(0, 10_000, every):
        shutil.rmtree(place)
        shutil.copytree(start, place)

        def hit(log: int, at: int = at) -> int:
            Blow(place, how, at, log).install()
            return command(scene.line)(log)

        ended = forked(place, hit)
        if not ended.call:
            break
        struck.blows += 1
        struck.calls.append(ended.call)
        what = f"{scene.name}, {how} at {at} ({ended.call})"
        for problem in [*_after(scene, how, ended, old, new, place), *_again(scene, new, place)]:
            struck.violations.append(f"{what}: {problem}")
    shutil.rmtree(work)
    return struck


def _after(
    scene: Scene, how: str, ended: Ended, old: Tree, new: Tree, place: Path
) -> Iterator[str]:
    """What is wrong with the folder after the blow, before anything is repeated."""
    found = tree(place)
    left = {name for name in found if any(LEFT.fullmatch(part) for part in name.split("/"))}
    states = {name for name in found if STATE.fullmatch(name) and name not in old} - left
    written = [_part(found, group) for group in scene.outputs]
    for group, now in zip(scene.outputs, written, strict=True):
        if not _is_whole(group, now, old, new, bool(left)):
            yield f"{' and '.join(group)}: neither the old nor the new ({sorted(now)})"
    ours = {name for part in (*written, *(_part(old, g) for g in scene.outputs)) for name in part}
    kept = {name for name in found if scene.work and name.startswith(scene.work)}
    for name in ({*found, *old}) - ours - left - states - kept:
        if found.get(name) != old.get(name):
            yield f"{name}: has changed, and is no output"
    for name in states:
        if not _reads(place / name):
            yield f"{name}: cannot be read"
    if how in ("kill", "power"):
        if ended.code != -9:
            yield f"was not killed but ended with {ended.code}: {ended.said}"
        return
    if ended.code not in (0, 2) or "Traceback" in ended.said:
        yield f"ended with {ended.code}: {ended.said}"
    elif ended.code == 2 and not re.search(
        r"error: .*(disk is full|I/O error|Input/output error|No space left)",
        ended.said.replace("\n", " "),
    ):
        yield f"does not say what failed: {ended.said}"
    news = [_is_new(group, now, new) for group, now in zip(scene.outputs, written, strict=True)]
    if ended.code == 0 and not all(news):
        yield "ended with 0, and an output is not there"
    if "Nothing was left half-written" in ended.said and all(news):
        yield "says that nothing was written, and all is"
    if left and ended.call.split()[0] not in ("remove", "rmdir"):
        yield f"leaves {sorted(left)}"


def _part(found: Tree, group: tuple[str, ...]) -> dict[str, bytes]:
    """The files of one output."""
    if group[0].endswith("/"):
        return {name: content for name, content in found.items() if name.startswith(group[0])}
    return {name: found[name] for name in group if name in found}


def _is_whole(group: tuple[str, ...], now: Tree, old: Tree, new: Tree, left: bool) -> bool:
    before, after = _part(old, group), _part(new, group)
    if now in (before, after):
        return True
    if group[0].endswith("/"):
        return not now and left  # the old one waits under another name
    alone = {group[0]: now.get(group[0], b"")}
    if len(group) == 2 and now == alone:  # the weights without what lies beside them
        carried = HEADER_KEY.encode() in alone[group[0]][:100_000]
        return alone.items() <= after.items() or (
            alone.items() <= before.items() and (carried or left)
        )
    return False


def _is_new(group: tuple[str, ...], now: Tree, new: Tree) -> bool:
    return bool(now) and now == _part(new, group)


def _reads(path: Path) -> bool:
    if path.suffix == ".json":
        with contextlib.suppress(ValueError):
            return bool(json.loads(path.read_text()))
        return False
    try:
        return bool(TensorFile(path).infos)
    except CheckpointError:
        return False


def _again(scene: Scene, new: Tree, place: Path) -> Iterator[str]:
    """The same command until it is done, and what is then different from a run that was never struck."""
    said = ""
    for more in ("", *scene.again, "--force"):
        if more == "--force" and (
            "--force" in scene.line
            or (scene.line.startswith("score vit --method magnitude") and "-o" not in scene.line)
        ):
            continue
        ended = forked(place, command(f"{scene.line} {more}".strip()))
        said = ended.said
        if ended.code == 0:
            break
        if ended.code not in (2, 3):
            yield f"given again with '{more}' ends with {ended.code}: {said}"
            return
    else:
        yield f"is refused whatever is given: {said}"
        return
    found = tree(place)
    differing = sorted(name for name in {*found, *new} if found.get(name) != new.get(name))
    if differing:
        yield f"given again leaves other files: {differing}"
