"""Every option that a message or a hint names is one of the command that prints it.

The texts are found in the package's syntax tree. An option belongs to the command that is named
before it in its clause ("Write it with eval --predictions") or right behind it ("--predictions-in of
eval"), else to all commands that can print the text, as REACHED lists them; "(bench and export have
none)" excepts some. What a user reads must be true whichever command he typed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import hydrasurgeon
from hydrasurgeon.commands import COMMANDS, NAMED, Command
from hydrasurgeon.options.base import about
from hydrasurgeon.tasks import TASKS

ROOT = Path(hydrasurgeon.__file__).parent
OPTION = re.compile(r"(?<![\w-])(?:--[a-z][a-z0-9_-]*|-o(?![\w-]))")
WORD = re.compile(rf"{OPTION.pattern}|(?<![\w.-])[A-Za-z]+(?![\w/:-])")
CLAUSE = re.compile(r"[.;:,]\s|\n")
NONE = re.compile(r"\(([a-z, ]+) (?:have|has) none\)")
GIVEN = re.compile(rf"({OPTION.pattern})[^ :]*( [^ :]+)?(:| requires | conflicts )")
LABEL = re.compile(rf"[\W…]*{OPTION.pattern}( \S+)?\W*")
ELSEWHERE = {"--help", "--version", "--use_fsdp", "--upgrade"}
"""Options of no command, or of another program."""


def options_of(command: Command) -> set[str]:
    """All that a command can be told."""
    if not command.record:
        return {"--force", "-o", "--out", "--help"}
    record = command.options
    flags = {flag for field in record.model_fields for flag in record.flags(field)}
    return {part for flag in flags for part in flag.split("/")} | {
        *("--quiet", "-q", "--json", "--help", "-h")
    }


OPTIONS = {command.name: options_of(command) for command in COMMANDS}
ALL = {command.name for command in COMMANDS if command.record}
MAKE = {"score", "prune", "finetune", "fuse", "build", "calibrate", "export"}
RUN = MAKE | {"eval", "bench", "predict", "serve"}
"""Commands in which a model runs, and data may be read."""
BARE = RUN | {"inspect", "verify"}
"""Commands that open a checkpoint without a manifest."""
CLASSES = RUN - {"bench"}
"""Commands that give a CLIP its classes."""
REACHED: dict[str, set[str]] = {
    "anatomy/": BARE,
    "building/": {"build"},
    "checkpoints/": BARE,
    "checkpoints/class_names.py": CLASSES,
    "checkpoints/writing.py": MAKE,
    "cli/": set(),
    "criteria/": {"score", "prune"},
    "criteria/selection.py": {"prune"},
    "data/": RUN - {"serve"},
    "data/batches.py:unreadable": RUN - {"bench", "export", "serve"},
    "data/matching.py": RUN - {"bench", "serve"},
    "data/matching.py:unknown_classes": {"finetune", "build"},
    "data/samples.py:fit_held_out": {"finetune", "build"},
    "decision/": {"calibrate"},
    "engines/": RUN - {"score", "prune", "finetune", "fuse"},
    "errors.py": BARE,
    "families/": BARE,
    "families/prompts.py": CLASSES,
    "files/": ALL,
    "files/atomic.py": MAKE | {"predict", "eval", "bench"},
    "files/atomic.py:named": MAKE,
    "files/looks.py": {"monitor"},
    "files/resumable.py": {"finetune"},
    "files/tensors.py:write_tensors": MAKE,
    "heads.py": {"score", "prune"},
    "lookup.py": ALL,
    "measuring/": {"eval"},
    "measuring/cost.py:timed_samples": {"bench"},
    "measuring/drift.py": {"monitor"},
    "measuring/known.py": {"calibrate", "build"},
    "measuring/known.py:unfitted": {"calibrate"},
    "measuring/predictions.py": {"eval", "calibrate", "predict", "finetune"},
    "tasks/": {"calibrate"},
    "render/": set(),
    "report/": {"eval"},
    "run/": RUN,
    "runtime/": RUN,
    "runtime/answering.py:in_stages": {"predict", "eval", "serve"},
    "runtime/features.py:last_layers": CLASSES,
    "serving/": {"serve"},
    "sharing/": {"export"},
    "statistics/": {"calibrate"},
    "surgery/": {"prune"},
    "surgery/fusion.py": {"fuse"},
    "surgery/means.py": {"fuse"},
    "tuning/": {"finetune"},
    **{f"stages/{c.stage.partition(':')[0]}.py": {c.name} for c in COMMANDS if c.stage},
    "stages/calibrate_words.py": {"calibrate"},
    "stages/evaluate_models.py": {"eval"},
    "stages/predictor.py": {"predict"},
    "stages/retrace.py": {"inspect"},
}
"""Part of the package, perhaps with a function → commands that can print its texts: of those that fit
the longest counts. Where the set is empty, some command must have the option.
"""


class Text(NamedTuple):
    """A text of the package."""

    place: str
    """File and function."""
    line: int
    text: str


def texts(path: Path) -> Iterator[Text]:
    """The texts of a module that name options, but for docstrings and what tasks lack."""
    name = path.relative_to(ROOT).as_posix()

    def walked(node: ast.AST, function: str) -> Iterator[Text]:
        if isinstance(node, ast.FunctionDef):
            function = node.name
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "lacks":
            return
        text = written(node)
        if text is None:
            for child in ast.iter_child_nodes(node):
                yield from walked(child, function)
        elif OPTION.search(text):
            yield Text(f"{name}:{function}", getattr(node, "lineno", 0), text)

    return walked(ast.parse(path.read_text(encoding="utf-8")), "")


def written(node: ast.AST) -> str | None:
    """A text as it stands in the code, with … for what is put into it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
        return "".join(map(str, parts))
    return None


