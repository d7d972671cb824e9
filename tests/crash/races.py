"""Two writers that start at one moment with one output: one wins whole, the other says so, or both come in turn."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from crash.trial import LEFT, command, tree

TAYLOR = "--method taylor --data d.npz --limit 8 --device cpu"
RACES = {
    "file": ("prune vit --method random --keep 2 -o m --force", "prune vit --method random --keep 3 -o m --force"),
    "file without --force": ("prune vit --method random --keep 2 -o m", "prune vit --method random --keep 3 -o m"),
    "folder": ("prune vit --method random --keep 2 -o d/ --force", "prune vit --method random --keep 3 -o d/ --force"),
    "folder and file stages": ("fuse m1 m2 -o d/ --force", "prune vit --method random --keep 3 -o d/ --force"),
    "report": (
        "eval m1 --data d.npz --limit 8 --device cpu --json r.json --force",
        "eval m2 --data d.npz --limit 8 --device cpu --json r.json --force",
    ),
    "scores in place": ("score vit --method magnitude", "score vit --method random"),
}
"""Commands that meet at one output; both may succeed in turn, then the later one is what is there."""


def race(name: str, inputs: Path, work: Path) -> list[str]:
    """Run two commands at once; what is wrong with how that came out."""
    shutil.copytree(inputs, work)
    if name.startswith("folder"):
        _alone(work, "prune vit --method random --keep 1 -o d/")
    start = work.with_name("race-start")
    shutil.copytree(work, start)
    results = _together(work, RACES[name])
    codes = sorted(code for code, _ in results)
    found = tree(work)
    problems = []
    if codes not in ([0, 0], [0, 2]):
        problems.append(f"ended with {codes}: {results}")
    for code, said in results:
        if code == 2 and "another hydrasurgeon is writing it" not in said and "already exists" not in said:
            problems.append(f"does not say that another one writes: {said}")
    winners = [line for line, (code, _) in zip(RACES[name], results, strict=True) if code == 0]
    if found not in _possible(winners, start):
        problems.append(f"is none of what {winners} leave")
    problems += [f"leaves {each}" for each in found if LEFT.fullmatch(each.rpartition("/")[2])]
    for folder in (work, start):
        shutil.rmtree(folder)
    return [f"race for a {name}: {problem}" for problem in problems]


def _possible(winners: list[str], start: Path) -> list[dict[str, bytes]]:
    """What the winners leave, one after the other, in either order."""
    possible = []
    for order in (winners, winners[::-1]):
        folder = start.with_name("race-alone")
        shutil.copytree(start, folder)
        for line in order:
            _alone(folder, line)
        possible.append(tree(folder))
        shutil.rmtree(folder)
    return possible


def _alone(folder: Path, line: str) -> None:
    ((code, said),) = _together(folder, (line,))
    if code:
        raise RuntimeError(f"{line}: {said}")


def _together(folder: Path, lines: tuple[str, ...]) -> list[tuple[int, str]]:
    """Exit codes and what was said, of processes that begin at once."""
    reading, writing = os.pipe()
    children = []
    for i, line in enumerate(lines):
        said = folder.with_name(f"{folder.name}.{i}")
        child = os.fork()
        if child == 0:
            _run(folder, command(line), said, reading, writing)
        children.append((child, said))
    os.close(writing)  # the signal to begin: the pipe has no writer any more
    results = []
    for child, said in children:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        results.append((code, said.read_text()))
    os.close(reading)
    return results


def _run(folder: Path, work: Callable[[int], int], said: Path, reading: int, writing: int) -> None:
    code = 99
    try:
        os.close(writing)
        for number, path in ((1, os.devnull), (2, said)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        os.chdir(folder)
        os.read(reading, 1)
        code = work(-1)
    finally:
        os._exit(code)