MODULES = [
    path
    for path in sorted(ROOT.rglob("*.py"))
    # Options have a test of their own below; commands that are examples run in other tests.
    if not path.is_relative_to(ROOT / "options") and path.name not in ("demo.py", "commands.py")
]
TEXTS = [text for path in MODULES for text in texts(path)]


def mentions(text: str) -> Iterator[tuple[str, str | None]]:
    """The options of a text, each with the command that is named with it."""
    for clause in CLAUSE.split(NONE.sub("", text)):
        command = None
        words = WORD.findall(clause)
        for at, word in enumerate(words):
            if word.lower() in OPTIONS:
                command = word.lower()
            elif word.startswith("-"):
                behind = words[at + 2] if words[at + 1 : at + 2] == ["of"] else ""
                yield word, behind if behind in OPTIONS else command


def wrong(place: str, text: str) -> list[str]:
    """The options of a text that a command which prints it does not have."""
    fitting = [part for part in REACHED if place.startswith(part)]
    assert fitting, f"{place}: say in REACHED which commands can print its messages"
    reached = REACHED[max(fitting, key=len)]
    for names in NONE.findall(text):
        reached = reached - set(re.split(r", | and ", names))
    given = GIVEN.match(text)
    if given:  # who reads it has given this option
        reached = {name for name in reached if given[1] in OPTIONS[name]}
    found = []
    for option, command in mentions(text):
        if command is not None:
            lacking = {command} if option not in OPTIONS[command] else set()
        elif LABEL.fullmatch(text) or not reached:
            lacking = set() if any(option in has for has in OPTIONS.values()) else {"any command"}
        else:
            lacking = {name for name in reached if option not in OPTIONS[name]}
        if lacking and option not in ELSEWHERE:
            found.append(f"{option} is not of {', '.join(sorted(lacking))}")
    return found


def test_the_texts_are_found() -> None:
    assert len(TEXTS) > 250
    named = {text.place.partition("/")[0] for text in TEXTS}
    assert named >= {"stages", "data", "criteria", "families", "sharing", "measuring"}


@pytest.mark.parametrize("part", sorted({text.place.partition("/")[0] for text in TEXTS}))
def test_options_in_messages_are_there(part: str) -> None:
    mistakes = [
        f"{place} {line}: {', '.join(found)}: {text!r}"
        for place, line, text in TEXTS
        if place.partition("/")[0] == part and (found := wrong(place, text))
    ]
    assert not mistakes, "\n" + "\n".join(mistakes)


@pytest.mark.parametrize("name", TASKS)
def test_what_a_task_has_instead_is_there(name: str) -> None:
    """In a command that has what the task lacks."""
    for feature, instead in TASKS[name].lacks.items():
        needed = {option for option, command in mentions(instead) if command is None}
        given = OPTION.findall(feature)
        assert any({*given, *needed} <= has for has in OPTIONS.values()), (feature, instead)


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.record], ids=lambda c: c.name)
def test_options_in_help_are_there(command: Command) -> None:
    """Those of another command are named with it."""
    record = command.options
    helps = [
        record.__doc__ or "",
        *(str(f.description or "") for f in record.model_fields.values()),
    ]
    helps += [str(about(field).get("unset") or "") for field in record.model_fields.values()]
    for text in helps:
        for option, other in mentions(text):
            assert option in OPTIONS[other or command.name] | ELSEWHERE, text


@pytest.mark.parametrize("text", [t for t in TEXTS if "hydrasurgeon " in t.text], ids=str)
def test_commands_in_messages_are_there(text: Text) -> None:
    for name in re.findall(r"(?:`|\$|: |^)hydrasurgeon ([a-z]+)", text.text):
        assert name in NAMED


def test_what_users_met_is_noticed() -> None:
    """Hints as they were, and as they are."""
    rows = "Leave such rows out, or give them as a file of their own, as --unlabelled."
    assert wrong("data/labels.py:x", rows)
    assert not wrong("data/labels.py:x", "Leave them out; finetune reads them as --unlabelled.")
    assert wrong("stages/build.py:x", "Continue it with --resume.") == ["--resume is not of build"]
    assert not wrong("stages/build.py:x", "Continue it with `finetune --resume`.")
    assert wrong("data/x.py:x", "Leave it out by --skip-bad.") == [
        "--skip-bad is not of bench, export"
    ]
    assert not wrong("data/x.py:x", "By --skip-bad (bench and export have none).")
    assert wrong("stages/fuse.py:x", "Tune them with --freeze mlp.") == ["--freeze is not of fuse"]
    assert wrong("stages/eval.py:x".replace("eval", "evaluate"), "--tempt 3: no such value")
    assert not wrong("criteria/x.py:x", "--sample 3: has nothing to draw from")
    assert wrong("criteria/x.py:x", "it has nothing to draw from: give --sample")
